"""One step of a detector as a function of real tensors: frames, step scale and state in, predictions and state out."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rvtssm.models.detector import Detector


class DetectorStep(nn.Module):
    """The step that is exported. All tensors are real. B streams run at once, each with its own step scale.

    State tensors are (B, n, ...), where n is the number of pixels of a map. `state_names` lists them in order, and
    `prediction_names` lists the tensors of the predictions.

    Args:
        detector: The detector, which is copied.

    Raises:
        UserError: If a temporal layer has no such step.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector).eval()
        self.detector.backbone.to_real_step()
        self.prediction_names = [name for name, field in detector.empty()._asdict().items() if field is not None]
        zero = self.detector.init_state(1)
        strides = detector.backbone.temporal_layers()
        self._layout = [_names(state, f"state_{stride}") for stride, state in zip(strides, zero, strict=True)]
        self._shapes = [tuple(leaf.shape) for state in zero for leaf in _leaves(state)]  # for one stream

    @property
    def state_names(self) -> list[str]:
        """The names of the state tensors, in order."""
        return [name for names in self._layout for name in names]

    def init_state(self, num_streams: int) -> list[Tensor]:
        """Return zeros for each state tensor, in the order of `state_names`."""
        like = next(self.detector.parameters())
        return [like.new_zeros(num_streams, *shape) for shape in self._shapes]

    def forward(self, hist: Tensor, step_scale: Tensor, state: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run one step.

        Args:
            hist: Frames (B, C, H, W).
            step_scale: The step relative to training, (B,).
            state: State tensors (B, n, ...), in the order of `state_names`.

        Returns:
            The tensors of the predictions (B, ...), and the next state tensors.
        """
        num_streams = hist.shape[0]
        rest = list(state)
        for tensor in (step_scale, *state):  # so that the exported graph has one symbol for the batch
            torch._check(tensor.shape[0] == num_streams)
        nested = []
        for names in self._layout:
            leaves = [rest.pop(0).flatten(0, 1) for _ in names]
            nested.append(leaves[0] if len(names) == 1 else tuple(leaves))
        # Prepared steps, because a step scale whose value is read would become a constant of the exported graph.
        scales = (step_scale,) * len(nested)
        predictions, after = self.detector(hist[None], tuple(nested), scales)
        flat = [leaf for state in after for leaf in _leaves(state)]
        fields = [field for field in predictions if field is not None]
        return fields, [leaf.unflatten(0, (num_streams, -1)) for leaf in flat]


def _leaves(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return list(state)


def _names(state: Any, name: str) -> list[str]:
    if isinstance(state, Tensor):
        return [name]
    return [f"{name}_{i}" for i in range(len(state))]
