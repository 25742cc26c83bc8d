"""A node of ROS 2 that detects objects in the events of a camera: event messages in, vision_msgs/Detection2DArray out.

    ros2 launch rvtssm_ros event_detector.launch.py hz:=50.0

docs/live.md ("ROS 2") says how to install it. The callback of the subscription only puts a message into a queue. One
thread decodes messages, another detects, and passes over windows if it is late, as `rvtssm live` does.
"""

import sys
import threading
from importlib import import_module
from typing import Any

import rvtssm
from rvtssm.contrib.ros.message_source import MessageSource
from rvtssm.detection.feed import Feed
from rvtssm.detection.window_results import WindowResult
from rvtssm.system.limits import check_choice

_HELP = "this node needs ROS 2 and its packages of messages; docs/live.md (ROS 2) says how to install them with rvtssm"
try:
    import rclpy
    from builtin_interfaces.msg import Time
    from rcl_interfaces.msg import ParameterDescriptor
    from rclpy.executors import ExternalShutdownException
    from rclpy.node import Node
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose
except ImportError as error:
    sys.exit(f"{error}: {_HELP}")

from rvtssm_ros.parameters import PARAMETERS  # noqa: E402

_REPORT_S = 5.0  # time between two reports of what was lost
# Of `Predictor.stream`; what is None there is 0 or empty here.
_OPTIONS = ("hz", "window", "downsample", "reduce", "tiles", "track")


class EventDetector(Node):
    """Subscribes to `events` and publishes the objects of the newest window to `detections`."""

    def __init__(self) -> None:
        super().__init__("event_detector")
        for name, (default, description) in PARAMETERS.items():
            self.declare_parameter(name, default, ParameterDescriptor(description=description, read_only=True))
        self._values: dict[str, Any] = {name: self.get_parameter(name).value for name in PARAMETERS}
        check_choice("stamp", self._values["stamp"], ("ros", "sensor"))
        self._predictor = rvtssm.load(self._values["checkpoint"])
        self._options: dict[str, Any] = {name: self._values[name] or None for name in _OPTIONS}
        self._options["min_score"] = self._values["min_score"]
        self._options["filters"] = self._values["filters"].split(",") if self._values["filters"] else []
        spec = self._predictor.checkpoint.spec
        self._predictor.stream(spec.height, spec.width, **self._options)  # raises now if a parameter is wrong
        self.source = MessageSource(self._values["type"], self._values["queue"], self.get_logger().error)
        self._feed: Feed | None = None
        self._num_passed = self._num_dropped = 0  # windows without a result; messages that were decoded, then dropped
        self._reported = (0, 0, 0)
        self._publisher = self.create_publisher(Detection2DArray, "detections", 10)
        # best effort, so that publishers with either reliability fit
        qos = QoSProfile(depth=self._values["queue"], reliability=ReliabilityPolicy.BEST_EFFORT)
        # raw: the bytes of a message are decoded in another thread; one Python object per event would take too long
        self.create_subscription(_message_type(self._values["type"]), "events", self.source.put, qos, raw=True)
        self.create_timer(_REPORT_S, self.report)
        self._thread = threading.Thread(target=self._detect, name="rvtssm detect", daemon=True)
        self._thread.start()

    def report(self) -> None:
        """Log what was lost or passed over since the last report, if there was anything."""
        feed = self._feed
        num_dropped = self._num_dropped + (0 if feed is None else feed.num_lost)
        numbers = self.source.num_lost + num_dropped, self._num_passed, self.source.num_received
        lost, passed, received = (now - then for now, then in zip(numbers, self._reported, strict=True))
        self._reported = numbers
        if lost:
            self.get_logger().warning(
                f"{lost} messages of the camera were lost, {received} arrived; raise queue, or use a rate limiter or a "
                "region of interest of the camera"
            )
        if passed:
            self.get_logger().warning(f"{passed} windows were passed over; lower hz or raise downsample")

    def end(self) -> None:
        """Stop detecting, and wait for the window that is being computed."""
        self.source.end()
        self._thread.join(timeout=_REPORT_S)
        self.report()

    def _detect(self) -> None:
        """Detect until the node ends. A clock that jumps and a sensor whose size changes begin a new stream."""
        try:
            while self.source.wait_for_camera():
                self._feed = Feed(self.source)
                try:
                    for result in self._predictor.live(self._feed, **self._options):
                        self._num_passed += result.num_passed
                        self._publish(result)
                        if self.source.is_interrupted:
                            return
                except rvtssm.UserError as error:  # the events cannot be used
                    self.get_logger().error(str(error))
                    self._num_dropped += 1  # the next message, with which the feed ends
                self._num_dropped += self._feed.num_lost
                self._feed = None
        except Exception as error:
            self.get_logger().fatal(f"detection ended: {error!r}")
            if rclpy.ok():
                rclpy.shutdown()
            raise

    def _publish(self, result: WindowResult) -> None:
        stamp_us = self.source.ros_time_us(result.t_us) if self._values["stamp"] == "ros" else result.t_us
        self._publisher.publish(to_message(result, stamp_us, self.source.frame_id))


def to_message(result: WindowResult, stamp_us: int, frame_id: str) -> Detection2DArray:
    """Return the objects of one window, in pixels of the sensor. `id` is the number of the track, or empty."""
    message = Detection2DArray()
    message.header.stamp = Time(sec=stamp_us // 1_000_000, nanosec=stamp_us % 1_000_000 * 1000)
    message.header.frame_id = frame_id
    tracks = [0] * len(result) if result.track_id is None else result.track_id.tolist()
    columns = result.names, result.score.tolist(), result.xyxy.tolist(), tracks
    for name, score, (left, top, right, bottom), track in zip(*columns, strict=True):
        detection, hypothesis = Detection2D(header=message.header), ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id, hypothesis.hypothesis.score = name, score
        detection.id = str(track or "")
        detection.results.append(hypothesis)
        detection.bbox.center.position.x, detection.bbox.center.position.y = (left + right) / 2, (top + bottom) / 2
        detection.bbox.size_x, detection.bbox.size_y = right - left, bottom - top
        message.detections.append(detection)
    return message


def _message_type(kind: str) -> type:
    package, _, name = kind.split("/")
    try:
        message: type = getattr(import_module(f"{package}.msg"), name)
    except ImportError as error:
        sys.exit(f"{error}: {_HELP}")
    return message


def main() -> None:
    """Run the node until Ctrl-C. Humble and Jazzy end `spin` with either exception."""
    rclpy.init()
    try:
        node = EventDetector()
    except rvtssm.UserError as error:
        sys.exit(str(error))
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.end()
        node.destroy_node()
        if rclpy.ok():
            rclpy.shutdown()


if __name__ == "__main__":
    main()
