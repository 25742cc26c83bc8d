"""S4 and S4D beyond the laws: their matrices against scipy, the recurrence written out, memory."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_arrays import GoldenArrays
from numpy.typing import ArrayLike
from scipy.linalg import expm
from scipy.signal import cont2discrete
from torch import Tensor
from user_errors import raises

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s4 import S4SSM
from rvtssm.ssm.s4d import S4DSSM

DIM, SIZE = 3, 8


def s4(method: str = "bilinear", size: int = SIZE) -> S4SSM:
    """With weights that are no longer those of HiPPO."""
    torch.manual_seed(0)
    ssm = S4SSM(DIM, TemporalConfig(discretization=method, state_size=size, dt_min=0.05, dt_max=0.5)).double()
    with torch.no_grad():
        for parameter in ssm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return ssm


@torch.no_grad()
def test_s4_starts_as_hippo_legs():
    """Up to a change of basis: the eigenvalues of that matrix are -1, -2, ..., and what an impulse gives is real."""
    a, b = S4SSM(DIM, TemporalConfig(state_size=SIZE)).double().continuous()
    n = np.arange(SIZE)
    root = np.sqrt(2 * n + 1.0)
    hippo = -(np.tril(np.outer(root, root)) - np.diag(n))
    for k in range(DIM):
        np.testing.assert_allclose(np.sort(np.linalg.eigvals(a[k]).real), np.sort(np.diag(hippo)), rtol=2e-2)
        # Norms of the state do not depend on the basis; one mode of each pair carries half of the square.
        for t in (0.1, 1.0):
            wanted = np.linalg.norm(expm(hippo * t) @ root) ** 2 / 2
            assert np.linalg.norm(expm(a[k].numpy() * t) @ b[k].numpy()) ** 2 == pytest.approx(wanted, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 0.1, 2.5])
@pytest.mark.parametrize("method", ["bilinear", "zoh", "dirac", "async"])
def test_s4_matrices_are_those_of_scipy(method, scale):
    ssm = s4(method)
    a, b = (array.numpy() for array in ssm.continuous())
    system = ssm.prepare(scale)
    for k, dt in enumerate(ssm.log_step.exp().tolist()):
        c, rule = np.ones((1, SIZE)), "bilinear" if method == "bilinear" else "zoh"
        wanted_a, wanted_b, *_ = cont2discrete((a[k], b[k][:, None], c, [[0]]), dt * scale, method=rule)
        if method == "dirac":
            wanted_b = b[k][:, None]
        elif method == "async":
            wanted_b = cont2discrete((a[k], b[k][:, None], c, [[0]]), dt, method="zoh")[1]
        np.testing.assert_allclose(system.decay[0, 0, k], wanted_a, atol=1e-13)
        np.testing.assert_allclose(system.b[0, 0, k], wanted_b[:, 0], atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize("num_sequences", [2, SIZE])  # by the recurrence, and by the matrices of a chunk
def test_the_s4_recurrence_written_out(num_sequences):
    ssm, scales = s4("zoh"), torch.rand(7, dtype=torch.float64) + 0.2
    x = torch.randn(7, num_sequences, DIM, dtype=torch.float64)
    state = torch.randn_like(ssm.init_state(num_sequences))
    y, last = ssm(x, state, scales[:, None])
    a, b = (array.numpy() for array in ssm.continuous())
    c = torch.view_as_complex(ssm.C)
    for k, dt in enumerate(ssm.log_step.exp().tolist()):
        held = torch.view_as_real(state[:, k]).flatten(-2).numpy()
        for step, scale in enumerate(scales.tolist()):
            decay = expm(a[k] * dt * scale)
            held = held @ decay.T + x[step, :, k].numpy()[:, None] * np.linalg.solve(
                a[k], (decay - np.eye(SIZE)) @ b[k]
            )
            modes = held[:, ::2] + 1j * held[:, 1::2]
            wanted = 2 * (modes @ c[k].numpy()).real + (ssm.D[k] * x[step, :, k]).numpy()
            np.testing.assert_allclose(y[step, :, k], wanted, atol=1e-12)
        np.testing.assert_allclose(last[:, k], modes, atol=1e-12)


@torch.no_grad()
def test_s4_takes_one_init_and_one_block():
    for wrong in ({"init": "lin"}, {"state_size": 7}):
        with raises("setting.conflict"):
            S4SSM(DIM, TemporalConfig(name="s4", **wrong))
    one, eight = (S4SSM(DIM, TemporalConfig(name="s4", num_blocks=blocks)).continuous()[0] for blocks in (1, 8))
    assert one.shape == eight.shape == (DIM, 64, 64), "a key that it does not read"
    assert S4DSSM(DIM, TemporalConfig(num_blocks=4)).init_state(2).shape == (2, DIM, 32)


@pytest.mark.parametrize("layer", [S4SSM, S4DSSM])
def test_no_states_but_the_first_are_kept_for_the_backward(layer):
    ssm, x = layer(DIM, TemporalConfig(state_size=SIZE)), torch.randn(20, 100, DIM)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ssm(x, ssm.init_state(100))
    assert max(tensor.numel() for tensor in saved) <= max(x.numel(), ssm.init_state(100).numel() * 2)


@pytest.mark.parametrize("layer", [S4SSM, S4DSSM])
def test_a_chunk_of_uneven_steps_is_its_steps(layer):
    """Outputs, state and every gradient, for groups that differ."""
    torch.manual_seed(0)
    ssm = layer(DIM, TemporalConfig(state_size=SIZE, dt_min=0.05, dt_max=0.5)).double()
    x, scale = torch.randn(5, 4, DIM, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    start = torch.randn_like(ssm.init_state(4)).requires_grad_()
    results = []
    for cuts in ([0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5]):
        system, state, outputs = ssm.prepare(scale), start, []
        for first, last in pairwise(cuts):
            y, state = system.chunk(first, last).run(x[first:last], state)
            outputs.append(y)
        y = torch.cat(outputs)
        loss = y.square().sum() + state.abs().square().sum()
        inputs = [start, scale, *(p for name, p in ssm.named_parameters() if name != "D")]
        results.append([y, state, *torch.autograd.grad(loss, inputs)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


# recorded outputs of the reference implementation


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
