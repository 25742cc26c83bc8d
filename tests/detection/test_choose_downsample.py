"""A large sensor is reduced as far as something is found, and what that means is said; stills prefer boxes."""

import re
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

import rvtssm
from rvtssm.detection import choose_downsample as module
from rvtssm.detection.choose_downsample import ChosenDownsample, choose_downsample
from rvtssm.detection.predictor import Predictor
from rvtssm.detection.sources import EventsInMemory, Source
from rvtssm.drawing.pictures import _StillChoice
from rvtssm.export.exported import read_exported
from rvtssm.models.frame_size import advice_for_cameras, reduction_in_words
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import CONVENTIONS, Events
from rvtssm.synthetic.generate_recordings import simulated_recording
from rvtssm.synthetic.simulation_config import SyntheticConfig

SINGLY = "one window per call, as live detection computes them"
LATE = f"with {SINGLY}, not 20 Hz"
TOO_SLOW = "too slow for weights trained at 20 Hz, and a larger downsample is faster"


@pytest.fixture
def fast_machine(monkeypatch):
    """Each call of the detector takes 10 ms on the clock, on any machine."""
    ticks = count(step=0.01)
    monkeypatch.setattr("rvtssm.detection.detect.time", SimpleNamespace(perf_counter=lambda: next(ticks)))


@pytest.mark.parametrize(
    ("scores", "chosen", "is_doubtful"),
    [
        ({10: [0.5, 0, 0.9, 0.4]}, 10, False),  # half of the windows are enough, and no other reduction is tried
        ({10: [0.4] * 4, 5: [0.5, 0.4, 0.4, 0.4], 3: [0.6] * 4}, 3, False),
        ({10: [0.0] * 4, 5: [0.3, 0.3, 0, 0], 3: [0.4] * 4, 2: [0.0] * 4, 1: [0.45] * 4}, 5, True),
        ({n: [0.0, 0.4, 0.0, 0.0] for n in (10, 5, 3, 2, 1)}, 10, False),  # a single box is noise
    ],
)
def test_the_largest_reduction_is_chosen_with_which_something_is_found(
    live_checkpoint, draw_events, monkeypatch, scores, chosen, is_doubtful
):
    tried = []

    def best_scores(checkpoint, events, sensor_hw, downsample, until_us):
        assert sensor_hw == (480, 640) and events.t[-1] < until_us == 7_200_000
        tried.append(downsample)
        return np.array(scores[downsample])

    monkeypatch.setattr(module, "best_scores", best_scores)
    source = Source("events", EventsInMemory(draw_events(), 480, 640))
    found = choose_downsample(live_checkpoint(), source)
    assert found.downsample == chosen
    doubt = (
        f"downsample={chosen} was chosen for boxes with scores from 0.3 at the start of the recording (200 ms at 20 "
    )
    assert found.doubt.startswith(doubt) if is_doubtful else not found.doubt
    assert tried == list(scores)
    short = Source("events", EventsInMemory(draw_events(duration_us=8_800), 480, 640))
    monkeypatch.setattr(module, "best_scores", lambda *_: np.array([0.4]))
    assert "at the start of the recording (8.8 ms at 20 Hz), " in choose_downsample(live_checkpoint(), short).doubt


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_window_is_tried_also_the_last_one(live_checkpoint, draw_events, convention):
    weights = live_checkpoint()
    weights = replace(weights, windows=replace(weights.windows, convention=convention))
    events = draw_events(500, duration_us=60_000)
    assert len(module.best_scores(weights, events, (48, 64), 1, until_us=7_100_000)) == 2


def test_the_sensor_of_the_training_and_smaller_ones_are_not_reduced_otherwise(live_checkpoint, draw_events):
    for hw in ((48, 64), (50, 70)):
        source = Source("events", EventsInMemory(draw_events(), *hw))
        assert choose_downsample(live_checkpoint(), source) == ChosenDownsample(1)


def test_weights_find_small_objects_on_a_large_sensor():
    """A simulated street of 128 x 96 pixels in the middle of a sensor of 640 x 480."""
    config = SyntheticConfig(seed=5, duration_s=0.2, height=96, width=128)
    street = join_events([copy_events(block) for block in simulated_recording(config, "test", 0)[0]])
    events = Events(street.t, street.x + np.uint16(250), street.y + np.uint16(190), street.p)
    found = rvtssm.load("street-tiny").predict(events, height=480, width=640)
    assert found.summary.downsample == 2 and sum(map(len, found)) > 4
    said = "the 640 x 480 sensor is reduced by 2 to 320 x 240; training scored no objects below 17 pixels; downsample=1"
    assert any(sentence.startswith(said) for sentence in found.summary.sentences())


