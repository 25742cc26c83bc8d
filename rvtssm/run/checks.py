"""What can be wrong with a training configuration and shows without data, so that it fails before they are touched."""

from __future__ import annotations

import torch

from rvtssm.config import Config
from rvtssm.models.detector import build_detector
from rvtssm.ssm import build_temporal_layer
from rvtssm.training.regularize import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it


def check(config: Config) -> None:
    """ValueError for values that do not go together, or that only who uses them can judge; it names key and value."""
    config.sampling.check()
    config.augment.check()
    with torch.device("meta"):
        build_detector(
            config.model,
            config.temporal,
            *_FRAME_HW,
            num_classes=1,
            in_channels=config.preprocess.counting.num_channels,
        )
    if config.optim.h2_weight:
        _check_h2(config)


def _check_h2(config: Config) -> None:
    """The term needs the norm of a layer, which not every kind has."""
    layer = build_temporal_layer(config.temporal, config.model.embed_dim * config.model.dim_multiplier[0])
    try:
        h2_term([] if config.temporal.strides == () else [layer], config.optim.h2_band)
    except ValueError as error:
        raise ValueError(f"optim.h2_weight={config.optim.h2_weight:g}: {error}; or set it to 0") from None
