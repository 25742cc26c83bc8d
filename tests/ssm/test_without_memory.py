"""A layer without memory: every step by itself is a sequence of one step from zero, however it is computed."""

import pytest
import torch
from layer_examples import CASES as LAYER_CASES
from layer_examples import DIM, assert_near, rate, steps
from torch import Tensor
from torch.func import functional_call

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

L, N = 5, 6
MASKED = {"bandlimit": 0.3, "bandlimit_at": "current_step", "dt_max": 2.0}
CASES = {
    **LAYER_CASES,
    "s5-both-ways": TemporalConfig(name="s5", bidirectional=True),
    **{f"{name}-masked": TemporalConfig(name=name, **MASKED) for name in ("s5", "s4d")},
}
SCALES = {
    "number": 0.4,
    "group": torch.tensor([[0.3, 1.7, 0.6]]),
    "step and group": torch.linspace(0.1, 2, 15).view(L, 3),
}


def build(case: str) -> TemporalLayer:
    torch.manual_seed(0)
    return build_temporal_layer(CASES[case], DIM)


def one_by_one(layer: TemporalLayer, x: Tensor, scale: float | Tensor) -> Tensor:
    """The slow twin: the state is put back to zero before each step."""
    outputs = []
    for index in range(len(x)):
        scale_l = scale[index : index + 1] if isinstance(scale, Tensor) and len(scale) > 1 else scale
        outputs.append(layer(x[index : index + 1], layer.init_state(x.shape[1]), scale_l)[0])
    return torch.cat(outputs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", SCALES)
def test_every_step_starts_from_zero(case, kind):
    layer, x, scale = build(case), steps(L, N).requires_grad_(), rate(case, SCALES[kind])
    fast, slow = layer.forward_without_memory(x, scale), one_by_one(layer, x, scale)
    assert_near(fast, slow)
    inputs = [x, *layer.parameters()]
    weights = torch.randn(slow.shape, generator=torch.Generator().manual_seed(3))
    found, wanted = (torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True) for y in (fast, slow))
    for one, other in zip(found, wanted, strict=True):
        if other is None or not other.any():  # what only a state would have reached
            assert one is None or not one.any()
        else:
            assert_near(one, other, 1e-4)
    if kind == "number":
        assert_near(layer.forward_without_memory(x, layer.prepare(scale)), fast)


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
