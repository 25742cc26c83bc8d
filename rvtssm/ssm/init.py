"""Initial values of the state-space layers: HiPPO-LegS, two simpler sets of modes, matrices and steps.

The normal part of HiPPO-LegS is that of Gu et al. 2022 (S4) and Smith et al. 2023 (S5); `inv` and `lin` are the
closed forms of Gu et al. 2022 (S4D). Everything is computed in float64.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rvtssm.system.limits import check_choice
from rvtssm.system.user_error import UserError

Modes = tuple[np.ndarray, np.ndarray]


def hippo_legs(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return HiPPO-LegS of that size as normal plus low rank, in the basis that makes the normal part diagonal.

    The state matrix is V (diag(lambda) - P P^H) V^H and the input vector V B. The result is lambda (N,), P (N,), B (N,)
    and V (N, N), complex128, in the order of Im(lambda). The phase of an eigenvector is arbitrary.
    """
    n = np.arange(size)
    low_rank = np.sqrt(n + 0.5)
    root = np.sqrt(2 * n + 1.0)
    state_matrix = -(np.tril(np.outer(root, root)) - np.diag(n))
    normal = state_matrix + np.outer(low_rank, low_rank)
    # The normal part is -1/2 plus a skew-symmetric matrix, so a Hermitian solver finds an orthonormal V.
    imag, v = np.linalg.eigh(-1j * (normal - np.diag(np.diag(normal))))
    return -0.5 + 1j * imag, v.conj().T @ low_rank, v.conj().T @ root, v


def _legs(size: int) -> Modes:
    lambda_, _, _, v = hippo_legs(size)
    return lambda_, v


def _paired(positive: np.ndarray, size: int) -> Modes:
    """Complete modes with Im > 0 by their conjugates; V turns such pairs into real coordinates."""
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


def wants_shapes_only() -> bool:
    """Return whether a layer is built on the meta device, where modes, which take long to compute, would be lost.

    Random numbers and products are left out as well, since PyTorch loads its compiler to give their shapes.
    """
    return torch.get_default_device().type == "meta"


def initial_modes(name: str, size: int, num_blocks: int = 1, half: bool = False) -> tuple[Tensor, Tensor]:
    """Return the modes of `num_blocks` equal blocks: lambda (P,) and V (size, P), complex128, V V^H = 1 if P = size.

    With `half`, only the mode with Im >= 0 of each conjugate pair is kept, P = size / 2.
    """
    check_choice("temporal.init", name, INITIAL_MODES)
    if size < 1 or num_blocks < 1 or size % num_blocks:
        raise UserError(f"temporal.state_size={size} cannot be cut into temporal.num_blocks={num_blocks} equal blocks")
    block = size // num_blocks
    if block % 2 and (half or name != "legs"):
        raise UserError(
            f"a HiPPO block of {block} modes has no conjugate for each; "
            f"half_state and init={name!r} need an even temporal.state_size / temporal.num_blocks"
        )
    if wants_shapes_only():
        num_modes = size // 2 if half else size
        return torch.empty(num_modes, dtype=torch.complex128), torch.empty(size, num_modes, dtype=torch.complex128)
    lambda_, v = INITIAL_MODES[name](block)
    if half:
        lambda_, v = lambda_[block // 2 :], v[:, block // 2 :]
    blocks = torch.block_diag(*[torch.from_numpy(v)] * num_blocks)
    return torch.from_numpy(lambda_).repeat(num_blocks), blocks


def initial_b(v: Tensor, dim: int) -> Tensor:
    """Return V^H B for a real random B with entries of variance 1 / dim: v (S, P) -> (P, dim), complex."""
    if wants_shapes_only():
        return torch.empty(v.shape[1], dim, dtype=v.dtype)
    return v.mH @ truncated_normal(len(v), dim, std=dim**-0.5).to(v.dtype)


def initial_c(v: Tensor, dim: int, is_real: bool) -> Tensor:
    """Return C V for a random C with entries of variance 1 / S, real or in both parts: v (S, P) -> (dim, P)."""
    if wants_shapes_only():
        return torch.empty(dim, v.shape[1], dtype=v.dtype)
    real, imag = truncated_normal(2, dim, len(v), std=len(v) ** -0.5)
    return torch.complex(real, torch.zeros_like(imag) if is_real else imag) @ v


def to_pairs(values: Tensor) -> Tensor:
    """Write complex128 (...) as float32 (..., 2), the form in which parameters are stored."""
    return torch.view_as_real(values.resolve_conj()).float()


def hippo_input(v: Tensor, num_blocks: int = 1, largest: float = 2.0) -> Tensor:
    """Return V^H B of HiPPO-LegS blocks, with magnitudes cut at `largest`: v (S, P) -> (P,) complex.

    The largest of 32 entries is 3 times the next, 30 times the median and 70 times the smallest. Without the low-rank
    part that balances it, it would dominate the output. The reference cuts the imaginary part, which is almost all of
    the entry.
    """
    root = np.sqrt(2 * np.arange(len(v) // num_blocks) + 1.0)
    b = v.mH @ torch.from_numpy(np.tile(root, num_blocks)).to(v)
    return b * (largest / b.abs()).clamp_max(1)


def log_uniform_steps(num_modes: int, dt_min: float, dt_max: float) -> Tensor:
    """Draw logarithms of steps (P,), float64, uniformly between log dt_min and log dt_max."""
    return torch.empty(num_modes, dtype=torch.float64).uniform_(math.log(dt_min), math.log(dt_max))


def normal(size: int) -> Tensor:
    """Draw standard normal numbers (size,), float32."""
    return torch.empty(size) if wants_shapes_only() else torch.randn(size)


def truncated_normal(*shape: int, std: float) -> Tensor:
    """Draw normal numbers cut at two of their standard deviations, scaled so that their own is `std`; float64."""
    raw = std / 0.87962566103423978  # the standard deviation of a unit normal cut at -2 and 2
    return torch.nn.init.trunc_normal_(torch.empty(*shape, dtype=torch.float64), std=raw, a=-2 * raw, b=2 * raw)


def linear_from(weight: Tensor, bias: Tensor) -> torch.nn.Linear:
    """Return a linear layer with these initial values."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
