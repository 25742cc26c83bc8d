"""Temporal layers: recurrences over sequences (L, N, D) with explicit state, at any rate.

    from rvtssm.ssm import S5

    layer = S5(dim=32)
    y, state = layer(x)  # x (L, N, 32): steps, sequences, features; without a state the layer starts from zeros
    y, state = layer(more, state, 0.1)  # continues from there, with steps a tenth as long

A layer is imported when its name is first used, so that reading the settings, which stand here, does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rvtssm.system.limits import Options, Settings, check_choice, check_number, checked_options, setting
from rvtssm.system.user_error import UserError

if TYPE_CHECKING:  # it imports torch
    from rvtssm.ssm.layer import TemporalLayer
    from rvtssm.ssm.lstm import LSTM
    from rvtssm.ssm.s4 import S4
    from rvtssm.ssm.s4d import S4D
    from rvtssm.ssm.s5 import S5
    from rvtssm.ssm.s7 import S7
    from rvtssm.ssm.selective_s5 import SelectiveS5

SCANS = ("auto", "triton", "loop")
BLOCKS = ("feed_forward", "gated")


@dataclass
class TemporalConfig(Settings, section="temporal"):
    """The temporal layer of the detector, and its settings.

    Unless its comment names layers, a key applies to s4, s4d, s5 and selective_s5. Layers ignore the keys of other
    layers, except that `bandlimit` and `bidirectional` raise a UserError if the chosen layer does not
    support them. If `discretization` or `block` is None, the layer takes its default.

    >>> rvtssm.TemporalConfig(name="s5", discretization="zoh", bandlimit=0.5).bandlimit
    0.5

    Args:
        name: The layer: s4, s4d, s5, selective_s5, s7 or lstm.
        strides: Strides of the backbone at which state is carried; None: all. A layer alone ignores it.
        discretization: The rule from continuous modes to a step: zoh, bilinear, dirac or async.
        bandlimit: Modes above this fraction of the Nyquist rate are switched off; 0: none.
        bandlimit_at: The step that defines the Nyquist rate: train_step, or current_step, which follows the step scale.
        dt_min: Smallest initial step of a mode. Steps are learned; they start log-uniform between dt_min and dt_max. A
            mode with a small step changes slowly and remembers for long.
        dt_max: Largest initial step of a mode. A larger one adds fast modes, which remember for a short time.
        state_size: Number of modes, conjugates included; None: 64 per feature for s4 and s4d, else as many as features.
        half_state: Keep one mode of each conjugate pair, which halves the work.
        init: Where the modes start, such as legs (HiPPO-LegS).
        num_blocks: Number of HiPPO blocks in the initial state matrix.
        scan: How training runs the recurrence: auto, triton (GPU) or loop (plain PyTorch, slow).
        clip_real: Keep the real part of every mode below 0, so that s5 stays stable.
        bidirectional: Also scan each chunk from its end, for use offline.
        block: What surrounds selective_s5 and s7: feed_forward, or gated.
        options: Settings of a layer that has some of its own, by name.
    """

    name: str = "s5"
    """One of rvtssm.ssm.temporal_layers.TEMPORAL_LAYERS."""
    strides: tuple[int, ...] | None = setting(None, at_least=1, is_distinct=True)
    """Strides of the backbone at which state is carried; null: all of them."""
    discretization: str | None = None
    """One of rvtssm.ssm.discretize.DISCRETIZATIONS; null: zoh for selective_s5, bilinear for s4, s4d and s5."""
    bandlimit: float = setting(0.0, at_least=0, at_most=1)
    """s4d, s5: fraction of the Nyquist rate above which modes are masked, 0 = off; the paper's recipes use 0.5."""
    bandlimit_at: str = setting("train_step", choices=("train_step", "current_step"))
    """The step that defines the Nyquist rate: train_step or current_step."""
    dt_min: float = setting(0.001, above=0)
    """Also s7: the learned steps of the modes start log-uniform between dt_min and dt_max."""
    dt_max: float = setting(0.1, above=0)
    """Also s7: the largest initial step of a mode."""
    state_size: int | None = setting(None, at_least=1)
    """Number of modes, conjugates included; null: 64 per feature for s4 and s4d, the number of features for others."""
    half_state: bool = False
    """s5, selective_s5: keep one mode of each conjugate pair, as s4 and s4d always do."""
    init: str = "legs"
    """One of rvtssm.ssm.init.INITIAL_MODES; s4 supports only legs."""
    num_blocks: int = setting(1, at_least=1)
    """Number of HiPPO blocks on the diagonal of the initial state matrix; s4 always has one."""
    scan: str = setting("auto", choices=SCANS)
    """s5, selective_s5, s7, in training: one of SCANS, see rvtssm.ssm.scan.sweeps."""
    clip_real: bool = True
    """s5: clip Re(lambda) to at most -1e-4; the other layers are stable for all weights."""
    bidirectional: bool = False
    """s5, offline use: add a second scan from the end of the chunk."""
    block: str | None = setting(None, choices=(*BLOCKS, None))
    """selective_s5, s7: feed_forward, the block of s5 (default of selective_s5), or gated, the block of the S7 paper.
    """

    options: dict[str, Any] = field(default_factory=dict)
    """Settings of a layer that has some of its own, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dt_min > self.dt_max:
            needed = f"temporal.dt_max={self.dt_max}"
            advice = "give dt_min <= dt_max"
            raise UserError("setting.conflict", name="temporal.dt_min", found=self.dt_min, needed=needed, advice=advice)

    @classmethod
    def of_layer(cls, config: object, layer: type[TemporalLayer], dim: object) -> TemporalConfig:
        """Return the settings that a layer was given, or its defaults if it was given None.

        Args:
            config: The settings.
            layer: The class of the layer, without the block around it.
            dim: Number of features, which is only checked.

        Raises:
            UserError: If the settings are those of another layer or anything else, such as a number of modes, or if the
                number of features is not a positive whole number.
        """
        check_number("dim", dim, 1, is_whole=True)
        name = layer.name
        if config is None:
            return cls(name=name).of_class(layer)
        if not isinstance(config, cls):
            needed = "the settings of a layer are a TemporalConfig"
            advice = f"for 16 modes, pass TemporalConfig(name={name!r}, state_size=16)"
            raise UserError("setting.form", name="config", found=f"{config!r:.100}", needed=needed, advice=advice)
        if config.name != name:
            needed = f"these settings were given to {name}"
            advice = f"name the layer in them, as in TemporalConfig(name={name!r}, ...)"
            raise UserError("setting.conflict", name="temporal.name", found=config.name, needed=needed, advice=advice)
        return config.of_class(layer)

    def of_class(self, layer: type[TemporalLayer]) -> TemporalConfig:
        """Return the settings with the defaults of a layer in place of None; a layer without the choice has None.

        Raises:
            UserError: The layer does not support `bidirectional`.
        """
        if self.bidirectional and not layer.may_be_bidirectional:
            raise UserError(
                "setting.conflict",
                name="temporal.bidirectional",
                found="true",
                needed=f"temporal.name={self.name}",
                advice="only s5 supports it",
            )
        rule = None
        if layer.default_rule is not None:
            rule = self.discretization or layer.default_rule
        block = None
        if layer.default_block is not None:
            block = self.block or layer.default_block
        return replace(self, discretization=rule, block=block)

    def options_of(self, kind: type[Options]) -> Options:
        """Return the settings of a layer of its own, a dataclass of this kind.

        Raises:
            UserError: The layer has no such setting, or the value is wrong.
        """
        return checked_options("temporal.options", self.options, kind)

    def step_rule(self) -> str:
        """Return `discretization`. Layers that have one call this when they are built.

        Raises:
            UserError: If the rule is unknown.
        """
        from rvtssm.ssm.discretize import DISCRETIZATIONS  # imports torch

        check_choice("temporal.discretization", self.discretization, DISCRETIZATIONS)
        return str(self.discretization)

    def refuse_bandlimit(self, reason: str) -> None:
        """Raise a UserError if a bandlimit is set. Layers without fixed modes call this when they are built.

        Args:
            reason: Why the layer has no bandlimit, for the message.
        """
        if self.bandlimit:
            found = f"{self.bandlimit:g}"
            needed = f"it is not defined for temporal.name={self.name}: {reason}"
            advice = "use temporal.bandlimit=0, or one of the layers s4d, s5"
            raise UserError("setting.conflict", name="temporal.bandlimit", found=found, needed=needed, advice=advice)


__all__ = ["LSTM", "S4", "S4D", "S5", "S7", "SelectiveS5", "TemporalConfig"]

_HOMES = {
    **{name: f"rvtssm.ssm.{name.lower()}" for name in ("LSTM", "S4", "S4D", "S5", "S7")},
    "SelectiveS5": "rvtssm.ssm.selective_s5",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rvtssm.ssm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
