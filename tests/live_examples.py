"""A small detector with scores that mean something, and random events: what tests of live detection share."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from rvtssm.models.checkpoint import CheckpointMeta, LoadedCheckpoint
from rvtssm.models.model_config import ModelConfig
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.ssm import TemporalConfig

SMALL = DatasetSpec(
    name="small",
    height=48,
    width=64,
    class_names=("car", "pedestrian"),
    label_interval_us=50_000,
    min_side_px=2,
    min_diagonal_px=4,
    prepare_min_side_px=2,
    prepare_min_diagonal_px=4,
)


@pytest.fixture
def live_checkpoint():
    """A function: temporal layer, its direction, representation, model settings -> weights whose state matters,
    scores differ."""

    def build(
        temporal: str = "s5", representation: str = "histogram", bidirectional: bool = False, **model
    ) -> LoadedCheckpoint:
        torch.manual_seed(1)
        config = ModelConfig(size="custom", embed_dim=8, head_dim=4, fpn_blocks=1, layer_scale=1.0, **model)
        layer = TemporalConfig(name=temporal, dt_min=0.2, dt_max=1.0, bidirectional=bidirectional)
        meta = CheckpointMeta(SMALL, config, layer, WindowSettings(50_000, None, "exact", 10, 10, representation))
        detector = meta.build().eval()
        with torch.no_grad():
            for name, parameter in detector.head.named_parameters():
                if parameter.ndim == 1 and parameter.numel() <= 2 and name.endswith("bias"):
                    parameter.zero_()
                elif name.endswith("weight") and parameter.ndim == 4:
                    parameter.mul_(4)
        return LoadedCheckpoint(**{f.name: getattr(meta, f.name) for f in fields(CheckpointMeta)}, detector=detector)

    return build


@pytest.fixture
def draw_events():
    """A function: number, first and last time, seed -> random events on the small sensor."""

    def draw(n: int = 6_000, start_us: int = 7_000_000, duration_us: int = 430_000, seed: int = 5) -> Events:
        rng = np.random.default_rng(seed)
        t = np.sort(rng.integers(start_us, start_us + duration_us, n))
        t[0], t[-1] = start_us, start_us + duration_us - 1
        return Events(
            t,
            rng.integers(0, SMALL.width, n).astype(np.uint16),
            rng.integers(0, SMALL.height, n).astype(np.uint16),
            rng.integers(0, 2, n).astype(np.uint8),
        )

    return draw
