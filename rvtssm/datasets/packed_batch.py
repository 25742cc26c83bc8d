"""Batches of raw events, counted into frames where they are needed: small between processes, large only at the end.

A dense frame costs more to move from a loader worker than to count, so workers send the cells of events (4 bytes each,
8 where a representation needs times) and which of them make which bin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rvtssm.events.histogram import fill_frames, shared_slices
from rvtssm.events.representations import Binned, Counting
from rvtssm.records import SequenceBatch


@dataclass(frozen=True, slots=True)
class PackedFrames:
    """The events of W windows, which are some of the L * B frames of a batch; the other frames are zero."""

    counting: Counting
    shape: tuple[int, int, int, int, int]  # (L, B, C, H, W) of the frames
    cells: Tensor  # (N,) int32, 2 * pixel + polarity
    times: Tensor  # (N,) int32 from the start of each chunk, or (0,)
    ranges: Tensor  # (W, R, 2) int64 into cells
    bounds_us: Tensor  # (W, 2) int64 from the start of each chunk
    places: Tensor  # (W,) int64, step * B + stream

    def pin_memory(self) -> PackedFrames:
        """Only what a device reads."""
        return replace(self, cells=self.cells.pin_memory())

    def counted(self, device: torch.device | str = "cpu", pin_memory: bool = False) -> Tensor:
        """The frames (L, B, C, H, W) on the device, the same on any; only histograms are counted elsewhere than here.

        `pin_memory`: count into memory that a GPU can read.
        """
        device = torch.device(device)
        if device.type != "cpu" and self.counting.representation == "histogram":
            return self.scattered(device)
        # from numpy, which asks for large pages: with small ones, touching new memory costs more than counting
        frames = torch.from_numpy(np.empty(self.shape, self.counting.dtype))
        if pin_memory:
            frames = torch.empty_like(frames, pin_memory=True)
        flat, places, bounds_us = frames.flatten(0, 1).numpy(), self.places.numpy(), self.bounds_us.numpy()
        flat[np.setdiff1d(np.arange(len(flat)), places)] = 0
        binned = Binned(self.cells.numpy(), self.times.numpy(), self.ranges.numpy(), bounds_us)
        ring = shared_slices(bounds_us, self.counting, self.shape[3] * self.shape[4])
        fill_frames(binned, self.counting, flat, places, ring)
        return frames.to(device, non_blocking=True)

    def scattered(self, device: torch.device) -> Tensor:
        """Histograms by scatter on the device, step by step, so that the wide counts of one step only are held."""
        num_steps, num_streams, num_channels, height, width = self.shape
        num_pixels, num_bins = height * width, self.counting.num_bins
        frames = torch.empty(self.shape, dtype=torch.uint8, device=device)
        cells = self.cells.to(device, non_blocking=True)
        steps = self.places // num_streams
        for step in range(num_steps):
            chosen = (steps == step).nonzero()[:, 0]
            starts, stops = self.ranges[chosen].flatten(0, 1).unbind(1)  # every bin of every stream
            lengths = stops - starts
            first_channel = (self.places[chosen] % num_streams)[:, None] * num_channels + torch.arange(num_bins)
            # event i of bin r is number i - shift[r] among the events of all bins of this step
            shift = starts - (lengths.cumsum(0) - lengths)
            table = torch.stack([shift, first_channel.flatten()]).to(device)
            row = torch.repeat_interleave(lengths.to(device), output_size=int(lengths.sum()))
            shift, channel = table[:, row]
            cell = cells[torch.arange(len(row), device=device) + shift].long()
            place = (channel + num_bins * (cell & 1)) * num_pixels + (cell >> 1)
            counts = torch.zeros(num_streams * num_channels * num_pixels, dtype=torch.int32, device=device)
            counts.index_add_(0, place, torch.ones((), dtype=torch.int32, device=device).expand(len(place)))
            if self.counting.convention == "rvt":
                counts.remainder_(256)
            frames[step] = counts.clamp_(max=self.counting.count_cutoff).view(frames[step].shape)
        return frames


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch whose frames are still events; `hist` of the rest is empty."""

    rest: SequenceBatch
    frames: PackedFrames

    def pin_memory(self) -> PackedBatch:
        return PackedBatch(self.rest.pin_memory(), self.frames.pin_memory())

    def counted(self, device: torch.device | str = "cpu", pin_memory: bool = False) -> SequenceBatch:
        """The batch with its frames on `device`, all else where it is."""
        return replace(self.rest, hist=self.frames.counted(device, pin_memory))


@dataclass(frozen=True, slots=True)
class ChunkEvents:
    """The events of n consecutive windows of one recording, and what they are to become."""

    binned: Binned
    counting: Counting
    frame_shape: tuple[int, int, int]  # (C, H, W)

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.binned)


def pack_frames(chunks: list[ChunkEvents], num_steps: int) -> PackedFrames:
    """Chunk b becomes stream b of L steps, its windows the first of them."""
    parts = [chunk.binned for chunk in chunks]
    first_cell = np.cumsum([0] + [len(part.cells) for part in parts])
    arrays = (
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.times for part in parts]).astype(np.int32),
        np.concatenate([part.ranges + first for part, first in zip(parts, first_cell[:-1], strict=True)]),
        np.concatenate([part.bounds_us for part in parts]),
        np.concatenate([np.arange(len(part)) * len(parts) + stream for stream, part in enumerate(parts)]),
    )
    shape = (num_steps, len(parts), *chunks[0].frame_shape)
    return PackedFrames(chunks[0].counting, shape, *(torch.from_numpy(array) for array in arrays))
