"""The settings of temporal layers. This file does not import torch, so that wrong settings are found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.user_error import UserError

SCANS = ("auto", "triton", "loop")
# what a layer is unless it is told otherwise
_DISCRETIZATIONS = {"selective_s5": "zoh"}  # a long step then erases the state, which bilinear, of all others, cannot
_BLOCKS = {"selective_s5": "feed_forward", "s7": "gated"}


@dataclass
class TemporalConfig:
    """Which temporal layer the detector uses, and how it is made.

    A key that names no layer applies to s4, s4d, s5 and selective_s5. Layers ignore the keys of other layers, but
    `bandlimit`, `bidirectional` and `dws_conv` raise a ValueError if the chosen layer does not have them. A
    `discretization` or `block` that is None takes the value that the layer has by default, and stays None if the layer
    has no such choice.
    """

    name: str = "s5"  # one of rvtssm.ssm.temporal_layers.TEMPORAL_LAYERS
    strides: tuple[int, ...] | None = None  # the strides of the backbone at which state is carried; None: all
    # One of rvtssm.ssm.discretize.DISCRETIZATIONS; None: zoh in selective_s5, bilinear in s4, s4d and s5.
    discretization: str | None = None
    # s4d, s5: fraction of the Nyquist rate above which modes are masked, 0 = off; the paper's recipes have 0.5
    bandlimit: float = 0.0
    bandlimit_at: str = "train_step"  # or "current_step": the step that defines the Nyquist rate
    dt_min: float = 0.001  # s7 as well: the modes' own steps start log-uniform in [dt_min, dt_max]
    dt_max: float = 0.1  # the largest of these steps
    # Number of modes, conjugates included; None: 64 per feature in s4 and s4d, the number of features elsewhere.
    state_size: int | None = None
    half_state: bool = False  # s5, selective_s5: keep one mode of each conjugate pair, as s4 and s4d always do
    init: str = "legs"  # one of rvtssm.ssm.init.INITIAL_MODES; s4 has only this one
    num_blocks: int = 1  # HiPPO blocks on the diagonal of the initial state matrix; s4 always has one
    scan: str = "auto"  # s5, selective_s5, s7, in training: one of SCANS, see rvtssm.ssm.scan.sweeps
    clip_real: bool = True  # s5: hold Re(lambda) <= -1e-4; the parameters of the others allow no unstable mode
    bidirectional: bool = False  # s5, offline use: a second scan from the end of the chunk
    # selective_s5, s7: feed_forward, the block of s5, by default in selective_s5, or gated, that of the paper of S7.
    block: str | None = None
    dws_conv: bool = False  # lstm: a depthwise convolution shows each pixel the states around it, as in RVT
    dws_conv_only_hidden: bool = True  # lstm: convolve the hidden state only; False: the input as well
    dws_conv_kernel_size: int = 3  # lstm: pixels, odd

    def __post_init__(self) -> None:
        if self.strides is not None:
            self.strides = tuple(self.strides)
            if len(set(self.strides)) < len(self.strides) or min(self.strides, default=1) < 1:
                raise UserError(
                    f"temporal.strides={list(self.strides)}; name each stride at which state is carried once, such as "
                    "[16,32], or null for all strides of the backbone"
                )
        check_at_least("temporal", self, 0, "bandlimit")
        if not 0 < self.dt_min <= self.dt_max:
            raise UserError(f"temporal.dt_min={self.dt_min}, dt_max={self.dt_max}; needed is 0 < dt_min <= dt_max")
        check_choice("temporal.bandlimit_at", self.bandlimit_at, ("train_step", "current_step"))
        check_choice("temporal.scan", self.scan, SCANS)
        self.discretization = self.discretization or _DISCRETIZATIONS.get(self.name, "bilinear")
        if self.name in ("s7", "lstm"):
            self.discretization = None
        check_choice("temporal.block", self.block, (*_BLOCKS.values(), None))
        self.block = (self.block or _BLOCKS[self.name]) if self.name in _BLOCKS else None
        for key, owner in (("bidirectional", "s5"), ("dws_conv", "lstm")):
            if getattr(self, key) and self.name != owner:
                raise UserError(f"temporal.{key}=true with temporal.name={self.name}; only {owner} has it")
        if self.dws_conv_kernel_size < 1 or self.dws_conv_kernel_size % 2 == 0:
            raise UserError(f"temporal.dws_conv_kernel_size={self.dws_conv_kernel_size} must be odd and positive")

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> TemporalConfig:
        """Return the settings in a description of weights, of any age.

        Descriptions without `block` are from a time when selective_s5 was called s7. A `bandlimit` of None is from a
        time when that meant 0.5 in s5 and s4d.
        """
        settings = dict(stored)
        if settings.get("bandlimit", 0.0) is None:
            settings["bandlimit"] = 0.5 if settings["name"] in ("s5", "s4d") else 0.0
        if "stages" in settings:  # the stages with memory, numbered from 1, finest first
            stages = settings.pop("stages")
            settings["strides"] = None if stages is None else [2 ** (stage + 1) for stage in stages]
        if "block" not in settings:
            mode, block = settings.pop("s7_mode", "selective_dt"), settings.pop("s7_block", "gated")
            if settings["name"] == "s7" and mode != "selective_dt":
                raise UserError(
                    f"the weights are of an earlier S7, temporal.s7_mode={mode}, which had no step to rescale and is "
                    "no longer here; use the version of rvtssm that wrote them, or train temporal=s7 anew"
                )
            if settings["name"] == "s7":
                settings |= {"name": "selective_s5", "block": block}
        return cls(**settings)

    def step_rule(self) -> str:
        """Return `discretization`. Raise a ValueError for the settings of a layer that has none."""
        if self.discretization is None:
            raise UserError(
                f"temporal.name={self.name} has no discretization; give a layer the TemporalConfig of its own name"
            )
        return self.discretization

    def refuse_bandlimit(self, reason: str) -> None:
        """Raise a ValueError if a bandlimit is set. Layers without fixed modes call this when they are built."""
        if self.bandlimit:
            raise UserError(
                f"temporal.bandlimit={self.bandlimit:g} is not defined for temporal.name={self.name}: {reason}; "
                "use temporal.bandlimit=0, or one of the layers s4d, s5"
            )
