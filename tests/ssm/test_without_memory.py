"""A layer without memory: every step by itself is a sequence of one step from zero, however it is computed."""

import pytest
import torch
from layer_examples import DIM, assert_near, build, every_variant, rate, steps
from torch import Tensor
from torch.func import functional_call

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

L, N = 5, 6
SCALES = {
    "number": 0.4,
    "group": torch.tensor([[0.3, 1.7, 0.6]]),
    "step and group": torch.linspace(0.1, 2, 15).view(L, 3),
}


def one_by_one(layer: TemporalLayer, x: Tensor, scale: float | Tensor, **where) -> Tensor:
    """The slow twin: the state is put back to zero before each step."""
    outputs = []
    for index in range(len(x)):
        scale_l = scale[index : index + 1] if isinstance(scale, Tensor) and len(scale) > 1 else scale
        outputs.append(layer(x[index : index + 1], layer.init_state(x.shape[1]), scale_l, **where)[0])
    return torch.cat(outputs)


def assert_same_gradients(layer: TemporalLayer, x: Tensor, fast: Tensor, slow: Tensor) -> None:
    inputs = [x, *layer.parameters()]
    weights = torch.randn(slow.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((fast * weights).sum(), inputs, allow_unused=True)
    wanted = torch.autograd.grad((slow * weights).sum(), inputs, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        if other is None or not other.any():  # what only a state would have reached
            assert one is None or not one.any()
        else:
            assert_near(one, other, 1e-4)


@every_variant
@pytest.mark.parametrize("kind", SCALES)
def test_every_step_starts_from_zero(case, kind):
    layer, x = build(case), steps(L, N).requires_grad_()
    scale = rate(case, SCALES[kind])
    fast, slow = layer.forward_without_memory(x, scale), one_by_one(layer, x, scale)
    assert_near(fast, slow)
    assert_same_gradients(layer, x, fast, slow)


@every_variant
@torch.no_grad()
def test_what_was_prepared_is_that_number(case):
    layer, x = build(case), steps(L, N)
    scale = rate(case, 0.4)
    assert_near(layer.forward_without_memory(x, layer.prepare(scale)), layer.forward_without_memory(x, scale))


@pytest.mark.parametrize(
    "config",
    [
        TemporalConfig(name="s5", bidirectional=True),
        TemporalConfig(name="s5", bandlimit=0.3, bandlimit_at="current_step", dt_max=2.0),
        TemporalConfig(name="s4d", bandlimit=0.3, bandlimit_at="current_step", dt_max=2.0),
        TemporalConfig(name="lstm", dws_conv=True),
    ],
    ids=lambda config: f"{config.name}-{config.bandlimit_at}-{config.bidirectional}-{config.dws_conv}",
)
@pytest.mark.parametrize("kind", SCALES)
def test_layers_with_more_than_modes(config, kind):
    torch.manual_seed(0)
    layer, x = build_temporal_layer(config, DIM), steps(L, N).requires_grad_()
    where = {"grid": (2, 3)} if layer.takes_grid else {}
    fast, slow = layer.forward_without_memory(x, SCALES[kind], **where), one_by_one(layer, x, SCALES[kind], **where)
    assert_near(fast, slow)
    assert_same_gradients(layer, x, fast, slow)


def test_no_state_is_made_where_a_state_is_large():
    layer, x = build_temporal_layer(TemporalConfig(name="s4d"), DIM), steps(L, N)
    layer.ssm.init_state = None
    assert layer.forward_without_memory(x).shape == x.shape


def test_lower_precision_stays_near():
    layer, x = build_temporal_layer(TemporalConfig(name="s5"), DIM), steps(L, N)
    wanted = layer.forward_without_memory(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = functional_call(layer, {}, (x, layer.init_state(N)))[0], layer.forward_without_memory(x)
    assert found[0].dtype == found[1].dtype
    assert_near(found[1].float(), wanted, 3e-2)
