"""What Rerun shows is what was found: a log is read back by Rerun's own reader."""

import sys
from contextlib import nullcontext
from pathlib import Path

import cv2
import numpy as np
import pytest
import rerun
from live_examples import SMALL
from rerun.chunk import RrdReader
from user_errors import raises

from rvtssm.contrib.rerun.rerun_view import open_rerun_file, open_rerun_viewer
from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.result_files import ResultContext
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing.draw import events_image
from rvtssm.readers.dat import write_dat
from rvtssm.records import Detections


def rows_of(path):
    """The values of every entity by time in microseconds: {entity: {t_us: {component: values}}}."""
    found = {}
    for chunk in RrdReader(path).stream().to_chunks():
        batch = chunk.to_record_batch()
        if "time" not in batch.schema.names:
            continue
        times_us = (batch["time"].cast("int64").to_numpy() // 1000).tolist()
        for name in batch.schema.names:
            if ":" in name:
                for t_us, value in zip(times_us, batch[name].to_pylist(), strict=True):
                    found.setdefault(chunk.entity_path, {}).setdefault(t_us, {})[name.partition(":")[2]] = value
    return found


def detections(t_us, track_id=None):
    boxes = np.array([[1, 2, 5, 7], [10, 20, 30, 40], [0, 0, 3, 3]], np.float32)
    return Detections(boxes, np.array([0.9, 0.5, 0.1], np.float32), np.array([0, 1, 0]), t_us, track_id)


CONTEXT = ResultContext(SMALL, (48, 64), 0.3)


def window(frame, step_us, seconds):
    return WindowResult(frame, frame.t_us - step_us, (48, 64), SMALL, seconds=seconds, step_us=step_us)


def test_a_log_holds_boxes_tracks_events_and_plots_at_their_times(tmp_path):
    events = np.zeros((2, 24, 32), np.uint8)
    events[1, 3, 4] = 1
    with open_rerun_file(tmp_path / "a.rrd", CONTEXT) as log:
        log(window(detections(50_000), 50_000, 0.004))
        log.picture(events, 50_000)
        log(window(detections(75_000, np.array([7, 0, 3])), 25_000, 0.002))
    found = rows_of(tmp_path / "a.rrd")
    first, second = (found["/camera/objects"][t_us] for t_us in (50_000, 75_000))
    assert first["labels"] == ["car 0.90", "pedestrian 0.50"] and second["labels"] == ["car 0.90 #7", "pedestrian 0.50"]
    assert first["centers"] == [[3.0, 4.5], [20.0, 30.0]] and first["half_sizes"] == [[2.0, 2.5], [10.0, 10.0]]
    assert {t_us: row["scalars"] for t_us, row in found["/plots/step_ms"].items()} == {50_000: [4.0], 75_000: [2.0]}
    assert [row["scalars"] for row in found["/plots/rate_hz"].values()] == [[20.0], [40.0]]
    assert [row["scalars"] for row in found["/plots/objects"].values()] == [[2.0], [2.0]]
    (blob,) = found["/camera/events"][50_000]["blob"]
    picture = cv2.imdecode(np.array(blob, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert picture.shape == (48, 64, 3)  # of the sensor, as the boxes
    np.testing.assert_array_equal(picture[::2, ::2], events_image(events))


def test_predict_logs_every_window_and_shows_them_live(live_checkpoint, draw_events, tmp_path, monkeypatch):
    spawned = []
    monkeypatch.setattr(rerun.RecordingStream, "spawn", lambda self: spawned.append(self))
    write_dat(tmp_path / "a_td.dat", draw_events(2_000), 48, 64)
    frames = []
    predict_recording(
        live_checkpoint(),
        tmp_path / "a_td.dat",
        tmp_path / "out",
        DetectionConfig(hz=10, min_score=0.1),
        PredictConfig(formats=["rrd", "rerun"]),
        on_window=lambda result: frames.append(result.detections),
        progress=False,
    )
    found = rows_of(tmp_path / "out/prediction.rrd")
    assert len(spawned) == 1 and len(frames) > 3
    times_us = [frame.t_us for frame in frames]
    assert [list(found[entity]) for entity in ("/camera/objects", "/camera/events")] == [times_us, times_us]
    assert [row["scalars"] for row in found["/plots/objects"].values()] == [
        [float((frame.score >= 0.1).sum())] for frame in frames
    ]
    assert {row["scalars"][0] for row in found["/plots/rate_hz"].values()} == {10.0}  # windows of 50 ms


@pytest.mark.parametrize("is_file", [True, False])
def test_a_viewer_that_is_gone_is_a_warning_and_a_file_that_fails_an_error(tmp_path, monkeypatch, caplog, is_file):
    def fail(self, **_):
        raise RuntimeError("no\nanswer")

    disconnected = []
    monkeypatch.setattr(rerun.RecordingStream, "spawn", lambda self: None)
    monkeypatch.setattr(rerun.RecordingStream, "flush", fail)
    monkeypatch.setattr(rerun.RecordingStream, "disconnect", lambda self: disconnected.append(self))
    refused = raises("file.not_writable") if is_file else nullcontext()
    open_log = open_rerun_file if is_file else open_rerun_viewer
    with refused, open_log(tmp_path / "a.rrd", CONTEXT):
        pass
    assert len(disconnected) == 1
    assert [record.levelname for record in caplog.records] == ([] if is_file else ["WARNING"])


def test_a_viewer_that_cannot_start_and_a_missing_library_are_one_line(monkeypatch):
    def fail(self):
        raise RuntimeError("no\ndisplay")

    monkeypatch.setattr(rerun.RecordingStream, "spawn", fail)
    with raises("setting.needs"):
        open_rerun_viewer(Path(), CONTEXT).__enter__()
    monkeypatch.setitem(sys.modules, "rerun", None)
    with raises("install.extra", "rerun"):
        open_rerun_viewer(Path(), CONTEXT).__enter__()
