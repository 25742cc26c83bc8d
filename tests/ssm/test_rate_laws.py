"""The laws of the step: what a step scale means, what each discretisation is exact for, what the mask silences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from layer_examples import (
    CASES,
    DIM,
    MASKED_CASES,
    NUM_SEQUENCES,
    VARIANTS,
    assert_near,
    build,
    every_ssm,
    random_state,
    steps,
)
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torch import Tensor
from torch.nn import functional as F
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.init import INITIAL_MODES, initial_modes
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s4 import S4SSM
from rvtssm.ssm.s4d import S4DSSM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.s7 import S7SSM
from rvtssm.ssm.selective_s5 import SelectiveS5SSM
from rvtssm.ssm.spectrum import bandlimit_mask, energy_diagonal, frequencies, mode_spectrum
from rvtssm.ssm.temporal_layers import build_temporal_layer


@torch.no_grad()
@every_ssm
def test_groups_of_sequences_share_a_scale(case):
    layer, x, state = build(case), steps(4), random_state(build(case))
    scale = torch.tensor([[0.5, 1.0], [1.0, 0.2], [2.0, 1.0], [1.0, 1.0]])
    y, end = layer(x, state, scale)
    spread, spread_end = layer(x, state, scale.repeat_interleave(NUM_SEQUENCES // 2, dim=1))
    assert_near(y, spread)
    assert_near(end, spread_end)


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case in VARIANTS if "-dirac" in case or "-async" in case])
def test_after_an_impulse_silence_is_silence_in_steps_of_any_size(case):
    layer, state = build(case), random_state(build(case))
    impulse, silence = steps(1), torch.zeros(1, NUM_SEQUENCES, DIM)
    wanted = layer(torch.cat([impulse, silence]), state, torch.tensor([[0.7], [2.0]]))[1]
    for sizes in ([0.2] * 10, [1.0, 0.05, 0.95], [0.0, 2.0]):
        x = torch.cat([impulse, silence.repeat(len(sizes), 1, 1)])
        assert_near(layer(x, state, torch.tensor([0.7, *sizes])[:, None])[1], wanted)


@torch.no_grad()
@pytest.mark.parametrize(
    ("layer", "bandlimit", "of_states", "of_outputs"),
    [
        (S5SSM, 0.0, 0.78, 0.68),
        (S5SSM, 0.5, 0.78, 0.30),
        (S4DSSM, 0.0, 1.05, 1.00),
        (S4DSSM, 0.5, 1.05, 0.57),
        (S4SSM, 0.0, 1.27, 1.21),
    ],
)
def test_what_bilinear_changes_in_new_layers_is_as_documented(layer, bandlimit, of_states, of_outputs):
    """64 features, the steps of the default recipe, inputs held for one step of training or ten of a tenth."""
    for method in ("bilinear", "zoh"):
        torch.manual_seed(0)
        ssm = layer(64, TemporalConfig(name=layer.name, discretization=method, bandlimit=bandlimit)).double()
        ssm.D.zero_()
        x, start = torch.randn(21, 8, 64).double(), ssm.init_state(8)
        y, end = ssm(x, start)
        finer, finer_end = ssm(x.repeat_interleave(10, dim=0), start, 0.1)
        found = [((a - b).norm() / b.norm()).item() for a, b in ((end, finer_end), (y, finer[9::10]))]
        wanted = [of_states, of_outputs] if method == "bilinear" else [0.0, 0.0]
        assert found == pytest.approx(wanted, rel=0.15, abs=1e-9)


def continuous(ssm: TemporalLayer, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (S, S), B (S, H) or of feature k (S, 1), and the steps of the modes (S,)."""
    if isinstance(ssm, S4SSM):
        a, b = (values[k].numpy() for values in ssm.continuous())
        return a, b[:, None], np.full(len(a), ssm.log_step[k].exp())
    lambda_, dt = ssm.modes()
    inputs = torch.view_as_complex(ssm.B)
    if isinstance(ssm, S4DSSM):
        return np.diag(lambda_[k].numpy()), inputs[k, :, None].numpy(), np.full(len(inputs[k]), dt[k])
    return np.diag(lambda_.numpy()), inputs.numpy(), dt.numpy()


def solved(a: np.ndarray, held: np.ndarray, state: np.ndarray, duration: float) -> np.ndarray:
    """The state that x' = a x + held leads to."""
    solution = solve_ivp(lambda _, x: a @ x + held, (0, duration), state, "DOP853", rtol=1e-9, atol=1e-11)
    return solution.y[:, -1]


