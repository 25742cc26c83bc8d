"""Initial values of the state-space layers: HiPPO-LegS, two simpler sets of modes, matrices and steps.

HiPPO-LegS is split into a normal and a low-rank part as in Gu et al. 2022 (S4) and Smith et al. 2023 (S5). The closed
forms `inv` and `lin` are from Gu et al. 2022 (S4D). Modes are computed in float64.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError

Modes = tuple[np.ndarray, np.ndarray]


def hippo_legs(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return HiPPO-LegS as a normal plus a low-rank matrix, in the basis that diagonalises the normal part.

    The state matrix is V (diag(lambda) - P P^H) V^H and the input vector is V B.

    Args:
        size: Number of modes N.

    Returns:
        lambda (N,), P (N,), B (N,) and V (N, N), all complex128, sorted by Im(lambda). The phase of an eigenvector is
            arbitrary.
    """
    n = np.arange(size)
    low_rank = np.sqrt(n + 0.5)
    root = np.sqrt(2 * n + 1.0)
    state_matrix = -(np.tril(np.outer(root, root)) - np.diag(n))
    normal = state_matrix + np.outer(low_rank, low_rank)
    # The normal part is -1/2 times the identity plus a skew-symmetric matrix, so `eigh` gives an orthonormal V.
    imag, v = np.linalg.eigh(-1j * (normal - np.diag(np.diag(normal))))
    return -0.5 + 1j * imag, v.conj().T @ low_rank, v.conj().T @ root, v


def _legs(size: int) -> Modes:
    lambda_, _, _, v = hippo_legs(size)
    return lambda_, v


def _paired(positive: np.ndarray, size: int) -> Modes:
    """Add the conjugates to modes with Im > 0. V maps each conjugate pair to two real coordinates."""
    half = size // 2
    lambda_ = np.concatenate([positive[::-1].conj(), positive])
    v = np.zeros((size, size), np.complex128)
    pair = np.array([[1, 1], [-1j, 1j]]) / math.sqrt(2)
    for k in range(half):
        v[2 * k : 2 * k + 2, [half - 1 - k, half + k]] = pair
    return lambda_, v


