"""Layers with one small system per feature (SISO: single input, single output), such as S4 and S4D, run in chunks.

Each of H features has its own A, b and c: x[l] = A[l] x[l-1] + b[l] u[l], y[l] = c[l] x[l]. A chunk of L steps reduces
to four matrices per feature, y = T u + O x and x' = A^L x + R u (T: direct, O: readout, R: reach, A^L: carry). Only the
first and the last state of a chunk are ever in memory, and all sequences share the matrices. Layers whose features
share one state are in `rvtssm.ssm.shared_state`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rvtssm.ssm.layer import State, StepScale, TemporalLayer, to_constant, to_rows
from rvtssm.ssm.shapes import check_fit, check_input, fitting_state
from rvtssm.system.limits import check_number

STATE_SIZE = 64  # default number of modes per feature, conjugates included
_LONGEST = 32  # steps of a chunk; a longer chunk costs more per step but takes fewer products


@dataclass(frozen=True, slots=True)
class SteppedChunk:
    """The matrices of L steps, for G groups of consecutive sequences. The state of a feature is S = 2n real numbers.

    A row vector multiplies each matrix from the left. The carry of a diagonal system is one factor per mode.
    """

    direct: Tensor  # (G, H, L, L): rows are input steps, columns are output steps
    readout: Tensor  # (G, H, S, L)
    reach: Tensor  # (G, H, L, S)
    carry: Tensor  # (G, H, S, S), or (G, H, n) complex

    def run(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run the L steps.

        Args:
            u: Inputs (L, N, H).
            state: State before the first step, (N, H, n) complex.

        Returns:
            The outputs (L, N, H) and the state after step L.
        """
        groups = len(self.direct)
        # All groups and features form one batch of products. With a single group, the state is not copied.
        inputs = u.unflatten(1, (groups, -1)).permute(1, 3, 2, 0).flatten(0, 1).contiguous()  # (G H, N / G, L)
        modes = state.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)  # (G H, N / G, n)
        before = torch.view_as_real(modes).flatten(-2)  # (G H, N / G, S)
        direct, readout, reach, carry = (
            matrix.flatten(0, 1) for matrix in (self.direct, self.readout, self.reach, self.carry)
        )
        y = torch.baddbmm(before @ readout, inputs, direct)
        if carry.is_complex():
            last = torch.addcmul(_as_complex(inputs @ reach), carry[:, None], modes)
        else:
            last = _as_complex(torch.baddbmm(before @ carry, inputs, reach))
        y = y.unflatten(0, (groups, -1)).permute(3, 0, 2, 1).flatten(1, 2)
        return y, last.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


