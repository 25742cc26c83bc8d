from typing import ClassVar

from vision_msgs.msg import Header  # of std_msgs

class KeyValue:
    def __init__(self, *, key: str, value: str) -> None: ...

class DiagnosticStatus:
    OK: ClassVar[bytes]
    WARN: ClassVar[bytes]
    def __init__(self, *, level: bytes, name: str, message: str, values: list[KeyValue]) -> None: ...

class DiagnosticArray:
    header: Header
    def __init__(self, *, status: list[DiagnosticStatus]) -> None: ...
