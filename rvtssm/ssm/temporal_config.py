"""The settings of temporal layers. This file does not import torch, so that wrong settings are found at once."""

from dataclasses import dataclass

from rvtssm.system.limits import check_at_least, check_choice
from rvtssm.system.user_error import UserError

SCANS = ("auto", "triton", "loop")


@dataclass
class TemporalConfig:
    """Which temporal layer the detector uses, and how it is made.

    A key that names no layer applies to s4, s4d, s5 and s7. Layers ignore the keys of other layers, and lstm and s7
    with `eq4` ignore the keys about modes. But `bandlimit`, `bidirectional` and `dws_conv` raise a ValueError if the
    chosen layer does not have them.
    """

    name: str = "s5"  # one of rvtssm.ssm.temporal_layers.TEMPORAL_LAYERS
    strides: tuple[int, ...] | None = None  # the strides of the backbone at which state is carried; None: all
    discretization: str = "bilinear"  # one of rvtssm.ssm.discretize.DISCRETIZATIONS
    # Fraction of the Nyquist rate above which modes are masked, 0 = off; None: 0.5 in s4d and s5, off elsewhere.
    bandlimit: float | None = None
    bandlimit_at: str = "train_step"  # or "current_step": the step that defines the Nyquist rate
    dt_min: float = 0.001  # the modes' own steps start log-uniform in [dt_min, dt_max]
    dt_max: float = 0.1  # the largest of these steps
    # Number of modes, conjugates included; None: the number of features in s5 and s7, 64 per feature in s4 and s4d.
    state_size: int | None = None
    half_state: bool = False  # s5, s7: keep one mode of each conjugate pair, y = 2 Re(C x); s4 and s4d always do
    init: str = "legs"  # one of rvtssm.ssm.init.INITIAL_MODES; s4 has only this one
    num_blocks: int = 1  # HiPPO blocks on the diagonal of the initial state matrix; s4 always has one
    scan: str = "auto"  # s5, s7, in training: one of SCANS, see rvtssm.ssm.scan.sweeps; weights do not keep it
    clip_real: bool = True  # s5: hold Re(lambda) <= -1e-4; the parameters of the others allow no unstable mode
    bidirectional: bool = False  # s5, offline use: a second scan from the end of the chunk
    s7_mode: str = "selective_dt"  # or "eq4", the literal form of the paper, which has no step; see rvtssm.ssm.s7
    s7_block: str = "gated"  # of the paper; or "feed_forward", the block that s5 has; see rvtssm.ssm.block
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
        check_choice("temporal.s7_mode", self.s7_mode, ("selective_dt", "eq4"))
        check_choice("temporal.s7_block", self.s7_block, ("gated", "feed_forward"))
        for key, owner in (("bidirectional", "s5"), ("dws_conv", "lstm")):
            if getattr(self, key) and self.name != owner:
                raise UserError(f"temporal.{key}=true with temporal.name={self.name}; only {owner} has it")
        if self.dws_conv_kernel_size < 1 or self.dws_conv_kernel_size % 2 == 0:
            raise UserError(f"temporal.dws_conv_kernel_size={self.dws_conv_kernel_size} must be odd and positive")

    def refuse_bandlimit(self, reason: str) -> None:
        """Raise a ValueError if a bandlimit is set. Layers without fixed modes call this when they are built."""
        if self.bandlimit:
            raise UserError(
                f"temporal.bandlimit={self.bandlimit:g} is not defined for temporal.name={self.name}: {reason}; "
                "use temporal.bandlimit=null, or one of the layers s4d, s5"
            )
