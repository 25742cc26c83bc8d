"""Muon: step weight matrices along their orthogonalised momentum, and all other parameters with AdamW.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The step size follows Liu et
al., "Muon is Scalable for LLM Training" (2025), so that one learning rate serves both kinds of parameters.
`torch.optim.Muon` refuses the weights of convolutions and processes matrices one by one. Here a convolution is treated
as the matrix of its output channels, and matrices of the same shape are orthogonalised together.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# The polynomial that pushes all singular values towards 1 within five rounds (Jordan et al., 2024).
_A, _B, _C, _ROUNDS = 3.4445, -4.7750, 2.0315, 5
_MOMENTUM = 0.95  # of Nesterov, for the matrices
_RMS = 0.2  # root mean square of a step of AdamW, which Muon's step matches


class Muon(torch.optim.Optimizer):
    """Optimises groups with `is_matrix=True` with Muon, and all others with AdamW.

    Args:
        groups: Parameter groups as for AdamW, each with a key `is_matrix`. A parameter (out, ...) of a matrix group is
            treated as a matrix (out, the rest).
        lr: Learning rate of groups that do not set their own. Their weight decay is 0.
        fused: Whether AdamW runs in one kernel.
        dtype: Data type of the products that orthogonalise.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        fused: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        adamw = torch.optim.AdamW([torch.zeros(1)], lr=lr, weight_decay=0.0, fused=fused)
        super().__init__(groups, {**adamw.defaults, "momentum": _MOMENTUM, "is_matrix": False})
        self._adamw = adamw
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step and return the loss, or None without a closure.

        Args:
            closure: Computes the gradients and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._adamw.state = self.state
        self._adamw.param_groups = [group for group in self.param_groups if not group["is_matrix"]]
        self._adamw.step()
        for group in self.param_groups:
            if group["is_matrix"]:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
            update = weight.grad.lerp(state["momentum"], group["momentum"]).flatten(1)
            alike[update.shape].append((weight, update))
        for shape, found in alike.items():
            directions = orthogonalized(torch.stack([update for _, update in found]).to(self.dtype))
            size = group["lr"] * _RMS * max(shape) ** 0.5
            for (weight, _), direction in zip(found, directions, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(direction.reshape(weight.shape).to(weight.dtype), alpha=size)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and with singular values near 1.

    The singular values lie between about 0.7 and 1.2, except for those that were nearly 0.

    Args:
        matrices: (N, rows, columns).
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT.contiguous() if is_tall else matrices  # products of transposed views are slower
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if is_tall else x
