"""Reads the steps a request names from its recording, augments them and thins their labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from rvtssm.datasets.augment import AugmentConfig, draw_placement
from rvtssm.datasets.packed_batch import ChunkEvents, DenseFrames
from rvtssm.datasets.sampling import ChunkRequest
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.records import Labels


@dataclass(frozen=True, slots=True)
class Chunk:
    """n consecutive steps of a recording; the window indices of the labels count from the first of them."""

    request: ChunkRequest
    frames: DenseFrames | ChunkEvents  # of n windows
    dt_us: npt.NDArray[np.int64]  # (n,)
    labels: Labels  # frame px


class ChunkDataset(Dataset[Chunk]):
    """The sequences of a split, read by request, with at most `max_open` files open per loader worker.

    Without `augment` chunks are as stored. With `num_rates` > 1 all recordings are given at the first rate, then all at
    the second, ...
    """

    def __init__(
        self,
        sequences: Sequence[FrameSequence],
        augment: AugmentConfig | None = None,
        frames_per_chunk: int | None = None,
        max_open: int = 32,
        num_rates: int = 1,
    ) -> None:
        if not sequences:
            raise ValueError("a dataset needs at least one sequence")
        if augment is not None:
            augment.check()
        kinds = {f"{s.settings.representation} {s.frame_shape}" for s in sequences}
        if len(kinds) > 1:
            raise ValueError(f"sequences of {' and '.join(sorted(kinds))} cannot be batched; prepare them alike")
        self.sequences = list(sequences)
        self.augment = augment
        self.frames_per_chunk = frames_per_chunk
        self.max_open = max_open
        self.num_recordings = len(self.sequences) // num_rates
        self._open: OrderedDict[int, FrameSequence] = OrderedDict()  # least recently read first

    def __len__(self) -> int:
        """Return the number of recordings."""
        return self.num_recordings

    def __getitem__(self, request: ChunkRequest) -> Chunk:
        if request.is_empty:
            first = self._sequence(0, 0)
            return Chunk(request, first.source.frames(0, 0), np.zeros(0, np.int64), first.labels[:0])
        sequence = self._sequence(request.recording, request.rate)
        labels = _within(sequence.labels, request.start, request.stop)
        placement = None
        if self.augment is not None:
            config = self.augment.random if request.slot < 0 else self.augment.stream
            _, height, width = sequence.frame_shape
            placement = draw_placement(config, height, width, labels, request.augment_seed)
            labels = placement.labels(labels)
        frames = sequence.source.frames(request.start, request.stop, placement)
        return Chunk(request, frames, sequence.dt_us[request.start : request.stop], self._thinned(labels))

    def _sequence(self, recording: int, rate: int) -> FrameSequence:
        sequence = self.sequences[rate * self.num_recordings + recording]
        self._open[recording] = sequence
        self._open.move_to_end(recording)
        if len(self._open) > self.max_open:
            self._open.popitem(last=False)[1].close()
        return sequence

    def _thinned(self, labels: Labels) -> Labels:
        if self.frames_per_chunk is None:
            return labels
        steps = np.unique(labels.window_index)
        kept = spread_to_the_last(len(steps), self.frames_per_chunk)
        return labels[np.isin(labels.window_index, steps[kept])]


def spread_to_the_last(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Return at most `limit` of the indices 0 ... count - 1, evenly spread, including the last one."""
    num_kept = min(count, limit)
    return count - 1 - np.arange(num_kept)[::-1] * count // max(num_kept, 1)


def _within(labels: Labels, start: int, stop: int) -> Labels:
    """Return the labels of steps [start, stop), counted from `start`."""
    first, last = np.searchsorted(labels.window_index, (start, stop))
    part = labels[first:last]
    return replace(part, window_index=part.window_index - start)
