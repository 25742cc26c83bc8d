"""The table of temporal layers that a detector can have. Add new layers here."""

from collections.abc import Callable

import torch

from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4
from rvtssm.ssm.s4d import S4D
from rvtssm.ssm.s5 import S5
from rvtssm.ssm.s7 import S7
from rvtssm.ssm.selective_s5 import SelectiveS5
from rvtssm.system.extras import check_part
from rvtssm.system.user_error import UserError

TEMPORAL_LAYERS: dict[str, Callable[[int, TemporalConfig], TemporalLayer]] = {
    "s4": S4,
    "s4d": S4D,
    "s5": S5,
    "selective_s5": SelectiveS5,
    "s7": S7,
    "lstm": LSTM,
}


def build_temporal_layer(config: TemporalConfig, dim: int) -> TemporalLayer:
    """Build the layer `config.name`.

    Args:
        config: Settings of the layer.
        dim: Number of features D.

    Raises:
        UserError: If the name or the discretisation is unknown, or the first argument holds no settings.
    """
    if not isinstance(config, TemporalConfig):
        needed = "the first argument of build_temporal_layer is a TemporalConfig"
        advice = (
            "give the settings first, then the number of features, as in build_temporal_layer(TemporalConfig(), 32)"
        )
        raise UserError("setting.form", name="config", found=f"{config!r:.60}", needed=needed, advice=advice)
    check_part("temporal.name", config.name, TEMPORAL_LAYERS)
    layer = TEMPORAL_LAYERS[config.name](dim, config)
    # Settings that the layer would ignore are refused.
    core = _core(layer)
    config.of_class(type(core))  # raises if the layer does not support a setting
    config.options_of(core.options)
    return layer


def with_layer_defaults(config: TemporalConfig) -> TemporalConfig:
    """Return settings with the defaults of their layer in place of None, as a checkpoint keeps them."""
    with torch.device("meta"):  # the layer is built to ask its class: without values, and without random numbers
        layer = build_temporal_layer(TemporalConfig(name=config.name), dim=8)
    return config.of_class(type(_core(layer)))


def _core(layer: TemporalLayer) -> TemporalLayer:
    """Return a layer without the block around it."""
    core: TemporalLayer = getattr(layer, "ssm", layer)
    return core
