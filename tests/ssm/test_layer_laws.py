"""The laws every temporal layer keeps, over the table of layers, discretisations and state modes."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from rvtssm.ssm import LSTM, TEMPORAL_LAYERS, TemporalConfig, TemporalLayer, build_temporal_layer
from rvtssm.ssm.discretize import DISCRETIZATIONS

DIM, NUM_SEQUENCES = 12, 6
LENGTHS = (1, 2, 3, 10, 21)
TOLERANCE = 1e-5  # of the largest value


def _cases() -> dict[str, TemporalConfig]:
    cases = {}
    for name, layer_class in TEMPORAL_LAYERS.items():
        if not layer_class.supports_step_scale:
            cases[name] = TemporalConfig(name=name)
            continue
        for method, half_state in product(DISCRETIZATIONS, (False, True)):
            label = f"{name}-{method}-{'half' if half_state else 'full'}"
            cases[label] = TemporalConfig(name=name, discretization=method, half_state=half_state)
    return cases


CASES = _cases()
SSM_CASES = {label: config for label, config in CASES.items() if TEMPORAL_LAYERS[config.name].supports_step_scale}
every_layer = pytest.mark.parametrize("case", CASES)
every_ssm = pytest.mark.parametrize("case", SSM_CASES)


def build(case: str, **changes: object) -> TemporalLayer:
    torch.manual_seed(0)
    return build_temporal_layer(TemporalConfig(**{**vars(CASES[case]), **changes}), DIM)


def as_tuple(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def random_state(layer: TemporalLayer, num_sequences: int = NUM_SEQUENCES, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    zeros = layer.init_state(num_sequences)
    drawn = tuple(torch.randn(z.shape, dtype=z.dtype, generator=generator) for z in as_tuple(zeros))
    return drawn if isinstance(zeros, tuple) else drawn[0]


def steps(num_steps: int, num_sequences: int = NUM_SEQUENCES) -> Tensor:
    return torch.randn(num_steps, num_sequences, DIM, generator=torch.Generator().manual_seed(num_steps))


def assert_near(found, wanted, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * float(other.detach().abs().max()))


def scale_at(scale: float | Tensor, part: slice) -> float | Tensor:
    return scale[part] if isinstance(scale, Tensor) and scale.ndim == 2 else scale


def assert_cuts_change_nothing(layer: TemporalLayer, x: Tensor, scale: float | Tensor, cuts: list[int]) -> None:
    state = random_state(layer)
    whole, end = layer(x, state, scale)
    parts, current = [], state
    for start, stop in zip([0, *cuts], [*cuts, len(x)], strict=True):
        y, current = layer(x[start:stop], current, scale_at(scale, slice(start, stop)))
        parts.append(y)
    assert_near(torch.cat(parts), whole)
    assert_near(current, end)
    stepped, current = [], state
    for index, x_l in enumerate(x):
        scale_l = scale[index] if isinstance(scale, Tensor) and scale.ndim == 2 else scale
        y, current = layer.step(x_l, current, scale_l)
        stepped.append(y)
    assert_near(torch.stack(stepped), whole)
    assert_near(current, end)


@torch.no_grad()
@pytest.mark.parametrize("num_steps", LENGTHS)
@every_layer
def test_cut_anywhere_is_whole_is_step_by_step(case, num_steps):
    layer = build(case)
    for cut in range(1, num_steps):
        assert_cuts_change_nothing(layer, steps(num_steps), 1.0, [cut])
    assert_cuts_change_nothing(layer, steps(num_steps), 0.1, [])


@torch.no_grad()
@hypothesis_settings(max_examples=50)
@given(data=st.data(), case=st.sampled_from(sorted(CASES)))
def test_random_cuts_and_random_steps(data, case):
    layer = build(case)
    num_steps = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, num_steps - 1), max_size=4))) if num_steps > 1 else []
    rates = st.floats(0.0, 3.0, width=32)
    groups = data.draw(st.sampled_from([1, 2, 3, NUM_SEQUENCES]))
    per_step = data.draw(st.booleans())
    values = data.draw(st.lists(rates, min_size=groups * num_steps, max_size=groups * num_steps))
    scale = torch.tensor(values).view(num_steps, groups)
    assert_cuts_change_nothing(layer, steps(num_steps), scale if per_step else scale[0], cuts)


@torch.no_grad()
@every_layer
def test_float64_cuts_to_rounding(case):
    layer = build(case).double()
    state, x = random_state(layer), steps(9).double()
    whole, end = layer(x, state, 0.7)
    assert whole.dtype == torch.float64
    head, middle = layer(x[:4], state, 0.7)
    tail, last = layer(x[4:], middle, 0.7)
    assert_near(torch.cat([head, tail]), whole, 1e-13)
    assert_near(last, end, 1e-13)


@torch.no_grad()
@every_layer
def test_another_state_is_another_output(case):
    layer, x = build(case), steps(3)
    one, _ = layer(x, random_state(layer, seed=1))
    other, _ = layer(x, random_state(layer, seed=2))
    assert ((one - other).abs().amax(dim=(1, 2)) > 1e-2).all(), "every step hears the state it started from"


@torch.no_grad()
@every_layer
def test_sequences_do_not_mix(case):
    layer, x, state = build(case), steps(4), random_state(build(case))
    y, _ = layer(x, state)
    alone = tuple(s[2:3] for s in as_tuple(state))
    y_alone, _ = layer(x[:, 2:3], alone if isinstance(state, tuple) else alone[0])
    assert_near(y[:, 2:3], y_alone)


@every_layer
def test_gradient_reaches_the_carried_state_and_every_parameter(case):
    layer, x = build(case, bandlimit=0.0), steps(5)
    state = random_state(layer)
    first = tuple(s.requires_grad_() for s in as_tuple(state))
    _, middle = layer(x[:2], state)
    y, _ = layer(x[2:], middle)
    y.square().sum().backward()
    for s in first:
        assert s.grad is not None
        assert (s.grad.abs().amax(dim=1) > 0).all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@every_layer
def test_a_zero_state_is_what_init_state_gives(case):
    layer = build(case)
    for s in as_tuple(layer.init_state(4)):
        assert s.shape[0] == 4
        assert not s.any()
        assert s.device == next(layer.parameters()).device


@torch.no_grad()
@every_layer
def test_prepared_once_is_prepared_every_time(case):
    layer, x, state = build(case), steps(4), random_state(build(case))
    for scale in (0.5, torch.linspace(0.5, 1.5, NUM_SEQUENCES)):
        assert_near(layer(x, state, layer.prepare(scale))[0], layer(x, state, scale)[0])


@torch.no_grad()
@every_layer
def test_constant_scales_are_equal_in_every_shape(case):
    layer, x, state = build(case), steps(5), random_state(build(case))
    wanted, wanted_end = layer(x, state, 0.3)
    for shape in [(), (1,), (2,), (NUM_SEQUENCES,), (5, 1), (5, 3), (5, NUM_SEQUENCES)]:
        # A scale that requires gradient takes the general way, one that does not is seen to be constant.
        for requires_grad in (False, True):
            scale = torch.full(shape, 0.3).requires_grad_(requires_grad)
            y, end = layer(x, state, scale)
            assert_near(y, wanted)
            assert_near(end, wanted_end)


@torch.no_grad()
@every_ssm
def test_groups_of_sequences_share_a_scale(case):
    layer, x, state = build(case), steps(4), random_state(build(case))
    scale = torch.tensor([[0.5, 1.0], [1.0, 0.2], [2.0, 1.0], [1.0, 1.0]])
    y, end = layer(x, state, scale)
    spread, spread_end = layer(x, state, scale.repeat_interleave(NUM_SEQUENCES // 2, dim=1))
    assert_near(y, spread)
    assert_near(end, spread_end)


@every_ssm
def test_a_scale_that_does_not_fit_is_refused(case):
    layer, state = build(case), random_state(build(case))
    with pytest.raises(ValueError, match="1 steps of 4 groups, the input has 3 steps of 6 sequences"):
        layer(steps(3), state, torch.rand(4))
    with pytest.raises(ValueError, match="2 steps of 6 groups, the input has 3 steps"):
        layer(steps(3), state, torch.rand(2, 6))
    with pytest.raises(ValueError, match=r"got the shape \(3, 6, 1\)"):
        layer(steps(3), state, torch.rand(3, 6, 1))


@torch.no_grad()
@pytest.mark.parametrize("finer", [1, 2, 5, 10])
@pytest.mark.parametrize("case", [case for case in SSM_CASES if "-zoh-" in case])
def test_a_held_input_gives_the_same_state_at_finer_steps(case, finer):
    layer, x, state = build(case), steps(8), random_state(build(case))
    _, wanted = layer(x, state)
    _, found = layer(x.repeat_interleave(finer, dim=0), state, 1 / finer)
    assert_near(found, wanted)
    uneven = torch.rand(finer, 1) + 0.1
    _, found = layer(x.repeat_interleave(finer, dim=0), state, (uneven / uneven.sum()).repeat(8, 1))
    assert_near(found, wanted)


@torch.no_grad()
@pytest.mark.parametrize("half_state", [False, True])
def test_bilinear_at_finer_steps_is_near_and_not_equal(half_state):
    """The released weights lose something at high rates; this bounds it from both sides, for modes below the limit."""
    layer = build(f"s5-bilinear-{'half' if half_state else 'full'}")
    x = steps(8).abs()
    _, wanted = layer(x, layer.init_state(NUM_SEQUENCES))
    _, found = layer(x.repeat_interleave(10, dim=0), layer.init_state(NUM_SEQUENCES), 0.1)
    is_mild = layer.ssm.modes()[0].imag.abs() * layer.ssm.modes()[1] < 0.3
    error = ((found - wanted).abs() / wanted.abs().amax(dim=0))[:, is_mild].max()
    assert 1e-4 < error < 0.05


@torch.no_grad()
def test_the_lstm_ignores_the_step_scale():
    layer = build("lstm")
    x, state = steps(4), random_state(layer)
    wanted = layer(x, state)
    assert isinstance(layer, LSTM)
    assert not layer.supports_step_scale
    for scale in (0.1, torch.rand(NUM_SEQUENCES), torch.rand(4, NUM_SEQUENCES)):
        y, end = layer(x, state, scale)
        assert torch.equal(y, wanted[0])
        assert all(torch.equal(a, b) for a, b in zip(end, wanted[1], strict=True))


@pytest.mark.parametrize("at", ["train_step", "current_step"])
@every_ssm
def test_the_mask_still_holds_after_optimiser_steps(case, at):
    """No output depends on a mode that oscillates faster than the limit now, wherever training has moved it."""
    layer = build(case, bandlimit_at=at, state_size=32)
    ssm, x = layer.ssm, steps(6)
    scale = 0.8 if at == "current_step" else 1.0
    with torch.no_grad():  # modes on both sides of the limit, near enough for training to move some over it
        cycles = torch.linspace(0.2, 0.3, len(ssm.log_step)) / scale
        ssm.log_step.copy_((2 * torch.pi * cycles / ssm.Lambda[:, 1].abs()).log())
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    seen, weights = set(), torch.randn(x.shape)
    for _ in range(4):
        cycles = scale * ssm.log_step.exp() * ssm.Lambda[:, 1].abs() / (2 * torch.pi)
        is_masked = (cycles >= 0.25).detach()
        seen.add(tuple(is_masked.tolist()))
        optimizer.zero_grad()
        y, _ = layer(x, layer.init_state(NUM_SEQUENCES), 0.8)
        (y * weights).mean().backward()
        assert is_masked.any() and not is_masked.all()
        assert not ssm.C.grad[:, is_masked].any()
        assert ssm.C.grad[:, ~is_masked].any(dim=0).any(dim=-1).all()
        optimizer.step()
    assert len(seen) > 1, "training moved modes over the limit"


@torch.no_grad()
@every_ssm
def test_current_step_masks_sequences_one_by_one(case):
    layer = build(case, bandlimit_at="current_step", dt_min=0.02, dt_max=0.5)
    x, state = steps(4), random_state(layer)
    scale = torch.tensor([0.2, 0.5, 0.9, 1.0, 2.0, 4.0])
    y, _ = layer(x, state, scale)
    for index in range(NUM_SEQUENCES):
        alone, _ = layer(x[:, index : index + 1], state[index : index + 1], float(scale[index]))
        assert_near(alone, y[:, index : index + 1], 3e-5)


@torch.no_grad()
@every_ssm
def test_clipping_keeps_an_unstable_mode_in_bounds(case):
    layer = build(case)
    layer.ssm.Lambda[:, 0] = 2.0
    y, state = layer(torch.ones(2000, 1, DIM), layer.init_state(1))
    assert state.abs().max() < 1e4
    assert y.isfinite().all()
    assert build(case, clip_real=False).ssm.clip_real is False


def test_names_that_do_not_exist_are_refused_with_the_ones_that_do():
    with pytest.raises(ValueError, match=r"temporal\.name='gru'; choose from s5"):
        build_temporal_layer(TemporalConfig(name="gru"), DIM)
    with pytest.raises(ValueError, match=r"temporal\.init='random'; choose from legs"):
        build_temporal_layer(TemporalConfig(init="random"), DIM)
    for wrong in ({"bandlimit": -1.0}, {"bandlimit_at": "never"}, {"dt_min": 0.0}, {"dt_min": 0.2, "dt_max": 0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TemporalConfig(**wrong)
