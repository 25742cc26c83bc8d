"""S5 beyond the laws: spectra, and both directions."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_arrays import GoldenArrays
from numpy.typing import ArrayLike
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.init import INITIAL_MODES, hippo_legs, initial_modes
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_layers import build_temporal_layer


@pytest.mark.parametrize("name", INITIAL_MODES)
def test_spectra_are_stable_paired_and_orthonormal(name):
    lambda_, v = initial_modes(name, 24, num_blocks=3)
    assert lambda_.shape == (24,) and v.shape == (24, 24)
    assert (lambda_.real < 0).all()
    torch.testing.assert_close(v @ v.mH, torch.eye(24, dtype=v.dtype))
    system = v @ torch.diag(lambda_) @ v.mH
    assert system.imag.abs().max() < 1e-10, "the continuous system is real"
    half, half_v = initial_modes(name, 24, num_blocks=3, half=True)
    assert half.shape == (12,) and half_v.shape == (24, 12)
    assert (half.imag > -1e-12).all()
    torch.testing.assert_close(torch.cat([half, half.conj()]).sum(), lambda_.sum())


def test_sizes_that_cannot_be_are_refused():
    with raises("setting.conflict"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=4))
    with raises("setting.conflict"):
        S5SSM(4, TemporalConfig(state_size=10, num_blocks=2, half_state=True))


def both_ways(**changes: object) -> tuple[S5SSM, S5SSM, S5SSM]:
    """A bidirectional layer and its two directions as layers of their own, the second without D."""
    torch.manual_seed(0)
    config = {"state_size": 8, "dt_min": 0.1, "dt_max": 0.9, **changes}
    both = S5SSM(3, TemporalConfig(bidirectional=True, **config)).double()
    directions = [S5SSM(3, TemporalConfig(**config)).double() for _ in range(2)]
    for direction, c in zip(directions, both.C.chunk(2, dim=1), strict=True):
        direction.load_state_dict({**both.state_dict(), "C": c})
    torch.nn.init.zeros_(directions[1].D)
    return both, *directions


@torch.no_grad()
@pytest.mark.parametrize("at", ["train_step", "current_step"])
@pytest.mark.parametrize("half_state", [False, True])
@pytest.mark.parametrize("method", ["bilinear", "zoh", "dirac", "async"])
def test_both_ways_is_one_way_and_the_other(method, half_state, at):
    both, ahead, back = both_ways(discretization=method, half_state=half_state, bandlimit=0.5, bandlimit_at=at)
    x, state = torch.randn(7, 4, 3, dtype=torch.float64), torch.randn_like(both.init_state(4))
    for scale in (0.5, torch.rand(1, 2) + 0.5, torch.rand(7, 1) + 0.5, torch.rand(7, 2) + 0.5):
        y, last = both(x, state, scale)
        ahead_y, ahead_last = ahead(x, state, scale)
        turned = scale.flip(0) if isinstance(scale, torch.Tensor) and scale.ndim == 2 else scale
        back_y, _ = back(x.flip(0), back.init_state(4), turned)
        torch.testing.assert_close(y, ahead_y + back_y.flip(0))
        torch.testing.assert_close(last, ahead_last)
        torch.testing.assert_close(both(x, state, both.prepare(scale))[0], y)


def test_both_ways_has_no_single_step():
    layer = build_temporal_layer(TemporalConfig(bidirectional=True), 8)
    assert not layer.is_causal and not layer.ssm.is_causal


@torch.no_grad()
def test_both_ways_has_the_h2_norm_of_its_two_directions():
    both, ahead, back = both_ways(bandlimit=0.0)
    torch.testing.assert_close(both.h2_norm().square(), ahead.h2_norm().square() + back.h2_norm().square())


# recorded outputs of the originals


TOLERANCE = 1e-5  # of the largest value of the array


def settings(golden: GoldenArrays) -> Iterator[tuple[str, str, float]]:
    """(prefix of the keys, discretization, step scale)"""
    for prefix in sorted({key.rpartition("/")[0] for key in golden if "/scale=" in key}):
        method, _, scale = prefix.partition("/scale=")
        yield prefix, method, float(scale)


def assert_near(found: ArrayLike, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def layer(golden: GoldenArrays, method: str, half_state: bool, bidirectional: bool = False) -> S5SSM:
    num_modes, dim = golden["B_tilde"].shape
    size = 2 * num_modes if half_state else num_modes
    config = TemporalConfig(
        discretization=method, bandlimit=0, state_size=size, half_state=half_state, bidirectional=bidirectional
    )
    ssm = S5SSM(dim, config)
    c = golden["C_tilde_bidirectional" if bidirectional else "C_tilde"]
    pairs = {name: np.stack([a.real, a.imag], -1) for name, a in (("B", golden["B_tilde"]), ("C", c))}
    pairs["Lambda"] = np.stack([golden["Lambda"].real, golden["Lambda"].imag], -1)
    arrays = {**pairs, "D": golden["D"], "log_step": np.log(golden["step"])}
    ssm.load_state_dict({name: torch.from_numpy(array).float() for name, array in arrays.items()})
    return ssm


def outputs(ssm: S5SSM, golden: GoldenArrays, scale: float) -> np.ndarray:
    u = torch.from_numpy(golden["u"]).float()[:, None]
    return ssm(u, ssm.init_state(1), scale)[0][:, 0].numpy()


@torch.no_grad()
def test_layer_and_hippo_spectrum_are_those_of_s5(golden_dir: Path):
    golden = GoldenArrays(dict(np.load(golden_dir / "s5_layer.npz")))
    assert {found[1:] for found in settings(golden)} == {(m, r) for m in ("zoh", "bilinear") for r in (1.0, 0.5, 0.1)}
    for prefix, method, scale in settings(golden):
        for half_state in (False, True):
            y = outputs(layer(golden, method, half_state), golden, scale)
            assert_near(y, golden[f"{prefix}/y_conj_sym={half_state}"])
        both = outputs(layer(golden, method, half_state=True, bidirectional=True), golden, scale)
        assert_near(both, golden[f"{prefix}/y_bidirectional_conj_sym=True"])
        discrete = layer(golden, method, half_state=False).prepare(scale)
        assert_near(discrete.decay[0, 0], golden[f"{prefix}/Lambda_bar"])
        rows = discrete.w_in.unflatten(0, (-1, 2))
        assert_near(torch.complex(rows[:, 0], rows[:, 1]), golden[f"{prefix}/B_bar"])
    sizes = {int(key.split("/")[0].removeprefix("hippo_n=")) for key in golden if key.startswith("hippo_n=")}
    for size in sizes:
        lambda_, p, b, v = hippo_legs(size)
        wanted = {name: golden[f"hippo_n={size}/{name}"] for name in ("Lambda", "P", "B")}
        order = np.argsort(wanted["Lambda"].imag)
        assert_near(lambda_, wanted["Lambda"][order])
        assert_near(np.abs(p), np.abs(wanted["P"])[order])
        assert_near(np.abs(b), np.abs(wanted["B"])[order])
        np.testing.assert_allclose(v @ v.conj().T, np.eye(size), atol=1e-12)
    golden.assert_all_looked_at()
