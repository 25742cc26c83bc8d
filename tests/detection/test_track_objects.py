"""A number per object: by hand, at any rate, under any cut of a stream; boxes and scores stay as they are."""

import json
import math
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.predictor import Predictor
from rvtssm.detection.track_objects import Tracker
from rvtssm.drawing.draw import draw_frame
from rvtssm.events.labels import read_boxes
from rvtssm.models import PostprocessConfig
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections

CAR, PEDESTRIAN = 0, 1


def frame(t_us, *rows):
    """Detections of rows (left, top, score, class), all boxes of 20 x 20 pixels."""
    corner = np.array([row[:2] for row in rows], np.float32).reshape(-1, 2)
    score, class_id = (np.array([row[i] for row in rows], kind) for i, kind in ((2, np.float32), (3, np.int64)))
    return Detections(np.concatenate([corner, corner + 20], axis=1), score, class_id, t_us)


def make_tracker(hz=20.0, memory_s=1.0):
    return Tracker("bytetrack", 2, hz, memory_s, start_score=0.3)


def test_ids_by_hand():
    """Two cars pass each other, a pedestrian stands where they meet, and a weak box never begins a track."""
    tracker, numbers = make_tracker(), []
    for step in range(20):
        rows = [(4.0 * step, 10, 0.9, CAR), (76 - 4.0 * step, 40, 0.8, CAR), (40, 10, 0.7, PEDESTRIAN)]
        rows.append((120, 80, 0.2, CAR))
        if step == 9:
            rows[0] = (*rows[0][:2], 0.15, CAR)  # too weak to begin a track, not to continue one
        numbers.append(tracker.update(frame(50_000 * step, *rows)).track_id.tolist())
    assert numbers[0] == [0, 0, 0, 0]  # a number begins with the second box
    (first, second, third, none) = numbers[1]
    assert numbers[1:] == [[first, second, third, none]] * 19 and none == 0
    assert len({first, second, third}) == 3 and min(first, second, third) > 0


