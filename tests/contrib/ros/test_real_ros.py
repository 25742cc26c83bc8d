"""The node of `examples/ros2` with the real rclpy and DDS, where they are installed (scripts/ros_messages.py)."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH

import rvtssm
from rvtssm.detection import live_run
from tests.contrib.ros.bag_writer import EVENT_PACKET, message_of, typestore_of
from tests.waiting import wait_until

rclpy = pytest.importorskip("rclpy")
for needed in ("vision_msgs.msg", "event_camera_msgs.msg", "diagnostic_msgs.msg"):
    pytest.importorskip(needed)

from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from event_camera_msgs.msg import EventPacket  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.lifecycle import TransitionCallbackReturn  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile  # noqa: E402
from vision_msgs.msg import Detection2DArray, LabelInfo  # noqa: E402

PACKAGE = Path(__file__).parents[3] / "examples" / "ros2"
ROS_OFFSET_US = 1_700_000_000_000_000
STORE = typestore_of("mcap")


@pytest.fixture
def ros():
    """The context of ROS for one test; no message leaves this machine."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)
    rclpy.init()
    yield rclpy
    if rclpy.ok():
        rclpy.shutdown()


@pytest.fixture
def listen(ros, monkeypatch):
    """A function: parameters -> the running node with a listener, which end with the test."""
    running = []

    def start(**parameters):
        running.append(Listener(monkeypatch, **parameters))
        return running[-1]

    yield start
    for listener in running:
        listener.end()


class Listener:
    """Runs the node and a node of its own, which publishes events and keeps what comes back."""

    def __init__(self, monkeypatch, **parameters):
        monkeypatch.syspath_prepend(str(PACKAGE))
        from rvtssm_ros.event_detector import EventDetector

        words = ["--ros-args", *(word for name, value in parameters.items() for word in ("-p", f"{name}:={value}"))]
        rclpy.shutdown()
        rclpy.init(args=words)
        self.node, self.own = EventDetector(), rclpy.create_node("listener")
        self.boxes, self.labels, self.diagnostics = [], [], []
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.own.create_subscription(Detection2DArray, "detections", self.boxes.append, 100)
        self.own.create_subscription(LabelInfo, "label_info", self.labels.append, latched)
        self.own.create_subscription(DiagnosticArray, "/diagnostics", self.diagnostics.append, 10)
        self.camera = self.own.create_publisher(EventPacket, "events", 1000)
        self._executor = SingleThreadedExecutor()
        for node in (self.node, self.own):
            self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self.has_started = self.node.start()
        self._thread.start()

    def _spin(self):
        with contextlib.suppress(rclpy.executors.ExternalShutdownException):
            self._executor.spin()

    def send(self, events, number):
        written = message_of(STORE, EVENT_PACKET, events, "mono", (HEIGHT, WIDTH), number, ROS_OFFSET_US)
        message = EventPacket(height=HEIGHT, width=WIDTH, seq=number, encoding="mono", time_base=written.time_base)
        message.header.frame_id = written.header.frame_id
        message.header.stamp.sec = written.header.stamp.sec
        message.header.stamp.nanosec = written.header.stamp.nanosec
        message.events = written.events.tolist()
        self.camera.publish(message)

    def end(self):
        self.node.end()
        self._executor.shutdown()
        for node in (self.node, self.own):
            node.destroy_node()


