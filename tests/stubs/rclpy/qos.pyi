from enum import Enum

class ReliabilityPolicy(Enum):
    RELIABLE = 1
    BEST_EFFORT = 2

class DurabilityPolicy(Enum):
    TRANSIENT_LOCAL = 1

class QoSProfile:
    def __init__(
        self, *, depth: int, reliability: ReliabilityPolicy = ..., durability: DurabilityPolicy = ...
    ) -> None: ...
