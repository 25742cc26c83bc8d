"""Prediction on recordings written here, with a real detector of random weights."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import cv2
import event_examples
import numpy as np
import pytest
import torch
from live_examples import SMALL

import rvtssm
from rvtssm.contrib.demo.generate_recordings import simulated_recording
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.detection import DetectionConfig, PredictConfig
from rvtssm.detection import configured_detector as module
from rvtssm.detection.configured_detector import choose_downsample
from rvtssm.detection.predict_recording import predict_recording
from rvtssm.detection.sources import EventsInMemory
from rvtssm.detection.summary import Tally
from rvtssm.detection.window_results import WindowResult
from rvtssm.drawing import pictures
from rvtssm.drawing.pictures import _StillChoice
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint_meta import detector_for_frame, downsample_by_size, usual_downsample
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import DatasetSpec, Detections, Events, Labels
from rvtssm.records.settings import CONVENTIONS

HEIGHT, WIDTH = 48, 64
SPEC = replace(SMALL, class_ids=(2, 5))
POSTPROCESS = PostprocessConfig(max_detections=5)
OF_THE_DETECTOR = ("hz", "window", "downsample", "min_score", "track")


def settings_of(postprocess=POSTPROCESS, **options):
    """Return arguments of `predict_recording`: the settings of both sections by name."""
    detection = {name: options.pop(name) for name in OF_THE_DETECTOR if name in options}
    sections = {"detection": DetectionConfig(**detection), "config": PredictConfig(**options)}
    return sections | {"postprocess": postprocess}


DRAWN_FROM = 0.29  # about the median of what the weights find


def random_events(height, width, start_us=7_000_000, duration_us=1_030_000, n=30_000):
    return event_examples.random_events(n, 5, duration_us, start_us, (height, width), fills_span=True)


def write_recording(folder, height=HEIGHT, width=WIDTH, **options):
    path = folder / "drive_td.dat"
    write_dat(path, random_events(height, width, **options), height, width)
    return path


def read_lines(folder):
    return [json.loads(line) for line in (folder / "detections.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def checkpoint(live_checkpoint):
    weights = live_checkpoint()
    weights.spec = SPEC
    return weights


@pytest.fixture(scope="module")
def predicted(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("predicted")
    recording = write_recording(folder)
    config = settings_of(min_score=DRAWN_FROM, all_scores=True)
    summary = predict_recording(checkpoint, recording, folder / "out", **config, progress=False)
    return recording, folder / "out", summary


def test_every_window_has_a_line_and_the_summary_counts_them(predicted):
    _, out, summary = predicted
    lines = read_lines(out)
    assert [line["t_us"] for line in lines] == [7_000_000 + 50_000 * i for i in range(1, 22)]
    assert summary.num_windows == 21 and summary.hz == 20 and summary.window_ms == 50
    assert summary.duration_s == pytest.approx(1.03, abs=1e-5)
    objects = [found for line in lines for found in line["detections"]]
    assert summary.num_detections == len(objects)
    assert 21 * 3 < len(objects) <= 21 * 5  # at most five, less those in the padding below the frame
    assert {found["class"] for found in objects} <= set(SPEC.class_names)
    scores = [[found["score"] for found in line["detections"]] for line in lines]
    assert all(row == sorted(row, reverse=True) for row in scores)
    edges = np.array([found["xyxy"] for found in objects])
    assert edges.min() >= 0 and (edges[:, 2] <= WIDTH).all() and (edges[:, 3] <= HEIGHT).all()
    assert (edges[:, :2] < edges[:, 2:]).all()


def test_times_count_from_the_start_and_by_the_clock_of_the_camera(checkpoint, tmp_path, monkeypatch):
    captions, draw = [], pictures.draw_frame
    monkeypatch.setattr(
        pictures, "draw_frame", lambda *args, **options: captions.append(options["caption"]) or draw(*args, **options)
    )
    config = settings_of(formats=["png"])
    summary = predict_recording(checkpoint, write_recording(tmp_path), tmp_path / "out", **config, progress=False)
    told = json.loads((tmp_path / "out/prediction.json").read_text())
    assert told["start_us"] == summary.start_us == 7_000_000 and "camera time 7.000 s" in summary.lines()[0]
    assert captions[0].startswith("t = 0.050 s    camera 7.050 s    20 Hz")


def test_a_summary_says_jumps_of_the_clock_and_no_rate_of_the_start(predicted):
    summary = predicted[2]
    assert "clock" not in summary.lines()[0]
    said = replace(summary, num_restarts=2, wall_s=11.0, startup_s=11.0, realtime_factor=None).lines()
    assert said[0].endswith(", 2 jumps of the clock") and "11.0 s, 11.0 s of it to start" in said


@pytest.mark.parametrize("num_warmup", [1, 3])
def test_the_first_windows_do_not_count_as_speed(monkeypatch, num_warmup):
    """They take 2 s, in which code is compiled; then a window of 0.05 s takes 0.1 s."""
    now_s = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    tally = Tally(num_warmup)
    nothing = Detections(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64), 0)
    for number in range(1, 10):
        seconds = 2.0 / num_warmup if number <= num_warmup else 0.1
        now_s[0] += seconds
        window = replace(nothing, t_us=50_000 * number)
        tally.add(
            WindowResult(window, 50_000 * (number - 1), (HEIGHT, WIDTH), SPEC, seconds=seconds, step_us=50_000.0), 0
        )
        if number == num_warmup:  # nothing else tells the speed
            assert tally.counts()["step_ms"]["p99"] == pytest.approx(2000 / num_warmup)
            assert tally.counts()["realtime_factor"] is None
    found = tally.counts()
    assert found["step_ms"] == pytest.approx(dict.fromkeys(("p50", "p90", "p99"), 100.0))
    assert found["wall_s"] == pytest.approx(2 + 0.1 * (9 - num_warmup)) and found["startup_s"] == pytest.approx(2)
    assert found["realtime_factor"] == pytest.approx(0.5)


def test_files_hold_the_boxes_of_pictures_or_all(checkpoint, predicted, tmp_path):
    recording, out, _ = predicted
    config = settings_of(min_score=DRAWN_FROM, formats=["jsonl"])
    summary = predict_recording(checkpoint, recording, tmp_path / "out", **config, progress=False)
    scores = [[found["score"] for found in line["detections"]] for line in read_lines(out)]
    expected = [[score for score in row if score >= DRAWN_FROM] for row in scores]
    found = [[box["score"] for box in line["detections"]] for line in read_lines(tmp_path / "out")]
    assert found == expected and 0 < summary.num_detections == sum(map(len, found)) < sum(map(len, scores))


def test_the_pictures_are_there(predicted):
    _, out, summary = predicted
    capture = cv2.VideoCapture(str(out / "video.mp4"))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 21 and capture.get(cv2.CAP_PROP_FPS) == pytest.approx(20)
    stills = sorted(path.name for path in out.glob("still_*.png"))
    assert len(stills) == 4 and cv2.imread(str(out / stills[0])).shape == (15 * HEIGHT + 60, 15 * WIDTH, 3)
    assert sorted(summary.files) == sorted(path.name for path in out.glob("[!.]*"))
    assert json.loads((out / "prediction.json").read_text())["num_windows"] == 21
    text = "\n".join(summary.lines())
    assert "21 windows of 50 ms at 20 Hz" in text and "video.mp4" in text


@pytest.mark.parametrize(("window", "window_ms"), [("shrink", 10), (None, 50)])
def test_another_rate_rescales_the_step_and_thins_the_video(checkpoint, tmp_path, monkeypatch, window, window_ms):
    scales = []
    detector, prepare = type(checkpoint.detector), type(checkpoint.detector).prepare
    monkeypatch.setattr(detector, "prepare", lambda self, scale: scales.append(scale) or prepare(self, scale))
    recording = write_recording(tmp_path, duration_us=205_000)
    config = settings_of(hz=100, window=window)
    summary = predict_recording(checkpoint, recording, tmp_path / "out", **config, progress=False)
    assert summary.num_windows == 21 and summary.window_ms == window_ms
    assert scales == [0.2]
    capture = cv2.VideoCapture(str(tmp_path / "out" / "video.mp4"))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(25) and capture.get(cv2.CAP_PROP_FRAME_COUNT) == 6


@pytest.mark.parametrize("options", [{}, {"window": "shrink", "hz": 60}, {"window": "slide", "hz": 40}])
def test_pictures_show_the_events_of_the_sensor(checkpoint, tmp_path, monkeypatch, options):
    """At 60 Hz and 30 pictures a second one shows two windows; windows that slide share events."""
    drawn = []

    def keep(hist, frame, *_, **__):
        drawn.append((hist.copy(), frame))
        return np.zeros((16, 16, 3), np.uint8)

    monkeypatch.setattr(pictures, "draw_frame", keep)
    recording = write_recording(tmp_path, duration_us=150_000)
    results = []
    config = settings_of(formats=["mp4"], downsample=3, **options)  # 30 pictures a second
    predict_recording(checkpoint, recording, tmp_path / "out", **config, on_window=results.append, progress=False)
    found = [(result.detections, result.start_us) for result in results]
    period, events = 2 if "hz" in options else 1, open_recording(recording).read()
    last = list(range(period - 1, len(found), period))
    last += [] if last[-1] == len(found) - 1 else [len(found) - 1]
    assert len(drawn) == len(last) >= 3
    for (hist, frame), place in zip(drawn, last, strict=True):
        shown, _ = found[place]
        first = place if options.get("window") == "slide" else (place // period) * period
        part = events.between(found[first][1], shown.t_us)
        wanted = np.zeros((2, HEIGHT, WIDTH), np.uint8)
        np.add.at(wanted, (part.p.astype(int), part.y, part.x), 1)
        np.testing.assert_array_equal(hist, wanted)
        np.testing.assert_array_equal(frame.xyxy, shown.xyxy)
    if not options:
        drawn.clear()
        predict_recording(
            checkpoint,
            recording,
            tmp_path / "out",
            **config | {"config": PredictConfig(["mp4"], view="network")},
            progress=False,
        )
        assert {hist.shape[-2:] for hist, _ in drawn} == {(HEIGHT // 3, WIDTH // 3)}


def test_another_sensor_uses_the_same_weights_on_smaller_frames(checkpoint, tmp_path):
    recording = write_recording(tmp_path, height=150, width=200, duration_us=200_000)
    config = settings_of(all_scores=True)
    summary = predict_recording(checkpoint, recording, tmp_path / "out", **config, progress=False)
    assert summary.downsample == 3 and summary.frame_hw == (50, 66)
    edges = np.array([found["xyxy"] for line in read_lines(tmp_path / "out") for found in line["detections"]])
    assert WIDTH < edges[:, 2].max() <= 198  # pixels of the sensor
    fixed = settings_of(downsample=5, formats=[])
    assert predict_recording(checkpoint, recording, tmp_path / "out", **fixed, progress=False).frame_hw == (30, 40)


def test_the_size_of_frames_follows_training(checkpoint):
    assert detector_for_frame(checkpoint, HEIGHT, WIDTH) is checkpoint.detector
    other = detector_for_frame(checkpoint, 100, 130)
    assert other.frame_hw[1] == 130 and not other.training
    for key, value in checkpoint.detector.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
    halved = DatasetSpec("onempx", 720, 1280, ("car",), 100_000, 20, 60, 5, 0, downsample=2)
    assert [usual_downsample(halved, *hw) for hw in [(720, 1280), (240, 304), (480, 640)]] == [2, 1, 1]
    assert [usual_downsample(SPEC, *hw) for hw in [(HEIGHT, WIDTH), (96, 128), (20, 20)]] == [1, 2, 1]
    assert [usual_downsample(SPEC, *hw) for hw in [(86, 115), (92, 122), (140, 186)]] == [1, 2, 3]  # 1.8, 1.9 and 2.9
    exported = SimpleNamespace(detector=SimpleNamespace(frame_hw=(240, 426)), spec=SPEC)
    assert [downsample_by_size(exported, *hw) for hw in [(720, 1280), (240, 426), (48, 64)]] == [3, 1, 1]


def test_ground_truth_is_drawn_in_its_window_only(checkpoint, tmp_path, monkeypatch):
    shown = []
    draw = pictures.draw_frame

    def note(hist, frame, truth, *args, **options):
        shown.append((frame.t_us, truth.boxes_ltwh.tolist()))
        return draw(hist, frame, truth, *args, **options)

    monkeypatch.setattr(pictures, "draw_frame", note)
    recording = write_recording(tmp_path, height=96, width=128, duration_us=200_000)
    t_us = np.array([7_060_000, 7_100_000, 7_100_000])
    boxes = np.array([[0, 0, 8, 8], [10, 20, 30, 40], [50, 20, 10, 10]], np.float32)
    zeros = np.zeros(3, np.int64)
    predict_recording(
        checkpoint,
        recording,
        tmp_path / "out",
        **settings_of(view="network"),
        ground_truth=Labels(boxes, zeros, t_us, zeros, zeros - 1),
        progress=False,
    )
    assert shown == [
        (7_050_000, []),
        (7_100_000, [[5, 10, 15, 20], [25, 10, 5, 5]]),  # the latest time, in pixels of the halved frame
        (7_150_000, []),
        (7_200_000, []),
    ]


# large sensors


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({10: [0.5, 0, 0.9, 0.4]}, 10),  # half of the windows are enough, and no other reduction is tried
        ({10: [0.4] * 4, 5: [0.5, 0.4, 0.4, 0.4], 3: [0.6] * 4}, 3),
        ({10: [0.0] * 4, 5: [0.3, 0.3, 0, 0], 3: [0.4] * 4, 2: [0.0] * 4, 1: [0.45] * 4}, 5),
        ({n: [0.0, 0.4, 0.0, 0.0] for n in (10, 5, 3, 2, 1)}, 10),  # a single box is noise
    ],
)
def test_the_largest_reduction_is_chosen_with_which_something_is_found(
    live_checkpoint, draw_events, monkeypatch, scores, chosen
):
    tried = []

    def best_scores(checkpoint, events, sensor_hw, downsample, until_us, reduce, tiles, filters):
        assert sensor_hw == (480, 640) and events.t[-1] < until_us == 7_200_000
        tried.append(downsample)
        return np.array(scores[downsample])

    monkeypatch.setattr(module, "best_scores", best_scores)
    source = EventsInMemory(draw_events(), 480, 640)
    assert choose_downsample(live_checkpoint(), source) == chosen
    assert tried == list(scores)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_window_is_tried_also_the_last_one(live_checkpoint, draw_events, convention):
    weights = live_checkpoint()
    weights = replace(weights, windows=replace(weights.windows, convention=convention))
    events = draw_events(500, duration_us=60_000)
    assert len(module.best_scores(weights, events, (48, 64), 1, until_us=7_100_000)) == 2


@pytest.mark.filterwarnings("error")
def test_filters_that_leave_no_event_leave_the_usual_reduction(live_checkpoint):
    checkpoint = live_checkpoint()
    source = EventsInMemory(event_examples.to_events([0, 150_000], [1, 600], [1, 400], [1, 1]), 480, 640)
    usual = downsample_by_size(checkpoint, 480, 640)
    assert choose_downsample(checkpoint, source, filters=["background"]) == usual > 1


def test_the_sensor_of_the_training_and_smaller_ones_are_not_reduced_otherwise(live_checkpoint, draw_events):
    for hw in ((48, 64), (50, 70)):
        assert choose_downsample(live_checkpoint(), EventsInMemory(draw_events(), *hw)) == 1


def test_weights_find_small_objects_on_a_large_sensor():
    """A simulated street of 128 x 96 pixels in the middle of a sensor of 640 x 480."""
    config = SyntheticConfig(seed=5, duration_s=0.2)
    street = join_events([copy_events(block) for block in simulated_recording(config, "test", 0, (96, 128))[0]])
    events = Events(street.t, street.x + np.uint16(250), street.y + np.uint16(190), street.p)
    found = rvtssm.load("street-tiny").predict(events, height=480, width=640)
    assert found.summary.downsample == 2 and sum(map(len, found)) > 4


@pytest.mark.parametrize("num_pictures", [1, 3, 16, 100, 1000])
def test_stills_prefer_windows_with_boxes_and_are_spread_evenly(num_pictures):
    choice, boxes = _StillChoice(4), {11: 0.9, 12: 0.4, 333: 0.5, 900: 1.7}
    for i in range(num_pictures):
        if choice.takes_next(boxes.get(i, 0.0)):
            choice.add(boxes.get(i, 0.0), float(i), np.zeros(1))
    seconds = [at for at, _ in choice.chosen()]
    assert len(seconds) == min(4, num_pictures) and seconds == sorted(seconds)
    for part, at in enumerate(seconds):
        inside = range(part * num_pictures // len(seconds), (part + 1) * num_pictures // len(seconds))
        best = max((boxes.get(i, 0.0) for i in inside), default=0.0)
        if num_pictures in (16, 1000):  # parts of whole steps
            assert at in inside and boxes.get(int(at), 0.0) == best
