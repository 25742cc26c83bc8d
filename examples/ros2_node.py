"""A node of ROS 2 that detects objects in the events of a camera: event messages in, vision_msgs/Detection2DArray out.

    python examples/ros2_node.py --ros-args -p hz:=50.0 -r events:=/event_camera/events

It needs ROS 2 Jazzy or later, because rvtssm needs Python 3.11; docs/live.md ("ROS 2") says how to install both. The
packages of the messages are vision_msgs and event_camera_msgs (or dvs_msgs, or prophesee_event_msgs).
"""

import sys
from importlib import import_module
from time import perf_counter
from typing import Any

import rvtssm
from rvtssm.detection.engine import StreamDetector
from rvtssm.detection.window_results import WindowResult
from rvtssm.models.named_weights import DEFAULT_WEIGHTS
from rvtssm.readers.event_messages import MessageDecoder

_HELP = "this node needs ROS 2 and its packages of messages; docs/live.md (ROS 2) says how to install them with rvtssm"
try:
    import rclpy
    from builtin_interfaces.msg import Time
    from rclpy.node import Node
    from rclpy.qos import qos_profile_sensor_data
    from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose
except ImportError as error:
    sys.exit(f"{error}: {_HELP}")


class EventDetector(Node):
    """Subscribes to `events` and publishes the objects of every window to `detections`."""

    def __init__(self) -> None:
        super().__init__("event_detector")
        self.declare_parameter("checkpoint", DEFAULT_WEIGHTS)
        self.declare_parameter("hz", 0.0)  # 0: the rate of the training
        self.declare_parameter("window", "")  # slide, shrink, or what the weights are made for
        self.declare_parameter("downsample", 0)  # 0: the factor that makes frames as large as in training
        self.declare_parameter("min_score", 0.3)
        self.declare_parameter("type", "event_camera_msgs/msg/EventPacket")
        self._predictor = rvtssm.load(self.get_parameter("checkpoint").value)
        self._kind = self.get_parameter("type").value
        self._decoder = MessageDecoder(self._kind)
        self._stream: StreamDetector | None = None
        self._since_us: int | None = None  # sensor time from which the work of `_busy_s` counts
        self._busy_s = 0.0
        package, _, name = self._kind.split("/")
        try:
            message = getattr(import_module(f"{package}.msg"), name)
        except ImportError as error:
            sys.exit(f"{error}: {_HELP}")
        self._publisher = self.create_publisher(Detection2DArray, "detections", 10)
        # raw: the bytes of a message are decoded here, because one Python object per event would take too long
        self.create_subscription(message, "events", self.receive, qos_profile_sensor_data, raw=True)

    def receive(self, data: bytes) -> None:
        """Detect in the events of one message and publish the windows that it closes."""
        began_s = perf_counter()
        try:
            events, (height, width) = self._decoder.push(data)
            if self._stream is None:
                names = ("hz", "window", "downsample")
                options: dict[str, Any] = {name: self.get_parameter(name).value or None for name in names}
                min_score = self.get_parameter("min_score").value
                self._stream = self._predictor.stream(height, width, **options, min_score=min_score)
            results = self._stream.push(events)
        except ValueError as error:  # a damaged message, or a clock that jumps
            self.get_logger().error(str(error))
            self._stream, self._decoder, self._since_us = None, MessageDecoder(self._kind), None
            return
        for result in results:
            self._publisher.publish(to_message(result, self._decoder.frame_id))
        self._busy_s += perf_counter() - began_s
        if results:
            self._warn_if_late(results[-1].t_us)

    def _warn_if_late(self, t_us: int) -> None:
        """Warn if a second of events took longer than a second. The first windows, which compile, do not count."""
        past_s = 0.0 if self._since_us is None else (t_us - self._since_us) / 1e6
        if 0 < past_s < 1:
            return
        if self._busy_s > past_s > 0:
            self.get_logger().warning(
                f"the last {past_s:.1f} s of events took {self._busy_s:.1f} s, so detections come late and packets are "
                "lost; lower hz or raise downsample"
            )
        self._since_us, self._busy_s = t_us, 0.0


def to_message(result: WindowResult, frame_id: str) -> Detection2DArray:
    """Return the objects of one window, in pixels of the sensor.

    The stamp is the end of the window in the time of the events, which need not be the clock of ROS.
    """
    message = Detection2DArray()
    t_us = result.t_us
    message.header.stamp = Time(sec=t_us // 1_000_000, nanosec=t_us % 1_000_000 * 1000)
    message.header.frame_id = frame_id
    for name, score, xyxy in zip(result.names, result.score.tolist(), result.xyxy.tolist(), strict=True):
        left, top, right, bottom = xyxy
        detection, hypothesis = Detection2D(header=message.header), ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id, hypothesis.hypothesis.score = name, score
        detection.results.append(hypothesis)
        detection.bbox.center.position.x, detection.bbox.center.position.y = (left + right) / 2, (top + bottom) / 2
        detection.bbox.size_x, detection.bbox.size_y = right - left, bottom - top
        message.detections.append(detection)
    return message


def main() -> None:
    rclpy.init()
    node = EventDetector()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        node.destroy_node()


if __name__ == "__main__":
    main()
