"""Chunks and batches: read the steps that a request names, augment them, thin out labels, and batch chunks."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from rvtssm.datasets.augment import draw_placement
from rvtssm.datasets.data_config import AugmentConfig
from rvtssm.datasets.packed_batch import stack_events, stack_frames
from rvtssm.datasets.sampling import ChunkRequest
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.records import Labels, PackedEvents, SequenceBatch
from rvtssm.system.user_error import UserError


@dataclass(frozen=True, slots=True)
class Chunk:
    """n consecutive steps of a recording. The steps and windows below are counted from the first of these."""

    request: ChunkRequest
    frames: npt.NDArray[np.generic] | PackedEvents  # n frames, read or still to be counted
    dt_us: npt.NDArray[np.int64]  # (n,)
    labels: Labels  # in frame pixels
    steps: npt.NDArray[np.int64]  # (m,) steps whose outputs are wanted, ascending
    t_us: npt.NDArray[np.int64]  # (m,) times of these outputs: of their labels, or the ends of their windows


@dataclass(eq=False)
class ChunkDataset(Dataset[Chunk]):
    """The sequences of a split, read by request.

    Args:
        sequences: The sequences. With several kinds of windows: all recordings with the first kind, then all with the
            second, and so on.
        augment: Augmentation of training chunks; None leaves chunks as they are.
        frames_per_chunk: The most labelled frames of a chunk that keep their labels; None keeps all.
        max_open: The most files that a loader worker keeps open.
        num_kinds: Number of kinds of windows.

    Raises:
        UserError: There are no sequences, or their frames differ in shape or representation.
    """

    sequences: Sequence[FrameSequence]
    augment: AugmentConfig | None = None
    frames_per_chunk: int | None = None
    max_open: int = 32
    num_kinds: int = 1

    def __post_init__(self) -> None:
        if not self.sequences:
            raise UserError("labels.missing", found="there is no recording to make batches of")
        kinds = {f"{s.settings.representation} of {s.frame_shape[0]} channels" for s in self.sequences}
        if len(kinds) > 1:
            raise UserError("prepared.other", found=f"frames of {' and '.join(sorted(kinds))} cannot share a batch")
        self.num_recordings = len(self.sequences) // self.num_kinds
        self._open: OrderedDict[int, FrameSequence] = OrderedDict()  # least recently read first

    def __len__(self) -> int:
        """Return the number of recordings."""
        return self.num_recordings

    def __getitems__(self, requests: Sequence[ChunkRequest]) -> list[Chunk] | UserError:
        """Return the chunks of a batch, or the error: PyTorch passes on the traceback of an error, not the error."""
        try:
            return [self[request] for request in requests]
        except UserError as error:
            return error

    def __getitem__(self, request: ChunkRequest) -> Chunk:
        """Return the chunk that a request names."""
        if request.is_empty:
            first = self._sequence(0, 0)
            nothing = np.zeros(0, np.int64)
            return Chunk(request, first.source.frames(0, 0), nothing, first.labels[:0], nothing, nothing)
        sequence = self._sequence(request.recording, request.kind)
        # The labels of these steps, counted from the first one.
        first, last = np.searchsorted(sequence.labels.window_index, (request.start, request.stop))
        labels = sequence.labels[first:last]
        labels = replace(labels, window_index=labels.window_index - request.start)
        # Flip and zoom, of events and boxes alike.
        placement = None
        if self.augment is not None:
            config = self.augment if request.slot < 0 else self.augment.stream
            _, height, width = sequence.frame_shape
            placement = draw_placement(config, height, width, labels, request.augment_seed)
            labels = placement.labels(labels)
        frames = sequence.source.frames(request.start, request.stop, placement)
        nothing = sequence.nothing[(sequence.nothing >= request.start) & (sequence.nothing < request.stop)]
        # The labelled steps, or as many of them as a chunk may have.
        steps = np.union1d(labels.window_index, nothing - request.start)
        if self.frames_per_chunk is not None:
            steps = steps[spread_to_the_last(len(steps), self.frames_per_chunk)]
            labels = labels[np.isin(labels.window_index, steps)]
        dt_us = sequence.windows.dt_us[request.start : request.stop]
        # An evaluation asks for the outputs of its own steps.
        if (asked := sequence.asked) is not None:
            steps = asked[(asked >= request.start) & (asked < request.stop)]
            ends_us = sequence.windows.ends_us[steps]
            return Chunk(request, frames, dt_us, labels[:0], steps - request.start, ends_us)
        t_us = sequence.windows.ends_us[request.start + steps]
        # A label can be earlier than the end of its window on the free grid; the first label of a step decides.
        t_us[np.searchsorted(steps, labels.window_index[::-1])] = labels.t_us[::-1]
        return Chunk(request, frames, dt_us, labels, steps, t_us)

    def _sequence(self, recording: int, kind: int) -> FrameSequence:
        sequence = self.sequences[kind * self.num_recordings + recording]
        self._open[recording] = sequence
        self._open.move_to_end(recording)
        if len(self._open) > self.max_open:
            self._open.popitem(last=False)[1].close()
        return sequence


def spread_to_the_last(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Return at most `limit` of the indices 0 ... count - 1, evenly spread and including the last one."""
    num_kept = min(count, limit)
    return count - 1 - np.arange(num_kept)[::-1] * count // max(num_kept, 1)


