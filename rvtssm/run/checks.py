"""What can be wrong with a training configuration and shows without data, so that it fails before they are touched."""

from __future__ import annotations

import torch

from rvtssm.config import Config
from rvtssm.models.contracts import Backbone
from rvtssm.models.detector import build_detector
from rvtssm.ssm import build_temporal_layer
from rvtssm.training.regularize import h2_term

_FRAME_HW = (32, 32)  # no weight depends on it


def check(config: Config) -> None:
    """ValueError for values that do not go together, or that only who uses them can judge; it names key and value."""
    _check_memory(config)
    config.sampling.check()
    config.augment.check()
    with torch.device("meta"):
        detector = build_detector(
            config.model,
            config.temporal,
            *_FRAME_HW,
            num_classes=1,
            in_channels=config.preprocess.counting.num_channels,
        )
    detector.backbone.recompute(config.training.recompute_strides)
    if config.optim.h2_weight:
        _check_h2(config, detector.backbone)


def _check_h2(config: Config, backbone: Backbone) -> None:
    """Raise ValueError if the temporal layer has no norm, or none carries a state."""
    layer = build_temporal_layer(config.temporal, min(backbone.channels.values()))
    try:
        h2_term([layer] if backbone.memory_strides else [], config.optim.h2_band)
    except ValueError as error:
        raise ValueError(f"optim.h2_weight={config.optim.h2_weight:g}: {error}; or set it to 0") from None


def _check_memory(config: Config) -> None:
    """A model that forgets after n steps is trained and validated in chunks of n."""
    chunk, training, validation = (
        config.model.memory_chunk,
        config.sampling.chunk_length,
        config.data.eval_chunk_length,
    )
    if chunk is not None and (training, validation) != (chunk, chunk):
        raise ValueError(
            f"model.memory_chunk={chunk} with sampling.chunk_length={training} and "
            f"data.eval_chunk_length={validation}; a model that forgets is trained and validated in chunks of "
            "its memory, set all three alike"
        )
