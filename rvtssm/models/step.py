"""One step of a detector as a function of tensors only: counts, step scale and state in, predictions and state out."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.models.backbone import STAGE_STRIDES
from rvtssm.models.detector import Detector, PreparedStep


class DetectorStep(nn.Module):
    """The step that is exported. All tensors are real. B streams run at once, each with its own step scale.

    State tensors are (B, n, ...), with n pixels in the map of a stage; `state_names` lists them in order. Raises a
    ValueError if a temporal layer has no real step.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector).eval()
        geometry = detector.geometry
        for stage, stride in zip(self.detector.backbone.stages, STAGE_STRIDES, strict=True):
            _take_real_forms(stage.blocks, geometry.padded_height // stride, geometry.padded_width // stride)
            stage.temporal = stage.temporal.real_step()
        zero = self.detector.init_state(1)
        self._layout = [_names(state, f"state_{s}") for s, state in zip(STAGE_STRIDES, zero, strict=True)]
        self._shapes = [tuple(leaf.shape) for state in zero for leaf in _leaves(state)]  # for one stream

    @property
    def state_names(self) -> list[str]:
        return [name for names in self._layout for name in names]

    def init_state(self, num_streams: int) -> list[Tensor]:
        """Return zeros, in the order of `state_names`."""
        like = self.detector.locations
        return [like.new_zeros(num_streams, *shape) for shape in self._shapes]

    def forward(self, hist: Tensor, step_scale: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run one step: hist (B, C, H, W) uint8 counts, step_scale (B,) relative to training, state as `init_state`.

        Returns predictions (B, A, 5 + K) [cx, cy, w, h px, objectness logit, class logits] and the state afterwards.
        """
        num_streams, rest = hist.shape[0], list(state)
        for tensor in (step_scale, *state):  # so that the exported graph has one symbol for the batch
            torch._check(tensor.shape[0] == num_streams)
        nested = []
        for names in self._layout:
            leaves = [rest.pop(0).flatten(0, 1) for _ in names]
            nested.append(leaves[0] if len(names) == 1 else tuple(leaves))
        # As prepared steps, because a step scale that the detector reads would become a constant of the graph.
        scales = PreparedStep((step_scale,) * len(nested))
        predictions, after = self.detector(hist[None], tuple(nested), scales)
        flat = [leaf for state in after for leaf in _leaves(state)]
        return predictions, [leaf.unflatten(0, (num_streams, -1)) for leaf in flat]


def _take_real_forms(part: nn.Module, height: int, width: int) -> None:
    """Replace every module that has a `real_form(height, width)`, for maps of that many pixels, by this form."""
    for name, child in part.named_children():
        real_form: Any = getattr(child, "real_form", None)
        if real_form is not None:
            setattr(part, name, real_form(height, width))
        else:
            _take_real_forms(child, height, width)


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


def _names(state: Any, name: str) -> list[str]:
    return [name] if isinstance(state, Tensor) else [f"{name}_{i}" for i in range(len(state))]
