"""Frequencies, time constants, the bandlimit and the H2 norm."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from user_errors import raises

from rvtssm.ssm.init import INITIAL_MODES, initial_modes
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s4 import S4SSM
from rvtssm.ssm.s4d import S4DSSM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.s7 import S7SSM
from rvtssm.ssm.selective_s5 import SelectiveS5SSM
from rvtssm.ssm.spectrum import bandlimit_mask, energy_diagonal, frequencies, mode_spectrum
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

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
    "s5-half": lambda dim, config: S5SSM(dim, TemporalConfig(**{**vars(config), "half_state": True})),
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
    with raises("layer.no_h2_norm"):
        layer.h2_norm()


def test_a_band_must_have_a_beginning_and_an_end():
    layer = h2_layer("s5")
    for band in ((2.0, 1.0), (-1.0, 1.0)):
        with raises("layer.band"):
            layer.h2_norm(*band)
    for band in ((0.0, 1.0), (1.0, math.inf)):
        with raises("layer.band"):
            h2_layer("s4").h2_norm(*band)


# where layers start


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
