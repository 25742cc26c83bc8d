"""A neck from outside the package: it hands the map of stride 8 on."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rvtssm.models import ModelConfig
from rvtssm.models.contracts import Neck
from rvtssm.models.detector import NECKS


class OneMapNeck(Neck):
    strides = (8,)

    def __init__(self, model: ModelConfig, channels: Mapping[int, int]) -> None:
        super().__init__()
        self.channels = {8: channels[8]}

    def forward(self, maps: dict[int, Tensor]) -> dict[int, Tensor]:
        return maps


NECKS["one_map"] = OneMapNeck
