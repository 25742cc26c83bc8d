"""S5 beyond the laws: the formula, parameter counts, half state, spectra, and the LSTM against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from rvtssm.ssm import LSTM, S5, S5SSM, TemporalConfig
from rvtssm.ssm.init import SPECTRA, hippo_legs, initial_spectrum
from rvtssm.ssm.scan import scan_reference


def test_the_formula_written_out():
    """The layer against matrices and a loop, in float64."""
    torch.manual_seed(0)
    ssm = S5SSM(3, TemporalConfig(state_size=8, discretization="zoh", dt_min=0.1, dt_max=1.0)).double()
    with torch.no_grad():
        lambda_, dt = ssm.modes()
        b, c = torch.view_as_complex(ssm.B), torch.view_as_complex(ssm.C)
        is_heard = dt * lambda_.imag.abs() / (2 * torch.pi) < 0.25
        assert is_heard.any() and not is_heard.all()
        x, state = torch.randn(7, 2, 3, dtype=torch.float64), torch.randn_like(ssm.init_state(2))
        decay = torch.exp(lambda_ * dt * 0.5)
        drive = x.to(b.dtype) @ ((decay - 1) / lambda_ * b.T)
        states, last = scan_reference(decay, drive, state)
        y = (states @ (c * is_heard).T).real + ssm.D * x
        found, found_last = ssm(x, state, 0.5)
    torch.testing.assert_close(found, y)
    torch.testing.assert_close(found_last, last)


def test_half_state_is_the_full_state_with_conjugate_symmetry():
    torch.manual_seed(0)
    config = {"state_size": 8, "bandlimit": 0.5, "dt_min": 0.05, "dt_max": 0.5}
    half, full = S5SSM(3, TemporalConfig(half_state=True, **config)), S5SSM(3, TemporalConfig(**config))
    with torch.no_grad():
        mirror = torch.tensor([1.0, -1.0])
        for name in ("Lambda", "B"):
            values = getattr(half, name)
            getattr(full, name).copy_(torch.cat([values, values * mirror]))
        full.C.copy_(torch.cat([half.C, half.C * mirror], dim=1))
        full.D.copy_(half.D)
        full.log_step.copy_(half.log_step.repeat(2))
        x = torch.randn(9, 2, 3)
        torch.testing.assert_close(half(x, half.init_state(2))[0], full(x, full.init_state(2))[0])
    assert half.init_state(2).shape == (2, 4)


@pytest.mark.parametrize("half_state", [False, True])
@pytest.mark.parametrize("dim", [16, 64])
def test_parameter_count(dim, half_state):
    modes = dim // 2 if half_state else dim
    layer = S5(dim, TemporalConfig(half_state=half_state))
    norms, feed_forward = 4 * dim, 3 * dim * dim
    assert sum(p.numel() for p in layer.parameters()) == 4 * modes * dim + 3 * modes + dim + norms + feed_forward


@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_are_stable_paired_and_orthonormal(name):
    lambda_, v = initial_spectrum(name, 24, num_blocks=3)
    assert lambda_.shape == (24,) and v.shape == (24, 24)
    assert (lambda_.real < 0).all()
    torch.testing.assert_close(v @ v.mH, torch.eye(24, dtype=v.dtype))
    system = v @ torch.diag(lambda_) @ v.mH
    assert system.imag.abs().max() < 1e-10, "the continuous system is real"
    half, half_v = initial_spectrum(name, 24, num_blocks=3, half=True)
    assert half.shape == (12,) and half_v.shape == (24, 12)
    assert (half.imag > -1e-12).all()
    torch.testing.assert_close(torch.cat([half, half.conj()]).sum(), lambda_.sum())


def test_hippo_is_normal_plus_low_rank():
    lambda_, p, b, v = hippo_legs(10)
    n = torch.arange(10, dtype=torch.float64)
    root = (2 * n + 1).sqrt()
    wanted = -(torch.outer(root, root).tril() - torch.diag(n))
    found = torch.from_numpy(v @ (lambda_[:, None] * v.conj().T) - (v @ p)[:, None] * (v @ p).conj())
    torch.testing.assert_close(found.real, wanted)
    torch.testing.assert_close(torch.from_numpy(v @ b).real, root)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"state_size=10 cannot be cut into temporal\.num_blocks=4"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=4))
    with pytest.raises(ValueError, match="block of 5 modes has no conjugate"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=2, half_state=True))


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
    y, end = ours(x, state)
    for x_l, y_l in zip(x, y, strict=True):
        state = theirs(x_l, state)
        torch.testing.assert_close(y_l, state[0])
    torch.testing.assert_close(end, state)
