from enum import Enum

class ReliabilityPolicy(Enum):
    BEST_EFFORT = 2

class QoSProfile:
    def __init__(self, *, depth: int, reliability: ReliabilityPolicy) -> None: ...
