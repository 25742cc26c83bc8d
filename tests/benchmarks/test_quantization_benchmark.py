"""The drift of a state in lower precision over thousands of steps."""

import pytest
import torch

from benchmarks.quantization import drift_bar, measure_drift


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
    found = measure_drift(Adder(lambda step: 0), Adder(error), torch.ones(3, 1, 1, 1), 1000)
    assert list(found) == ["10", "100", "1000"]
    assert found["1000"][0] == pytest.approx(0.01 if met else 0.1, rel=1e-3)
    assert found["10"][0] == pytest.approx(0.01 if met else 0.001, rel=1e-3)
    assert drift_bar(found)["met"] is met