def at_feature(ssm: TemporalLayer, state: Tensor, k: int) -> np.ndarray:
    """The state (S,) of the first sequence, that of feature k where each has its own."""
    if isinstance(ssm, S4SSM):
        return torch.view_as_real(state[0, k]).flatten().numpy()
    return (state[0, k] if isinstance(ssm, S4DSSM) else state[0]).numpy()


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case in CASES if CASES[case].name in ("s4", "s4d", "s5")])
def test_irregular_steps_give_the_state_of_the_continuous_system(case):
    """Against a numerical solution of x' = A x + B u over uneven steps, u held during each of them (`zoh`) or an
    impulse at its end (`dirac`; `async`, as heavy as an input held for a training step). `bilinear` is near, the more
    so the shorter the steps.
    """
    method = CASES[case].discretization
    ssm = build(case, dt_min=0.05, dt_max=0.5).ssm.double()
    scales = torch.rand(6, generator=torch.Generator().manual_seed(7)).double() * 2
    if method == "bilinear":
        scales = scales / 1000
    x, start = steps(6).double()[:, :1], random_state(ssm, 1)
    _, end = ssm(x, start, scales[:, None])
    for k in range(1 if isinstance(ssm, S5SSM) else 3):
        a, b, dt = continuous(ssm, k)
        a = a * dt[:, None]  # time in training steps
        state = at_feature(ssm, start, k)
        for scale, u in zip(scales.tolist(), x[:, 0].numpy(), strict=True):
            driven = b @ (u if isinstance(ssm, S5SSM) else u[k : k + 1])
            held = dt * driven if method in ("zoh", "bilinear") else 0 * driven
            state = solved(a, held, state, scale)
            if method == "dirac":
                state = state + driven
            if method == "async":
                state = state + np.linalg.solve(a, (expm(a) - np.eye(len(a))) @ (dt * driven))
        tolerance = 1e-5 if method == "bilinear" else 1e-7
        assert np.abs(at_feature(ssm, end, k) - state).max() < tolerance * np.abs(state).max()


def set_cycles(layer: TemporalLayer, lowest: float, highest: float) -> None:
    """Give the modes frequencies spread evenly in between, in cycles per training step."""
    _, dt = layer.ssm.modes()
    imag = layer.ssm.Lambda[:, 1] if hasattr(layer.ssm, "Lambda") else layer.ssm.imag
    cycles = torch.linspace(lowest, highest, imag.shape[-1])
    with torch.no_grad():
        imag.copy_((2 * torch.pi * cycles / dt).expand_as(imag) * torch.where(imag < 0, -1.0, 1.0))


@pytest.mark.parametrize("at", ["train_step", "current_step"])
@pytest.mark.parametrize("case", MASKED_CASES)
def test_the_mask_still_holds_after_optimiser_steps(case, at):
    """No output depends on a mode that oscillates faster than the limit now, wherever training has moved it."""
    layer = build(case, bandlimit=0.5, bandlimit_at=at, state_size=32, dt_min=0.05)
    ssm, x = layer.ssm, steps(6)
    scale = 0.8 if at == "current_step" else 1.0
    set_cycles(layer, 0.2 / scale, 0.3 / scale)  # both sides of the limit, near enough for training to cross it
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    seen, weights = set(), torch.randn(x.shape)
    for _ in range(4):
        lambda_, dt = ssm.modes()
        is_masked = (scale * dt * lambda_.imag.abs() / (2 * torch.pi) >= 0.25).detach()
        seen.add(tuple(is_masked.flatten().tolist()))
        optimizer.zero_grad()
        y, _ = layer(x, layer.init_state(NUM_SEQUENCES), 0.8)
        (y * weights).mean().backward()
        assert is_masked.any() and not is_masked.all()
        is_masked = is_masked.expand(DIM, -1)  # C of S5 is (H, P, 2), of S4D (H, n, 2)
        assert not ssm.C.grad[is_masked].any()
        assert ssm.C.grad[~is_masked].any(dim=-1).all()
        optimizer.step()
    assert len(seen) > 1, "training moved modes over the limit"


@torch.no_grad()
@pytest.mark.parametrize("case", MASKED_CASES)
def test_current_step_masks_sequences_one_by_one(case):
    layer = build(case, bandlimit=0.5, bandlimit_at="current_step", dt_min=0.02, dt_max=0.5)
    x, state = steps(4), random_state(layer)
    scale = torch.tensor([0.2, 0.5, 0.9, 1.0, 2.0, 4.0])
    y, _ = layer(x, state, scale[None])
    varying, _ = layer(x, state, scale.repeat(4, 1).requires_grad_())
    assert_near(varying, y)
    for index in range(NUM_SEQUENCES):
        alone, _ = layer(x[:, index : index + 1], state[index : index + 1], float(scale[index]))
        assert_near(alone, y[:, index : index + 1], 3e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case not in MASKED_CASES])
