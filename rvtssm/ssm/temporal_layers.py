"""The table of temporal layers that a detector can have. Add new layers here."""

from collections.abc import Callable

from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s4 import S4
from rvtssm.ssm.s4d import S4D
from rvtssm.ssm.s5 import S5
from rvtssm.ssm.s7 import S7
from rvtssm.ssm.selective_s5 import SelectiveS5
from rvtssm.ssm.temporal_config import TemporalConfig
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
        raise UserError(
            "temporal.not_a_config",
            f"the first argument of build_temporal_layer is {config!r:.60}; give the settings first, then the number "
            "of features, as in build_temporal_layer(TemporalConfig(), 32)",
        )
    check_part("temporal.name", config.name, TEMPORAL_LAYERS)
    layer = TEMPORAL_LAYERS[config.name](dim, config)
    config.options_of(getattr(layer, "ssm", layer).options)  # raises if there is no such setting
    return layer
