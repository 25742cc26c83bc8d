"""Finds mistakes in a training configuration that show without data, so that a run fails before it reads them."""

from __future__ import annotations

import torch

from rvtssm.config import Config
from rvtssm.models.detector import build_detector
from rvtssm.ssm import build_temporal_layer
from rvtssm.training.regularize import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it


def check(config: Config) -> None:
    """Raise ValueError, which names key and value, if sections of the configuration do not fit together."""
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
    """Raise ValueError if the H2 term is asked for and the temporal layer has no H2 norm."""
    layer = build_temporal_layer(config.temporal, config.model.embed_dim * config.model.dim_multiplier[0])
    try:
        h2_term([] if config.temporal.strides == () else [layer], config.optim.h2_band)
    except ValueError as error:
        raise ValueError(f"optim.h2_weight={config.optim.h2_weight:g}: {error}; or set it to 0") from None
