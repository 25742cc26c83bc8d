from builtin_interfaces.msg import Time

class Header:  # of std_msgs
    stamp: Time
    frame_id: str

class Point2D:
    x: float
    y: float

class Pose2D:
    position: Point2D
    theta: float

class BoundingBox2D:
    center: Pose2D
    size_x: float
    size_y: float

class ObjectHypothesis:
    class_id: str
    score: float

class ObjectHypothesisWithPose:
    hypothesis: ObjectHypothesis

class Detection2D:
    header: Header
    results: list[ObjectHypothesisWithPose]
    bbox: BoundingBox2D
    id: str
    def __init__(self, *, header: Header = ...) -> None: ...

class Detection2DArray:
    header: Header
    detections: list[Detection2D]

class VisionClass:
    def __init__(self, *, class_id: int, class_name: str) -> None: ...

class LabelInfo:
    header: Header
    def __init__(self, *, class_map: list[VisionClass], threshold: float) -> None: ...

class VisionInfo:
    header: Header
    def __init__(self, *, method: str, database_location: str) -> None: ...
