"""Where a score comes from, on cases small enough to be counted by hand, and beside pycocotools itself."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import evaluate_detections, precision_curves
from rvtssm.evaluation.latency import LabelSteps, newest, taken_steps
from rvtssm.evaluation.matching import ScoredRecording, match_detections
from rvtssm.evaluation.rates import at_labels
from rvtssm.evaluation.tracks import label_tracks, track_metrics, track_speeds
from rvtssm.records import DatasetSpec, Detections
from tests.evaluation.test_coco import SPEC, make_detections, make_labels, perfect, plain_coco, random_recording

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


def test_false_boxes_in_images_without_an_object_count_where_such_images_are_scored():
    labels = replace(make_labels([A], [1_000_000]), empty_us=np.array([2_000_000, 3_000_000]))
    frames = [make_detections([A], [0.9], t) for t in (1_000_000, 2_000_000, 3_000_000, 4_000_000)]
    for scores_empty_images, num_false in ((True, 2), (False, 0)):
        spec = replace(SPEC, scores_empty_images=scores_empty_images)
        found = break_down([ScoredRecording("a", labels, frames)], spec)
        assert found.confusion.tolist() == [[1, 0, 0], [0, 0, 0], [num_false, 0, 0]]
        assert [(worst.t_us, worst.num_false) for worst in found.worst] == [(2e6, 1), (3e6, 1)][:num_false]


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


# tracks


TIMES_US = 1_000_000 + 50_000 * np.arange(10)
LEFT, RIGHT = [10, 10, 40, 40], [100, 10, 40, 40]


def two_objects():
    labels = make_labels([LEFT, RIGHT] * 10, np.repeat(TIMES_US, 2), [0, 1] * 10)
    return labels, np.tile([3, 8], 10)


def scored(labels, frames, ids, **settings):
    recording = ScoredRecording("a", labels, frames)
    return track_metrics([recording], {"a": ids}, SPEC, "bytetrack", settings.get("memory_s", 1.0))


def test_perfect_boxes_lose_the_first_of_each_track_only():
    """A track has its number from its second box on: 18 of 20 boxes are tracked."""
    labels, ids = two_objects()
    found = scored(labels, perfect(labels), ids)
    assert found["MOTA"] == pytest.approx(0.9) and found["IDF1"] == pytest.approx(36 / 38)
    # all of the 18 associations are right: DetA 18 / 20, AssA 9 / 10
    assert found["HOTA"] == pytest.approx(0.9)


def test_detections_without_a_box_or_of_another_class_score_nothing():
    labels, ids = two_objects()
    empty = [make_detections([], [], t) for t in TIMES_US]
    assert scored(labels, empty, ids) == {"HOTA": 0, "MOTA": 0, "IDF1": 0}
    swapped = [replace(frame, class_id=1 - frame.class_id) for frame in perfect(labels)]
    found = scored(labels, swapped, ids)
    assert found["HOTA"] == found["IDF1"] == 0 and found["MOTA"] == pytest.approx(-0.9)


def test_a_forgotten_object_costs_identity_but_not_detection():
    """One car, missed for 0.2 s: with a memory of 1 s it is one track, without memory it is two."""
    labels = make_labels([LEFT] * 10, TIMES_US)
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
    frames = [replace(nothing, t_us=f.t_us) if 4 <= i < 7 else f for i, f in enumerate(perfect(labels))]
    remembered, forgotten = (scored(labels, frames, np.ones(10, np.int64), memory_s=s) for s in (1.0, 0.0))
    assert remembered["MOTA"] == pytest.approx(0.6)  # 3 missed, and the first box
    assert remembered["IDF1"] == pytest.approx(12 / 16)
    assert forgotten["IDF1"] < 0.5 < remembered["IDF1"]
    assert forgotten["MOTA"] == pytest.approx(0.4)  # the first box after the gap as well, and a switch


def test_labels_without_tracks_are_left_out():
    labels, ids = two_objects()
    assert all(np.isnan(list(scored(labels, perfect(labels), 0 * ids).values())))
    found = scored(labels, perfect(labels), np.where(ids == 8, 0, ids))
    assert found["MOTA"] == pytest.approx(0)  # 9 of 10 labels are found, 9 boxes are of no label


def test_tracks_of_labels_are_those_of_the_nearest_box():
    boxes = tracked((0, 10, 10, 0, 5), (0, 100, 10, 0, 0), (50, 12, 10, 0, 5), (50, 100, 10, 1, 0))
    labels = make_labels([[12, 10, 40, 40], [11, 10, 40, 40], LEFT], [50, 0, 50], [0, 0, 1])
    assert label_tracks(labels, boxes, SPEC).tolist() == [5, 5, 6]  # the track 0 is one here
    boxes["t"] = 50
    assert label_tracks(labels, boxes, SPEC).tolist() == [5, 0, 0]  # and none here; no box at time 0
    assert label_tracks(labels, boxes[:0], SPEC).tolist() == [0, 0, 0]


# latency


ENDS_US = np.array([600_000, 700_000, 800_000])
BOX_AT = {600_000: [0, 0, 50, 50], 700_000: [100, 0, 50, 50], 800_000: [200, 0, 50, 50]}


def streaming_ap(latency_us: float, when_late: str = "skip") -> float:
    """AP of a detector that finds every box where it was at the end of the window; an object jumps each frame."""
    steps, finished_us = taken_steps(ENDS_US, latency_us, when_late)
    labels = make_labels(list(BOX_AT.values()), ENDS_US)
    label_steps = LabelSteps(labels.t_us, newest(labels.t_us, finished_us))
    outputs = [make_detections([BOX_AT[int(ENDS_US[step])]], [0.9], ENDS_US[step]) for step in steps]
    return evaluate_detections([("a", labels, at_labels(label_steps, np.arange(len(steps)), outputs))], SPEC)["AP"]


@pytest.mark.parametrize("when_late", ["skip", "queue"])
def test_three_frames_by_hand(when_late):
    assert streaming_ap(0, when_late) == pytest.approx(1)
    # each output comes while the next frame is there, and the first label has none: the boxes are those of before
    assert streaming_ap(1, when_late) == streaming_ap(99_999, when_late) == streaming_ap(100_000, when_late) == 0
    assert streaming_ap(300_000, when_late) == 0


def test_an_object_that_stands_still_is_found_by_late_outputs_but_not_before_the_first():
    labels = make_labels([[0, 0, 50, 50]] * 3, ENDS_US)
    frames = {step: make_detections([[0, 0, 50, 50]], [0.9], ENDS_US[step]) for step in range(3)}
    for latency_us, num_found in ((0, 3), (1, 2), (100_000, 2), (100_001, 1), (200_000, 1), (200_001, 0)):
        steps, finished_us = taken_steps(ENDS_US, latency_us, "skip")
        label_steps = LabelSteps(labels.t_us, newest(labels.t_us, finished_us))
        found = at_labels(label_steps, np.arange(len(steps)), [frames[step] for step in steps])
        assert [frame.t_us for frame in found] == ENDS_US.tolist()
        assert sum(map(len, found)) == num_found
        recall = num_found / 3
        assert evaluate_detections([("a", labels, found)], SPEC)["AP"] == pytest.approx(recall, abs=0.01)


def test_a_late_detector_skips_to_the_newest_window_or_queues():
    ends_us = 10_000 * np.arange(1, 9)
    steps, finished_us = taken_steps(ends_us, 25_000, "skip")
    # the first takes 10 to 35 ms, when windows end at 20 and 30; it goes on with that of 30, until 60
    assert steps.tolist() == [0, 2, 5, 7] and finished_us.tolist() == [35_000, 60_000, 85_000, 110_000]
    steps, finished_us = taken_steps(ends_us, 25_000, "queue")
    assert steps.tolist() == list(range(8)) and finished_us.tolist() == (10_000 + 25_000 * np.arange(1, 9)).tolist()


@pytest.mark.parametrize("when_late", ["skip", "queue"])
@pytest.mark.parametrize("latency_us", [0, 9_999, 17_000, 250_000])
def test_no_output_is_known_before_its_window_has_ended_and_was_computed(latency_us, when_late):
    ends_us = np.sort(np.random.default_rng(0).choice(500_000, 40, replace=False))
    steps, finished_us = taken_steps(ends_us, latency_us, when_late)
    assert steps[0] == 0 and (np.diff(steps) > 0).all()
    begun_us = finished_us - latency_us
    assert (begun_us >= ends_us[steps]).all() and (np.diff(finished_us) >= latency_us).all()
    assert (begun_us[1:] >= finished_us[:-1]).all()
    if when_late == "queue" or latency_us == 0:
        assert steps.tolist() == list(range(40))
    if when_late == "skip":  # an output is late by two computations at most
        taken_age_us = finished_us - ends_us[steps]
        assert (taken_age_us <= 2 * latency_us).all()
    np.testing.assert_array_equal(newest(ends_us, taken_steps(ends_us, 0, when_late)[1]), np.arange(40))
