"""What the tests of the detector share: a small detector of each temporal layer, and the recorded official models."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rvtssm.models import ModelConfig, rvt
from rvtssm.models.detector import Detector, build_detector
from rvtssm.models.official import derive_configs, rename_official
from rvtssm.ssm import TemporalConfig

# the attention branches start at full weight, so that a mistake in them shows
SMALL = ModelConfig(size="custom", embed_dim=8, head_dim=4, num_blocks=(1, 0, 0, 1), fpn_blocks=0, layer_scale=1.0)


@pytest.fixture
def build_small():
    """A function: name of a temporal layer, frame height and width -> a small detector in evaluation mode.

    Also the name of its spatial mixer, the strides at which state is carried, and other values of `ModelConfig`.
    """

    def build(
        name: str = "s5",
        height: int = 64,
        width: int = 96,
        mixer: str = "attention",
        strides: tuple[int, ...] | None = None,
        **model,
    ) -> Detector:
        torch.manual_seed(0)
        # large steps and no mask: within a few steps the state matters as much as the input
        temporal = TemporalConfig(name=name, dt_min=0.2, dt_max=1.0, bandlimit=0.0, strides=strides)
        detector = build_detector(replace(SMALL, mixer=mixer, **model), temporal, height, width, num_classes=2)
        for module in detector.modules():  # as after some training: statistics that are not the identity
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.1, 0.5)
        return detector.eval()

    return build


@pytest.fixture
def draw_counts():
    """A function: L, B, height and width -> random counts (L, B, 20, H, W) uint8."""

    def draw(num_steps: int, num_streams: int, height: int = 64, width: int = 96, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 11, (num_steps, num_streams, 20, height, width), generator=generator, dtype=torch.uint8)

    return draw


@dataclass
class Golden:
    """A recorded model: its arrays, and the same weights in a detector of ours."""

    arrays: dict[str, np.ndarray]
    weights: dict[str, Tensor]  # under the official names
    head_dim: int
    detector: Detector

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    def assert_near(self, found: Tensor, name: str, tolerance: float = 1e-4) -> None:
        """Equal up to `tolerance` of the largest value."""
        wanted = self.tensor(name)
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= tolerance * wanted.abs().max(), name


def read_golden(path) -> Golden:
    arrays = dict(np.load(path))
    weights = {key.removeprefix("sd/"): torch.from_numpy(array) for key, array in arrays.items() if "sd/" in key}
    head_dim = len(weights["mdl.backbone.stages.0.downsample_cf2cl.conv.weight"]) // 2
    model, temporal, num_classes, in_channels = derive_configs(weights, head_dim=head_dim)
    height, width = arrays["input"].shape[-2:]
    with pytest.MonkeyPatch.context() as patch:  # recorded with one window over the coarsest map, of any size
        patch.setattr(rvt, "LARGEST_PARTITION", max(height, width))
        detector = build_detector(model, temporal, height, width, num_classes, in_channels)
    detector.load_state_dict(rename_official(weights))
    return Golden(arrays, weights, head_dim, detector.eval())


@pytest.fixture
def golden_ssm(golden_dir) -> Golden:
    return read_golden(golden_dir / "model_small.npz")


@pytest.fixture
def golden_rvt(golden_dir) -> Golden:
    return read_golden(golden_dir / "rvt_small.npz")
