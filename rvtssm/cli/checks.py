"""Finds mistakes in a training configuration that show without data, so that a run fails before it reads them."""

import torch

from rvtssm.cli.config import Config
from rvtssm.models.detector import build_detector
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.system.extras import check_extra
from rvtssm.system.free_memory import check_memory
from rvtssm.system.user_error import UserError
from rvtssm.training.regularize import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it


def check(config: Config) -> None:
    """Raise ValueError, which names key and value, if sections of the configuration do not fit together."""
    with torch.device("meta"):
        detector = build_detector(
            config.model,
            config.temporal,
            *_FRAME_HW,
            num_classes=1,
            in_channels=config.windows.settings.num_channels,
        )
    if config.model.head == "rtdetr":
        check_extra("training model.head=rtdetr", "rtdetr", "scipy")
    num_parameters = sum(parameter.numel() for parameter in detector.parameters())
    # weights, gradients and the two averages of the optimiser, float32
    check_memory(
        16 * num_parameters, f"training {num_parameters:.4g} parameters; use fewer num_bins or a smaller model"
    )
    detector.backbone.recompute(config.training.recompute_strides)
    if config.optim.h2_weight:
        layer = build_temporal_layer(config.temporal, min(detector.backbone.channels.values()))
        try:  # the layer may have no such norm, or none may carry a state
            h2_term([layer] if detector.backbone.memory_strides else [], config.optim.h2_band)
        except UserError as error:
            raise UserError(f"optim.h2_weight={config.optim.h2_weight:g}: {error}; or set it to 0") from None