class PerFeatureSystem(ABC):
    """Discrete systems at one step scale.

    The scale covers T = 1 step, if all steps are alike, or T = L different steps, for G groups of sequences.
    """

    __slots__ = ()
    decay: Tensor  # (T, G, H, ...): what a step keeps of the state

    @property
    @abstractmethod
    def response(self) -> Tensor:
        """The output of a step whose input is 1, from the zero state: (T, G, H) or a shape that broadcasts to it."""

    def longest_chunk(self, per_group: int) -> int:
        """Return how many steps to take at once.

        Args:
            per_group: Number of sequences of a group.
        """
        return _LONGEST

    @abstractmethod
    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """Return the matrices of the steps [start, stop)."""

    def run(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run L steps.

        Args:
            u: Inputs (L, N, H).
            state: State before the first step, (N, H, n) complex.

        Returns:
            The outputs (L, N, H) and the state after step L.

        Raises:
            UserError: If the step scale does not fit the number of steps or sequences.
        """
        num_steps, num_sequences, _ = u.shape
        scale_steps, groups = self.decay.shape[:2]
        check_fit(scale_steps, groups, num_steps, num_sequences)
        outputs = []
        chunk = None
        length = 0
        longest = self.longest_chunk(num_sequences // groups)
        for start in range(0, num_steps, longest):
            part = u[start : start + longest]
            # Chunks of equal length and step share their matrices.
            if chunk is None or scale_steps > 1 or len(part) != length:
                length = len(part)
                chunk = self.chunk(start, start + length)
            y, state = chunk.run(part, state)
            outputs.append(y)
        if len(outputs) == 1:  # without a copy
            return outputs[0], state
        return torch.cat(outputs), state


class PerFeatureLayer(TemporalLayer):
    """A layer of one such system per feature with a direct path D: y = C x + D u. The state is (N, H, n) complex."""

    log_real: nn.Parameter  # (H, n)
    D: nn.Parameter  # (H,)
    discretization: str

    @abstractmethod
    def discretized(self, rows: StepScale) -> PerFeatureSystem:
        """Return the discrete systems at a step scale, a number or (T, G, 1). Autocast is off."""

    def prepare(self, step_scale: StepScale | PerFeatureSystem = 1.0) -> PerFeatureSystem:
        """Return the discrete systems at a step scale. See `TemporalLayer.prepare`."""
        if isinstance(step_scale, PerFeatureSystem):
            return step_scale
        with torch.autocast(self.D.device.type, enabled=False):
            return self.discretized(to_rows(to_constant(step_scale), self.D))

    def init_state(self, num_sequences: int) -> Tensor:
        """Return zeros (N, H, n), complex."""
        shape = num_sequences, *self.log_real.shape
        return self.log_real.new_zeros(shape, dtype=self.log_real.dtype.to_complex())

    def forward(
        self, x: Tensor, state: State | None = None, step_scale: StepScale | PerFeatureSystem = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Run L steps. See `TemporalLayer.forward`.

        Args:
            x: Inputs (L, N, H).
            state: State before the first step, (N, H, n) complex; None means zeros.
            step_scale: A step scale, or a result of `prepare`.

        Returns:
            The outputs (L, N, H) and the state after step L.
        """
        before: Tensor = fitting_state(
            x, state, self.init_state, len(self.D), self.D, self.log_real.shape, is_complex=True, step_scale=step_scale
        )
        system = self.prepare(step_scale)
        with torch.autocast(x.device.type, enabled=False):
            y, last = system.run(x.to(self.D.dtype), before)
            return torch.addcmul(y, x.to(self.D.dtype), self.D).to(x.dtype), last

    def extra_repr(self) -> str:
        features, modes = self.log_real.shape
        return f"features={features}, modes={modes} per feature, discretization={self.discretization}"

    def kernel(self, num_steps: int, step_scale: StepScale = 1.0) -> Tensor:
        """Return the impulse response (L, H). See `TemporalLayer.kernel`."""
        check_number("num_steps", num_steps, 1, is_whole=True)
        impulses = F.pad(torch.ones_like(self.D)[None, None], (0, 0, 0, 0, 0, num_steps - 1))  # (L, 1, H)
        response: Tensor = self(impulses, None, step_scale)[0]
        return response[:, 0]

    def forward_without_memory(self, x: Tensor, step_scale: StepScale | PerFeatureSystem = 1.0, **where: Any) -> Tensor:
        """Run every step from the zero state. See `TemporalLayer.forward_without_memory`.

        No state is allocated, because a state is n times as large as the input of a step.
        """
        check_input(x, len(self.D), self.D, step_scale)
        system = self.prepare(step_scale)
        scale_steps, groups = system.decay.shape[:2]
        check_fit(scale_steps, groups, *x.shape[:2])
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.D.dtype)
            y = system.response[:, :, None] * inputs.unflatten(1, (groups, -1))
            return torch.addcmul(y.flatten(1, 2), inputs, self.D).to(x.dtype)


