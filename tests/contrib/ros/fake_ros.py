"""A stand-in for what the node uses of ROS 2: queues with a depth, messages in real time, and modules to import."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar


class FakeSubscription:
    """The queue of the middleware. A message that comes while it is full takes the place of the oldest one."""

    def __init__(self, callback: Callable[[bytes], None], depth: int) -> None:
        self.callback, self.depth = callback, depth
        self.num_dropped = 0
        self._waiting = deque[bytes]()
        self._lock = threading.Lock()

    def arrive(self, message: bytes) -> None:
        with self._lock:
            if len(self._waiting) == self.depth:
                self._waiting.popleft()
                self.num_dropped += 1
            self._waiting.append(message)

    def take(self) -> bytes | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None


class FakeNode:
    """What the node uses of `rclpy.node.Node`; `parameters` replaces the command line of ROS."""

    parameters: ClassVar[dict[str, object]] = {}

    def __init__(self, name: str) -> None:
        self.values: dict[str, Any] = {}
        self.published: list[Any] = []
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.infos: list[str] = []
        self.others: dict[str, list[Any]] = {}  # messages on other topics than the boxes
        self.publishers: list[Any] = [SimpleNamespace(topic_type="event_camera_msgs/msg/EventPacket")]
        self.destroyed: list[object] = []  # publishers
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def declare_parameter(self, name: str, value: object, descriptor: object = None) -> None:
        self.values[name] = self.parameters.get(name, value)

    def get_parameter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.values[name])

    def get_logger(self) -> SimpleNamespace:
        levels = {"error": self.errors, "fatal": self.errors, "warning": self.warnings, "info": self.infos}
        return SimpleNamespace(**{name: lines.append for name, lines in levels.items()})

    def create_publisher(self, kind: object, topic: str, qos: object) -> SimpleNamespace:
        return SimpleNamespace(publish=self.others.setdefault(topic, []).append)

    def create_lifecycle_publisher(self, kind: object, topic: str, qos: object) -> SimpleNamespace:
        assert topic == "detections"
        return SimpleNamespace(publish=self.published.append)

    def get_name(self) -> str:
        return "event_detector"

    def get_clock(self) -> SimpleNamespace:
        return SimpleNamespace(now=lambda: SimpleNamespace(to_msg=FakeMessage))

    def resolve_topic_name(self, topic: str) -> str:
        return f"/{topic}"

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return self.publishers

    def add_on_set_parameters_callback(self, callback: Callable[[list[Any]], Any]) -> None:
        self.on_parameters = callback

    def trigger_configure(self) -> str:
        return self.on_configure(None)

    def trigger_activate(self) -> str:
        return self.on_activate(None)

    def on_configure(self, state: object) -> str:
        return "success"

    def on_activate(self, state: object) -> str:
        return "success"

    def trigger_deactivate(self) -> str:
        return self.on_deactivate(None)

    def trigger_cleanup(self) -> str:
        return self.on_cleanup(None)

    def on_deactivate(self, state: object) -> str:
        return "success"

    def on_cleanup(self, state: object) -> str:
        return "success"

    def destroy_subscription(self, subscription: FakeSubscription) -> None:
        assert subscription is self.subscription

    def destroy_timer(self, timer: object) -> None:
        self.timers.remove(timer)

    def destroy_publisher(self, publisher: object) -> None:
        self.destroyed.append(publisher)

    destroy_lifecycle_publisher = destroy_publisher

    def create_subscription(self, kind, topic, callback, qos, raw=False):
        assert (kind, topic, raw) == ("the type of packets", "events", True)
        self.subscription = FakeSubscription(callback, qos.depth)
        return self.subscription

    def create_timer(self, period_s: float, callback: Callable[[], None], clock: object = None) -> object:
        self.timers.append((period_s, callback))
        return self.timers[-1]

    def spin(self, messages: Sequence[bytes], period_s: float, wait_s: float = 0.0) -> None:
        """Let messages arrive at their period, in a thread of their own, and call back until none is left."""

        def send() -> None:
            began_s = time.monotonic()
            for number, message in enumerate(messages):
                time.sleep(max(began_s + number * period_s - time.monotonic(), 0))
                self.subscription.arrive(message)

        sender = threading.Thread(target=send)
        sender.start()
        while True:
            is_sent = not sender.is_alive()
            message = self.subscription.take()
            if message is not None:
                self.subscription.callback(message)
            elif is_sent:
                break
            else:
                time.sleep(0.0005)
        time.sleep(wait_s)


class FakeMessage(SimpleNamespace):
    """A message whose fields come into being, except lists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, [] if name in ("detections", "results") else FakeMessage())
        return getattr(self, name)


class FakeStatus(FakeMessage):
    OK, WARN = 0, 1


class ExternalShutdownException(Exception):
    pass


SENSOR_DATA = SimpleNamespace(depth=5)  # the profile `qos_profile_sensor_data` of both distributions
MODULES: dict[str, dict[str, object]] = {
    "rclpy": {},
    "rclpy.lifecycle": {
        "LifecycleNode": FakeNode,
        "TransitionCallbackReturn": SimpleNamespace(SUCCESS="success", FAILURE="failure"),
    },
    "rclpy.clock": {"Clock": SimpleNamespace, "ClockType": SimpleNamespace(STEADY_TIME="steady")},
    "rclpy.executors": {"ExternalShutdownException": ExternalShutdownException},
    "rclpy.qos": {
        "QoSProfile": SimpleNamespace,
        "ReliabilityPolicy": SimpleNamespace(BEST_EFFORT="best effort", RELIABLE="reliable"),
        "DurabilityPolicy": SimpleNamespace(TRANSIENT_LOCAL="latched"),
        "qos_profile_sensor_data": SENSOR_DATA,
    },
    "rcl_interfaces": {},
    "rcl_interfaces.msg": {"ParameterDescriptor": SimpleNamespace, "SetParametersResult": SimpleNamespace},
    "diagnostic_msgs": {},
    "diagnostic_msgs.msg": {
        "DiagnosticArray": FakeMessage,
        "DiagnosticStatus": FakeStatus,
        "KeyValue": FakeMessage,
    },
    "builtin_interfaces": {},
    "builtin_interfaces.msg": {"Time": FakeMessage},
    "vision_msgs": {},
    "vision_msgs.msg": dict.fromkeys(
        ("Detection2D", "Detection2DArray", "LabelInfo", "ObjectHypothesisWithPose", "VisionClass", "VisionInfo"),
        FakeMessage,
    ),
    "event_camera_msgs": {},
    "event_camera_msgs.msg": {"EventPacket": "the type of packets"},
}


def fake_modules() -> dict[str, ModuleType]:
    """Return the modules by name, for `sys.modules`."""
    modules = {}
    for name, content in MODULES.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(content)
    return modules
