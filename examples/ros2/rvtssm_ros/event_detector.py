"""A node of ROS 2 that detects objects in the events of a camera: event messages in, vision_msgs/Detection2DArray out.

    ros2 launch rvtssm_ros event_detector.launch.py hz:=50.0

docs/live.md ("ROS 2") says how to install it. The callback of the subscription only puts a message into a queue. One
thread decodes messages, another detects, and passes over windows if it is late, as `rvtssm live` does. The node has a
life cycle (configure: load the weights; activate: subscribe and publish), which it goes through by itself.
"""

import sys
import threading
from dataclasses import replace
from importlib import import_module
from typing import Any

import rvtssm
from rvtssm.contrib.ros.message_source import MessageSource
from rvtssm.detection.feed import Feed
from rvtssm.detection.live_run import LiveRun
from rvtssm.detection.summary import Tally
from rvtssm.detection.window_results import WindowResult
from rvtssm.system.limits import check_choice, check_number

_HELP = "this node needs ROS 2 and its packages of messages; docs/live.md (ROS 2) says how to install them with rvtssm"
try:
    import rclpy
    from builtin_interfaces.msg import Time
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
    from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
    from rclpy.clock import Clock, ClockType
    from rclpy.executors import ExternalShutdownException
    from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
    from vision_msgs.msg import (
        Detection2D,
        Detection2DArray,
        LabelInfo,
        ObjectHypothesisWithPose,
        VisionClass,
        VisionInfo,
    )
except ImportError as error:
    sys.exit(f"{error}: {_HELP}")

from rvtssm_ros.parameters import PARAMETERS, taken  # noqa: E402

_REPORT_S = 5.0  # time between two reports of what was lost
_MOST_BYTES = 1 << 27  # of messages that wait to be decoded
# Of `Predictor.stream`; what is None there is 0 or empty here.
_OPTIONS = ("hz", "window", "downsample", "reduce", "tiles", "track")
_MAY_CHANGE = ("hz", "min_score")