def test_the_node_publishes_what_a_stream_finds(listen, weights, monkeypatch, draw_events):
    monkeypatch.setattr(live_run, "_LONGEST_WAY_US", 1 << 40)  # the test waits where a camera would not
    options = {"min_score": 0.1, "hz": 15, "heartbeat": "false", "filters": "[hot_pixels]"}
    listener = listen(checkpoint=weights, **options)
    assert listener.has_started
    wait_until(lambda: listener.camera.get_subscription_count() > 0 and listener.labels)
    assert [label.class_name for label in listener.labels[0].class_map] == ["car", "pedestrian"]
    events = draw_events(3_000)
    stream, wanted = rvtssm.load(weights).stream(HEIGHT, WIDTH, hz=15, min_score=0.1, filters=["hot_pixels"]), []
    for number, part in enumerate(np.array_split(np.arange(len(events)), 7)):
        packet = events[part[0] : part[-1] + 1]
        wanted += stream.push(packet)
        listener.send(packet, number)
        wait_until(lambda: len(listener.boxes) >= len(wanted))  # noqa: B023 (called within the loop)
    stamps = [message.header.stamp.sec * 10**6 + message.header.stamp.nanosec // 1000 for message in listener.boxes]
    assert stamps[: len(wanted)] == [window.t_us + ROS_OFFSET_US for window in wanted] and len(wanted) > 5
    for message, window in zip(listener.boxes, wanted, strict=False):
        assert message.header.frame_id == "camera"
        assert [box.results[0].hypothesis.class_id for box in message.detections] == window.names
        scores = [box.results[0].hypothesis.score for box in message.detections]
        np.testing.assert_allclose(scores, window.score, rtol=1e-6)
    listener.node.report()
    wait_until(lambda: listener.diagnostics)
    values = {value.key: value.value for value in listener.diagnostics[-1].status[0].values}
    assert values["messages received"] == "7" and values["messages lost"] == "0"
    # the score may change while it runs, the weights may not
    changed = listener.node.set_parameters([Parameter("min_score", value=1), Parameter("checkpoint", value="other")])
    assert [result.successful for result in changed] == [True, False]
    listener.send(draw_events(500, 7_500_000, 50_000), 7)
    listener.send(draw_events(500, 7_600_000, 120_000), 8)
    wait_until(lambda: listener.boxes[-1].header.stamp.nanosec > 600_000_000)
    assert not listener.boxes[-1].detections


def test_the_node_goes_through_its_life_again(listen, weights, draw_events):
    listener = listen(checkpoint=weights, hz="auto")
    for number in range(2):
        wait_until(lambda: listener.camera.get_subscription_count() > 0)
        before = len(listener.boxes)
        for part in range(3):
            listener.send(draw_events(900, 7_000_000 + 100_000 * part, 100_000), part)
        wait_until(lambda before=before: len(listener.boxes) > before)
        changes = [listener.node.trigger_deactivate, listener.node.trigger_cleanup]
        assert [change() for change in changes] == [TransitionCallbackReturn.SUCCESS] * 2
        wait_until(lambda: listener.camera.get_subscription_count() == 0)
        if number == 0:
            assert listener.node.start()


def test_a_topic_without_events_is_named(listen, weights, monkeypatch):
    listener = listen(checkpoint=weights)
    assert listener.node._problems_of_topic(0) == []  # the listener publishes events, only none yet
    listener.own.destroy_publisher(listener.camera)
    wait_until(lambda: listener.node._problems_of_topic(0))
    assert "nothing is published on /events" in listener.node._problems_of_topic(0)[0]
    other = SimpleNamespace(topic_type="sensor_msgs/msg/Image")
    monkeypatch.setattr(listener.node, "get_publishers_info_by_topic", lambda topic: [other])
    assert "messages of sensor_msgs/msg/Image, not of event_camera_msgs" in listener.node._problems_of_topic(0)[0]


@pytest.mark.parametrize("fault", ["weights", "thread"])
def test_a_node_that_fails_exits_with_1(ros, weights, tmp_path, fault):
    program = (
        "import sys\nfrom rvtssm_ros import event_detector as module\n"
        "def fail(*_):\n    raise RuntimeError('no memory')\n"
        f"if {fault == 'thread'}:\n    module.MessageSource.wait_for_camera = fail\n"
        "module.main()\n"
    )
    checkpoint = weights if fault == "thread" else str(tmp_path / "none.ckpt")
    words = ["--ros-args", "-p", f"checkpoint:={checkpoint}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), *sys.path])}
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 1
    assert {"weights": "none.ckpt", "thread": "no memory"}[fault] in ended.stdout + ended.stderr
