"""What the detector is fed with: the steps of several streams, whose frames may still be events."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from rvtssm.records.settings import WindowSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PackedEvents:
    """The events of W windows, which are some of F frames, ready to be counted. The other frames are zero.

    Chunks hold numpy arrays. Batches hold tensors on the CPU, since loader workers send these through shared memory.
    """

    settings: WindowSettings
    shape: tuple[int, ...]  # of all frames: (n, C, H, W) of a chunk, (L, B, C, H, W) of a batch
    cells: np.ndarray | torch.Tensor  # (K,) int32, 2 * pixel + polarity
    ranges: np.ndarray | torch.Tensor  # (W, R, 2) int64, the cells [start, stop) of each bin
    bounds_us: np.ndarray | torch.Tensor  # (W, 2) int64, [start, end) of each window, from any origin
    places: np.ndarray | torch.Tensor  # (W,) int64, the frame of each window, counted through all frames in order
    first: int = 0  # number of the first cell among all that were counted with one ring

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.places)


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """L consecutive steps of B streams. `frame_index` lists the M labelled (step, stream) pairs in order of steps.

    Only the frames, the targets and the pseudo-label scores move to the device of the model. The other tensors control
    what is computed. They stay on the CPU, so that reading them never waits for the device.
    """

    hist: torch.Tensor  # (L, B, C, H, W) uint8; empty while `events` holds what is to be counted
    dt_us: torch.Tensor  # (L, B) int64
    is_first: torch.Tensor  # (B,) bool, the stream starts a recording here, from the zero state
    is_pad: torch.Tensor  # (L, B) bool, steps after the end of a recording
    frame_index: torch.Tensor  # (M, 2) int64
    targets: torch.Tensor  # (M, N, 5) float32 [class, cx, cy, w, h], frame pixels; zero rows are padding
    num_targets: torch.Tensor  # (M,) int64
    t_us: torch.Tensor  # (M,) int64, time of the label
    slot: torch.Tensor  # (B,) int64, index in the state bank; -1 for a random chunk
    recording: torch.Tensor  # (B,) int64, index of the recording in its split
    pseudo_scores: torch.Tensor | None = None  # (M, N) float32, see Labels.pseudo_score; None: all are annotated
    events: PackedEvents | None = None  # the frames before they are counted; None: they are in `hist`

    def pin_memory(self) -> SequenceBatch:
        """Return the batch with its tensors in pinned memory, and of its events the cells, which a device reads."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "events"}
        pinned = {name: tensor.pin_memory() for name, tensor in tensors.items() if tensor is not None}
        events = self.events
        if events is not None:
            events = replace(events, cells=events.cells.pin_memory())  # type: ignore[union-attr]
        return SequenceBatch(**pinned, events=events)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SequenceBatch:
        """Return the batch with its frames, targets and pseudo-label scores on a device.

        Args:
            device: The device of the model.
            non_blocking: Copy asynchronously if the source is pinned memory.
        """
        tensors = {name: getattr(self, name) for name in ("hist", "targets", "pseudo_scores")}
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items() if tensor is not None
        }
        return replace(self, **moved)
