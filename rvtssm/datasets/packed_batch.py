"""The frames of chunks and batches: read from a store, or sent as raw events that are counted where frames are needed.

Moving a dense frame from a loader worker costs more than counting it. Workers therefore send the cells of events (4
bytes each) and their division into bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rvtssm.events.representations import Binned, SliceRing, fill_frames, num_shared_slices
from rvtssm.records import SequenceBatch, WindowSettings
from rvtssm.system.devices import on_device


@dataclass(frozen=True, slots=True)
class DenseFrames:
    """The frames of n consecutive windows of one recording."""

    frames: npt.NDArray[np.generic]  # (n, C, h, w)

    def __len__(self) -> int:
        return len(self.frames)

    def stack(self, chunks: Sequence[Any], num_steps: int) -> Tensor:
        """Combine the frames of chunks. Chunk b becomes the first steps of stream b, and all other frames are zero.

        Args:
            chunks: The frames of B chunks.
            num_steps: L, at least the length of the longest chunk.

        Returns:
            (L, B, C, h, w).
        """
        frames = np.empty((num_steps, len(chunks), *self.frames.shape[1:]), self.frames.dtype)
        for stream, chunk in enumerate(chunks):
            frames[: len(chunk), stream] = chunk.frames
            frames[len(chunk) :, stream] = 0
        return torch.from_numpy(frames)


@dataclass(frozen=True, slots=True)
class PackedFrames:
    """The events of W windows, which are some of the L * B frames of a batch. The other frames are zero."""

    settings: WindowSettings
    shape: tuple[int, int, int, int, int]  # (L, B, C, H, W) of the frames
    cells: Tensor  # (N,) int32, 2 * pixel + polarity
    ranges: Tensor  # (W, R, 2) int64, the cells [start, stop) of each bin
    bounds_us: Tensor  # (W, 2) int64, from the start of each chunk
    places: Tensor  # (W,) int64, the frame of each window: step * B + stream

    def pin_memory(self) -> PackedFrames:
        """Pin the tensor that a device reads."""
        return replace(self, cells=self.cells.pin_memory())

    def counted(self, device: torch.device | str = "cpu", pin_memory: bool = False) -> Tensor:
        """Return the frames on a device.

        Args:
            device: Where the frames are needed.
            pin_memory: Count on the CPU into pinned memory.

        Returns:
            (L, B, C, H, W).
        """
        device = torch.device(device)
        if device.type != "cpu":
            return self.scattered(device)
        # numpy asks for large pages. With small ones, touching new memory costs more than counting.
        frames = torch.from_numpy(np.empty(self.shape, self.settings.dtype))
        if pin_memory:
            frames = torch.empty_like(frames, pin_memory=True)
        flat, places, bounds_us = frames.flatten(0, 1).numpy(), self.places.numpy(), self.bounds_us.numpy()
        flat[np.setdiff1d(np.arange(len(flat)), places)] = 0
        binned = Binned(self.cells.numpy(), self.ranges.numpy())
        num_slices = 0
        if len(bounds_us) > 1:
            length_us, stride_us = np.median(bounds_us[:, 1] - bounds_us[:, 0]), np.median(np.diff(bounds_us[:, 1]))
            num_slices = num_shared_slices(int(length_us), int(stride_us), self.settings)
        ring = SliceRing(num_slices, self.shape[3] * self.shape[4])
        fill_frames(binned, self.settings, flat, places, ring)
        return frames.to(device, non_blocking=True)

    def scattered(self, device: torch.device) -> Tensor:
        """Return histograms counted on the device, one step after another, so that only one step needs wide counts."""
        num_steps, num_streams, num_channels, height, width = self.shape
        num_pixels, num_bins = height * width, self.settings.num_bins
        frames = torch.empty(self.shape, dtype=torch.uint8, device=device)
        cells = on_device(self.cells, device)
        steps = self.places // num_streams
        for step in range(num_steps):
            chosen = (steps == step).nonzero()[:, 0]
            starts, stops = self.ranges[chosen].flatten(0, 1).unbind(1)  # every bin of every stream
            lengths = stops - starts
            first_channel = (self.places[chosen] % num_streams)[:, None] * num_channels + torch.arange(num_bins)
            # Event i of bin r is number i - shift[r] among the events of all bins of this step.
            shift = starts - (lengths.cumsum(0) - lengths)
            table = on_device(torch.stack([shift, first_channel.flatten()]), device)
            row = torch.repeat_interleave(on_device(lengths, device), output_size=int(lengths.sum()))
            shift, channel = table[:, row]
            cell = cells[torch.arange(len(row), device=device) + shift].long()
            place = (channel + num_bins * (cell & 1)) * num_pixels + (cell >> 1)
            counts = torch.zeros(num_streams * num_channels * num_pixels, dtype=torch.int32, device=device)
            counts.index_add_(0, place, torch.ones((), dtype=torch.int32, device=device).expand(len(place)))
            if self.settings.convention == "rvt":
                counts.remainder_(256)
            frames[step] = counts.clamp_(max=self.settings.count_cutoff).view(frames[step].shape)
        return frames


@dataclass(frozen=True, slots=True)
class ChunkEvents:
    """The events of n consecutive windows of one recording, which `PackedFrames` counts later."""

    binned: Binned
    bounds_us: npt.NDArray[np.int64]  # (n, 2)
    settings: WindowSettings
    frame_shape: tuple[int, int, int]  # (C, H, W)

    def __len__(self) -> int:
        return len(self.binned)

    def stack(self, chunks: Sequence[Any], num_steps: int) -> PackedFrames:
        """Combine the events of chunks. Chunk b becomes the first steps of stream b, and all other frames are zero.

        Args:
            chunks: The events of B chunks.
            num_steps: L, at least the length of the longest chunk.
        """
        parts = [chunk.binned for chunk in chunks]
        first_cell = np.cumsum([0] + [len(part.cells) for part in parts])
        arrays = (
            np.concatenate([part.cells for part in parts]),
            np.concatenate([part.ranges + first for part, first in zip(parts, first_cell[:-1], strict=True)]),
            np.concatenate([chunk.bounds_us - chunk.bounds_us[:1, :1] for chunk in chunks]),
            np.concatenate([np.arange(len(part)) * len(parts) + stream for stream, part in enumerate(parts)]),
        )
        shape = (num_steps, len(parts), *self.frame_shape)
        return PackedFrames(self.settings, shape, *(torch.from_numpy(array) for array in arrays))


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch whose frames may still be events."""

    fields: dict[str, Any]  # all fields of a SequenceBatch except `hist`
    frames: Tensor | PackedFrames

    def pin_memory(self) -> PackedBatch:
        pinned = {name: None if value is None else value.pin_memory() for name, value in self.fields.items()}
        return PackedBatch(pinned, self.frames.pin_memory())

    def counted(self, device: torch.device | str = "cpu", pin_memory: bool = False) -> SequenceBatch:
        """Return the batch with its frames. All other tensors stay where they are.

        Args:
            device: Where events are counted.
            pin_memory: Count on the CPU into pinned memory.
        """
        frames = self.frames if isinstance(self.frames, Tensor) else self.frames.counted(device, pin_memory)
        return SequenceBatch(hist=frames, **self.fields)
