"""The contract every temporal layer keeps, its configuration, and the meaning of a step scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = Tensor | tuple[Tensor, ...]
StepScale: TypeAlias = float | Tensor


@dataclass
class TemporalConfig:
    """Which temporal layer the detector uses, and how it is made. The LSTM reads only `name`."""

    name: str = "s5"
    discretization: str = "bilinear"  # one of rvtssm.ssm.discretize.DISCRETIZATIONS
    bandlimit: float = 0.5  # fraction of the Nyquist rate above which modes are silent, 0 = off
    bandlimit_at: str = "train_step"  # or "current_step": the step that defines the Nyquist rate
    dt_min: float = 0.001  # the modes' own steps start log-uniform in [dt_min, dt_max]
    dt_max: float = 0.1
    state_size: int | None = None  # modes, counted with their conjugates; None: as many as features
    half_state: bool = False  # keep one mode of each conjugate pair, y = 2 Re(C x)
    init: str = "legs"  # one of rvtssm.ssm.init.SPECTRA
    num_blocks: int = 1  # HiPPO blocks on the diagonal of the initial state matrix
    clip_real: bool = True  # hold Re(lambda) <= -1e-4, so that no training step makes a mode unstable

    def __post_init__(self) -> None:
        if self.bandlimit < 0:
            raise ValueError(f"temporal.bandlimit={self.bandlimit} must be 0 (off) or positive")
        if self.bandlimit_at not in ("train_step", "current_step"):
            raise ValueError(f"temporal.bandlimit_at={self.bandlimit_at!r}; choose from train_step, current_step")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(f"temporal.dt_min={self.dt_min}, dt_max={self.dt_max}; needed is 0 < dt_min <= dt_max")


class TemporalLayer(nn.Module, ABC):
    """What every temporal layer offers. Time comes first; state goes in and comes out, nothing is kept inside."""

    supports_step_scale: ClassVar[bool] = True  # False: the layer accepts a step scale and ignores it

    @abstractmethod
    def init_state(self, num_sequences: int) -> State:
        """The state before any input: zeros (N, *state_shape), on the device and in the precision of the parameters."""

    @abstractmethod
    def prepare(self, step_scale: StepScale = 1.0) -> Any:
        """What depends on the parameters and the step scale alone.

        Whoever streams computes it once, without gradient, and passes it in place of the step scale while both stay
        the same: at one step per call it is most of the work.
        """

    @abstractmethod
    def forward(self, x: Tensor, state: State, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """Run L steps: x (L, N, D), state (N, *state_shape) -> y (L, N, D) and the state after step L.

        `step_scale` is the step relative to training: 0.1 for 200 Hz after training at 20 Hz. It is a number, or a
        tensor (G,) per sequence or (L, G) per step and sequence, where N is a multiple of G and consecutive runs of
        N / G sequences share a value (G = N: each has its own; G = B for the pixels of B streams); or what `prepare`
        returned.
        """

    def step(self, x: Tensor, state: State, step_scale: Any = 1.0) -> tuple[Tensor, State]:
        """One step: x (N, D) -> y (N, D) and the next state. `step_scale` is a number, (G,), or what was prepared."""
        y, after = self(x[None], state, step_scale)
        return y[0], after


def to_constant(step_scale: StepScale) -> StepScale:
    """A number where all values of a step scale without gradient agree, else the step scale as it is.

    Reading a tensor waits for its device, so a model calls this once for all its layers.
    """
    if isinstance(step_scale, Tensor):
        if step_scale.requires_grad or step_scale.numel() == 0 or torch.compiler.is_compiling():
            return step_scale
        lowest, highest = step_scale.aminmax()
        return float(lowest) if bool(lowest == highest) else step_scale
    return float(step_scale)


def to_rows(step_scale: StepScale) -> StepScale:
    """A step scale shaped to meet (T, G, P): (G,) -> (1, G, 1), (L, G) -> (L, G, 1), a number or () as it is."""
    if not isinstance(step_scale, Tensor) or step_scale.ndim == 0:
        return step_scale
    if step_scale.ndim > 2:
        raise ValueError(f"step_scale must be a number, (G,) or (L, G), got the shape {tuple(step_scale.shape)}")
    return (step_scale if step_scale.ndim == 2 else step_scale[None])[:, :, None]
