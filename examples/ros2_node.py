"""A node of ROS 2 that detects objects in the events of a camera: event messages in, vision_msgs/Detection2DArray out.

    python examples/ros2_node.py --ros-args -p checkpoint:=best.ckpt -p hz:=50.0 -r events:=/event_camera/events

It runs in the Python environment of ROS 2, in which rvtssm and the packages of the messages are installed:
event_camera_msgs (or dvs_msgs, or prophesee_event_msgs) and vision_msgs.
"""

from importlib import import_module

import rclpy
from builtin_interfaces.msg import Time
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

import rvtssm
from rvtssm.events.readers.event_messages import MessageDecoder
from rvtssm.prediction.frame_results import FrameResult
from rvtssm.prediction.predictor import LiveStream


class EventDetector(Node):
    """Subscribes to `events` and publishes the objects of every window to `detections`."""

    def __init__(self) -> None:
        super().__init__("event_detector")
        self.declare_parameter("checkpoint", "best.ckpt")
        self.declare_parameter("hz", 0.0)  # 0: the rate of the training
        self.declare_parameter("window", "")  # slide, shrink, or what the weights are made for
        self.declare_parameter("min_score", 0.3)
        self.declare_parameter("type", "event_camera_msgs/msg/EventPacket")
        self._predictor = rvtssm.load(self.get_parameter("checkpoint").value)
        self._kind = self.get_parameter("type").value
        self._decoder = MessageDecoder(self._kind)
        self._stream: LiveStream | None = None
        package, _, name = self._kind.split("/")
        message = getattr(import_module(f"{package}.msg"), name)
        self._publisher = self.create_publisher(Detection2DArray, "detections", 10)
        # raw: the bytes of a message are decoded here, because one Python object per event would take too long
        self.create_subscription(message, "events", self.receive, qos_profile_sensor_data, raw=True)

    def receive(self, data: bytes) -> None:
        """Detect in the events of one message and publish the windows that it closes."""
        try:
            events, (height, width) = self._decoder.push(data)
            if self._stream is None:
                hz, window = (self.get_parameter(name).value or None for name in ("hz", "window"))
                min_score = self.get_parameter("min_score").value
                self._stream = self._predictor.stream(height, width, hz=hz, window=window, min_score=min_score)
            results = self._stream.push(events)
        except ValueError as error:  # a damaged message, or a clock that jumps
            self.get_logger().error(str(error))
            self._stream, self._decoder = None, MessageDecoder(self._kind)
            return
        for result in results:
            self._publisher.publish(to_message(result))


def to_message(result: FrameResult) -> Detection2DArray:
    """Return the objects of one window, in pixels of the sensor, with the time of the end of the window."""
    message = Detection2DArray()
    t_us = result.t_us
    message.header.stamp = Time(sec=t_us // 1_000_000, nanosec=t_us % 1_000_000 * 1000)
    message.header.frame_id = "event_camera"
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
