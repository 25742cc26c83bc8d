class Time:
    sec: int
    nanosec: int
    def __init__(self, *, sec: int = 0, nanosec: int = 0) -> None: ...
