"""The node of ROS 2 in `examples/` publishes what a stream finds; it runs with a stand-in for the libraries of ROS."""

import importlib.util
import re
import runpy
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH

import rvtssm
from rvtssm.detection.predictor import Predictor
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.records import Events
from tests.readers.bag_writer import EVENT_PACKET, message_of, typestore_of

EXAMPLES = Path(__file__).parents[3] / "examples"


class FakeNode:
    """What the example uses of `rclpy.node.Node`; `parameters` replaces the command line of ROS."""

    parameters: ClassVar[dict[str, object]] = {}

    def __init__(self, name):
        self.values, self.published, self.errors, self.warnings = {}, [], [], []

    def declare_parameter(self, name, value):
        self.values[name] = self.parameters.get(name, value)

    def get_parameter(self, name):
        return SimpleNamespace(value=self.values[name])

    def get_logger(self):
        return SimpleNamespace(error=self.errors.append, warning=self.warnings.append)

    def create_publisher(self, kind, topic, qos):
        assert topic == "detections"
        return SimpleNamespace(publish=self.published.append)

    def create_subscription(self, kind, topic, callback, qos, raw=False):
        assert (kind, topic, raw) == ("the type of packets", "events", True)
        self.callback = callback


class FakeMessage(SimpleNamespace):
    """A message whose fields come into being, except lists."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, [] if name in ("detections", "results") else FakeMessage())
        return getattr(self, name)


@pytest.fixture
def node_file(monkeypatch):
    """The module of the example, imported with the stand-in."""
    for name, content in {
        "rclpy": {},
        "rclpy.node": {"Node": FakeNode},
        "rclpy.qos": {"qos_profile_sensor_data": object()},
        "builtin_interfaces": {},
        "builtin_interfaces.msg": {"Time": FakeMessage},
        "vision_msgs": {},
        "vision_msgs.msg": dict.fromkeys(("Detection2D", "Detection2DArray", "ObjectHypothesisWithPose"), FakeMessage),
        "event_camera_msgs": {},
        "event_camera_msgs.msg": {"EventPacket": "the type of packets"},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("ros2_node", EXAMPLES / "ros2_node.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lacks", ["rclpy", "event_camera_msgs.msg"])
def test_without_ros_the_node_says_in_one_line_what_it_needs(monkeypatch, request, lacks):
    if lacks == "rclpy":
        monkeypatch.setitem(sys.modules, lacks, None)
        start = partial(runpy.run_path, str(EXAMPLES / "ros2_node.py"))
    else:
        start = request.getfixturevalue("node_file").EventDetector
        monkeypatch.setitem(sys.modules, lacks, None)
    with pytest.raises(SystemExit) as ended:
        start()
    assert re.fullmatch(rf".*{lacks}.*: this node needs ROS 2 .* docs/live.md \(ROS 2\) .*", str(ended.value))


def test_the_node_publishes_what_a_stream_finds(node_file, live_checkpoint, draw_events, tmp_path, monkeypatch):
    weights, events = live_checkpoint(), draw_events(3_000)
    write_checkpoint(tmp_path / "best.ckpt", weights.detector, weights)
    parameters = {"checkpoint": str(tmp_path / "best.ckpt"), "hz": 15.0, "min_score": 0.1}
    monkeypatch.setattr(FakeNode, "parameters", parameters)
    node, store = node_file.EventDetector(), typestore_of("mcap")
    for part in np.array_split(np.arange(len(events)), 7):
        packet = Events(events.t[part], events.x[part], events.y[part], events.p[part])
        message = message_of(store, EVENT_PACKET, packet, "mono", (HEIGHT, WIDTH))
        node.callback(bytes(store.serialize_cdr(message, EVENT_PACKET)))
    detector: Predictor = rvtssm.load(tmp_path / "best.ckpt")
    wanted = detector.stream(HEIGHT, WIDTH, hz=15, min_score=0.1).push(events)
    assert node.errors == [] and len(node.published) == len(wanted) > 5
    assert sum(len(result) for result in wanted) > 0
    for message, result in zip(node.published, wanted, strict=True):
        assert message.header.stamp.sec * 10**6 + message.header.stamp.nanosec // 1000 == result.found.t_us
        assert message.header.frame_id == "camera"  # as the messages of the events name it
        assert [found.results[0].hypothesis.class_id for found in message.detections] == result.names
        boxes = [
            (found.bbox.center.position.x, found.bbox.center.position.y, found.bbox.size_x, found.bbox.size_y)
            for found in message.detections
        ]
        left, top, right, bottom = result.found.xyxy.T
        centred = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=1)
        np.testing.assert_allclose(np.reshape(boxes, (-1, 4)), centred, rtol=1e-6)
    node.callback(b"\0\1\0\0damaged")
    assert len(node.errors) == 1 and "before a field" in node.errors[0]


def test_the_node_goes_on_after_the_clock_jumps_back(node_file, live_checkpoint, draw_events, tmp_path, monkeypatch):
    weights, store = live_checkpoint(), typestore_of("mcap")
    write_checkpoint(tmp_path / "best.ckpt", weights.detector, weights)
    monkeypatch.setattr(FakeNode, "parameters", {"checkpoint": str(tmp_path / "best.ckpt")})
    node = node_file.EventDetector()

    def send(events, size_hw=(HEIGHT, WIDTH)):
        message = message_of(store, EVENT_PACKET, events, "mono", size_hw)
        node.callback(bytes(store.serialize_cdr(message, EVENT_PACKET)))

    for start_us in (9_000_000, 7_000_000):  # the second as if the driver was started again
        send(draw_events(100, start_us, 1_000))
        for number in range(4):
            send(draw_events(500, start_us + 5_000 + 50_000 * number, 50_000))
    assert len(node.errors) == 1 and "jumped back from" in node.errors[0]
    ends_us = [m.header.stamp.sec * 10**6 + m.header.stamp.nanosec // 1000 for m in node.published]
    assert min(ends_us) < 7_300_000 and len([t for t in ends_us if t < 7_300_000]) >= 2
    late = draw_events(100, 7_204_000, 1_000)  # by less than 10 ms: repaired as a recording is
    send(late)
    send(draw_events(100, 7_300_000, 1_000), (2 * HEIGHT, WIDTH))
    assert len(node.errors) == 2 and "its height, width and encoding are" in node.errors[1]


def test_the_node_takes_the_weights_in_the_box_and_warns_once_per_second_that_it_is_late(
    node_file, draw_events, monkeypatch
):
    monkeypatch.setattr(FakeNode, "parameters", {"downsample": 2})
    clock = iter(np.arange(0, 1e6, 0.2).tolist())  # every message takes 0.2 s
    monkeypatch.setattr(node_file, "perf_counter", lambda: next(clock))
    node, store = node_file.EventDetector(), typestore_of("mcap")
    for number in range(34):
        packet = draw_events(200, 100_000 * number, 100_000)
        message = message_of(store, EVENT_PACKET, packet, "mono", (HEIGHT, WIDTH))
        node.callback(bytes(store.serialize_cdr(message, EVENT_PACKET)))
    assert node.errors == [] and node.values["checkpoint"] == "street-tiny"
    assert node._stream.downsample == 2
    assert len(node.warnings) == 3 and all("1.0 s of events took 2.0 s" in said for said in node.warnings)
