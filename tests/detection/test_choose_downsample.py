"""A large sensor is reduced as far as something is found; stills prefer boxes."""

from dataclasses import replace

import numpy as np
import pytest

import rvtssm
from rvtssm.detection import downsample as module
from rvtssm.detection.downsample import choose_downsample
from rvtssm.detection.sources import EventsInMemory, OpenedSource
from rvtssm.drawing.pictures import _StillChoice
from rvtssm.readers.recording import copy_events, join_events
from rvtssm.records import Events
from rvtssm.records.settings import CONVENTIONS
from rvtssm.synthetic.generate_recordings import simulated_recording
from rvtssm.synthetic.simulation_config import SyntheticConfig


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

    def best_scores(checkpoint, events, sensor_hw, downsample, until_us, reduce, tiles):
        assert sensor_hw == (480, 640) and events.t[-1] < until_us == 7_200_000
        tried.append(downsample)
        return np.array(scores[downsample])

    monkeypatch.setattr(module, "best_scores", best_scores)
    source = OpenedSource("events", EventsInMemory(draw_events(), 480, 640))
    assert choose_downsample(live_checkpoint(), source) == chosen
    assert tried == list(scores)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_window_is_tried_also_the_last_one(live_checkpoint, draw_events, convention):
    weights = live_checkpoint()
    weights = replace(weights, windows=replace(weights.windows, convention=convention))
    events = draw_events(500, duration_us=60_000)
    assert len(module.best_scores(weights, events, (48, 64), 1, until_us=7_100_000)) == 2


def test_the_sensor_of_the_training_and_smaller_ones_are_not_reduced_otherwise(live_checkpoint, draw_events):
    for hw in ((48, 64), (50, 70)):
        source = OpenedSource("events", EventsInMemory(draw_events(), *hw))
        assert choose_downsample(live_checkpoint(), source) == 1


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
