"""The drift of a state in lower precision over thousands of steps."""

import pytest
import torch

from benchmarks.quantization import measure_drift


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
    ("error", "early", "late"),
    [(lambda step: 0.01 * (step % 7 == 0), 0.01, 0.01), (lambda step: 1e-4 * step, 0.001, 0.1)],
)
def test_the_drift_is_the_largest_difference_at_the_end_of_each_decade(error, early, late):
    drift = measure_drift(Adder(lambda step: 0), Adder(error), torch.ones(3, 1, 1, 1), 1000)
    assert list(drift) == ["10", "100", "1000"]
    assert drift["10"][0] == pytest.approx(early, rel=1e-3)
    assert drift["1000"][0] == pytest.approx(late, rel=1e-3)
