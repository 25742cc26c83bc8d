"""One step of a detector as a function of tensors alone: counts, step scale and state in, predictions and state out."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.models.backbone import STAGE_STRIDES
from rvtssm.models.detector import Detector, PreparedStep
from rvtssm.models.ssm2d import SSM2D, RealSSM2D, SSM2DBlock
from rvtssm.ssm.real_step import real_step


class DetectorStep(nn.Module):
    """The step that is exported. All tensors are real; B streams, each with its own step scale.

    State tensors are (B, n, ...), n the pixels of a stage; `state_names` lists them in order. ValueError where a
    temporal layer has no such step.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector).eval()
        geometry = detector.geometry
        for stage, stride in zip(self.detector.backbone.stages, STAGE_STRIDES, strict=True):
            for mixer in stage.blocks.modules():
                if isinstance(mixer, SSM2DBlock) and isinstance(mixer.ssm, SSM2D):
                    size = geometry.padded_height // stride, geometry.padded_width // stride
                    mixer.ssm = RealSSM2D(mixer.ssm, *size)
            block: Any = stage.temporal
            if hasattr(block, "ssm"):
                block.ssm = real_step(block.ssm)
            else:
                real_step(block)  # refuses what has no real step
        zero = detector.init_state(1)
        self._layout = [_names(state, f"state_{s}") for s, state in zip(STAGE_STRIDES, zero, strict=True)]
        zeros = [_real(leaf) for state in zero for leaf in _leaves(state)]
        self._shapes = [tuple(leaf.shape) for leaf in zeros]  # for one stream

    @property
    def state_names(self) -> list[str]:
        return [name for names in self._layout for name in names]

    def init_state(self, num_streams: int) -> list[Tensor]:
        """Zeros, in the order of `state_names`."""
        like = self.detector.locations
        return [like.new_zeros(num_streams, *shape) for shape in self._shapes]

    def forward(self, hist: Tensor, step_scale: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """hist (B, C, H, W) uint8 counts, step_scale (B,) relative to training, state as `init_state`.

        Returns predictions (B, A, 5 + K) [cx, cy, w, h px, objectness logit, class logits] and the state afterwards.
        """
        num_streams, rest = hist.shape[0], list(state)
        for tensor in (step_scale, *state):  # one symbol for the batch of them all
            torch._check(tensor.shape[0] == num_streams)
        nested = []
        for names in self._layout:
            leaves = [rest.pop(0).flatten(0, 1) for _ in names]
            nested.append(leaves[0] if len(names) == 1 else tuple(leaves))
        # as prepared steps, since a step scale that is looked at would become a constant of the exported graph
        scales = PreparedStep((step_scale,) * len(nested))
        predictions, after = self.detector(hist[None], tuple(nested), scales)
        flat = [leaf for state in after for leaf in _leaves(state)]
        return predictions, [leaf.unflatten(0, (num_streams, -1)) for leaf in flat]


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


def _names(state: Any, name: str) -> list[str]:
    return [name] if isinstance(state, Tensor) else [f"{name}_{i}" for i in range(len(state))]


def _real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf
