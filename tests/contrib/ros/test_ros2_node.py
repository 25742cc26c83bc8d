"""The node of ROS 2 in `examples/ros2` publishes what a stream finds, and loses no message while it computes."""

import importlib.util
import re
import runpy
import sys
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events
from live_examples import SMALL
from rosbags.highlevel import AnyReader
from user_errors import raises

import rvtssm
from rvtssm.contrib.ros.message_source import MessageSource
from rvtssm.detection import DetectionConfig, PredictConfig, configured_detector, live_run
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.result_files import ResultContext, open_result_files
from rvtssm.detection.window_detector import TiledDetector
from rvtssm.detection.window_results import WindowResult
from rvtssm.records import Detections, Events
from tests.contrib.ros.bag_writer import EVENT_PACKET, message_of, typestore_of, write_bag
from tests.contrib.ros.fake_ros import FakeNode, fake_modules
from tests.waiting import wait_until

PACKAGE = Path(__file__).parents[3] / "examples" / "ros2"
NODE = PACKAGE / "rvtssm_ros" / "event_detector.py"
ROS_OFFSET_US = 1_700_000_000_000_000


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_ros(monkeypatch):
    """Stand-ins for the modules of ROS, and the folder of the package in the path."""
    for name, module in fake_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setattr(FakeNode, "parameters", {})


@pytest.fixture
def node_with(fake_ros, monkeypatch):
    """A function: parameters -> the node, which ends with the test."""
    nodes = []

    def build(**parameters):
        monkeypatch.setattr(FakeNode, "parameters", parameters)
        parameters.setdefault("heartbeat", False)
        nodes.append(load_module(NODE).EventDetector())
        if not nodes[-1].start():
            raise nodes[-1].failure
        return nodes[-1]

    yield build
    for node in nodes:
        node.end()


STORE = typestore_of("mcap")


def packet_of(events: Events, number: int = 0, encoding: str = "mono", size_hw=(HEIGHT, WIDTH)) -> bytes:
    message = message_of(STORE, EVENT_PACKET, events, encoding, size_hw, number, ROS_OFFSET_US)
    return bytes(STORE.serialize_cdr(message, EVENT_PACKET))


def stamp_us(message) -> int:
    return message.header.stamp.sec * 10**6 + message.header.stamp.nanosec // 1000


@pytest.mark.parametrize("lacks", ["rclpy", "event_camera_msgs.msg"])
def test_without_ros_the_node_says_in_one_line_what_it_needs(monkeypatch, fake_ros, lacks):
    start = partial(runpy.run_path, str(NODE))
    if lacks != "rclpy":
        start = load_module(NODE).EventDetector
    monkeypatch.setitem(sys.modules, lacks, None)
    with pytest.raises(SystemExit) as ended:
        start()
    assert re.fullmatch(rf".*{lacks}.*: this node needs ROS 2 .* docs/live.md \(ROS 2\) .*", str(ended.value))


@pytest.mark.parametrize("stamp", ["ros", "sensor"])
def test_the_node_publishes_what_a_stream_finds(node_with, weights, draw_events, monkeypatch, stamp):
    monkeypatch.setattr(live_run, "_LONGEST_WAY_US", 1 << 40)  # the test waits where a camera would not
    events = draw_events(3_000)
    options = {"hz": 15.0, "downsample": 2, "reduce": "sum", "tiles": "2x2", "min_score": 0.1}
    node = node_with(checkpoint=weights, stamp=stamp, filters="hot_pixels", **options)
    stream, wanted = rvtssm.load(weights).stream(HEIGHT, WIDTH, filters=["hot_pixels"], **options), []
    for number, part in enumerate(np.array_split(np.arange(len(events)), 7)):
        packet = events[part[0] : part[-1] + 1]
        wanted += stream.push(packet)
        node.source.put(packet_of(packet, number))
        wait_until(lambda: len(node.published) == len(wanted))  # noqa: B023 (called within the loop)
    assert node.errors == [] and len(wanted) > 5
    assert sum(len(result) for result in wanted) > 0
    for message, result in zip(node.published, wanted, strict=True):
        assert stamp_us(message) == result.t_us + (ROS_OFFSET_US if stamp == "ros" else 0)
        assert message.header.frame_id == "camera"  # as the messages of the events name it
        assert [found.results[0].hypothesis.class_id for found in message.detections] == result.names
        boxes = [
            (found.bbox.center.position.x, found.bbox.center.position.y, found.bbox.size_x, found.bbox.size_y)
            for found in message.detections
        ]
        left, top, right, bottom = result.detections.xyxy.T
        centred = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=1)
        np.testing.assert_allclose(np.reshape(boxes, (-1, 4)), centred, rtol=1e-6)
        assert {found.id for found in message.detections} <= {""}
    node.source.put(b"\0\1\0\0damaged")
    wait_until(lambda: node.errors)
    assert len(node.errors) == 1 and "before a field" in node.errors[0]