class EventDetector(LifecycleNode):
    """Subscribes to `events` and publishes the objects of the newest window to `detections`."""

    def __init__(self) -> None:
        super().__init__("event_detector")
        for name, (default, description) in PARAMETERS.items():
            about = ParameterDescriptor(description=description, dynamic_typing=True)
            self.declare_parameter(name, default, about)
        self._values: dict[str, Any] = {name: taken(name, self.get_parameter(name).value) for name in PARAMETERS}
        check_choice("stamp", self._values["stamp"], ("ros", "sensor"))
        check_choice("reliability", self._values["reliability"], ("best_effort", "reliable"))
        self._predictor: Any = None  # until the node is configured, which checks the values of parameters
        self.source = self._new_source()
        self.failure: BaseException | None = None  # what ended the thread that detects
        self._message_type = _message_type(self._values["type"])
        self._tally = Tally(0)  # of the time since the last report
        self._num_dropped = 0  # messages that were decoded, then dropped
        self._reported = (0, 0)  # messages lost and received until the last report
        self._thread: threading.Thread | None = None  # while the node is active
        self.add_on_set_parameters_callback(self._on_parameters)

    def _new_source(self) -> MessageSource:
        return MessageSource(self._values["type"], _MOST_BYTES, self.get_logger().error)

    def start(self) -> bool:
        """Configure and activate the node; return whether both succeeded."""
        for change in (self.trigger_configure, self.trigger_activate):
            if change() != TransitionCallbackReturn.SUCCESS:
                return False
        return True

    def on_configure(self, state: object) -> Any:
        """Load the weights, compile the code, and say what the node will do."""
        try:
            self._configure()
        except Exception as error:  # which rclpy would not show
            self.failure = error
            self.get_logger().fatal(str(error))
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        values = self._values
        self._predictor = rvtssm.load(values["checkpoint"])
        self._options: dict[str, Any] = {name: values[name] or None for name in _OPTIONS}
        self._options |= {"min_score": values["min_score"], "filters": values["filters"]}
        spec = self._predictor.checkpoint.spec
        stream = self._predictor.stream(spec.height, spec.width, **self._options)  # raises if a parameter is wrong
        stream.warm_up()
        self._publisher = self.create_lifecycle_publisher(Detection2DArray, "detections", 10)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._label_info = self.create_publisher(LabelInfo, "label_info", latched)
        self._vision_info = self.create_publisher(VisionInfo, "vision_info", latched)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._label_info.publish(self._labels())
        method = f"{self._predictor.checkpoint.model_config.size} {self._predictor.checkpoint.temporal_config.name}"
        about = VisionInfo(method=method, database_location="label_info")
        about.header.stamp = self.get_clock().now().to_msg()
        self._vision_info.publish(about)
        self.get_logger().info(
            f"detects {', '.join(spec.class_names)} with {values['checkpoint']} at {stream.windows.hz:g} Hz in the "
            f"events of {self.resolve_topic_name('events')} ({values['type']})"
        )

    def on_activate(self, state: object) -> Any:
        """Subscribe, and begin to detect."""
        reliability = ReliabilityPolicy.BEST_EFFORT
        if self._values["reliability"] == "reliable":
            reliability = ReliabilityPolicy.RELIABLE
        qos = QoSProfile(depth=self._values["queue"], reliability=reliability)
        # raw: the bytes of a message are decoded in another thread; one Python object per event would take too long
        self._subscription = self.create_subscription(self._message_type, "events", self.source.put, qos, raw=True)
        # a steady clock, because the time of ROS may stand still or jump
        self._timer = self.create_timer(_REPORT_S, self.report, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._thread = threading.Thread(target=self._detect, args=(self.source,), name="rvtssm detect", daemon=True)
        self._thread.start()
        return super().on_activate(state)

    def on_deactivate(self, state: object) -> Any:
        """Stop subscribing and detecting. The weights stay, and the next activation begins a new stream."""
        self.end()
        self.source = self._new_source()
        self._num_dropped = 0
        self._reported = (0, 0)
        return super().on_deactivate(state)

    def on_cleanup(self, state: object) -> Any:
        """Let go of the weights and of what is published. The node may be configured again."""
        self.destroy_lifecycle_publisher(self._publisher)
        for publisher in (self._label_info, self._vision_info, self._diagnostics):
            self.destroy_publisher(publisher)
        self._predictor = None
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: object) -> Any:
        """Stop detecting, in whatever state the node is."""
        self.end()
        return TransitionCallbackReturn.SUCCESS

    def report(self) -> None:
        """Warn about what was lost or missing since the last report, and publish the numbers as diagnostics."""
        minute = self._tally.counts()
        self._tally = Tally(0)
        numbers = self.source.num_lost + self._num_dropped, self.source.num_received
        lost, received = (now - then for now, then in zip(numbers, self._reported, strict=True))
        self._reported = numbers
        problems = self._problems_of_topic(received)
        if lost:
            problems.append(
                f"{lost} messages of the camera were lost, {received} arrived; raise queue, or use a rate limiter or a "
                "region of interest of the camera"
            )
        if minute["num_passed"]:
            problems.append(f"{minute['num_passed']} windows were passed over; lower hz or raise downsample")
        for problem in problems:
            self.get_logger().warning(problem)
        facts = {
            "windows per second": f"{minute['num_windows'] / _REPORT_S:.1f}",
            "lag (ms)": ", ".join(f"{name} {value:.0f}" for name, value in minute["lag_ms"].items()),
            "messages received": str(received),
            "messages lost": str(lost),
            "windows passed over": str(minute["num_passed"]),
            "windows of silence": str(minute["num_silent"]),
            "queue (% of its size)": f"{100 * self.source.num_waiting_bytes / _MOST_BYTES:.0f}",
        }
        self._diagnostics.publish(self._status("; ".join(problems), facts))

    def end(self) -> None:
        """Stop subscribing and detecting, and wait for the window that is being computed."""
        self.source.end()
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        self.destroy_subscription(self._subscription)
        self.destroy_timer(self._timer)
        thread.join()
        self.report()

    def _problems_of_topic(self, received: int) -> list[str]:
        """Return why no message arrived, if none did."""
        if received:
            return []
        topic = self.resolve_topic_name("events")
        kind = self._values["type"]
        kinds = {publisher.topic_type for publisher in self.get_publishers_info_by_topic(topic)}
        if not kinds:
            return [f"nothing is published on {topic}; start the camera, or remap events"]
        if kind not in kinds:
            return [f"{topic} has messages of {', '.join(sorted(kinds))}, not of {kind}; set type"]
        return []

    def _status(self, problem: str, facts: dict[str, str]) -> DiagnosticArray:
        level = DiagnosticStatus.WARN if problem else DiagnosticStatus.OK
        values = [KeyValue(key=key, value=value) for key, value in facts.items()]
        status = DiagnosticStatus(level=level, name=self.get_name(), message=problem or "detecting", values=values)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        return message

    def _labels(self) -> LabelInfo:
        names = self._predictor.class_names
        classes = [VisionClass(class_id=number, class_name=name) for number, name in enumerate(names)]
        message = LabelInfo(class_map=classes, threshold=self._values["min_score"])
        message.header.stamp = self.get_clock().now().to_msg()
        return message

    def _on_parameters(self, parameters: list[Any]) -> Any:
        """Take new values of the parameters that may change, and refuse those of others."""
        for parameter in parameters:
            if parameter.name not in _MAY_CHANGE:
                return SetParametersResult(successful=False, reason=f"{parameter.name} is read at the start only")
            try:
                value: Any = taken(parameter.name, parameter.value)
                if parameter.name == "min_score":
                    check_number("min_score", value, 0, 1)
                elif self._predictor:  # also refuses `auto`, since a rate is measured before the first events
                    self._predictor.checkpoint.windows_at(value or None)
            except ValueError as error:
                return SetParametersResult(successful=False, reason=str(error))
            self._values[parameter.name] = value
        return SetParametersResult(successful=True)

    def _detect(self, source: MessageSource) -> None:
        """Detect until the source ends. A clock that jumps and a sensor whose size changes begin a new stream."""
        try:
            while source.wait_for_camera():
                try:
                    self._detect_stream(source)
                except rvtssm.UserError as error:  # the events cannot be used
                    self.get_logger().error(str(error))
                    self._num_dropped += 1  # the next message, with which the feed ends
        except BaseException as error:
            self.failure = error
            self.get_logger().fatal(f"detection ended: {error!r}")
            if rclpy.ok():
                rclpy.shutdown()
            raise

    def _detect_stream(self, source: MessageSource) -> None:
        """Detect in the events of one camera, until its size changes or the source ends."""
        applied = self._values["hz"] or None, self._values["min_score"]
        options = {**self._options, "hz": applied[0], "min_score": applied[1]}
        feed = Feed(source)
        stream = self._predictor.stream(source.height, source.width, **options, latest=True)
        run = LiveRun(feed, stream, heartbeat=self._values["heartbeat"])
        self.get_logger().info(f"the sensor has {source.width} x {source.height} pixels: {stream}")
        run.warm_up()
        while not feed.is_ended:
            wanted = self._values["hz"] or None, self._values["min_score"]
            if wanted != applied:
                if wanted[0] != applied[0]:
                    checkpoint = self._predictor.checkpoint
                    stream.windows = checkpoint.windows_at(wanted[0], options["window"], options["reduce"])
                stream.config = replace(stream.config, min_score=wanted[1])
                applied = wanted
            result = run.step()
            if result is not None:
                self._tally.add(result, len(result))
                self._publish(result)
        if feed.broke_off:
            raise rvtssm.UserError("source.broke_off", found=feed.broke_off)

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
        detection = Detection2D(header=message.header)
        hypothesis = ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id = name
        hypothesis.hypothesis.score = score
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
    """Run the node until Ctrl-C, and exit with 1 if detection has failed."""
    rclpy.init()
    try:
        node = EventDetector()
    except ValueError as error:  # of a parameter
        sys.exit(str(error))
    try:
        if not node.get_parameter("autostart").value or node.start():
            rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):  # Humble and Jazzy end `spin` with either
        pass
    finally:
        node.end()
        node.destroy_node()
        if rclpy.ok():
            rclpy.shutdown()
    if node.failure is not None:
        sys.exit(1)


if __name__ == "__main__":
    main()
