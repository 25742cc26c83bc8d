"""S5 as its textbook form is usually written: what `benchmarks.scan` measures our layer against, never used to train.

Every sequence is a vmapped call of its own with its own step, as in the official release of S5-ViT: it discretises for
itself, so there is one input matrix per sequence, all products are complex, and the recurrence is a parallel scan that
halves its input recursively. The state is carried, which the release does not do; that costs next to nothing. It runs
faster than the release itself, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rvtssm.ssm.s5 import S5SSM


class TextbookS5(nn.Module):
    """The parameters of an `S5SSM` of full state without bandlimit, discretised by Tustin's rule, run as above."""

    def __init__(self, layer: S5SSM) -> None:
        super().__init__()
        self.Lambda, self.B, self.C, self.D, self.log_step = (
            nn.Parameter(value.detach().clone()) for value in (layer.Lambda, layer.B, layer.C, layer.D, layer.log_step)
        )

    def forward(self, x: Tensor, state: Tensor, step_scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """x (N, L, H), sequences first, state (N, P) complex -> y (N, L, H), the state after step L."""
        scales = torch.full((len(x),), step_scale, device=x.device)
        y, last = torch.vmap(self._sequence)(x, state, scales)
        return y, last

    def _sequence(self, x: Tensor, state: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        lambda_, b, c = (torch.view_as_complex(pairs) for pairs in (self.Lambda, self.B, self.C))
        step = scale * self.log_step.exp()
        inverse = 1 / (1 - lambda_ * step / 2)
        decay, b_bar = inverse * (1 + lambda_ * step / 2), (inverse * step)[:, None] * b
        driven = (b_bar @ x.to(b.dtype).mT).mT  # in this order its backward is almost twice as fast
        driven = torch.cat([driven[:1] + decay * state, driven[1:]])
        _, states = associative_scan(decay.expand(len(x), -1), driven)
        return (states @ c.T).real + self.D * x, states[-1]


def associative_scan(decay: Tensor, driven: Tensor) -> tuple[Tensor, Tensor]:
    """Return products of decay and states h[l] = decay[l] * h[l-1] + driven[l], both (L, P), by recursive pairing."""
    length = len(driven)
    if length == 1:
        return decay, driven
    pairs = _joined(decay[:-1:2], driven[:-1:2], decay[1::2], driven[1::2])
    odd = associative_scan(*pairs)
    num_even = (length - 1) // 2  # of those after the first
    even = _joined(odd[0][:num_even], odd[1][:num_even], decay[2::2], driven[2::2])
    return (
        _interleaved(torch.cat([decay[:1], even[0]]), odd[0]),
        _interleaved(torch.cat([driven[:1], even[1]]), odd[1]),
    )


def _joined(decay: Tensor, driven: Tensor, later_decay: Tensor, later_driven: Tensor) -> tuple[Tensor, Tensor]:
    return later_decay * decay, torch.addcmul(later_driven, later_decay, driven)


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    mixed = torch.stack([even[: len(odd)], odd], dim=1).flatten(0, 1)
    return torch.cat([mixed, even[-1:]]) if len(even) > len(odd) else mixed
