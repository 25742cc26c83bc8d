"""S5 beyond the laws: spectra, and both directions."""

import pytest
import torch
from user_errors import raises

from rvtssm.ssm.init import INITIAL_MODES, initial_modes
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer


@pytest.mark.parametrize("name", INITIAL_MODES)
def test_spectra_are_stable_paired_and_orthonormal(name):
    lambda_, v = initial_modes(name, 24, num_blocks=3)
    assert lambda_.shape == (24,) and v.shape == (24, 24)
    assert (lambda_.real < 0).all()
    torch.testing.assert_close(v @ v.mH, torch.eye(24, dtype=v.dtype))
    system = v @ torch.diag(lambda_) @ v.mH
    assert system.imag.abs().max() < 1e-10, "the continuous system is real"
    half, half_v = initial_modes(name, 24, num_blocks=3, half=True)
    assert half.shape == (12,) and half_v.shape == (24, 12)
    assert (half.imag > -1e-12).all()
    torch.testing.assert_close(torch.cat([half, half.conj()]).sum(), lambda_.sum())


def test_sizes_that_cannot_be_are_refused():
    with raises("layer.num_blocks"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=4))
    with raises("layer.odd_block"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=2, half_state=True))


def both_ways(**changes: object) -> tuple[S5SSM, S5SSM, S5SSM]:
    """A bidirectional layer and its two directions as layers of their own, the second without D."""
    torch.manual_seed(0)
    config = {"state_size": 8, "dt_min": 0.1, "dt_max": 0.9, **changes}
    both = S5SSM(3, TemporalConfig(bidirectional=True, **config)).double()
    directions = [S5SSM(3, TemporalConfig(**config)).double() for _ in range(2)]
    for direction, c in zip(directions, both.C.chunk(2, dim=1), strict=True):
        direction.load_state_dict({**both.state_dict(), "C": c})
    torch.nn.init.zeros_(directions[1].D)
    return both, *directions


@torch.no_grad()
@pytest.mark.parametrize("at", ["train_step", "current_step"])
@pytest.mark.parametrize("half_state", [False, True])
@pytest.mark.parametrize("method", ["bilinear", "zoh", "dirac", "async"])
def test_both_ways_is_one_way_and_the_other(method, half_state, at):
    both, ahead, back = both_ways(discretization=method, half_state=half_state, bandlimit=0.5, bandlimit_at=at)
    x, state = torch.randn(7, 4, 3, dtype=torch.float64), torch.randn_like(both.init_state(4))
    for scale in (0.5, torch.rand(1, 2) + 0.5, torch.rand(7, 1) + 0.5, torch.rand(7, 2) + 0.5):
        y, last = both(x, state, scale)
        ahead_y, ahead_last = ahead(x, state, scale)
        turned = scale.flip(0) if isinstance(scale, torch.Tensor) and scale.ndim == 2 else scale
        back_y, _ = back(x.flip(0), back.init_state(4), turned)
        torch.testing.assert_close(y, ahead_y + back_y.flip(0))
        torch.testing.assert_close(last, ahead_last)
        torch.testing.assert_close(both(x, state, both.prepare(scale))[0], y)


def test_both_ways_has_no_single_step():
    layer = build_temporal_layer(TemporalConfig(bidirectional=True), 8)
    assert not layer.is_causal and not layer.ssm.is_causal
    for name in ("s4", "s4d", "s7", "lstm"):
        with raises("temporal.bidirectional"):
            TemporalConfig(name=name, bidirectional=True)


@torch.no_grad()
def test_both_ways_has_the_h2_norm_of_its_two_directions():
    both, ahead, back = both_ways(bandlimit=0.0)
    torch.testing.assert_close(both.h2_norm().square(), ahead.h2_norm().square() + back.h2_norm().square())