@pytest.mark.parametrize(("duration_us", "is_timed"), [(8_800, False), (430_000, True)])
@pytest.mark.usefixtures("fast_machine")
def test_the_first_call_is_no_measure_of_time(live_checkpoint, draw_events, duration_us, is_timed):
    """It also prepares the detector, so it takes longer than all others."""
    events, detector = draw_events(duration_us=duration_us), Predictor(live_checkpoint())
    said = " ".join(detector.predict(events, height=480, width=640, downsample=10).summary.sentences())
    assert bool(re.search(r"finds smaller ones in about \d+ ms per window", said)) == is_timed
    assert is_timed or "sustains" not in said
    assert ("median; 90 %" in said, "ms for one window, with its preparation" in said) == (is_timed, not is_timed)


@pytest.mark.usefixtures("fast_machine")
def test_one_more_call_tells_the_rate_of_a_camera(live_checkpoint, draw_events):
    events, detector = draw_events(duration_us=8_800), Predictor(live_checkpoint())
    summary = detector.predict(events, height=480, width=640, downsample=5).summary
    assert not summary.is_timed and summary.cameras in summary.sentences()
    said = rf"a camera or a stream takes downsample=10 unless you give 5; .* sustains about 100 Hz with 5 and {SINGLY}"
    assert re.fullmatch(said, summary.cameras)
    assert detector.predict(events, height=480, width=640, downsample=10).summary.cameras == ""


@pytest.mark.parametrize(
    ("downsample", "step_ms", "said"),
    [
        (2, 10, f"about 100 Hz with 2 and {SINGLY}"),
        (2, 100, f"about 10 Hz {LATE}: set downsample=2 hz=9.5; downsample=3 is faster and finds less"),
        (2, 200, f"about 5 Hz {LATE}: {TOO_SLOW}; downsample=4 is faster and finds less"),
        (2, 3_000, f"about 0.33 Hz {LATE}: {TOO_SLOW}; downsample=10 hz=7.9 is faster and finds less"),
        (2, 9_000, f"about 0.11 Hz {LATE}: {TOO_SLOW}"),
        (12, 100, f"about 10 Hz {LATE}: set downsample=12 hz=9.5"),
    ],
)
def test_a_downsampling_that_is_too_slow_for_a_camera_is_named_with_one_that_keeps_up(
    live_checkpoint, downsample, step_ms, said
):
    assert advice_for_cameras(live_checkpoint(), (480, 640), downsample, step_ms, hz=20) == (
        f"a camera or a stream takes downsample=10 unless you give {downsample}; beside whatever else ran, this "
        f"machine sustains {said}"
    )


def test_a_camera_that_takes_the_same_downsampling_is_told_a_rate_only_if_the_machine_is_slower(live_checkpoint):
    checkpoint = live_checkpoint()
    assert advice_for_cameras(checkpoint, (480, 640), 10, step_ms=49, hz=20) == ""
    assert advice_for_cameras(checkpoint, (480, 640), 10, step_ms=133, hz=20) == (
        f"beside whatever else ran, this machine sustains about 7.5 Hz {LATE}: set hz=7.1"
    )


def test_frames_as_in_training_need_no_words(live_checkpoint):
    checkpoint = live_checkpoint()
    assert reduction_in_words(checkpoint, (48, 64), 1) == reduction_in_words(checkpoint, (40, 40), 1) == ""
    assert "reduced by 10 to 64 x 48; training scored no objects below 28 pixels" in reduction_in_words(
        checkpoint, (480, 640), 10
    )
    scores_all = replace(checkpoint, spec=replace(checkpoint.spec, min_side_px=0, min_diagonal_px=0))
    said = "the 640 x 480 sensor is not reduced; "
    assert reduction_in_words(scores_all, (480, 640), 1) == f"{said}downsample=10 is faster"
    assert reduction_in_words(checkpoint, (480, 640), 1, 900.0) == (
        f"{said}training scored no objects below 3 pixels; downsample=10 takes about 9 ms per window, with a limit of "
        "28 pixels"
    )


def test_an_exported_file_needs_another_export_for_another_reduction(exported):
    _, folder = exported()
    checkpoint = read_exported(folder / "model.onnx")
    said = reduction_in_words(checkpoint, (480, 640), 10, 30.0)
    assert "a file exported with export.height=480 export.width=640 finds smaller ones" in said
    assert "downsample" not in said


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
