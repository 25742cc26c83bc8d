"""From input to output of one small system per feature, many steps at once: y = T u + O x, then x' = A^L x + R u.

The recurrence is x[l] = A[l] x[l-1] + b[l] u[l], y[l] = c[l] x[l], for each of H features with its own A, b and c. A
chunk of L steps is four matrices per feature (T direct, O readout, R reach and A^L carry), so that no state but the
first and the last is ever held, and any number of sequences shares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from rvtssm.ssm.layer import check_fit

_LONGEST = 32  # steps of a chunk: the cost per step grows with it, the number of products falls


@dataclass(frozen=True, slots=True)
class SteppedChunk:
    """What L steps do, for G groups of consecutive sequences; S = 2n real numbers are the state of a feature.

    Matrices stand to the right of row vectors. The carry of a diagonal system is the factor of each mode.
    """

    direct: Tensor  # (G, H, L, L): row of the input step, column of the output step
    readout: Tensor  # (G, H, S, L)
    reach: Tensor  # (G, H, L, S)
    carry: Tensor  # (G, H, S, S), or (G, H, n) complex


class SisoSystem(Protocol):
    """A discrete system at one step scale, which knows the matrices of its chunks."""

    @property
    def scale_shape(self) -> tuple[int, int]:
        """(T, G): steps, 1 where all are alike, and groups that the step scale tells apart."""

    @property
    def response(self) -> Tensor:
        """What an input of 1 gives in the step that it enters: (T, G, H), or broadcasting to it."""

    def longest(self, per_group: int) -> int:
        """Steps of its longest chunk, where a group has so many sequences."""

    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """The matrices of the steps [start, stop)."""


def run_siso(system: SisoSystem, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """u (L, N, H), state (N, H, n) complex -> y (L, N, H) and the state after step L."""
    num_steps, num_sequences, _ = u.shape
    scale_steps, groups = system.scale_shape
    check_fit(scale_steps, groups, num_steps, num_sequences)
    outputs, chunk, length = [], None, 0
    longest = system.longest(num_sequences // groups)
    for start in range(0, num_steps, longest):
        part = u[start : start + longest]
        if chunk is None or scale_steps > 1 or len(part) != length:
            length = len(part)
            chunk = system.chunk(start, start + length)
        y, state = run_chunk(chunk, part, state)
        outputs.append(y)
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0], state


def run_alone(system: SisoSystem, u: Tensor) -> Tensor:
    """Every step by itself, from the zero state: u (L, N, H) -> y (L, N, H). No state is made."""
    scale_steps, groups = system.scale_shape
    check_fit(scale_steps, groups, u.shape[0], u.shape[1])
    y: Tensor = system.response[:, :, None] * u.unflatten(1, (groups, -1))
    return y.flatten(1, 2)


def run_chunk(chunk: SteppedChunk, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As `run_siso`, for the steps of one chunk."""
    groups = len(chunk.direct)
    # One batch of products for all groups and features; with one group, the state is used where it lies.
    inputs = u.unflatten(1, (groups, -1)).permute(1, 3, 2, 0).flatten(0, 1).contiguous()  # (G H, N / G, L)
    modes = state.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)  # (G H, N / G, n)
    before = torch.view_as_real(modes).flatten(-2)  # (G H, N / G, S)
    direct, readout, reach, carry = (
        matrix.flatten(0, 1) for matrix in (chunk.direct, chunk.readout, chunk.reach, chunk.carry)
    )
    y = torch.baddbmm(before @ readout, inputs, direct)
    after = inputs @ reach if carry.is_complex() else torch.baddbmm(before @ carry, inputs, reach)
    last = torch.view_as_complex(after.unflatten(-1, (-1, 2)))
    if carry.is_complex():
        last = torch.addcmul(last, carry[:, None], modes)
    y = y.unflatten(0, (groups, -1)).permute(3, 0, 2, 1).flatten(1, 2)
    return y, last.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class DiagonalSystem:
    """n modes per feature, each for itself and its conjugate: y = 2 Re(c x). (T, G, H, n), or broadcasting to it."""

    decay: Tensor
    gain: Tensor
    c: Tensor

    @property
    def scale_shape(self) -> tuple[int, int]:
        """See `SisoSystem`."""
        return self.decay.shape[0], self.decay.shape[1]

    @property
    def response(self) -> Tensor:
        """See `SisoSystem`."""
        return 2 * (self.c * self.gain).real.sum(-1)

    def longest(self, per_group: int) -> int:
        """See `SisoSystem`."""
        return _LONGEST

    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """See `SisoSystem`. Where the steps differ, T takes L / 2 times the work."""
        if len(self.decay) == 1:
            return self._even_chunk(stop - start)
        steps = slice(start, stop)
        gain, c = self.gain.expand_as(self.decay)[steps], (2 * self.c).expand_as(self.decay)[steps]
        carried, reached = torch.ones_like(self.decay[0]), self.decay[:0]
        readout, direct = [], []
        for decay_l, gain_l, c_l in zip(self.decay[steps], gain, c, strict=True):
            carried = decay_l * carried
            reached = torch.cat([decay_l * reached, gain_l[None]])  # what is left of the inputs so far
            readout.append(c_l * carried)
            direct.append(F.pad((c_l * reached).real.sum(-1), (0, 0, 0, 0, 0, stop - start - len(reached))))
        return SteppedChunk(
            direct=torch.stack(direct, -1).permute(1, 2, 0, 3),
            readout=_real_rows(torch.stack(readout, -2)).mT,
            reach=torch.view_as_real(reached.permute(1, 2, 0, 3)).flatten(-2),
            carry=carried,
        )

    def _even_chunk(self, length: int) -> SteppedChunk:
        decay, gain, c = self.decay[0], self.gain[-1], 2 * self.c[-1]
        powers = [torch.ones_like(decay)]
        for _ in range(length):
            powers.append(powers[-1] * decay)
        stacked = torch.stack(powers, -2)  # (G, H, L + 1, n)
        reach = gain[..., None, :] * stacked[..., :-1, :].flip(-2)
        kernel = (c[..., None, :] * reach).real.sum(-1).flip(-1)
        return SteppedChunk(
            direct=toeplitz(kernel),
            readout=_real_rows(c[..., None, :] * stacked[..., 1:, :]).mT,
            reach=torch.view_as_real(reach.resolve_conj()).flatten(-2),
            carry=powers[-1],
        )