def test_a_bandlimit_is_refused_by_name_where_there_are_no_modes_to_mask(case):
    with raises("setting.conflict"):
        build(case, bandlimit=0.5)
    build(case, bandlimit=0.0)


# frequencies, time constants and the H2 norm


LAMBDA = torch.tensor([-0.5 + 0j, -0.5 + 2j, -0.25 - 8j, 0 + 1j])
DT = torch.tensor([1.0, math.pi / 4, math.pi / 16, 2.0])


def test_a_mode_repeats_after_one_over_its_frequency():
    steps = 1 / frequencies(LAMBDA, DT)[1:]
    angle = (LAMBDA[1:].imag.abs() * DT[1:]) * steps
    torch.testing.assert_close(angle, torch.full((3,), 2 * math.pi))


def test_a_mode_decays_to_one_over_e_in_its_timescale():
    steps = mode_spectrum(LAMBDA, DT).timescale_steps
    after = torch.exp(LAMBDA * DT).abs()[:3] ** steps[:3]
    torch.testing.assert_close(after, torch.full_like(after, math.exp(-1)), rtol=1e-5, atol=0)
    assert steps[3].isinf()


def test_the_mask_keeps_what_lies_below_a_part_of_the_nyquist_rate():
    """Frequencies here are 0, 1 / 4, 1 / 4 and 1 / pi cycles per step."""
    assert bandlimit_mask(LAMBDA, DT, 0) is None
    assert bandlimit_mask(LAMBDA, DT, 0.45).tolist() == [True, False, False, False]
    assert bandlimit_mask(LAMBDA, DT, 0.55).tolist() == [True, True, True, False]
    assert bandlimit_mask(LAMBDA, DT, 1.0).all()
    # At a step ten times shorter, nothing is near the Nyquist rate of the step in use; the training step decides.
    assert bandlimit_mask(LAMBDA, DT, 0.45, "train_step", 0.1).tolist() == [True, False, False, False]
    assert bandlimit_mask(LAMBDA, DT, 0.45, "current_step", 0.1).all()
    assert bandlimit_mask(LAMBDA, DT, 0.45, "current_step", torch.ones(3, 2, 1)).shape == (3, 2, 4)


H2_LAYERS = {
    "s4": S4SSM,
    "s4d": S4DSSM,
    "s5": S5SSM,
    "s5-half": lambda dim, config: S5SSM(dim, replace(config, half_state=True)),
}


def h2_layer(name: str) -> TemporalLayer:
    """Without mask, and resonances wide enough for a quadrature of a few thousand points."""
    torch.manual_seed(0)
    return H2_LAYERS[name](3, TemporalConfig(state_size=8, dt_min=0.1, dt_max=0.9)).double()