@dataclass(frozen=True, slots=True)
class Collate:
    """Combines chunks into a batch.

    Steps come first, shorter chunks are padded at their end, and boxes are [class, cx, cy, w, h].

    Args:
        num_steps: Number of steps of the batch; None for the length of the longest chunk.
        pad_dt_us: Step of the padding: the usual one, so that a constant step stays constant.
    """

    num_steps: int | None
    pad_dt_us: int

    def __call__(self, chunks: list[Chunk]) -> SequenceBatch:
        # Shorter chunks are padded at their end.
        num_steps = self.num_steps or max([1, *(len(chunk.frames) for chunk in chunks)])
        dt_us = torch.full((num_steps, len(chunks)), self.pad_dt_us, dtype=torch.int64)
        is_pad = torch.ones(num_steps, len(chunks), dtype=torch.bool)
        for stream, chunk in enumerate(chunks):
            dt_us[: len(chunk.frames), stream] = torch.from_numpy(chunk.dt_us)
            is_pad[: len(chunk.frames), stream] = False
        frames: list[Any] = [chunk.frames for chunk in chunks]  # all are read, or all are still to be counted
        if isinstance(frames[0], PackedEvents):
            hist = torch.empty(0, dtype=torch.uint8)
            events = stack_events(frames, num_steps)
        else:
            hist = stack_frames(frames, num_steps)
            events = None
        of_streams: dict[str, Any] = {}
        for name in ("is_first", "slot", "recording"):
            of_streams[name] = torch.tensor([getattr(chunk.request, name) for chunk in chunks])
        targets = _targets_of(chunks)
        return SequenceBatch(hist=hist, events=events, dt_us=dt_us, is_pad=is_pad, **of_streams, **targets)


def _targets_of(chunks: list[Chunk]) -> dict[str, Any]:
    """Return the fields of a batch that describe its wanted frames, ordered by step and stream."""
    frames = []  # (step, stream, time, boxes)
    for stream, chunk in enumerate(chunks):
        for step, time_us in zip(chunk.steps.tolist(), chunk.t_us.tolist(), strict=True):
            frames.append((step, stream, time_us, chunk.labels[chunk.labels.window_index == step]))
    frames.sort(key=lambda frame: frame[:2])
    num_targets = torch.tensor([len(labels) for *_, labels in frames], dtype=torch.int64)
    # named types, since a training in float64 changes what torch makes by default, while this runs in a thread
    targets = torch.zeros(len(frames), max([1, *num_targets.tolist()]), 5, dtype=torch.float32)
    pseudo_scores = torch.zeros(targets.shape[:2], dtype=torch.float32)
    # From left, top, width, height to the centre; rows behind the last box stay zero.
    for m, (*_, labels) in enumerate(frames):
        ltwh = torch.from_numpy(labels.boxes_ltwh)
        targets[m, : len(labels), 0] = torch.from_numpy(labels.class_id)
        targets[m, : len(labels), 1:3] = ltwh[:, :2] + ltwh[:, 2:] / 2
        targets[m, : len(labels), 3:] = ltwh[:, 2:]
        pseudo_scores[m, : len(labels)] = torch.from_numpy(labels.pseudo_score)
    frame_index = torch.tensor([frame[:2] for frame in frames], dtype=torch.int64)
    t_us = torch.tensor([time_us for _, _, time_us, _ in frames], dtype=torch.int64)
    return {
        "frame_index": frame_index.reshape(-1, 2),
        "targets": targets,
        "num_targets": num_targets,
        "t_us": t_us,
        "pseudo_scores": pseudo_scores if pseudo_scores.any() else None,
    }