def _inv(size: int) -> Modes:
    n = np.arange(size // 2)
    return _paired(-0.5 + 1j * size / math.pi * (size / (2 * n + 1) - 1), size)


def _lin(size: int) -> Modes:
    return _paired(-0.5 + 1j * math.pi * np.arange(size // 2), size)


INITIAL_MODES: dict[str, Callable[[int], Modes]] = {"legs": _legs, "inv": _inv, "lin": _lin}


_has_no_values = ContextVar("without_values", default=False)


@contextmanager
def without_values() -> Iterator[None]:
    """Skip the initial values of temporal layers that are built in this context, because weights will be loaded.

    Computing the eigenvalues of a large state takes long: hours for 100 000 modes.
    """
    token = _has_no_values.set(True)
    try:
        yield
    finally:
        _has_no_values.reset(token)


def wants_shapes_only() -> bool:
    """Return whether layers are built `without_values`, or on the meta device, which keeps shapes but no values.

    Layers then skip their initial modes, which take long to compute, and also random numbers, products and
    elementwise functions, because on the meta device PyTorch would load its compiler to find the shapes of these.
    """
    return _has_no_values.get() or torch.get_default_device().type == "meta"


def elementwise(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return `function(values)` for initial values, but only the shape where `wants_shapes_only`.

    Args:
        function: A function of each element on its own.
        values: Its argument, real.
    """
    if wants_shapes_only():
        return torch.empty(values.shape, dtype=values.dtype)
    return function(values)


def initial_modes(name: str, size: int, num_blocks: int = 1, half: bool = False) -> tuple[Tensor, Tensor]:
    """Return the modes of `num_blocks` equal blocks on the diagonal of a state matrix.

    Args:
        name: A key of `INITIAL_MODES`.
        size: Number of modes S in all blocks together.
        num_blocks: Number of equal blocks.
        half: Keep only the mode with Im >= 0 of each conjugate pair, so that P = S / 2; otherwise P = S.

    Returns:
        lambda (P,) and V (S, P), both complex128; V V^H is the identity if P = S.

    Raises:
        UserError: If the name is unknown, if `size` cannot be divided into `num_blocks`, or if the modes of a block
            cannot be paired.
    """
    check_choice("temporal.init", name, INITIAL_MODES)
    if size % num_blocks:
        needed = f"it cannot be divided into temporal.num_blocks={num_blocks} equal blocks"
        raise UserError("setting.conflict", name="temporal.state_size", found=size, needed=needed)
    block = size // num_blocks
    if block % 2 and (half or name != "legs"):
        needed = f"a HiPPO block of {block} modes cannot be split into conjugate pairs"
        advice = f"half_state and init={name!r} need an even temporal.state_size / temporal.num_blocks"
        raise UserError("setting.conflict", name="temporal.state_size", found=size, needed=needed, advice=advice)
    if wants_shapes_only():
        num_modes = size // (1 + half)
        basis = torch.empty(size, num_modes, dtype=torch.complex128, device="meta")  # may be too large for the memory
        return torch.empty(num_modes, dtype=torch.complex128), basis
    # The modes of one block, then all blocks on the diagonal.
    lambda_, v = INITIAL_MODES[name](block)
    if half:
        lambda_ = lambda_[block // 2 :]
        v = v[:, block // 2 :]
    blocks = torch.block_diag(*[torch.from_numpy(v)] * num_blocks)
    device = torch.get_default_device()
    return torch.from_numpy(lambda_).repeat(num_blocks).to(device), blocks.to(device)


def initial_b(v: Tensor, dim: int) -> Tensor:
    """Return V^H B for a random real B whose entries have variance 1 / dim.

    Args:
        v: The basis of the modes, (S, P) complex.
        dim: Number of features D.

    Returns:
        The input matrix, (P, D) complex.
    """
    if wants_shapes_only():
        return torch.empty(v.shape[1], dim, dtype=v.dtype)
    return v.mH @ truncated_normal(len(v), dim, std=dim**-0.5).to(v.dtype)


def initial_c(v: Tensor, dim: int, is_real: bool) -> Tensor:
    """Return C V for a random C whose real parts, and imaginary parts if it is complex, have variance 1 / S.

    Args:
        v: The basis of the modes, (S, P) complex.
        dim: Number of features D.
        is_real: Whether C is real.

    Returns:
        The output matrix, (D, P) complex.
    """
    if wants_shapes_only():
        return torch.empty(dim, v.shape[1], dtype=v.dtype)
    real, imag = truncated_normal(2, dim, len(v), std=len(v) ** -0.5)
    if is_real:
        imag = torch.zeros_like(imag)
    return torch.complex(real, imag) @ v


def to_pairs(values: Tensor) -> Tensor:
    """Convert complex128 (...) to real pairs (..., 2), the form in which parameters are stored.

    Args:
        values: Complex numbers of any shape.
    """
    return torch.view_as_real(values.resolve_conj()).to(torch.get_default_dtype())


def parameter(values: Tensor) -> torch.nn.Parameter:
    """Return a parameter with these initial values, in PyTorch's default precision like the other parameters."""
    return torch.nn.Parameter(values.to(torch.get_default_dtype()))


def hippo_input(v: Tensor, num_blocks: int) -> Tensor:
    """Return the input vector V^H B of HiPPO-LegS blocks, with magnitudes clipped at 2.

    For 32 modes, the largest entry is 3 times the next, 30 times the median and 70 times the smallest. In HiPPO-LegS
    the low-rank part balances it; without that part it would dominate the output. The reference code clips the
    imaginary part only, which is almost all of the entry.

    Args:
        v: The basis of the modes, (S, P) complex.
        num_blocks: Number of equal blocks in V.

    Returns:
        The vector, (P,) complex.
    """
    if wants_shapes_only():
        return torch.empty(v.shape[1], dtype=v.dtype)
    root = np.sqrt(2 * np.arange(len(v) // num_blocks) + 1.0)
    b = v.mH @ torch.from_numpy(np.tile(root, num_blocks)).to(v)
    return b * (2.0 / b.abs()).clamp_max(1)


def log_uniform_steps(num_modes: int, dt_min: float, dt_max: float) -> Tensor:
    """Draw logarithms of training steps, uniform between log dt_min and log dt_max.

    Args:
        num_modes: Number of steps P.
        dt_min: Smallest step.
        dt_max: Largest step.

    Returns:
        The logarithms, (P,) float64.
    """
    return torch.empty(num_modes, dtype=torch.float64).uniform_(math.log(dt_min), math.log(dt_max))


def normal(size: int) -> Tensor:
    """Draw `size` standard normal numbers, (size,)."""
    if wants_shapes_only():
        return torch.empty(size)
    return torch.randn(size)


def truncated_normal(*shape: int, std: float) -> Tensor:
    """Draw normal numbers truncated at two standard deviations, rescaled so that their standard deviation is `std`.

    Args:
        *shape: Shape of the result.
        std: Standard deviation of the result.

    Returns:
        The numbers, float64.
    """
    values = torch.empty(*shape, dtype=torch.float64)
    if wants_shapes_only():
        return values
    raw = std / 0.87962566103423978  # the standard deviation of a unit normal truncated at -2 and 2
    return torch.nn.init.trunc_normal_(values, std=raw, a=-2 * raw, b=2 * raw)


def linear_from(weight: Tensor, bias: Tensor) -> torch.nn.Linear:
    """Return a linear layer with the given initial weight (out, in) and bias (out,)."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