@dataclass(frozen=True, slots=True)
class DenseSystem:
    """A full matrix per feature over S real numbers, the real and imaginary parts of n modes in turn."""

    a: Tensor  # (T, G, H, S, S), to the left of column vectors
    b: Tensor  # (T, G, H, S)
    c: Tensor  # (H, S)

    @property
    def scale_shape(self) -> tuple[int, int]:
        """See `SisoSystem`."""
        return self.a.shape[0], self.a.shape[1]

    @property
    def response(self) -> Tensor:
        """See `SisoSystem`."""
        return (self.c * self.b).sum(-1)

    def longest(self, per_group: int) -> int:
        """See `SisoSystem`. Steps that differ are taken one by one, which is the recurrence, where a group has fewer
        sequences than the state has numbers: the matrices would cost more than what they do.
        """
        return _LONGEST if len(self.a) == 1 or per_group >= self.a.shape[-1] else 1

    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """See `SisoSystem`. T, O and R are Krylov sequences, of products of a matrix and a vector; where the steps
        differ, O needs products of two matrices.
        """
        if len(self.a) == 1 or stop - start == 1:
            index = start if len(self.a) > 1 else 0
            return self._even_chunk(self.a[index], self.b[index], stop - start)
        c = self.c[:, None]  # (H, 1, S)
        carried = reached = None
        readout, direct = [], []
        for a, b in zip(self.a[start:stop], self.b[start:stop, ..., None], strict=True):
            carried = a if carried is None else a @ carried
            reached = b if reached is None else torch.cat([a @ reached, b], -1)  # what is left of the inputs so far
            readout.append(c @ carried)
            direct.append(F.pad(c @ reached, (0, stop - start - reached.shape[-1])))
        assert carried is not None and reached is not None
        return SteppedChunk(torch.cat(direct, -2).mT, torch.cat(readout, -2).mT, reached.mT, carried.mT)

    def _even_chunk(self, a: Tensor, b: Tensor, length: int) -> SteppedChunk:
        rows, columns = [self.c.expand_as(b)[..., None, :]], [b[..., None]]
        for _ in range(length):
            rows.append(rows[-1] @ a)
        for _ in range(length - 1):
            columns.append(a @ columns[-1])
        reach = torch.cat(columns[::-1], -1).mT
        return SteppedChunk(
            direct=toeplitz((self.c[:, None] * reach.flip(-2)).sum(-1)),
            readout=torch.cat(rows[1:], -2).mT,
            reach=reach,
            carry=torch.linalg.matrix_power(a, length).mT,
        )


def toeplitz(kernel: Tensor) -> Tensor:
    """T[k, l] = kernel[l - k], 0 below the diagonal: (..., L) -> (..., L, L)."""
    length = kernel.shape[-1]
    lag = torch.arange(length, device=kernel.device)
    lag = lag - lag[:, None]
    return kernel[..., lag.clamp_min(0)] * (lag >= 0)


def _real_rows(values: Tensor) -> Tensor:
    """Re(values x) as a row over the real and imaginary parts of x in turn: (..., n) complex -> (..., 2n)."""
    return torch.view_as_real(values.conj().resolve_conj()).flatten(-2)
