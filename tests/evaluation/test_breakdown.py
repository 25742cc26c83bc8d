"""Where a score comes from, on cases small enough to be counted by hand, and beside pycocotools itself."""

import json
import math

import numpy as np
import pytest
from test_coco import SPEC, make_detections, make_labels, perfect, plain_coco, random_recording

from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import evaluate_detections, precision_curves
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.evaluation.tracks import track_speeds
from rvtssm.records import DatasetSpec

CAR, PEDESTRIAN = 0, 1
A, B, C, D = [10, 10, 40, 40], [100, 10, 40, 40], [10, 100, 40, 40], [200, 100, 60, 60]
TRACKS = np.dtype([("t", "<i8"), *((n, "<f4") for n in "xywh"), ("class_id", "<u4"), ("track_id", "<u4")])


def test_confusion_is_counted_by_hand():
    labels = make_labels([A, B, C], [1_000_000] * 3, [CAR, PEDESTRIAN, CAR])
    frame = make_detections([A, B, D, C, A], [0.9, 0.8, 0.7, 0.2, 0.6], 1_000_000, [CAR, CAR, PEDESTRIAN, CAR, CAR])
    found = break_down([ScoredRecording("a", labels, [frame])], SPEC)
    assert found.confusion.tolist() == [
        [1, 0, 1],  # one car found, one whose score is too low
        [1, 0, 0],  # the pedestrian is found as a car
        [1, 1, 0],  # the second detection of A, and that of D
    ]
    assert found.highest_score == pytest.approx(0.9)
    (worst,) = found.worst
    assert (worst.recording, worst.t_us, worst.num_missed, worst.num_false) == ("a", 1_000_000, 2, 3)


def test_perfect_detections_leave_nothing_to_say():
    labels, _ = random_recording(np.random.default_rng(0))
    found = break_down([ScoredRecording("a", labels, perfect(labels))], SPEC)
    counts = np.bincount(labels.class_id, minlength=2)
    assert found.confusion.tolist() == [[counts[0], 0, 0], [0, counts[1], 0], [0, 0, 0]] and found.worst == ()
    assert all(curve == pytest.approx(1) for curve in found.curves.values())


def test_the_worst_frames_come_first_and_lie_apart():
    times = np.array([600_000, 900_000, 2_000_000, 3_000_000])
    boxes = [[10 + 60 * i, 10, 40, 40] for i in range(4)]
    t_us = np.repeat(times, [4, 3, 1, 2])
    labels = make_labels([box for n in (4, 3, 1, 2) for box in boxes[:n]], t_us)
    frames = [make_detections([], [], t) for t in times]
    found = break_down([ScoredRecording("a", labels, frames), ScoredRecording("b", labels[:1], frames)], SPEC)
    assert [(f.recording, f.t_us, f.num_missed) for f in found.worst] == [
        ("a", 600_000, 4),
        ("a", 3_000_000, 2),
        ("a", 2_000_000, 1),
        ("b", 600_000, 1),
    ]
    assert len(break_down([ScoredRecording("a", labels, frames)], SPEC, num_worst=2).worst) == 2


def test_frames_and_boxes_that_are_not_scored_do_not_count():
    labels = make_labels([A, [0, 0, 5, 5]], [1_000_000] * 2)  # the second is too small
    frames = [make_detections([A, D], [0.9, 0.9], 1_000_000), make_detections([D], [0.9], 1_250_000)]
    found = break_down([ScoredRecording("a", labels, frames)], SPEC)
    assert found.confusion.tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_precision_curves_are_those_of_pycocotools():
    """A plain COCOeval over the same boxes, in their own order."""
    rng = np.random.default_rng(3)
    recordings = [ScoredRecording(name, *random_recording(rng, num_frames=8, noise=6)) for name in "ab"]
    plain = plain_coco(recordings)
    curves = precision_curves(match_detections(recordings, SPEC), SPEC)
    for k, name in enumerate(SPEC.class_names):
        np.testing.assert_array_equal(curves[name], plain.eval["precision"][0, :, k, 0, 2])
        assert 0 < curves[name].mean() < 1
    metrics = evaluate_detections(recordings, SPEC)
    assert metrics["AP50"] == pytest.approx(np.mean([curve.mean() for curve in curves.values()]))


