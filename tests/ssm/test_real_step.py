"""Every layer as a step in real numbers, its spectrum, and without memory: parts of the contract of all layers."""

import pytest
import torch
from layer_examples import CASES as LAYER_CASES
from layer_examples import DIM, NUM_SEQUENCES, RULELESS, as_tuple, assert_near, random_state, rate, steps
from torch import Tensor
from torch.func import functional_call
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.ssm.temporal_layers import build_temporal_layer

MASKED = {"bandlimit": 0.3, "bandlimit_at": "current_step", "dt_max": 2.0}
CASES = {
    **LAYER_CASES,
    **{f"{name}-unmasked": TemporalConfig(name=name, bandlimit=0.0) for name in ("s5", "s4d")},
    **{f"{name}-masked-now": TemporalConfig(name=name, **MASKED) for name in ("s5", "s4d")},
    "s5-both-ways": TemporalConfig(name="s5", bidirectional=True),
}
REFUSED = {  # what a layer says that has no step in real numbers
    **{name: "discretization" for name in CASES if name.startswith("s4-") and "bilinear" not in name},
    "s5-both-ways": "bidirectional=true",
}


def build(case: str):
    torch.manual_seed(0)
    return build_temporal_layer(CASES[case], DIM)


def in_real_numbers(state):
    return (state.real, state.imag) if torch.is_tensor(state) and state.is_complex() else state


@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
@torch.no_grad()
def test_the_real_step_is_the_step_of_the_layer(case):
    """Over carried steps, with another step scale for each group of sequences at each step."""
    layer, x = build(case), steps(6)
    real = layer.real_step()
    wanted = as_tuple(in_real_numbers(layer.init_state(4)))
    for found, zeros in zip(as_tuple(real.init_state(4)), wanted, strict=True):
        torch.testing.assert_close(found, zeros)
    state = random_state(layer)
    carried = in_real_numbers(state)
    for index, x_l in enumerate(x):
        scale = torch.linspace(0.1, 2.0, 3).roll(index) + 0.1 * index
        wanted, state = layer(x_l[None], state, scale)
        found, carried = real(x_l[None], carried, scale)
        assert_near(found, wanted, 2e-5)
        for part, exact in zip(as_tuple(carried), as_tuple(in_real_numbers(state)), strict=True):
            assert_near(part, exact, 2e-5)
        without = real.forward_without_memory(x_l[None], scale)
        assert_near(without, layer.forward_without_memory(x_l[None], scale), 2e-5)
    assert (without - found).abs().max() > 1e-3, "the state matters"


@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
@torch.no_grad()
def test_the_real_step_leaves_the_layer_as_it_is_and_has_its_own_constants(case):
    layer, x = build(case), steps(1)
    wanted = layer(x, layer.init_state(NUM_SEQUENCES))[0]
    real, scale = layer.real_step(), torch.ones(1)
    if real is layer:  # as it may be where nothing is complex, and where no constant depends on the step
        assert layer.follows_the_rate == "no" and not any(map(torch.is_complex, layer.parameters()))
        return
    first = real(x, real.init_state(NUM_SEQUENCES), scale)[0]
    assert torch.equal(layer(x, layer.init_state(NUM_SEQUENCES))[0], wanted)
    for parameter in layer.parameters():
        parameter.zero_()
    assert torch.equal(real(x, real.init_state(NUM_SEQUENCES), scale)[0], first)


@pytest.mark.parametrize("case", REFUSED)
def test_a_layer_without_a_real_step_says_what_to_use(case):
    with raises("layer.lacks"):
        build(case).real_step()


def test_a_mode_that_the_real_step_would_divide_by_is_refused():
    layer = build_temporal_layer(TemporalConfig(name="s5", clip_real=False), DIM)
    with torch.no_grad():
        layer.ssm.Lambda[0] = 0
    with raises("layer.lacks"):
        layer.real_step()


@pytest.mark.parametrize("case", CASES)
def test_every_layer_has_a_spectrum_or_a_reason(case):
    layer = build(case)
    spectrum, inner = layer.spectrum(), getattr(layer, "ssm", layer)
    if isinstance(spectrum, str):
        assert CASES[case].name in RULELESS and len(spectrum.split()) > 2
        return
    assert isinstance(spectrum, Spectrum)
    num_modes = inner.init_state(1).numel() * (2 if CASES[case].name == "s4" else 1)  # with all conjugates in s4
    for values in (spectrum.timescale_steps, spectrum.cycles_per_step, spectrum.is_masked):
        assert values.shape == (num_modes,) and not values.requires_grad
    assert (spectrum.timescale_steps > 0).all() and spectrum.timescale_steps.isfinite().all()
    assert (spectrum.cycles_per_step >= 0).all()
    limit = getattr(inner, "bandlimit", 0.0)
    assert spectrum.bandlimit == limit
    assert spectrum.is_masked.any() <= (limit > 0)
    assert ("no mask" in spectrum.note) == (limit == 0)


# without memory


L, N = 5, 6
SCALES = {
    "number": 0.4,
    "group": torch.tensor([[0.3, 1.7, 0.6]]),
    "step and group": torch.linspace(0.1, 2, 15).view(L, 3),
}


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
