"""A bag of detections holds the boxes and scores that were given to its writer."""

import sys
from pathlib import Path

import numpy as np
from live_examples import SMALL
from rosbags.highlevel import AnyReader
from user_errors import raises

from rvtssm.detection.result_files import ResultContext, open_result_files
from rvtssm.detection.window_results import WindowResult
from rvtssm.records import Detections


def write(folder: Path, *found: Detections) -> None:
    with open_result_files(folder, ["mcap"], ResultContext(SMALL, (48, 64), 0.3)) as (append,):
        for frame in found:
            append(WindowResult(frame, frame.t_us - 50_000, (48, 64), SMALL))


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
    with raises("ros.time_of_message"):
        write(tmp_path, detections(-1))


def test_without_the_package_the_format_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with raises("extras.missing", "rosbags"):
        write(tmp_path)
