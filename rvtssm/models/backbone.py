"""Four stages and their states: padded histograms to feature maps at strides 4, 8, 16 and 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rvtssm.models.stage import Stage
from rvtssm.ssm import TemporalLayer

STAGE_FACTORS = (4, 2, 2, 2)
STAGE_STRIDES = (4, 8, 16, 32)


class Backbone(nn.Module):
    """Runs L steps of B streams through the stages, each with its own temporal layer.

    `temporal` holds one layer per stage, of widths `dims`; see `rvtssm.ssm` for what it must do. `remembering` lists
    the strides at which state is carried from step to step; None: all.
    """

    def __init__(
        self,
        in_channels: int,
        dims: Sequence[int],
        num_blocks: Sequence[int],
        partition: tuple[int, int],
        head_dim: int,
        temporal: Sequence[TemporalLayer],
        *,
        layer_scale: float = 1e-5,
        drop_path: float = 0.0,
        mixer: str = "attention",
        remembering: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if remembering is not None and not set(remembering) <= set(STAGE_STRIDES):
            raise ValueError(
                f"temporal.strides={list(remembering)}; this backbone has the strides {list(STAGE_STRIDES)}"
            )
        self.dims = tuple(dims)
        self.stages: Sequence[Stage] = nn.ModuleList(  # type: ignore[assignment]
            Stage(
                before,
                dim,
                factor,
                blocks,
                partition,
                head_dim,
                layer,
                layer_scale=layer_scale,
                drop_path=drop_path,
                mixer=mixer,
                remembers=remembering is None or stride in remembering,
            )
            for before, dim, stride, factor, blocks, layer in zip(
                (in_channels, *dims[:-1]), dims, STAGE_STRIDES, STAGE_FACTORS, num_blocks, temporal, strict=True
            )
        )

    def forward(
        self, x: Tensor, state: tuple[Any, ...], step_scales: Sequence[Any]
    ) -> tuple[list[Tensor], tuple[Any, ...]]:
        """(L, B, H, W, C) -> four maps (L, B, H / s, W / s, D), finest first, and the four states after step L.

        One step scale per stage, of which each is what its temporal layer takes.
        """
        maps, states = [], []
        for stage, before, step_scale in zip(self.stages, state, step_scales, strict=True):
            x, after = stage(x, before, step_scale)
            maps.append(x)
            states.append(after)
        return maps, tuple(states)
