"""Selective S5 beyond the laws: written out, what follows the input, its defaults and its size."""

import pytest
import torch
from scan_reference import scan_reference
from torch.nn import functional as F

from rvtssm.ssm.block import GatedBlock, SSMBlock
from rvtssm.ssm.discretize import zoh
from rvtssm.ssm.held_scan import held_scan
from rvtssm.ssm.selective_s5 import SelectiveS5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

DIM, SIZE = 4, 6


def example(**changes: object):
    """A layer without its block, an input (L, N, D) and a state, in float64."""
    torch.manual_seed(0)
    config = TemporalConfig(name="selective_s5", state_size=SIZE, dt_min=0.05, dt_max=0.5, **changes)
    ssm = SelectiveS5SSM(DIM, config).double()
    return ssm, torch.randn(7, 2, DIM, dtype=torch.float64), torch.randn_like(ssm.init_state(2))


@torch.no_grad()
@pytest.mark.parametrize("half_state", [False, True])
def test_the_layer_written_out(half_state):
    ssm, x, state = example(half_state=half_state)
    y, last = ssm(x, state, 0.3)
    lambda_ = torch.complex(-ssm.log_real.exp(), ssm.imag)
    b, c = torch.view_as_complex(ssm.B), torch.view_as_complex(ssm.C) * (2 if half_state else 1)
    for x_l, y_l in zip(x, y, strict=True):
        decay = torch.exp(lambda_ * 0.3 * F.softplus(ssm.to_step(x_l)))
        state = decay * state + (decay - 1) / lambda_ * (x_l.to(b.dtype) @ b.T)
        torch.testing.assert_close(y_l, (state @ c.T).real + ssm.D * x_l)
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 7), (4, 6, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fast_path_is_discretisation_and_scan_one_after_the_other(shape, dtype):
    torch.manual_seed(0)
    num_steps, num_sequences, size = shape
    lambda_ = torch.complex(-torch.rand(size, dtype=dtype) - 0.1, 3 * torch.randn(size, dtype=dtype))
    step = 0.4 * torch.rand(shape, dtype=dtype) + 0.01
    drive, state = (torch.randn(*each, 2, dtype=dtype) for each in (shape, shape[1:]))
    # as a layer may hand them over: neither is laid out plainly
    inputs = (lambda_, step.mT.contiguous().mT, torch.view_as_complex(drive), torch.view_as_complex(state).conj())
    above = torch.randn(num_steps + 1, num_sequences, size, dtype=lambda_.dtype)

    def slow(lambda_, step, drive, state):
        decay, gain = zoh(lambda_, step, 1.0)
        return scan_reference(decay, gain * drive, state)

    found, wanted = [], []
    for values, run in ((found, held_scan), (wanted, slow)):
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        outputs = run(*leaves)
        values += [*outputs, *torch.autograd.grad(outputs, leaves, (above[:-1], above[-1]))]
    for one, other in zip(found, wanted, strict=True):
        rounding = 50 * torch.finfo(dtype).eps * float(other.detach().abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=rounding)


def test_a_held_step_and_the_block_of_s5_unless_told_otherwise():
    layer = build_temporal_layer(TemporalConfig(name="selective_s5"), DIM)
    assert type(layer) is SSMBlock and layer.ssm.discretization == "zoh"
    before = build_temporal_layer(TemporalConfig(name="selective_s5", discretization="bilinear", block="gated"), DIM)
    assert type(before) is GatedBlock and before.ssm.discretization == "bilinear"


@pytest.mark.parametrize("half_state", [False, True])
def test_parameter_count(half_state):
    """Selection costs W (P, H) beside the parameters of S5, whose steps are its bias."""
    dim = 16
    counts = [
        sum(p.numel() for p in build_temporal_layer(TemporalConfig(name=name, half_state=half_state), dim).parameters())
        for name in ("s5", "selective_s5")
    ]
    assert counts[1] - counts[0] == dim * (dim // 2 if half_state else dim)
