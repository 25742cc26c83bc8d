"""S7 beyond the laws: the paper's equations written out, what follows the input, and its bounds."""

import pytest
import torch

from rvtssm.ssm.block import GatedBlock, SSMBlock
from rvtssm.ssm.s7 import S7SSM
from rvtssm.ssm.temporal_config import TemporalConfig
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
