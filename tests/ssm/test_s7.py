"""S7 beyond the laws: both modes written out, what follows the input, and the rate that eq. 4 has not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rvtssm.ssm.block import SSMBlock
from rvtssm.ssm.s7 import Eq4SSM, SelectiveSSM, build_s7
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

DIM, SIZE = 4, 6


def example(mode: str, **changes: object):
    """A layer without its block, an input (L, N, D) and a state, in float64."""
    torch.manual_seed(0)
    config = TemporalConfig(name="s7", s7_mode=mode, state_size=SIZE, dt_min=0.05, dt_max=0.5, **changes)
    ssm = build_s7(DIM, config).ssm.double()
    return ssm, torch.randn(7, 2, DIM, dtype=torch.float64), torch.randn_like(ssm.init_state(2))


@torch.no_grad()
@pytest.mark.parametrize("half_state", [False, True])
def test_selective_dt_written_out(half_state):
    ssm, x, state = example("selective_dt", discretization="zoh", half_state=half_state)
    assert isinstance(ssm, SelectiveSSM)
    y, last = ssm(x, state, 0.3)
    lambda_ = torch.complex(-ssm.log_real.exp(), ssm.imag)
    b, c = torch.view_as_complex(ssm.B), torch.view_as_complex(ssm.C) * (2 if half_state else 1)
    for x_l, y_l in zip(x, y, strict=True):
        decay = torch.exp(lambda_ * 0.3 * F.softplus(ssm.to_step(x_l)))
        state = decay * state + (decay - 1) / lambda_ * (x_l.to(b.dtype) @ b.T)
        torch.testing.assert_close(y_l, (state @ c.T).real + ssm.D * x_l)
    torch.testing.assert_close(last, state)


@torch.no_grad()
def test_eq4_written_out():
    ssm, x, state = example("eq4")
    assert isinstance(ssm, Eq4SSM)
    y, last = ssm(x, state)
    for x_l, y_l in zip(x, y, strict=True):
        state = (1 - 1 / (ssm.to_w(x_l).square() + 0.5)) * state + x_l @ ssm.B.T
        torch.testing.assert_close(y_l, state @ ssm.C.T + ssm.D * x_l)
    torch.testing.assert_close(last, state)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["selective_dt", "eq4"])
def test_the_recurrence_follows_the_input(mode):
    """What is left of a state after one step depends on what came in: the layer selects, so it is not linear."""
    ssm, x, state = example(mode)
    zero = torch.zeros_like(state)
    left = [ssm(k * x[:1], state)[1] - ssm(k * x[:1], zero)[1] for k in (0, 1)]
    assert (left[0] - left[1]).abs().max() > 1e-2 * left[0].abs().max()


@torch.no_grad()
def test_the_modes_start_with_the_steps_of_the_configuration():
    torch.manual_seed(0)
    ssm = SelectiveSSM(64, TemporalConfig(dt_min=0.01, dt_max=0.2))
    dt = F.softplus(ssm.to_step.bias)
    assert 0.00999 < dt.min() < 0.02 and 0.1 < dt.max() < 0.20001
    eq4 = Eq4SSM(64, TemporalConfig(dt_min=0.01, dt_max=0.2))
    decay = 1 - 1 / (eq4.to_w.bias.square() + 0.5)
    assert 0.00999 < -decay.log().max() < 0.02 and 0.1 < -decay.log().min() < 0.20001


@torch.no_grad()
def test_f_is_bounded_by_one_for_every_weight():
    ssm, x, state = example("eq4")
    for scale in (0.0, 1e-3, 1.0, 1e3):
        ssm.to_w.weight.mul_(scale)
        ssm.to_w.bias.mul_(scale)
        left = ssm(x[:1], state)[1] - ssm(x[:1], torch.zeros_like(state))[1]
        assert (left.abs() <= state.abs() * (1 + 1e-12)).all()


def test_eq4_has_no_step_to_rescale():
    layer = build_temporal_layer(TemporalConfig(name="s7", s7_mode="eq4"), DIM)
    x, state = torch.randn(3, 2, DIM), layer.init_state(2)
    for scale in (0.1, torch.tensor(0.5), torch.rand(2), torch.rand(3, 2), torch.tensor([1.0, 2.0])):
        with pytest.raises(ValueError, match=r"s7_mode=eq4 runs at the rate it was trained at only: .* no step"):
            layer(x, state, scale)
    assert layer(x, state, torch.ones(3, 2))[0].isfinite().all()


@pytest.mark.parametrize("mode", ["selective_dt", "eq4"])
def test_the_feed_forward_block_is_that_of_s5(mode):
    config = TemporalConfig(name="s7", s7_mode=mode, s7_block="feed_forward")
    layer = build_s7(DIM, config)
    assert type(layer) is SSMBlock and type(layer.ssm) is (SelectiveSSM if mode == "selective_dt" else Eq4SSM)
    with pytest.raises(ValueError, match=r"temporal\.s7_block='glu'"):
        TemporalConfig(s7_block="glu")


@pytest.mark.parametrize(("mode", "half_state"), [("selective_dt", False), ("selective_dt", True), ("eq4", False)])
def test_parameter_count(mode, half_state):
    """Selection costs W (P, H) and its bias beside the parameters of S5, the block a gate (H, H) and a norm."""
    dim = 16
    layer = build_s7(dim, TemporalConfig(name="s7", s7_mode=mode, half_state=half_state))
    modes = dim // 2 if half_state else dim
    matrices = 2 * dim * modes * (1 if mode == "eq4" else 2)
    spectrum = 0 if mode == "eq4" else 2 * modes
    assert sum(p.numel() for p in layer.parameters()) == (
        matrices + spectrum + modes * dim + modes + dim + dim * dim + 2 * dim
    )
