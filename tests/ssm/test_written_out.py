"""The layers with a formula of their own beyond the laws: S7, selective S5 and the LSTM, written out."""

import pytest
import torch
from scan_reference import scan_reference
from torch.nn import functional as F

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.block import GatedBlock, SSMBlock
from rvtssm.ssm.discretize import zoh
from rvtssm.ssm.held_scan import held_scan
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s7 import S7SSM
from rvtssm.ssm.selective_s5 import SelectiveS5SSM
from rvtssm.ssm.temporal_layers import build_temporal_layer

DIM, SIZE = 4, 6


def example(selects: bool = True):
    """A layer without its block, an input (L, N, D) and a state, in float64; `selects`: with factors of B, C and D."""
    torch.manual_seed(0)
    ssm = S7SSM(DIM, TemporalConfig(name="s7", state_size=SIZE, dt_min=0.05, dt_max=0.5)).double()
    if selects:
        torch.nn.init.normal_(ssm.to_factors.weight)
    return ssm, torch.randn(7, 2, DIM, dtype=torch.float64), torch.randn_like(ssm.init_state(2))


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_layer_written_out_with_whole_matrices(scale):
    """Eq. 3 with matrices of each step and sequence, eq. 4 and eq. 12."""
    ssm, x, state = example()
    y, last = ssm(x, state, scale)
    for x_l, y_l in zip(x, y, strict=True):
        f = 1 - 1 / (ssm.to_w(x_l).square() + 0.5)
        drive, readout, passed = ssm.to_factors(x_l).split([SIZE, SIZE, DIM], dim=-1)
        b_k, c_k = (1 + drive)[:, :, None] * ssm.B, ssm.C * (1 + readout)[:, None]
        d_k = torch.diag_embed(ssm.D + passed)
        state = torch.exp((f - 1) * scale) * state + (b_k @ x_l[:, :, None])[..., 0]
        torch.testing.assert_close(y_l, (c_k @ state[:, :, None] + d_k @ x_l[:, :, None])[..., 0])
    torch.testing.assert_close(last, state)


@torch.no_grad()
def test_b_c_and_d_start_constant():
    ssm, x, state = example(selects=False)
    zero = torch.zeros_like(state)
    torch.testing.assert_close(ssm(x[:1], zero)[1], x[0] @ ssm.B.T + zero)


def test_the_block_is_that_of_the_paper_unless_told_otherwise():
    assert type(build_temporal_layer(TemporalConfig(name="s7"), DIM)) is GatedBlock
    assert type(build_temporal_layer(TemporalConfig(name="s7", block="feed_forward"), DIM)) is SSMBlock


def test_parameter_count():
    """B and C (P, H), D, w with its bias, the factors (2P + H, H); the block has a gate (H, H) and a norm."""
    layer = build_temporal_layer(TemporalConfig(name="s7", state_size=SIZE), DIM)
    ssm = 2 * SIZE * DIM + DIM + SIZE * DIM + SIZE + (2 * SIZE + DIM) * DIM
    assert sum(p.numel() for p in layer.parameters()) == ssm + DIM * DIM + 2 * DIM


# selective S5


def selective_example(**changes: object):
    """A layer without its block, an input (L, N, D) and a state, in float64."""
    torch.manual_seed(0)
    config = TemporalConfig(name="selective_s5", state_size=SIZE, dt_min=0.05, dt_max=0.5, **changes)
    ssm = SelectiveS5SSM(DIM, config).double()
    return ssm, torch.randn(7, 2, DIM, dtype=torch.float64), torch.randn_like(ssm.init_state(2))


@torch.no_grad()
@pytest.mark.parametrize("half_state", [False, True])
def test_the_layer_written_out(half_state):
    ssm, x, state = selective_example(half_state=half_state)
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
def test_parameter_count_of_selective_s5(half_state):
    """Selection costs W (P, H) beside the parameters of S5, whose steps are its bias."""
    dim = 16
    counts = [
        sum(p.numel() for p in build_temporal_layer(TemporalConfig(name=name, half_state=half_state), dim).parameters())
        for name in ("s5", "selective_s5")
    ]
    assert counts[1] - counts[0] == dim * (dim // 2 if half_state else dim)


# the LSTM


@torch.no_grad()
def test_the_lstm_is_that_of_pytorch():
    torch.manual_seed(0)
    ours, theirs = LSTM(5, TemporalConfig(name="lstm")), torch.nn.LSTMCell(5, 5)
    forget, enter, leave, cell = ours.gates.weight.chunk(4)
    theirs.weight_ih.copy_(torch.cat([enter, forget, cell, leave])[:, :5])
    theirs.weight_hh.copy_(torch.cat([enter, forget, cell, leave])[:, 5:])
    forget, enter, leave, cell = ours.gates.bias.chunk(4)
    theirs.bias_ih.copy_(torch.cat([enter, forget, cell, leave]))
    theirs.bias_hh.zero_()
    x, state = torch.randn(6, 3, 5), (torch.randn(3, 5), torch.randn(3, 5))
    y, end = ours(x, state, 0.3)  # it has no step to rescale
    for x_l, y_l in zip(x, y, strict=True):
        state = theirs(x_l, state)
        torch.testing.assert_close(y_l, state[0])
    torch.testing.assert_close(end, state)