def test_no_message_is_lost_while_the_detector_computes(node_with, weights, monkeypatch):
    """At 71 % load: packets of 4 ms, 35 ms for each window of 50 ms. In a callback with a queue of 5, half are lost."""

    def detect(self, frames, dt_us, indices, ends_us):
        time.sleep(0.0355)
        nothing = np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64)
        return [Detections(*nothing, t) for t in ends_us]

    monkeypatch.setattr(TiledDetector, "detect", detect)
    node = node_with(checkpoint=weights)
    packets = [packet_of(random_events(40, n, 4_000, 4_000 * n, fills_span=True), n) for n in range(500)]
    node.spin(packets, 0.004, wait_s=0.2)
    assert node.subscription.num_dropped == 0
    passed = node._tally.num_passed
    node.report()
    assert node.errors == [] and not [line for line in node.warnings if "lost" in line]
    assert len(node.published) + node._tally.num_passed + passed >= 38  # of 39 windows, in 2 s of events


def test_messages_that_the_middleware_dropped_are_reported(node_with, weights):
    node = node_with(checkpoint=weights)
    for number in (0, 1, 2, 5, 6, 20):
        node.source.put(packet_of(random_events(100, number, 20_000, 20_000 * number, fills_span=True), number))
    wait_until(lambda: node.source.num_lost == 15)
    node.report()
    assert any(line.startswith("15 messages of the camera were lost, 6 arrived") for line in node.warnings)
    node.warnings.clear()
    node.report()
    assert node.warnings == []  # nothing since the last report
    period_s, callback = node.timers[0]
    assert (period_s, callback) == (5.0, node.report)