@dataclass(frozen=True, slots=True)
class DiagonalSystem(PerFeatureSystem):
    """Diagonal systems with n modes per feature, each of which also represents its conjugate: y = 2 Re(c x).

    Args:
        decay: Factor by which a mode decays in a step, (T, G, H, n) complex. This and the others may also have a shape
            that broadcasts to it.
        gain: Factor with which the input enters a mode, (T, G, H, n) complex.
        c: Factor with which a mode enters the output, (T, G, H, n) complex.
    """

    decay: Tensor
    gain: Tensor
    c: Tensor

    @property
    def response(self) -> Tensor:
        return 2 * (self.c * self.gain).real.sum(-1)

    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """Return the matrices of the steps [start, stop). If the steps differ, T takes L / 2 times the work."""
        if len(self.decay) == 1:
            return self._even_chunk(stop - start)
        steps = slice(start, stop)
        gain = self.gain.expand_as(self.decay)[steps]
        c = (2 * self.c).expand_as(self.decay)[steps]
        # Steps of different length: what was carried and reached so far, step by step.
        carried = torch.ones_like(self.decay[0])
        reached = self.decay[:0]
        readout = []
        direct = []
        for decay_l, gain_l, c_l in zip(self.decay[steps], gain, c, strict=True):
            carried = decay_l * carried
            reached = torch.cat([decay_l * reached, gain_l[None]])  # (steps so far, G, H, n): inputs, decayed to now
            readout.append(c_l * carried)
            direct.append(F.pad((c_l * reached).real.sum(-1), (0, 0, 0, 0, 0, stop - start - len(reached))))
        return SteppedChunk(
            direct=torch.stack(direct, -1).permute(1, 2, 0, 3),
            readout=_real_rows(torch.stack(readout, -2)).mT,
            reach=torch.view_as_real(reached.permute(1, 2, 0, 3)).flatten(-2),
            carry=carried,
        )

    def _even_chunk(self, length: int) -> SteppedChunk:
        decay = self.decay[0]
        gain = self.gain[-1]
        c = 2 * self.c[-1]
        # Equal steps: all is a power of the decay.
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
class DenseSystem(PerFeatureSystem):
    """One full matrix per feature over S real numbers: the n modes, each as its real and imaginary part."""

    decay: Tensor  # (T, G, H, S, S), multiplies column vectors from the left
    b: Tensor  # (T, G, H, S)
    c: Tensor  # (H, S)

    @property
    def response(self) -> Tensor:
        return (self.c * self.b).sum(-1)

    def longest_chunk(self, per_group: int) -> int:
        """Return how many steps to take at once.

        This is 1, the plain recurrence, if the steps differ and a group has fewer sequences than the state has numbers:
        computing the matrices of a chunk would then cost more than it saves.
        """
        if len(self.decay) > 1 and per_group < self.decay.shape[-1]:
            return 1
        return _LONGEST

    def chunk(self, start: int, stop: int) -> SteppedChunk:
        """Return the matrices of the steps [start, stop).

        T, O and R are built by repeated products of a matrix and a vector (Krylov sequences). If the steps differ, O
        needs products of two matrices.
        """
        if len(self.decay) == 1 or stop - start == 1:
            index = min(start, len(self.decay) - 1)
            return self._even_chunk(self.decay[index], self.b[index], stop - start)
        c = self.c[:, None]  # (H, 1, S)
        carried = reached = None
        readout = []
        direct = []
        for a, b in zip(self.decay[start:stop], self.b[start:stop, ..., None], strict=True):
            if carried is None or reached is None:
                carried = a
                reached = b
            else:
                # inputs so far, decayed to now
                carried = a @ carried
                reached = torch.cat([a @ reached, b], -1)
            readout.append(c @ carried)
            direct.append(F.pad(c @ reached, (0, stop - start - reached.shape[-1])))
        assert carried is not None and reached is not None
        return SteppedChunk(torch.cat(direct, -2).mT, torch.cat(readout, -2).mT, reached.mT, carried.mT)

    def _even_chunk(self, a: Tensor, b: Tensor, length: int) -> SteppedChunk:
        rows = [self.c.expand_as(b)[..., None, :]]
        columns = [b[..., None]]
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
    """Return the matrix T[k, l] = kernel[l - k], with 0 below the diagonal.

    Args:
        kernel: Numbers (..., L).

    Returns:
        The matrix (..., L, L).
    """
    length = kernel.shape[-1]
    lag = torch.arange(length, device=kernel.device)
    lag = lag - lag[:, None]
    return kernel[..., lag.clamp_min(0)] * (lag >= 0)


def _as_complex(pairs: Tensor) -> Tensor:
    """Return interleaved real and imaginary parts (..., 2n) as complex numbers (..., n)."""
    return torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))


def _real_rows(values: Tensor) -> Tensor:
    """Return Re(values x) as a row over interleaved real and imaginary parts of x: (..., n) complex -> (..., 2n)."""
    return torch.view_as_real(values.conj().resolve_conj()).flatten(-2)
