"""The contract of temporal layers, and the meaning of a step scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from rvtssm.ssm.shapes import check_axes, check_input
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.system.limits import NoOptions
from rvtssm.system.user_error import UserError

State: TypeAlias = Tensor | tuple[Tensor, ...]
StepScale: TypeAlias = float | Tensor

# What a step scale does to the state.
RATE_STATEMENTS = {
    "exact": "the same state at any rate, if inputs are held",
    "approximate": "nearly the same state, the more so the shorter the steps",
    "decay_only": "the state is forgotten in time, but an input weighs the same in a step of any length",
    "no": "the state depends on the number of steps",
}
OMEGA_MIN = math.pi / 2  # radians per training step: half the Nyquist rate of that step
OMEGA_MAX = 10 * math.pi  # the Nyquist rate of a step ten times shorter


def longer_steps(value: Tensor, ratio: float) -> Tensor:
    """Return the logarithm of a step, or of a rate per step, for steps `ratio` times as long."""
    return value + math.log(ratio)


class TemporalLayer(nn.Module, ABC):
    """The contract of all temporal layers. A new layer defines `init_state` and `forward`; the rest has defaults.

    Time is the first axis. A layer cannot notice an input whose first axis is the batch, because any number of steps
    and of sequences is valid. It holds no state: the caller passes the state in and gets the next one back.
    """

    name: ClassVar[str] = ""  # key in TEMPORAL_LAYERS; set on the layer itself, not on the block around it
    default_rule: ClassVar[str | None] = None  # `discretization` if the user names none; None: there is no choice
    default_block: ClassVar[str | None] = None  # `block` if the user names none; None: there is no choice
    may_be_bidirectional: ClassVar[bool] = False  # whether it reads `bidirectional`
    may_halve_its_state: ClassVar[bool] = False  # whether it reads `half_state`
    options: ClassVar[type[Any]] = NoOptions  # the dataclass of its own settings, see `TemporalConfig.options_of`
    # Parameters, and how they change if weights move to steps `ratio` times as long, so that memory lasts as long.
    rescaled: ClassVar[Mapping[str, Callable[[Tensor, float], Tensor]]] = {}
    follows_the_rate: str = "no"  # what a step scale does, a key of RATE_STATEMENTS; `rvtssm.testing` measures it
    is_causal: bool = True  # False: an output depends on later inputs of its chunk, so the layer has no single step

    @abstractmethod
    def init_state(self, num_sequences: int) -> State:
        """Return the zero state for `num_sequences` sequences.

        Args:
            num_sequences: Number of sequences N.

        Returns:
            Zeros (N, *state_shape) or a tuple of them, with the device and precision of the parameters.
        """

    def prepare(self, step_scale: Any = 1.0) -> Any:
        """Compute everything that depends only on the parameters and the step scale.

        A stream calls this once, without gradients, and passes the result to `forward` in place of the step scale until
        the parameters or the step scale change. With one step per call, this is most of the work.

        Args:
            step_scale: As in `forward`. A result of `prepare` is returned unchanged.
        """
        return step_scale

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """Run L steps.

        Args:
            x: Inputs (L, N, D): steps, sequences, features.
            state: A result of `init_state` or of an earlier call, (N, *state_shape); None means the zero state.
            step_scale: The step relative to training, such as 0.1 for 200 Hz after training at 20 Hz. It is a number; a
                tensor (1, G) with one value per group of N / G consecutive sequences, such as the pixels of a stream; a
                tensor (L, G) with one value per step and group, such as (L, 1) for one value per step; or a result of
                `prepare`. For one step, (G,) may stand for (1, G).

        Returns:
            The outputs (L, N, D) and the state after step L.

        Raises:
            UserError: If x or the state has the wrong size or dtype, or is on another device than the layer.
        """

    def forward_without_memory(self, x: Tensor, step_scale: Any = 1.0, **where: Any) -> Tensor:
        """Run every step from the zero state, as L * N sequences of one step.

        Args:
            x: Inputs (L, N, D).
            step_scale: As in `forward`. A result of `prepare` must have been prepared for a number.
            **where: Passed on to `forward`, such as `grid`.

        Returns:
            The outputs (L, N, D).
        """
        check_input(x, x.shape[-1], x, step_scale)
        num_steps, num_sequences = x.shape[:2]
        if isinstance(step_scale, Tensor) and step_scale.ndim and num_steps > 1:
            step_scale = step_scale.expand(num_steps, step_scale.shape[-1]).flatten()
        steps = num_steps * num_sequences
        y, _ = self(x.reshape(1, steps, x.shape[2]), self.init_state(steps), step_scale, **where)
        return cast(Tensor, y).reshape(x.shape)

    def real_step(self) -> TemporalLayer:
        """Return a layer for export, which takes the same step in real numbers only, with the step scale as an input.

        Its `forward` takes L = 1 and a step scale (G,). A complex state (N, *shape) becomes two tensors (N, *shape),
        the real and the imaginary part.

        Raises:
            UserError: If the layer has no such step.
        """
        found = "it cannot be exported: it has no step in real numbers that takes the step scale"
        advice = "use s5, s4d, s4, selective_s5 or s7 with its default settings, or lstm"
        raise UserError("layer.lacks", name=type(self).__name__, found=found, advice=advice)

    def spectrum(self) -> Spectrum | str:
        """Return the modes of the layer at its training step, or a sentence that says why it has none."""
        return f"{type(self).__name__} has no spectrum()"

    def kernel(self, num_steps: int, step_scale: StepScale = 1.0) -> Tensor:
        """Return the impulse response: the outputs in steps 0 ... L - 1 if an input is 1 in step 0 and 0 afterwards.

        Step 0 includes the direct path D. In a block, this is the response of the state-space layer, without norm,
        mixing and residual path.

        Args:
            num_steps: Number of steps L.
            step_scale: As in `forward`, but the same for all sequences.

        Returns:
            The response (L, D, D) = (step, output, input) of a layer whose features share one state (s5), or (L, D) of
                a layer with one system per feature (s4, s4d), where an input reaches only its own output.

        Raises:
            UserError: If the layer has no such response.
        """
        advice = "use one of the layers s4, s4d, s5, whose impulse response does not depend on the input"
        raise UserError("layer.lacks", name=type(self).__name__, found="it has no kernel()", advice=advice)

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX) -> Tensor:
        """Return the H2 norm of the layer within a band of frequencies, as a tensor (). See `rvtssm.ssm.spectrum`.

        Args:
            omega_min: Lower edge of the band in radians per training step.
            omega_max: Upper edge of the band in radians per training step.

        Raises:
            UserError: If the layer has no transfer function.
        """
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            energy = self.band_energy(omega_min, omega_max)
        total = energy.sum().clamp_min(torch.finfo(energy.dtype).tiny)  # so that the gradient at zero energy is 0
        return total.sqrt().to(next(self.parameters()).dtype)

    def band_energy(self, omega_min: float, omega_max: float) -> Tensor:
        """Return the squared H2 norm within a band, one value for each independent system of the layer.

        Args:
            omega_min: Lower edge of the band in radians per training step.
            omega_max: Upper edge of the band in radians per training step.

        Raises:
            UserError: If the layer has no transfer function.
        """
        advice = "use one of the layers s4, s4d, s5, whose frequency response does not depend on the input"
        raise UserError("layer.lacks", name=f"temporal.name={self.name}", found="it has no H2 norm", advice=advice)


def to_constant(step_scale: StepScale) -> StepScale:
    """Return a number if all values of a step scale are equal and positive, otherwise the step scale unchanged.

    A tensor stays as it is if it needs a gradient, or if it is not on the CPU, because reading it would wait for the
    device.

    Args:
        step_scale: A number, or a tensor (), (G,) or (L, G).

    Raises:
        UserError: If a tensor has more axes.
    """
    if not isinstance(step_scale, Tensor):
        return step_scale
    check_axes(step_scale)
    if not step_scale.requires_grad and _can_be_read(step_scale):
        lowest, highest = step_scale.aminmax()
        if bool(0 < lowest == highest):
            return float(lowest)
    return step_scale


def check_step_scale(step_scale: StepScale) -> None:
    """Raise a UserError if a value is not positive and finite, or if a tensor has more than two axes.

    The values of a tensor are read only if it is on the CPU. Some of them may be 0: steps without a duration.

    Args:
        step_scale: A number, or a tensor.
    """
    if isinstance(step_scale, Tensor):
        check_axes(step_scale)
        if not _can_be_read(step_scale):
            return
        lowest, highest = (float(limit) for limit in step_scale.detach().aminmax())
        description = f"step_scale holds values from {lowest:g} to {highest:g}"
        is_valid = 0 <= lowest <= highest < math.inf
    else:
        description = f"step_scale={step_scale!r:.100}"
        # a compiled number may be a symbol
        is_number = isinstance(step_scale, Real) and not isinstance(step_scale, bool)
        is_valid = torch.compiler.is_compiling() or (is_number and 0 < step_scale < math.inf)
    if not is_valid:
        raise UserError(
            "layer.step_scale",
            found=description,
            advice="give a positive number, the rate of training divided by the wanted rate, such as 0.1 for 200 Hz "
            "after training at 20 Hz, or a tensor: step_scale[:, None] has one value per step",
        )


def to_rows(step_scale: StepScale, like: Tensor | None = None) -> StepScale:
    """Reshape a step scale so that it broadcasts against (T, G, P).

    Args:
        step_scale: A number, or a tensor (), (G,) or (L, G).
        like: A parameter of the layer, whose precision and device the result gets; None: it keeps its own.

    Returns:
        (1, G, 1) for (G,), (L, G, 1) for (L, G); a number or a tensor () is returned unchanged.

    Raises:
        UserError: As `check_step_scale`.
    """
    check_step_scale(step_scale)
    if not isinstance(step_scale, Tensor) or step_scale.ndim == 0:
        return step_scale
    if like is not None:
        step_scale = step_scale.to(like)
    rows: Tensor = torch.atleast_2d(step_scale)
    return rows[:, :, None]


def _can_be_read(step_scale: Tensor) -> bool:
    """Return whether reading the values neither waits for a device nor breaks a graph."""
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return step_scale.device.type == "cpu" and step_scale.numel() > 0 and not is_traced
