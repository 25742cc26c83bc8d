"""The contract every temporal layer keeps, its configuration, and the meaning of a step scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

State: TypeAlias = Tensor | tuple[Tensor, ...]
StepScale: TypeAlias = float | Tensor

OMEGA_MIN = math.pi / 2  # radians per training step: half the Nyquist rate of that step
OMEGA_MAX = 10 * math.pi  # the Nyquist rate of a step ten times shorter


@dataclass
class TemporalConfig:
    """Which temporal layer the detector uses, and how it is made.

    A key without the name of a layer is read by s4, s4d, s5 and s7; a layer does not read the keys of others, nor do
    lstm and s7 with `eq4` read what only modes have. Asked for and not had, `bandlimit`, `bidirectional` and `dws_conv`
    are errors.
    """

    name: str = "s5"  # one of rvtssm.ssm.TEMPORAL_LAYERS
    strides: tuple[int, ...] | None = None  # of the backbone's maps, those at which state is carried; None: all
    discretization: str = "bilinear"  # one of rvtssm.ssm.discretize.DISCRETIZATIONS
    # Fraction of the Nyquist rate above which modes are silent, 0 = off; None: 0.5 in s4d and s5, off elsewhere.
    bandlimit: float | None = None
    bandlimit_at: str = "train_step"  # or "current_step": the step that defines the Nyquist rate
    dt_min: float = 0.001  # the modes' own steps start log-uniform in [dt_min, dt_max]
    dt_max: float = 0.1
    # Modes, counted with their conjugates; None: as many as features in s5 and s7, 64 per feature in s4 and s4d.
    state_size: int | None = None
    half_state: bool = False  # s5, s7: keep one mode of each conjugate pair, y = 2 Re(C x); s4 and s4d always do
    init: str = "legs"  # one of rvtssm.ssm.init.SPECTRA; s4 has only this one
    num_blocks: int = 1  # HiPPO blocks on the diagonal of the initial state matrix; s4 has one whatever this says
    clip_real: bool = True  # s5: hold Re(lambda) <= -1e-4; the parameters of the others allow no unstable mode
    bidirectional: bool = False  # s5, offline use: a second scan from the end of the chunk, which is all that it sees
    s7_mode: str = "selective_dt"  # or "eq4", the literal form of the paper, which has no step; see rvtssm.ssm.s7
    dws_conv: bool = False  # lstm: a depthwise convolution lets each pixel see the states around it, as RVT can
    dws_conv_only_hidden: bool = True  # lstm: of the hidden state alone, or of the input as well
    dws_conv_kernel_size: int = 3  # lstm: pixels, odd

    def __post_init__(self) -> None:
        if self.strides is not None:
            self.strides = tuple(self.strides)
            if len(set(self.strides)) < len(self.strides) or min(self.strides, default=1) < 1:
                raise ValueError(
                    f"temporal.strides={list(self.strides)}; name each stride at which state is carried once, such as "
                    "[16,32], or null for all strides of the backbone"
                )
        if self.bandlimit is not None and not 0 <= self.bandlimit < math.inf:
            raise ValueError(f"temporal.bandlimit={self.bandlimit} must be 0 (off) or positive")
        if self.bandlimit_at not in ("train_step", "current_step"):
            raise ValueError(f"temporal.bandlimit_at={self.bandlimit_at!r}; choose from train_step, current_step")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(f"temporal.dt_min={self.dt_min}, dt_max={self.dt_max}; needed is 0 < dt_min <= dt_max")
        if self.s7_mode not in ("selective_dt", "eq4"):
            raise ValueError(f"temporal.s7_mode={self.s7_mode!r}; choose from selective_dt, eq4")
        for key, owner in (("bidirectional", "s5"), ("dws_conv", "lstm")):
            if getattr(self, key) and self.name != owner:
                raise ValueError(f"temporal.{key}=true with temporal.name={self.name}; only {owner} has it")
        if self.dws_conv_kernel_size < 1 or self.dws_conv_kernel_size % 2 == 0:
            raise ValueError(f"temporal.dws_conv_kernel_size={self.dws_conv_kernel_size} must be odd and positive")

    def refuse_bandlimit(self, reason: str) -> None:
        """For layers without fixed modes: ValueError where a bandlimit was asked for."""
        if self.bandlimit:
            raise ValueError(
                f"temporal.bandlimit={self.bandlimit:g} is not defined for temporal.name={self.name}: {reason}; "
                "use temporal.bandlimit=null, or one of the layers s4d, s5"
            )


class TemporalLayer(nn.Module, ABC):
    """What every temporal layer offers. Time comes first; state goes in and comes out, nothing is kept inside."""

    name: ClassVar[str]  # of the layer inside a block, in TEMPORAL_LAYERS
    is_causal: bool = True  # False: an output depends on later inputs of its chunk, so there is no single step
    takes_grid: bool = False  # True: `forward` and `step` need grid=(H, W), where the sequences are pixels of frames

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
        """One step: x (N, D) -> y (N, D) and the next state. `step_scale` is a number, (G,), or what was prepared.

        ValueError where the layer is not causal.
        """
        if not self.is_causal:
            raise ValueError(
                "temporal.bidirectional=true reads its chunks from their end as well, so it cannot go step by step; "
                "give it whole chunks, or train with temporal.bidirectional=false"
            )
        y, after = self(x[None], state, step_scale)
        return y[0], after

    def alone(self, x: Tensor, step_scale: Any = 1.0, **where: Any) -> Tensor:
        """Every step by itself, from the zero state: x (L, N, D) -> y (L, N, D). What a layer without memory does.

        `step_scale` as in `forward`, or what was prepared for a number. The L N steps run as sequences of one.
        """
        num_steps, num_sequences = x.shape[:2]
        if isinstance(step_scale, Tensor) and step_scale.ndim and num_steps > 1:
            step_scale = step_scale.expand(num_steps, step_scale.shape[-1]).flatten()
        steps = num_steps * num_sequences
        y, _ = self(x.reshape(1, steps, x.shape[2]), self.init_state(steps), step_scale, **where)
        return cast(Tensor, y).reshape(x.shape)

    def h2_norm(self, omega_min: float = OMEGA_MIN, omega_max: float = OMEGA_MAX, num_points: int = 0) -> Tensor:
        """The H2 norm of the layer between two angular frequencies, in radians per training step: a number to add to
        a loss. See `rvtssm.ssm.spectrum`; `num_points` > 0 asks for the quadrature where there is a closed form.
        """
        raise ValueError(
            f"temporal.name={self.name} has no H2 norm: what it does to a frequency depends on the input; "
            "use one of the layers s4, s4d, s5"
        )


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


def check_fit(scale_steps: int, groups: int, num_steps: int, num_sequences: int) -> None:
    """ValueError where a step scale of (scale_steps, groups) does not fit an input of (num_steps, num_sequences)."""
    if scale_steps not in (1, num_steps) or num_sequences % groups:
        raise ValueError(
            f"step_scale covers {scale_steps} steps of {groups} groups, the input has {num_steps} steps of "
            f"{num_sequences} sequences; give one value per step and the number of sequences a multiple of the groups"
        )


def to_rows(step_scale: StepScale) -> StepScale:
    """A step scale shaped to meet (T, G, P): (G,) -> (1, G, 1), (L, G) -> (L, G, 1), a number or () as it is."""
    if not isinstance(step_scale, Tensor) or step_scale.ndim == 0:
        return step_scale
    if step_scale.ndim > 2:
        raise ValueError(f"step_scale must be a number, (G,) or (L, G), got the shape {tuple(step_scale.shape)}")
    return (step_scale if step_scale.ndim == 2 else step_scale[None])[:, :, None]
