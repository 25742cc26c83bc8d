from enum import Enum

from builtin_interfaces.msg import Time as TimeMessage

class ClockType(Enum):
    STEADY_TIME = 3

class Time:
    def to_msg(self) -> TimeMessage: ...

class Clock:
    def __init__(self, *, clock_type: ClockType) -> None: ...
    def now(self) -> Time: ...
