"""The table of temporal layers that a detector can have. Add new layers here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

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

_has_no_values = ContextVar("without_values", default=False)


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
    build = TEMPORAL_LAYERS[config.name]
    if _has_no_values.get():
        with torch.device("meta"):
            layer = build(dim, config)
        if _is_stored_completely(layer):
            device = torch.get_default_device()  # `to_empty` would load PyTorch's symbolic shapes
            filled: TemporalLayer = layer._apply(  # type: ignore[no-untyped-call]
                lambda values: torch.empty(values.shape, dtype=values.dtype, device=device)
            )
            return filled
    return build(dim, config)


@contextmanager
def without_values() -> Iterator[None]:
    """Skip the initial values of temporal layers that are built in this context, because weights will be loaded.

    Computing the eigenvalues of a large state takes long: hours for 100 000 modes.
    """
    token = _has_no_values.set(True)
    try:
        yield
    finally:
        _has_no_values.reset(token)


def _is_stored_completely(layer: TemporalLayer) -> bool:
    """Return whether loading weights sets every tensor of a layer."""
    stored = layer.state_dict()
    has_other = any(isinstance(value, Tensor) for module in layer.modules() for value in vars(module).values())
    return not has_other and all(name in stored for name, _ in layer.named_buffers())
