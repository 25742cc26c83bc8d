"""The contract that every temporal layer keeps, its configuration, and the meaning of a step scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from rvtssm.ssm.shapes import check_input
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.user_error import UserError

State: TypeAlias = Tensor | tuple[Tensor, ...]
StepScale: TypeAlias = float | Tensor

OMEGA_MIN = math.pi / 2  # radians per training step: half the Nyquist rate of that step
OMEGA_MAX = 10 * math.pi  # the Nyquist rate of a step ten times shorter


class TemporalLayer(nn.Module, ABC):
    """The contract of all temporal layers. A new layer defines `init_state` and `forward`; the rest has defaults.

    Time is the first axis. State goes in and comes out; a layer stores none.
    """

    name: ClassVar[str] = ""  # in TEMPORAL_LAYERS, of the layer itself, not of the block around it
    is_causal: bool = True  # False: an output depends on later inputs of its chunk, so there is no single step
    takes_grid: bool = False  # True: `forward` needs grid=(H, W), and the sequences are the pixels of frames

    @abstractmethod
    def init_state(self, num_sequences: int) -> State:
        """Return the state before any input: zeros (N, *state_shape), with device and precision of the parameters."""

    def prepare(self, step_scale: StepScale = 1.0) -> Any:
        """Compute everything that depends only on the parameters and the step scale.

        A stream calls this once, without gradient, and passes the result in place of the step scale for as long as
        both stay the same. With one step per call this is most of the work.
        """
        return step_scale

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """Run L steps: x (L, N, D), state (N, *state_shape) -> y (L, N, D) and the state after step L.

        `state` is what `init_state` or an earlier call returned; None is the zero state. Layers raise a UserError if x
        or the state has other sizes, or is of another type or on another device than the layer.

        `step_scale` is the step relative to training: 0.1 for 200 Hz after training at 20 Hz. It is a number; or a
        tensor (G,), one value per group of N / G consecutive sequences (G = B for the pixels of B streams); or a
        tensor (L, G), one value per step and group; or the result of `prepare`.
        """

    def forward_without_memory(self, x: Tensor, step_scale: Any = 1.0, **where: Any) -> Tensor:
        """Run every step from the zero state: x (L, N, D) -> y (L, N, D).

        `step_scale` is as in `forward`, or was prepared for a number. This runs L * N sequences of one step.
        """
        check_input(x, x.shape[-1], x)
        num_steps, num_sequences = x.shape[:2]
        if isinstance(step_scale, Tensor) and step_scale.ndim and num_steps > 1:
            step_scale = step_scale.expand(num_steps, step_scale.shape[-1]).flatten()
        steps = num_steps * num_sequences
        y, _ = self(x.reshape(1, steps, x.shape[2]), self.init_state(steps), step_scale, **where)
        return cast(Tensor, y).reshape(x.shape)

    def real_step(self) -> TemporalLayer:
        """Return a layer for export: the same step in real numbers only, with the step scale as an input.

        Its `forward` takes L = 1 and a step scale (G,). A complex state (N, *shape) becomes two tensors (N, *shape),
        its real and its imaginary part. Raises a ValueError if the layer has no such step.
        """
        raise UserError(
            f"{type(self).__name__} cannot be exported: it has no step in real numbers whose length is an input; "
            "use s5, s4d, s4, selective_s5 or s7 with its default settings, or lstm"
        )

    def spectrum(self) -> Spectrum | str:
        """Return the modes of the layer at its training step, or a sentence that says why it has none."""
        return f"{type(self).__name__} has no eigenvalues: its factors follow the input"

    def kernel(self, num_steps: int, step_scale: StepScale = 1.0) -> Tensor:
        """Return the impulse response: what the outputs are in the steps 0 ... L - 1 if an input is 1 in step 0 only.

        (L, D, D) = (step, output, input) for a layer whose features share one state (s5), (L, D) for a layer with a
        system per feature (s4, s4d), whose inputs reach their own output only. The share of D is in step 0. In a block
        it is the response of the state-space layer, without norm, mixing and residual path. Raises a ValueError if the
        layer has no such response.
        """
        raise UserError(
            f"{type(self).__name__} has no impulse response: what it does to an input depends on the input; "
            "use one of the layers s4, s4d, s5"
        )

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX) -> Tensor:
        """Return the H2 norm of the layer between two angular frequencies in radians per training step, as ().

        See `rvtssm.ssm.spectrum`. Raises a ValueError if the layer has no transfer function.
        """
        energy = self.band_energy(omega_min, omega_max)
        total = energy.sum().clamp_min(torch.finfo(energy.dtype).tiny)  # so that the gradient at zero energy is 0
        return total.sqrt().to(next(self.parameters()).dtype)

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        """Return the squares of `h2_norm`, one for each independent system of the layer."""
        raise UserError(
            f"temporal.name={self.name} has no H2 norm: what it does to a frequency depends on the input; "
            "use one of the layers s4, s4d, s5"
        )


def to_constant(step_scale: StepScale) -> StepScale:
    """Return a number if all values of a step scale without gradient are equal, else the step scale unchanged.

    A tensor that is not on the CPU stays as it is, because reading it would wait for its device.
    """
    if isinstance(step_scale, Tensor):
        is_unread = step_scale.device.type != "cpu" or torch.compiler.is_compiling()
        if step_scale.requires_grad or step_scale.numel() == 0 or is_unread:
            return step_scale
        lowest, highest = step_scale.aminmax()
        return float(lowest) if bool(lowest == highest) else step_scale
    return float(step_scale)


def to_rows(step_scale: StepScale) -> StepScale:
    """Shape a step scale for (T, G, P): (G,) -> (1, G, 1), (L, G) -> (L, G, 1); a number or () stays as it is."""
    if not isinstance(step_scale, Tensor) or step_scale.ndim == 0:
        return step_scale
    if step_scale.ndim > 2:
        raise UserError(f"step_scale must be a number, (G,) or (L, G), got the shape {tuple(step_scale.shape)}")
    return (step_scale if step_scale.ndim == 2 else step_scale[None])[:, :, None]
