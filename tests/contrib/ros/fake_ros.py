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
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def declare_parameter(self, name: str, value: object, descriptor: object = None) -> None:
        self.values[name] = self.parameters.get(name, value)
        assert type(self.values[name]) is type(value), "the type of a parameter is that of its default"

    def get_parameter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.values[name])

    def get_logger(self) -> SimpleNamespace:
        return SimpleNamespace(error=self.errors.append, fatal=self.errors.append, warning=self.warnings.append)

    def create_publisher(self, kind: object, topic: str, qos: object) -> SimpleNamespace:
        assert topic == "detections"
        return SimpleNamespace(publish=self.published.append)

    def create_subscription(self, kind, topic, callback, qos, raw=False):
        assert (kind, topic, raw) == ("the type of packets", "events", True)
        self.subscription = FakeSubscription(callback, qos.depth)

    def create_timer(self, period_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((period_s, callback))

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


class ExternalShutdownException(Exception):
    pass


SENSOR_DATA = SimpleNamespace(depth=5)  # the profile `qos_profile_sensor_data` of both distributions
MODULES: dict[str, dict[str, object]] = {
    "rclpy": {},
    "rclpy.node": {"Node": FakeNode},
    "rclpy.executors": {"ExternalShutdownException": ExternalShutdownException},
    "rclpy.qos": {
        "QoSProfile": SimpleNamespace,
        "ReliabilityPolicy": SimpleNamespace(BEST_EFFORT="best effort"),
        "qos_profile_sensor_data": SENSOR_DATA,
    },
    "rcl_interfaces": {},
    "rcl_interfaces.msg": {"ParameterDescriptor": SimpleNamespace},
    "builtin_interfaces": {},
    "builtin_interfaces.msg": {"Time": FakeMessage},
    "vision_msgs": {},
    "vision_msgs.msg": dict.fromkeys(("Detection2D", "Detection2DArray", "ObjectHypothesisWithPose"), FakeMessage),
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