def test_a_class_without_ground_truth_has_no_curve():
    labels = make_labels([A], [1_000_000])
    curves = precision_curves(match_detections([("a", labels, perfect(labels))], SPEC), SPEC)
    assert curves["car"] == pytest.approx(1) and np.isnan(curves["pedestrian"]).all()


def test_groups_are_scored_apart():
    """Objects that stood still for long are missed, and those without a track belong to no speed."""
    boxes, times = [A, B, C, [100, 100, 120, 120]], [1_000_000] * 4
    labels = make_labels(boxes, times, still_us=[0, 400_000, 2_000_000, -1])
    frame = make_detections([A, B, boxes[3]], [0.9, 0.8, 0.7], 1_000_000)
    speeds = {"a": np.array([0.1, 0.01, 0.9, np.nan])}
    found = break_down([ScoredRecording("a", labels, [frame])], SPEC, speeds)
    groups = {group.name: group for group in found.groups}
    assert list(groups) == ["size", "time since last motion", "speed"]
    assert groups["time since last motion"].num_boxes == dict.fromkeys(groups["time since last motion"].ap, 1)
    assert list(groups["time since last motion"].ap.values()) == pytest.approx([1, 1, 0])
    assert list(groups["speed"].num_boxes.values()) == [1, 1, 1]
    assert list(groups["speed"].ap.values()) == pytest.approx([1, 1, 0])
    assert groups["size"].num_boxes == {"small": 0, "medium": 3, "large": 1}
    assert groups["size"].ap["large"] == pytest.approx(1) and math.isnan(groups["size"].ap["small"])
    assert [g.name for g in break_down([ScoredRecording("a", labels, [frame])], SPEC).groups] == [*groups][:2]
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["groups"]["size"]["parts"]["small"] == {"boxes": 0, "AP": None}


def tracked(*rows):
    boxes = np.zeros(len(rows), TRACKS)
    for i, (t, x, y, class_id, track_id) in enumerate(rows):
        boxes[i] = t, x, y, 40, 40, class_id, track_id
    return boxes


def test_speed_is_that_of_the_centre_along_a_track():
    boxes = tracked(
        (0, 10, 10, 0, 1),
        (0, 100, 10, 0, 2),
        (500_000, 25.2, 10, 0, 1),  # 15.2 px in half a second: 304 px are a width
        (500_000, 100, 10, 0, 2),
        (2_000_000, 90, 10, 0, 1),  # too long after
        (2_000_000, 95, 10, 1, 3),  # another class close by, at its first sight
    )
    order = [3, 2, 0, 4, 5]
    labels = make_labels([boxes[i].item()[1:5] for i in order], boxes["t"][order], boxes["class_id"][order])
    assert track_speeds(labels, boxes, SPEC) == pytest.approx([0, 0.1, np.nan, np.nan, np.nan], nan_ok=True)
    halved = DatasetSpec("halved", 480, 608, ("car",), 100_000, 20, 60, 5, 0, class_ids=(2,), downsample=2)
    doubled = boxes[:4].copy()
    for name in "xywh":
        doubled[name] *= 2
    doubled["class_id"] = 2  # as on disk
    assert track_speeds(labels[:2], doubled, halved) == pytest.approx([0, 0.1])
    boxes["track_id"][boxes["track_id"] == 2] = 0
    assert track_speeds(labels[:2], boxes, SPEC) == pytest.approx([0, 0.1]), "0 may be a track"
    boxes[4] = (500_000, *boxes[4].item()[1:6], 0)
    assert track_speeds(labels[:2], boxes, SPEC) == pytest.approx([np.nan, 0.1], nan_ok=True), "0 is twice at one time"
    boxes["track_id"] = 0
    assert np.isnan(track_speeds(labels, boxes, SPEC)).all()
    assert np.isnan(track_speeds(labels, boxes[:0], SPEC)).all()