def test_messages_that_find_the_queue_full_are_counted():
    messages = [packet_of(random_events(10, number, 1000, 1000 * number), number) for number in range(6)]
    source = MessageSource(EVENT_PACKET, 3 * len(messages[0]), lambda text: None)
    for message in messages[:5]:
        source.put(message)
    assert source.num_lost == 2  # the oldest ones
    assert source.wait_for_camera() and (source.height, source.width) == (HEIGHT, WIDTH)
    blocks = source.packets()
    assert [int(next(blocks).events.t[0] // 1000) for _ in range(3)] == [2, 3, 4]
    source.put(messages[5])
    next(blocks)
    assert source.num_lost == 2  # `seq` skipped the same two messages


def test_windows_that_a_slow_detector_passes_over_are_reported(node_with, weights):
    node = node_with(checkpoint=weights, downsample=2)
    for number in range(12):  # as if twelve messages waited during one long computation
        node.source.put(packet_of(random_events(300, number, 100_000, 100_000 * number, fills_span=True), number))
    wait_until(lambda: len(node.published) + node._tally.num_passed >= 23)
    node.report()
    assert any("windows were passed over; lower hz or raise downsample" in line for line in node.warnings)


@pytest.mark.parametrize("encoding", ["mono", "evt3"])
def test_the_node_goes_on_after_the_clock_jumps_back_and_after_the_sensor_changes(
    node_with, weights, draw_events, encoding
):
    node = node_with(checkpoint=weights, stamp="sensor")

    def send(events, size_hw=(HEIGHT, WIDTH), closes=True):
        before = len(node.published)
        node.source.put(packet_of(events, node.source.num_received, encoding, size_hw))
        wait_until(lambda: not node.source._waiting)
        if closes:
            wait_until(lambda: len(node.published) > before)

    for start_us in (9_000_000, 7_000_000):  # the second as if the driver was started again
        send(draw_events(100, start_us, 1_000), closes=False)
        for number in range(4):
            send(draw_events(500, start_us + 5_000 + 50_000 * number, 50_000))
    wait_until(lambda: len([message for message in node.published if stamp_us(message) < 7_300_000]) >= 2)
    assert len(node.errors) == 1 and "jumped back from" in node.errors[0]
    late = draw_events(100, 7_204_000, 1_000)  # by less than 10 ms: repaired as a recording is
    send(late, closes=False)
    assert len(node.errors) == 1
    node.published.clear()
    for number in range(6):
        send(draw_events(500, 7_300_000 + 50_000 * number, 50_000), (2 * HEIGHT, WIDTH), closes=False)
    wait_until(lambda: node.published)
    assert len(node.errors) == 2 and "its height, width and encoding are" in node.errors[1]
    assert node.source.num_unusable == 2


def test_objects_have_the_ids_of_their_tracks(node_with, weights, draw_events):
    pytest.importorskip("trackers")
    node = node_with(checkpoint=weights, min_score=0.05, track="bytetrack")
    for number, start_us in enumerate(range(7_000_000, 7_400_000, 50_000)):
        before = len(node.published)
        node.source.put(packet_of(draw_events().between(start_us, start_us + 50_000), number))
        if number:
            wait_until(lambda before=before: len(node.published) > before)  # its first event closes a window
    wait_until(lambda: any(found.id for message in node.published for found in message.detections))


def test_a_wrong_parameter_ends_the_node_at_once(node_with, weights):
    with pytest.raises(rvtssm.UserError, match="stamp"):
        node_with(checkpoint=weights, stamp="wall")
    with pytest.raises(rvtssm.UserError, match="window"):
        node_with(checkpoint=weights, window="short")
    with pytest.raises(rvtssm.UserError, match="tiles"):
        node_with(checkpoint=weights, tiles="2")
    with pytest.raises(ValueError, match="hz='fast' is not a float"):
        node_with(checkpoint=weights, hz="fast")


def test_numbers_and_lists_are_taken_and_some_parameters_may_change(node_with, weights):
    node = node_with(checkpoint=weights, hz=20, min_score=0, filters=["background"])
    assert (node._values["hz"], node._options["filters"]) == (20.0, ["background"])
    assert node.infos[0].startswith("detects car, pedestrian with ") and "at 20 Hz" in node.infos[0]
    (labels,) = node.others["label_info"]
    assert [(each.class_id, each.class_name) for each in labels.class_map] == [(0, "car"), (1, "pedestrian")]

    def changed(name, value):
        return node.on_parameters([SimpleNamespace(name=name, value=value)]).successful

    assert changed("hz", 40) and changed("min_score", 0.5)
    assert not changed("hz", -1) and not changed("hz", "fast") and not changed("checkpoint", "other")
    assert not changed("min_score", 1.5) and not changed("min_score", -0.1)
    assert (node._values["hz"], node._values["min_score"]) == (40.0, 0.5)


def test_parameters_may_change_before_the_weights_are_loaded(fake_ros, weights, monkeypatch):
    monkeypatch.setattr(FakeNode, "parameters", {"checkpoint": weights, "autostart": False, "heartbeat": False})
    node = load_module(NODE).EventDetector()
    assert node.on_parameters([SimpleNamespace(name="hz", value=40)]).successful
    assert node.start() and "at 40 Hz" in node.infos[0]
    node.end()
    node.on_cleanup(None)
    assert node.on_parameters([SimpleNamespace(name="hz", value=20)]).successful


def test_a_new_stream_keeps_the_parameters_that_have_changed(node_with, weights, draw_events):
    node = node_with(checkpoint=weights, min_score=0.0)
    streams = []

    def stream(*arguments, **options):
        streams.append(made(*arguments, **options))
        return streams[-1]

    made, node._predictor.stream = node._predictor.stream, stream
    assert node.on_parameters([SimpleNamespace(name="min_score", value=0.9)]).successful
    for number, height in enumerate((HEIGHT, 2 * HEIGHT, 2 * HEIGHT)):  # the second one ends the stream
        packet = packet_of(draw_events(500, 7_000_000 + 50_000 * number, 50_000), number, size_hw=(height, WIDTH))
        node.source.put(packet)
    wait_until(lambda: len(streams) == 2)
    assert [stream.config.min_score for stream in streams] == [0.9, 0.9]


def test_the_node_goes_through_its_life_twice(node_with, weights, draw_events, monkeypatch):
    node = node_with(checkpoint=weights, hz=20, stamp="sensor")
    for life in range(2):
        thread, subscription = node._thread, node.subscription
        node.source.put(packet_of(draw_events(), 0))
        wait_until(lambda: node.published)
        assert node.trigger_deactivate() == "success"
        assert not thread.is_alive() and node.timers == [] and node._thread is None
        node.published.clear()
        node.subscription.callback(packet_of(draw_events(), 1))  # which comes too late, and is for nobody
        assert node.trigger_activate() == "success" and node.subscription is not subscription
        node.source.put(packet_of(draw_events(), 2))
        wait_until(lambda: node.published)  # with the same weights, in a new stream
        assert node.trigger_deactivate() == "success" and node.trigger_cleanup() == "success"
        assert len(node.destroyed) == 4 * (life + 1) and node._predictor is None
        node.published.clear()
        if life == 0:
            assert node.start()
    assert node.errors == []


def test_the_rate_of_a_node_may_be_the_one_that_the_machine_sustains(node_with, weights, draw_events, monkeypatch):
    monkeypatch.setattr(configured_detector, "sustained_hz", lambda seconds, trained_hz: 10.0)
    node = node_with(checkpoint=weights, hz="auto", stamp="sensor")
    assert "at 10 Hz" in node.infos[0]
    node.source.put(packet_of(draw_events()))
    wait_until(lambda: node.published)
    assert "10 Hz with windows" in node.infos[1]
    parameter = SimpleNamespace(name="hz", value="auto")
    assert not node.on_parameters([parameter]).successful  # a rate is measured before the first events
    assert node.on_parameters([SimpleNamespace(name="hz", value=20)]).successful


def test_a_silent_topic_is_told_with_its_reason(node_with, weights):
    node = node_with(checkpoint=weights)
    node.report()
    assert node.warnings == []  # a camera is there, and still
    node.publishers = []
    node.report()
    assert "nothing is published on /events" in node.warnings[0]
    node.publishers = [SimpleNamespace(topic_type="sensor_msgs/msg/Image")]
    node.report()
    assert "messages of sensor_msgs/msg/Image, not of event_camera_msgs/msg/EventPacket" in node.warnings[1]
    levels = [array.status[0].level for array in node.others["/diagnostics"]]
    assert levels == [0, 1, 1]


def test_stamps_never_go_back_within_a_stream():
    """The clock of the camera runs a little fast against that of ROS."""
    source = MessageSource(EVENT_PACKET, 1 << 20, lambda text: None)
    source._clocks_us.extend([(1_000, 5_000), (2_000, 4_500), (3_000, 2_000)])
    stamps = [source.ros_time_us(time_us) for time_us in (1_500, 2_001, 2_500, 3_500, 9_000)]
    assert stamps == sorted(stamps) and stamps[0] == 6_500


def test_the_launch_file_and_the_package_name_what_the_node_declares(fake_ros, monkeypatch):
    given = {}

    def noted(kind, **kwargs):
        given.setdefault(kind, []).append(kwargs)
        return kind

    modules = {
        "launch": {"LaunchDescription": lambda parts: parts},
        "launch.actions": {"DeclareLaunchArgument": lambda name, **kwargs: noted("argument", name=name, **kwargs)},
        "launch.substitutions": {"LaunchConfiguration": lambda name: name},
        "launch_ros": {},
        "launch_ros.actions": {"Node": lambda **kwargs: noted("node", **kwargs)},
        "launch_ros.parameter_descriptions": {"ParameterValue": lambda name, value_type: (name, value_type)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    assert len(load_module(PACKAGE / "launch" / "event_detector.launch.py").generate_launch_description()) == 17
    (node,) = given["node"]
    parameters = load_module(PACKAGE / "rvtssm_ros" / "parameters.py").PARAMETERS
    types = {name: (name, type(value)) for name, (value, _) in parameters.items()}
    assert node["parameters"] == [types | {"hz": ("hz", None)}]  # a number, or `auto`
    assert [argument["name"] for argument in given["argument"]] == ["events", *parameters]
    assert node["remappings"] == [("events", "events")]
    described = ElementTree.parse(PACKAGE / "package.xml").getroot()
    assert described.findtext("name") == node["package"] == "rvtssm_ros"
    assert described.findtext("export/build_type") == "ament_python"
    needed = {depend.text for depend in described.findall("exec_depend")}
    imported = set(re.findall(r"^    (?:from|import) (\w+)", NODE.read_text(), re.MULTILINE))
    assert imported <= needed, imported - needed
    assert f"{node['executable']} = " in (PACKAGE / "setup.py").read_text()


# bags of detections


def write(folder: Path, *found: Detections) -> None:
    with open_result_files(folder, ["mcap"], ResultContext(SMALL, (48, 64), 0.3)) as (append,):
        for frame in found:
            append(WindowResult(frame, frame.t_us - 50_000, (48, 64), SMALL))


def test_what_a_killed_run_has_written_stays_beside_the_next_one(tmp_path):
    (tmp_path / "detections.folder").mkdir()
    write(tmp_path, detections(50_000))
    assert {path.name for path in tmp_path.iterdir()} == {"detections.folder", "detections.mcap"}


def detections(t_us: int, track_id: np.ndarray | None = None) -> Detections:
    boxes = np.array([[1, 2, 5, 7], [10, 20, 30, 40]], np.float32)
    return Detections(boxes, np.array([0.75, 0.5], np.float32), np.array([0, 1]), t_us, track_id)


def test_a_bag_holds_what_was_found(tmp_path):
    write(tmp_path, detections(50_000), detections(1_100_000, np.array([7, 0])))
    with AnyReader([tmp_path / "detections.mcap"]) as reader:
        messages = [reader.deserialize(data, each.msgtype) for each, _, data in reader.messages()]
    stamps = [message.header.stamp.sec * 10**6 + message.header.stamp.nanosec // 1000 for message in messages]
    assert stamps == [50_000, 1_100_000]
    assert [[box.id for box in message.detections] for message in messages] == [["", ""], ["7", ""]]
    first, second = messages[0].detections
    assert [box.results[0].hypothesis.class_id for box in (first, second)] == ["car", "pedestrian"]
    assert [box.results[0].hypothesis.score for box in (first, second)] == [0.75, 0.5]
    center = first.bbox.center.position
    assert (center.x, center.y, first.bbox.size_x, first.bbox.size_y) == (3.0, 4.5, 4.0, 5.0)


def test_a_time_that_no_message_can_have_is_refused(tmp_path):
    with raises("setting.conflict"):
        write(tmp_path, detections(-1))


def test_without_the_package_the_format_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with raises("install.extra", "rosbags"):
        write(tmp_path)


@pytest.mark.parametrize("encoding", ["mono", "evt3"])
def test_boxes_of_a_bag_have_the_clock_of_its_messages(tmp_path, live_checkpoint, draw_events, encoding):
    messages = []
    for number, part in enumerate(np.array_split(np.arange(6_000), 9)):
        events = draw_events()[part[0] : part[-1] + 1]
        message = message_of(STORE, EVENT_PACKET, events, encoding, (HEIGHT, WIDTH), number, ROS_OFFSET_US)
        messages.append((1000 * (ROS_OFFSET_US + int(events.t[-1])), message))
    bag = write_bag(tmp_path / "bag", {"/events": messages}, STORE, "mcap")
    found = []
    predict_recording(
        live_checkpoint(),
        bag,
        tmp_path / "out",
        DetectionConfig(downsample=1),
        PredictConfig(formats=["mcap"]),
        on_window=found.append,
        progress=False,
    )
    with AnyReader([tmp_path / "out" / "detections.mcap"]) as reader:
        read = [(log_ns, reader.deserialize(data, each.msgtype)) for each, log_ns, data in reader.messages()]
    assert [stamp_us(message) for _, message in read] == [window.t_us + ROS_OFFSET_US for window in found]
    assert [log_ns // 1000 for log_ns, _ in read] == [stamp_us(message) for _, message in read]
    assert {message.header.frame_id for _, message in read} == {"camera"} and len(read) > 5
