"""The bare S5 layer and the HiPPO-LegS spectrum against recorded outputs of the JAX and PyTorch originals.

A test fails where a recorded array was not compared.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_arrays import GoldenArrays
from numpy.typing import ArrayLike

from rvtssm.ssm.init import hippo_legs
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_config import TemporalConfig

pytestmark = pytest.mark.golden
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
