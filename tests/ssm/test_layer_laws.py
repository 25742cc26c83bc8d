"""The laws every temporal layer keeps: state, cuts, gradients, bounds, precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from layer_examples import (
    CORES,
    DIM,
    MASKED_CASES,
    NUM_SEQUENCES,
    RATELESS,
    TOLERANCE,
    VARIANTS,
    as_tuple,
    assert_near,
    build,
    every_layer,
    random_state,
    rate,
    steps,
)
from torch import Tensor
from torch.func import functional_call
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer, with_layer_defaults
from rvtssm.system.user_error import UserError
from rvtssm.testing import LAWS, built


@every_layer
@pytest.mark.parametrize("law", LAWS)
def test_every_layer_keeps_the_laws_that_others_can_run(case, law):
    law(built(VARIANTS[case]))


def scale_at(scale: float | Tensor, part: slice) -> float | Tensor:
    return scale[part] if isinstance(scale, Tensor) and scale.ndim == 2 and len(scale) > 1 else scale


def assert_cuts_change_nothing(
    layer: TemporalLayer, x: Tensor, scale: float | Tensor, cuts: list[int], tolerance: float = TOLERANCE
) -> None:
    state = random_state(layer)
    whole, end = layer(x, state, scale)
    parts, current = [], state
    for start, stop in zip([0, *cuts], [*cuts, len(x)], strict=True):
        y, current = layer(x[start:stop], current, scale_at(scale, slice(start, stop)))
        parts.append(y)
    assert_near(torch.cat(parts), whole, tolerance)
    assert_near(current, end, tolerance)
    stepped, current = [], state
    prepared = scale if isinstance(scale, Tensor) else layer.prepare(scale)
    for index, x_l in enumerate(x):
        scale_l = scale[min(index, len(scale) - 1)] if isinstance(scale, Tensor) and scale.ndim == 2 else prepared
        y, current = layer(x_l[None], current, scale_l)
        stepped.append(y[0])
    assert_near(torch.stack(stepped), whole, tolerance)
    assert_near(current, end, tolerance)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, TOLERANCE), (torch.float64, 1e-12)])
@every_layer
def test_a_cut_changes_nothing_in_a_sequence_that_is_longer_than_two_chunks_of_a_layer(case, dtype, tolerance):
    assert_cuts_change_nothing(build(case).to(dtype), steps(70).to(dtype), rate(case, 0.1), [23], tolerance)


@torch.no_grad()
@hypothesis_settings(max_examples=150)
@given(data=st.data(), case=st.sampled_from(sorted(VARIANTS)))
def test_random_cuts_and_random_steps(data, case):
    layer = build(case)
    num_steps = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, num_steps - 1), max_size=4))) if num_steps > 1 else []
    if case in RATELESS:
        assert_cuts_change_nothing(layer, steps(num_steps), 1.0, cuts)
        return
    rates = st.floats(2**-10, 3.0, width=32)
    groups = data.draw(st.sampled_from([1, 2, 3, NUM_SEQUENCES]))
    per_step = data.draw(st.booleans())
    values = data.draw(st.lists(rates, min_size=groups * num_steps, max_size=groups * num_steps))
    scale = torch.tensor(values).view(num_steps, groups)
    assert_cuts_change_nothing(layer, steps(num_steps), scale if per_step else scale[:1], cuts)


@torch.no_grad()
@every_layer
def test_a_step_without_a_duration_may_stand_alone(case):
    layer = build(case)
    assert_cuts_change_nothing(layer, steps(3), torch.tensor([[1.0], [0.0], [0.5]]), [1, 2])
    layer.forward_without_memory(steps(1), torch.zeros(1, 1))


@every_layer
def test_gradcheck_through_input_state_scale_and_parameters(case):
    limit = {"bandlimit": 0.4} if case in MASKED_CASES else {}
    layer = build(case, dim=2, state_size=4, dt_min=0.1, dt_max=0.9, **limit).double()
    layer = getattr(layer, "ssm", layer)
    names = [name for name, _ in layer.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    state = tuple(s.requires_grad_() for s in as_tuple(random_state(layer.double(), 2)))
    scale = () if case in RATELESS else ((torch.rand(3, 2, dtype=torch.float64) + 0.5).requires_grad_(),)

    def run(x, *values):
        states, values = values[: len(state)], values[len(state) :]
        given_scale, values = values[: len(scale)], values[len(scale) :]
        arguments = (x, states if len(states) > 1 else states[0], *given_scale)
        y, after = functional_call(layer, dict(zip(names, values, strict=True)), arguments)
        return (y, *as_tuple(after))

    # the product of all derivatives with a random direction
    assert torch.autograd.gradcheck(run, (x, *state, *scale, *parameters), fast_mode=True)


@torch.no_grad()
@every_layer
def test_low_precision_input_keeps_the_state_in_full_precision(case):
    layer, x = build(case), steps(10)
    wanted, wanted_state = layer(x, layer.init_state(NUM_SEQUENCES))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x, layer.init_state(NUM_SEQUENCES))
    assert_near(y.float(), wanted, 5e-2)
    for found, full in zip(as_tuple(state), as_tuple(wanted_state), strict=True):
        assert found.dtype == full.dtype
    # What follows the input is computed from an input in low precision.
    assert_near(state, wanted_state, 1e-1 if case.startswith(("s7", "selective_s5")) else 3e-2)
    if hasattr(layer, "ssm"):  # without autocast, the layer alone takes it as well
        y, state = layer.ssm(x.bfloat16(), layer.init_state(NUM_SEQUENCES))
        assert (y.dtype, state.dtype) == (torch.bfloat16, wanted_state.dtype)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name, layer in CORES.items() if hasattr(layer, "D")])
@pytest.mark.parametrize("changes", [{}, {"half_state": True}])
def test_the_state_is_heard_from_the_start(name, changes):
    """With unit noise in, the memory beside the direct way D shows in the output before any training."""
    torch.manual_seed(0)
    ssm = build_temporal_layer(TemporalConfig(name=name, **changes), 64).ssm
    x = torch.randn(300, 4, 64)
    y, _ = ssm(x, ssm.init_state(4))
    assert 0.02 < (y - ssm.D * x)[200:].std() < 2
    assert y.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("varying", [False, True])
@every_layer
def test_a_gpu_gives_the_numbers_of_the_cpu(case, varying):
    layer, x = build(case).double(), steps(5, 48).double()
    scale = rate(case, torch.rand(5, 3, dtype=torch.float64) + 0.5 if varying else 1.0)
    results = []
    for device in ("cpu", "cuda"):
        layer.to(device).zero_grad()
        y, state = layer(x.to(device), layer.init_state(48), scale.to(device) if isinstance(scale, Tensor) else scale)
        (y.square().sum() + sum(s.abs().square().sum() for s in as_tuple(state))).backward()
        results.append([y.cpu(), *(s.cpu() for s in as_tuple(state)), *(p.grad.cpu() for p in layer.parameters())])
    torch.testing.assert_close(*results)


def test_names_that_do_not_exist_are_refused_with_the_ones_that_do():
    with pytest.raises(ValueError, match=r"temporal\.name=gru; choose from s4, s4d, s5, selective_s5, s7, lstm"):
        build_temporal_layer(TemporalConfig(name="gru"), DIM)
    for name in ("s4d", "s5", "selective_s5"):
        with raises("setting.choice", "temporal.init"):
            build_temporal_layer(TemporalConfig(name=name, init="random"), DIM)
    for name in ("s4", "s4d", "s5", "selective_s5"):
        with raises("setting.choice", "temporal.discretization"):
            build_temporal_layer(TemporalConfig(name=name, discretization="euler"), DIM)
    for wrong in ({"bandlimit": 50}, {"dt_min": 0.2, "dt_max": 0.1}, {"name": "s7", "block": "glu"}):
        with pytest.raises(ValueError, match=list(wrong)[-1]):
            TemporalConfig(**wrong)


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_the_settings_of_a_layer_are_what_its_class_says(name):
    """A checkpoint keeps them, so that a layer may get another default later."""
    layer = CORES[name]
    config = with_layer_defaults(TemporalConfig(name=name))
    assert (config.discretization, config.block) == (layer.default_rule, layer.default_block)
    if layer.may_be_bidirectional:
        assert not build_temporal_layer(TemporalConfig(name=name, bidirectional=True), DIM).is_causal
    else:
        with pytest.raises(UserError, match=r"temporal\.bidirectional"):
            build_temporal_layer(TemporalConfig(name=name, bidirectional=True), DIM)
