"""The state-space layers start where the configuration says."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rvtssm.ssm.init import INITIAL_MODES, initial_modes
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s7 import S7SSM
from rvtssm.ssm.selective_s5 import SelectiveS5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

DIM, SIZE, NUM_BLOCKS = 48, 16, 2


def build(name: str, **changes) -> TemporalLayer:
    torch.manual_seed(0)
    return build_temporal_layer(TemporalConfig(name=name, **changes), DIM).ssm


def modes_at_start(layer: TemporalLayer) -> Tensor:
    if isinstance(layer, SelectiveS5SSM):
        return torch.complex(-layer.log_real.exp(), layer.imag)
    return layer.modes()[0]


def initial_steps(layer: TemporalLayer) -> Tensor:
    """At zero input, where the input has a say."""
    if isinstance(layer, SelectiveS5SSM):
        return F.softplus(layer.to_step.bias)
    if isinstance(layer, S7SSM):
        return 1 / (layer.to_w.bias**2 + 0.5)
    return layer.log_step.exp()


@torch.no_grad()
@pytest.mark.parametrize("name", ["s4", "s4d", "s5", "selective_s5", "s7"])
def test_steps_start_between_their_limits(name):
    found = initial_steps(build(name, dt_min=0.02, dt_max=0.05))
    assert 0.0199 < found.min() < 0.023 and 0.044 < found.max() < 0.0501


@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_entries_of_b_and_c_start_with_the_variances_that_are_documented(half):
    layer, size = build("s5", state_size=4 * DIM, half_state=half), 4 * DIM
    assert float(layer.B.square().sum(-1).mean()) == pytest.approx(1 / DIM, rel=0.05)
    assert float(layer.C.square().sum(-1).mean()) == pytest.approx((1 if half else 2) / size, rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("init", INITIAL_MODES)
@pytest.mark.parametrize(
    ("name", "half"), [("s4d", True), ("s5", False), ("s5", True), ("selective_s5", False), ("selective_s5", True)]
)
def test_modes_start_at_the_spectrum_that_is_named(name, half, init):
    key = {} if name == "s4d" else {"half_state": half}
    found = modes_at_start(build(name, init=init, state_size=SIZE, num_blocks=NUM_BLOCKS, **key))
    wanted = initial_modes(init, SIZE, NUM_BLOCKS, half)[0].to(found.dtype)
    torch.testing.assert_close(found, wanted.expand_as(found), rtol=1e-6, atol=1e-6)