def real_system(layer: TemporalLayer) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The continuous systems A, B, C over real numbers, time in training steps: one, or one per feature."""
    with torch.no_grad():
        if isinstance(layer, S5SSM):
            lambda_, dt = layer.modes()
            b, c = torch.view_as_complex(layer.B), torch.view_as_complex(layer.C) * (1 + layer.half_state)
            parts = [(lambda_ * dt, b * dt[:, None], c)]
        elif isinstance(layer, S4DSSM):
            lambda_, dt = layer.modes()
            b, c = torch.view_as_complex(layer.B) * dt, 2 * torch.view_as_complex(layer.C)
            parts = [(lambda_[k] * dt[k], b[k, :, None], c[k, None]) for k in range(len(dt))]
        else:
            a, b = layer.continuous()
            dt, c = layer.log_step.exp(), 2 * torch.view_as_complex(layer.C)
            row = torch.view_as_real(c.conj().resolve_conj()).flatten(-2)
            return [((a[k] * dt[k]).numpy(), (b[k] * dt[k]).numpy()[:, None], row[k, None].numpy()) for k in range(3)]
    systems = []
    for lambda_, b, c in parts:
        a = torch.diag(lambda_).numpy()
        systems.append(
            (
                np.block([[a.real, -a.imag], [a.imag, a.real]]),
                np.concatenate([b.real, b.imag]),
                np.concatenate([c.real, -c.imag], axis=1),
            )
        )
    return systems


@torch.no_grad()
@pytest.mark.parametrize("name", H2_LAYERS)
def test_the_h2_norm_is_that_of_the_transfer_function(name):
    """By a plain sum over frequencies of C (i omega - A)^-1 B."""
    layer, (lowest, highest) = h2_layer(name), (math.pi / 2, 10 * math.pi)
    omega = np.linspace(lowest, highest, 20001)
    total = 0.0
    for a, b, c in real_system(layer):
        inverse = np.linalg.inv(1j * omega[:, None, None] * np.eye(len(a)) - a)
        total += np.trapezoid((np.abs(c @ inverse @ b) ** 2).sum((1, 2)), omega) / math.pi
    wanted = math.sqrt(total)
    assert float(layer.h2_norm()) == pytest.approx(wanted, rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert float(layer.h2_norm()) == pytest.approx(wanted, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("real", [1e-1, 1e-4, 1e-7])
def test_a_narrow_resonance_counts_where_it_is(real):
    """1 / (s + a - i w) has 1 / a in all, nearly all of it around w; the closed form needs no fine grid."""
    lambda_, weights = torch.tensor([complex(-real, 3.0)]), torch.ones(1, 1)
    around = float(energy_diagonal(lambda_, weights, 2.0, 4.0))
    assert around == pytest.approx((math.atan(1 / real) * 2) / (math.pi * real), rel=1e-6)
    everything = float(energy_diagonal(lambda_, weights, 0, math.inf))
    assert everything == pytest.approx((math.pi / 2 + math.atan(3 / real)) / (math.pi * real), rel=1e-6)
    beyond = float(energy_diagonal(lambda_, weights, 5.0, 7.0))
    assert beyond == pytest.approx((math.atan(4 / real) - math.atan(2 / real)) / (math.pi * real), rel=1e-6)


def test_masked_modes_are_not_part_of_the_norm():
    torch.manual_seed(0)
    layers = [S4DSSM(3, TemporalConfig(bandlimit=limit, dt_min=0.1, dt_max=0.9)) for limit in (0.0, 0.5, 1e-9)]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    norms = [layer.h2_norm() for layer in layers]
    assert norms[0] > 2 * norms[1] > 0
    assert norms[2] < 1e-15
    norms[2].backward()
    assert not layers[2].C.grad.any()


@pytest.mark.parametrize("name", ["lstm", "selective_s5", "s7"])
def test_layers_without_a_transfer_function_say_so(name):
    layer = build_temporal_layer(TemporalConfig(name=name), 4)
    with raises("layer.lacks"):
        layer.h2_norm()


def test_a_band_must_have_a_beginning_and_an_end():
    layer = h2_layer("s5")
    for band in ((2.0, 1.0), (-1.0, 1.0)):
        with raises("setting.out_of_range"):
            layer.h2_norm(*band)
    for band in ((0.0, 1.0), (1.0, math.inf)):
        with raises("setting.out_of_range"):
            h2_layer("s4").h2_norm(*band)


# where layers start


FEATURES, SIZE, NUM_BLOCKS = 48, 16, 2


def built(name: str, **changes) -> TemporalLayer:
    torch.manual_seed(0)
    return build_temporal_layer(TemporalConfig(name=name, **changes), FEATURES).ssm


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
    found = initial_steps(built(name, dt_min=0.02, dt_max=0.05))
    assert 0.0199 < found.min() < 0.023 and 0.044 < found.max() < 0.0501


@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_entries_of_b_and_c_start_with_the_variances_that_are_documented(half):
    layer, size = built("s5", state_size=4 * FEATURES, half_state=half), 4 * FEATURES
    assert float(layer.B.square().sum(-1).mean()) == pytest.approx(1 / FEATURES, rel=0.05)
    assert float(layer.C.square().sum(-1).mean()) == pytest.approx((1 if half else 2) / size, rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("init", INITIAL_MODES)
@pytest.mark.parametrize(
    ("name", "half"), [("s4d", True), ("s5", False), ("s5", True), ("selective_s5", False), ("selective_s5", True)]
)
def test_modes_start_at_the_spectrum_that_is_named(name, half, init):
    key = {} if name == "s4d" else {"half_state": half}
    found = modes_at_start(built(name, init=init, state_size=SIZE, num_blocks=NUM_BLOCKS, **key))
    wanted = initial_modes(init, SIZE, NUM_BLOCKS, half)[0].to(found.dtype)
    torch.testing.assert_close(found, wanted.expand_as(found), rtol=1e-6, atol=1e-6)
