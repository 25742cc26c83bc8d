"""HOTA, MOTA and IDF1 on tracks that can be counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from test_breakdown import tracked
from test_coco import SPEC, make_detections, make_labels, perfect

from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.tracks import label_tracks, track_metrics
from rvtssm.records import Detections

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