@pytest.mark.parametrize("hz", [10, 20, 200])
def test_an_object_is_remembered_for_seconds_at_every_rate(hz):
    def numbers_after(gap_s):
        tracker, numbers = make_tracker(hz, memory_s=0.5), []
        for step in range(round(2.2 * hz)):
            is_found = step < hz or step >= round((1 + gap_s) * hz)
            rows = [(10, 10, 0.9, CAR)] if is_found else []
            numbers += tracker.update(frame(1_000_000 // hz * step, *rows)).track_id.tolist()
        return numbers[1], numbers[-1]

    before, after = numbers_after(0.4)
    assert before == after > 0
    before, after = numbers_after(0.8)
    assert before != after > 0


def test_times_count_from_the_first_window():
    early, late = make_tracker(), make_tracker()
    for step in range(3):
        row = (10 + step, 10, 0.9, CAR)
        found = [tracker.update(frame(start + 50_000 * step, row)) for tracker, start in ((early, 0), (late, 1 << 50))]
        assert found[0].track_id == found[1].track_id


def test_every_file_has_the_ids_and_the_same_boxes_as_without(live_checkpoint, draw_events, tmp_path):
    write_dat(tmp_path / "a_td.dat", draw_events(4_000), 48, 64)
    frames = {}
    for track in (None, "bytetrack"):
        out, frames[track] = tmp_path / str(track), []
        predict_recording(
            live_checkpoint(),
            tmp_path / "a_td.dat",
            out,
            DetectionConfig(track=track),
            PredictConfig(formats=["jsonl", "npy", "coco"]),
            postprocess=PostprocessConfig(min_score=0.1, max_detections=5),
            on_window=partial(lambda kept, result: kept.append(result.detections), frames[track]),
            progress=False,
        )
    for plain, tracked in zip(frames[None], frames["bytetrack"], strict=True):
        assert plain.track_id is None and (plain.xyxy == tracked.xyxy).all() and (plain.score == tracked.score).all()
    track_id = np.concatenate([each.track_id for each in frames["bytetrack"]])
    assert len(np.unique(track_id)) > 2 and (track_id > 0).mean() > 0.1
    out = tmp_path / "bytetrack"
    assert (read_boxes(out / "detections.npy")["track_id"] == track_id).all()
    assert [found["track_id"] for found in json.loads((out / "coco_results.json").read_text())] == track_id.tolist()
    lines = [json.loads(line) for line in (out / "detections.jsonl").read_text().splitlines()]
    assert [found["track_id"] for line in lines for found in line["detections"]] == track_id.tolist()
    assert "track_id" not in (tmp_path / "None" / "detections.jsonl").read_text()
    assert not read_boxes(tmp_path / "None" / "detections.npy")["track_id"].any()


@pytest.mark.parametrize("cuts_us", [(), (7_010_000,), (7_000_001, 7_049_999, 7_050_000, 7_300_000)])
def test_ids_do_not_depend_on_the_packets_of_a_stream(live_checkpoint, draw_events, cuts_us):
    predictor, events = Predictor(live_checkpoint()), draw_events(4_000)
    whole = predictor.predict(events, height=48, width=64, min_score=0.1, track="bytetrack")
    stream = predictor.stream(48, 64, min_score=0.1, track="bytetrack")
    edges = [0, *cuts_us, 1 << 40]
    frames = [found for start, end in pairwise(edges) for found in stream.push(events.between(start, end))]
    assert len(frames) >= len(whole) - 1 and any((found.detections.track_id > 0).any() for found in frames)
    for found, wanted in zip(frames, whole, strict=False):
        assert found.detections.track_id.tolist() == wanted.detections.track_id.tolist()


def test_the_picture_names_the_track():
    hist = np.zeros((2, 60, 120), np.uint8)
    found = frame(0, (10, 20, 0.9, CAR))
    pictures = [
        draw_frame(hist, Detections(found.xyxy, found.score, found.class_id, 0, track_id), class_names=("car",))
        for track_id in (None, np.array([0]), np.array([7]))
    ]
    assert (pictures[0] == pictures[1]).all() and (pictures[0] != pictures[2]).any()


def test_a_missing_package_and_an_unknown_tracker_are_named(monkeypatch):
    with raises("setting.choice", "bytetrack"):
        Tracker("sort", 2, 20, 1.0, 0.3)
    for memory_s in (math.nan, math.inf, -1):
        with raises("setting.out_of_range", "track_memory_s"):
            make_tracker(memory_s=memory_s)
    with raises("setting.form", "track_memory_s='1'"):
        make_tracker(memory_s="1")
    monkeypatch.setitem(sys.modules, "trackers", None)
    with raises("install.extra", "tracks"):
        make_tracker()


def test_a_stored_state_keeps_the_tracks_and_knows_its_weights(live_checkpoint, draw_events, tmp_path):
    """A stream that is stored in the middle, also as a file, goes on with the same numbers."""

    def stream(checkpoint=None, track="bytetrack"):
        return Predictor(checkpoint or live_checkpoint()).stream(48, 64, min_score=0.05, track=track)

    head, tail = draw_events().between(0, 7_200_000), draw_events().between(7_200_000, 10**9)
    whole, first, second = stream(), stream(), stream()
    whole.push(head)
    first.push(head)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    stored = torch.load(tmp_path / "state.pt")
    second.load_state_dict(stored)
    wanted, found = whole.push(tail), second.push(tail)
    assert sum(np.count_nonzero(window.track_id) for window in wanted) > 5
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine.track_id, theirs.track_id)
    with raises("memory.other_state"):
        stream(track=None).load_state_dict(stored)
    other = live_checkpoint()
    with torch.no_grad():
        next(other.detector.parameters()).add_(1e-3)
    with raises("memory.other_state"):
        stream(other).load_state_dict(stored)
