"""The benchmarks of precision at toy size: a drift is that of the states."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import drift, precision
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.records import Events


def test_the_drift_is_that_of_the_carried_state(live_checkpoint, tmp_path, monkeypatch):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "weights.ckpt", checkpoint.detector, checkpoint)
    rng = np.random.default_rng(0)
    t = np.sort(rng.integers(0, 200_000, 5000))
    x, y, p = (rng.integers(0, top, 5000) for top in (64, 48, 2))
    events = Events(t, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8))
    monkeypatch.setattr(precision, "find_recordings", lambda *_: [SimpleNamespace(events_path="a")])
    monkeypatch.setattr(precision, "open_recording", lambda *_: SimpleNamespace(between=lambda *_: events))
    found = precision.drift_in_bf16(tmp_path / "weights.ckpt", tmp_path, 12)
    assert list(found) == ["10", "12"]
    stages = len(checkpoint.detector.backbone.channels)
    assert all(len(differences) == stages and 0 < max(differences) < 0.1 for differences in found.values())
    monkeypatch.setattr(precision, "PRECISIONS", ("float32", "float32"))
    assert precision.drift_in_bf16(tmp_path / "weights.ckpt", tmp_path, 10) == {"10": [0.0] * stages}


class Adder:
    """A detector with one number as its state, to which each step adds the counts and an error."""

    def __init__(self, error):
        self.error, self.step = error, 0

    def prepare(self, step_scale):
        return step_scale

    def init_state(self, num_streams):
        return (torch.zeros(num_streams),)

    def __call__(self, frame, state, step_scale, frame_index):
        self.step += 1
        return None, (state[0] * 0 + frame.sum() * (1 + self.error(self.step)),)


@pytest.mark.parametrize(
    ("error", "met"), [(lambda step: 0.01 * (step % 7 == 0), True), (lambda step: 1e-4 * step, False)]
)
def test_a_state_that_goes_on_drifting_misses_the_bar(error, met):
    found = drift.measure_drift(Adder(lambda step: 0), Adder(error), torch.ones(3, 1, 1, 1), 1000)
    assert list(found) == ["10", "100", "1000"]
    assert found["1000"][0] == pytest.approx(0.01 if met else 0.1, rel=1e-3)
    assert found["10"][0] == pytest.approx(0.01 if met else 0.001, rel=1e-3)
    assert drift.drift_bar(found)["met"] is met
