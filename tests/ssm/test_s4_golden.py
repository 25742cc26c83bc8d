"""S4D and S4 against recorded outputs of the reference implementation: kernels at every rate, masks, recurrences.

A test fails where a recorded array was not compared.
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_arrays import GoldenArrays
from numpy.typing import ArrayLike

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s4 import S4SSM
from rvtssm.ssm.s4d import S4DSSM
from rvtssm.ssm.temporal_config import TemporalConfig

pytestmark = pytest.mark.golden
TOLERANCE = 5e-5  # of the largest value of the array
RATES = {1.0, 0.5, 0.1}


@pytest.fixture(scope="module")
def systems(golden_dir: Path) -> dict[str, GoldenArrays]:
    """The arrays of each recorded system, by its name, which starts with the name of its layer."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, array in np.load(golden_dir / "s4_kernels.npz").items():
        system, _, name = key.rpartition("/")
        found.setdefault(system, {})[name] = array
    assert {system.partition("/")[0] for system in found} == {"s4", "s4d"}
    return {system: GoldenArrays(arrays) for system, arrays in found.items()}


def assert_near(found: ArrayLike, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def pairs(array: np.ndarray) -> np.ndarray:
    return np.stack([array.real, array.imag], -1)


def fill(layer: TemporalLayer, arrays: GoldenArrays, c: str) -> None:
    values = {
        "log_step": np.log(arrays["dt"][:, 0]),
        "log_real": np.log(-arrays["A"].real),
        "imag": arrays["A"].imag,
        "B": pairs(arrays["B"][0]),
        "C": pairs(arrays[c][0]),
        "D": np.zeros(len(arrays["dt"])),
    }
    if "P" in arrays:
        values["P"] = pairs(arrays["P"][0])
    layer.load_state_dict({name: torch.from_numpy(np.asarray(value)).float() for name, value in values.items()})


def assert_same_modes(layer: Any, arrays: GoldenArrays) -> None:
    """The modes our init gives, before they are replaced; the reference keeps frequencies above 1e-4."""
    for found, wanted in ((layer.imag.abs(), np.abs(arrays["A"].imag)), (layer.log_real.exp(), -arrays["A"].real)):
        np.testing.assert_allclose(np.sort(found), np.sort(wanted), rtol=1e-5, atol=1e-4)


def impulse_response(layer: Any, length: int, rate: float) -> np.ndarray:
    x = torch.zeros(length, 1, len(layer.D))
    x[0] = 1
    return layer(x, layer.init_state(1), rate)[0][:, 0].T.numpy()


def rates(arrays: GoldenArrays, prefix: str) -> list[tuple[str, float]]:
    found = [(key, float(key.removeprefix(prefix))) for key in arrays if key.startswith(prefix)]
    assert found
    return found


def assert_steps_and_chunk(layer: TemporalLayer, arrays: GoldenArrays, final_state: np.ndarray) -> None:
    u = torch.from_numpy(arrays["u"]).permute(2, 0, 1)
    state, outputs = layer.init_state(u.shape[1]), []
    for u_l in u:
        y, state = layer(u_l[None], state)
        outputs.append(y[0])
    chunk, last = layer(u, layer.init_state(u.shape[1]))
    for found, found_state in ((torch.stack(outputs), state), (chunk, last)):
        assert_near(found.permute(1, 2, 0), arrays["y_steps"])
        assert_near(found_state, final_state)


@torch.no_grad()
def test_s4d_is_that_of_the_reference(systems):
    settings = {tuple(name.split("/")[1:]): arrays for name, arrays in systems.items() if name.startswith("s4d/")}
    masks = [f"bandlimit={limit}" for limit in ("0", "0.5", "1.0")]
    assert set(settings) == set(product(("legs", "inv", "lin"), ("zoh", "bilinear"), masks))
    for (init, method, limit), arrays in settings.items():
        dim, half = arrays["A"].shape
        config = TemporalConfig(
            discretization=method, init=init, state_size=2 * half, bandlimit=float(limit.removeprefix("bandlimit="))
        )
        layer = S4DSSM(dim, config)
        assert_same_modes(layer, arrays)
        fill(layer, arrays, "C_unmasked")
        masked = layer.prepare().c[0, 0]
        assert_near(masked, arrays["C_masked"][0])
        found = rates(arrays, "kernel_rate=")
        assert {rate for _, rate in found} == RATES
        for key, rate in found:
            assert_near(impulse_response(layer, arrays[key].shape[-1], rate), arrays[key][0])
        assert_steps_and_chunk(layer, arrays, arrays["final_state"])
        arrays.assert_all_looked_at()


@torch.no_grad()
def test_s4_is_that_of_the_reference(systems):
    for arrays in (arrays for name, arrays in systems.items() if not name.startswith("s4d/")):
        dim, half = arrays["A"].shape
        layer = S4SSM(dim, TemporalConfig(state_size=2 * half))
        assert_same_modes(layer, arrays)
        fill(layer, arrays, "C")
        for prefix in ("kernel_rate=", "kernel_dense_float64_rate="):
            for key, rate in rates(arrays, prefix):
                assert_near(impulse_response(layer, arrays[key].shape[-1], rate), arrays[key][0])
        kept = arrays["final_state"][..., :half]  # the second half is its conjugate
        np.testing.assert_allclose(arrays["final_state"][..., half:], kept.conj(), atol=1e-5)
        assert_steps_and_chunk(layer, arrays, kept)
        arrays.assert_all_looked_at()
