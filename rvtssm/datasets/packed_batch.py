"""Frames of batches that are sent as events and counted late, where the frames are needed.

Moving a dense frame from a loader worker costs more than counting it. Workers therefore send `PackedEvents`: the cells
of events (4 bytes each) and their division into bins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rvtssm.events.representations import SliceRing, fill_frames, num_shared_slices
from rvtssm.records import PackedEvents, SequenceBatch
from rvtssm.system.machine import on_device


def counted(batch: SequenceBatch, device: torch.device | str = "cpu", pin_memory: bool = False) -> SequenceBatch:
    """Return a batch with its frames. All other tensors stay where they are.

    Args:
        batch: The batch, whose frames may still be events.
        device: Where events are counted.
        pin_memory: Count on the CPU into pinned memory.
    """
    if batch.events is None:
        return batch
    return replace(batch, hist=count_frames(batch.events, device, pin_memory), events=None)


def stack_frames(chunks: Sequence[npt.NDArray[np.generic]], num_steps: int) -> Tensor:
    """Combine the frames of chunks. Chunk b becomes the first steps of stream b, and all other frames are zero.

    Args:
        chunks: The frames (n, C, h, w) of B chunks.
        num_steps: L, at least the length of the longest chunk.

    Returns:
        (L, B, C, h, w).
    """
    frames = np.empty((num_steps, len(chunks), *chunks[0].shape[1:]), chunks[0].dtype)
    for stream, chunk in enumerate(chunks):
        frames[: len(chunk), stream] = chunk
        frames[len(chunk) :, stream] = 0
    return torch.from_numpy(frames)


def stack_events(chunks: Sequence[PackedEvents], num_steps: int) -> PackedEvents:
    """Combine the events of chunks. Chunk b becomes the first steps of stream b, and all other frames are zero.

    Args:
        chunks: The events of B chunks.
        num_steps: L, at least the length of the longest chunk.

    Returns:
        Events of frames (L, B, C, h, w) as tensors, which loader workers send through shared memory.
    """
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    num_cells = 0
    for stream, chunk in enumerate(chunks):
        columns["cells"].append(chunk.cells)
        columns["ranges"].append(chunk.ranges + num_cells)
        columns["bounds_us"].append(chunk.bounds_us - chunk.bounds_us[:1, :1])
        columns["places"].append(np.arange(len(chunk)) * len(chunks) + stream)
        num_cells += len(chunk.cells)
    joined: dict[str, Any] = {name: torch.from_numpy(np.concatenate(column)) for name, column in columns.items()}
    return PackedEvents(settings=chunks[0].settings, shape=(num_steps, len(chunks), *chunks[0].shape[1:]), **joined)


def count_frames(packed: PackedEvents, device: torch.device | str = "cpu", pin_memory: bool = False) -> Tensor:
    """Return the frames of events, counted on a device.

    Args:
        packed: The events.
        device: Where the frames are needed.
        pin_memory: Count on the CPU into pinned memory.

    Returns:
        Frames of the shape `packed.shape`.
    """
    device = torch.device(device)
    if device.type != "cpu":
        return scatter_frames(packed, device)
    # numpy asks for large pages. With small ones, touching new memory costs more than counting.
    frames = torch.from_numpy(np.empty(packed.shape, np.uint8))
    if pin_memory:
        frames = torch.empty_like(frames, pin_memory=True)
    flat = frames.view(-1, *packed.shape[-3:]).numpy()
    flat[np.setdiff1d(np.arange(len(flat)), packed.places)] = 0
    bounds_us = np.asarray(packed.bounds_us)
    num_slices = 0
    # Windows that overlap share counted slices.
    if len(bounds_us) > 1:
        length_us = np.median(bounds_us[:, 1] - bounds_us[:, 0])
        stride_us = np.median(np.diff(bounds_us[:, 1]))
        num_slices = num_shared_slices(int(length_us), int(stride_us), packed.settings)
    fill_frames(packed, flat, SliceRing(num_slices, packed.shape[-2] * packed.shape[-1]))
    return frames


def scatter_frames(packed: PackedEvents, device: torch.device) -> Tensor:
    """Return histograms counted on a device, one step after another, so that only one step needs wide counts.

    Args:
        packed: The events of a batch, as tensors.
        device: The device, usually a GPU.

    Returns:
        (L, B, C, H, W).
    """
    num_steps, num_streams, num_channels, height, width = packed.shape
    num_pixels = height * width
    num_bins = packed.settings.num_bins
    frames = torch.empty(packed.shape, dtype=torch.uint8, device=device)
    cells, ranges, places = map(torch.as_tensor, (packed.cells, packed.ranges, packed.places))
    cells = on_device(cells, device)
    steps = places // num_streams
    for step in range(num_steps):
        chosen = (steps == step).nonzero()[:, 0]
        starts, stops = ranges[chosen].flatten(0, 1).unbind(1)  # every bin of every stream
        lengths = stops - starts
        first_channel = (places[chosen] % num_streams)[:, None] * num_channels + torch.arange(num_bins)
        # Event i of bin r is number i - shift[r] among the events of all bins of this step.
        shift = starts - (lengths.cumsum(0) - lengths)
        table = on_device(torch.stack([shift, first_channel.flatten()]), device)
        row = torch.repeat_interleave(on_device(lengths, device), output_size=int(lengths.sum()))
        shift, channel = table[:, row]
        # A cell is 2 * pixel + polarity.
        cell = cells[torch.arange(len(row), device=device) + shift].long()
        place = (channel + num_bins * (cell & 1)) * num_pixels + (cell >> 1)
        counts = torch.zeros(num_streams * num_channels * num_pixels, dtype=torch.int32, device=device)
        counts.index_add_(0, place, torch.ones((), dtype=torch.int32, device=device).expand(len(place)))
        if packed.settings.convention == "rvt":
            counts.remainder_(256)
        frames[step] = counts.clamp_(max=packed.settings.count_cutoff).view(frames[step].shape)
    return frames
