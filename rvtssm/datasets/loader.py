"""From requests to batches: chunks are read, augmented and combined, and loaders count the next batch ahead."""

import multiprocessing
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from shutil import disk_usage
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from rvtssm.datasets import AugmentConfig
from rvtssm.datasets.augment import draw_placement
from rvtssm.datasets.packed_batch import counted, stack_events, stack_frames
from rvtssm.datasets.sampling import ChunkRequest, MixedBatchSampler
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.records import Labels, PackedEvents, SequenceBatch
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import end_with_parent, without_main_program


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
        frames: list[Any] = [chunk.frames for chunk in chunks]  # all are read, or all are still to be counted
        num_steps = self.num_steps or max([1, *map(len, frames)])
        dt_us = torch.full((num_steps, len(chunks)), self.pad_dt_us, dtype=torch.int64)
        is_pad = torch.ones(num_steps, len(chunks), dtype=torch.bool)
        for stream, chunk in enumerate(chunks):
            dt_us[: len(chunk.frames), stream] = torch.from_numpy(chunk.dt_us)
            is_pad[: len(chunk.frames), stream] = False
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


# Ctrl-C, a preemptible machine about to stop, a job about to reach its time limit
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class SequenceLoader(DataLoader[SequenceBatch]):
    """A data loader that counts the events sent by its workers, in this process and on the model's device.

    A thread does this one batch ahead, while the previous batch is in use.
    """

    count_on = torch.device("cpu")

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], **settings: Any) -> None:
        super().__init__(dataset, collate_fn=partial(_in_shared_memory, collate_fn), **settings)

    def __iter__(self) -> Iterator[SequenceBatch]:  # type: ignore[override]
        # Workers start with these signals blocked and install their own handlers first.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        # A worker that is forked is a copy of this process, main program included.
        is_copy = multiprocessing.get_start_method() == "fork"
        try:
            with nullcontext() if is_copy else without_main_program():
                batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        try:
            with ThreadPoolExecutor(1, "next_batch", self._enter_thread) as ahead:
                coming = ahead.submit(self._counted, batches)
                while (batch := coming.result()) is not None:
                    coming = ahead.submit(self._counted, batches)
                    yield batch
        finally:
            # PyTorch raises an error for a worker that died anywhere in the main thread as long as it watches it, and
            # without this it watches as long as somebody keeps the traceback of an earlier error.
            if isinstance(batches, _MultiProcessingDataLoaderIter):
                batches._shutdown_workers()

    def _enter_thread(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the main thread handles these signals
        if self.count_on.type == "cuda":  # a new thread uses the first GPU by default
            torch.cuda.set_device(self.count_on)

    def _counted(self, batches: Iterator[SequenceBatch]) -> SequenceBatch | None:
        batch = next_batch(batches)
        return None if batch is None else counted(batch, self.count_on, self.pin_memory)


def _in_shared_memory(collate: Callable[[Any], SequenceBatch], chunks: list[Any] | UserError) -> Any:
    """Make a batch, and in a worker move it to shared memory at once.

    Otherwise a thread of the worker would move it, and the parent would wait for ever if the memory is full.

    Args:
        collate: Makes a batch.
        chunks: Its chunks, or the error that is passed on in their place.
    """
    if isinstance(chunks, UserError):
        return chunks
    batch = collate(chunks)
    if get_worker_info() is None:
        return batch
    try:
        _share(batch)
        if batch.events is not None:
            _share(batch.events)
    except RuntimeError as error:
        free = disk_usage("/dev/shm").free / 1e6
        advice = "set data.workers=0, or give the container more, as in docker run --shm-size=8g"
        found = f"has {free:.0f} MB free, which is too little for a batch ({error})"
        return UserError("machine.full", name="/dev/shm", found=found, advice=advice)
    return batch


def _share(record: Any) -> None:
    """Move all tensors of a record to shared memory."""
    for field in fields(record):
        part = getattr(record, field.name)
        if isinstance(part, torch.Tensor) and part.numel():
            part.share_memory_()


def next_batch(batches: Iterator[SequenceBatch | UserError]) -> SequenceBatch | None:
    """Return the next batch, None after the last one. Raise the UserError that a worker returned in place of one."""
    try:
        batch = next(batches, None)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise _worker_ended(str(error)) from error
    except (EOFError, ConnectionError) as error:  # the process has ended before its batch was fetched
        raise _worker_ended("the connection to a DataLoader worker broke off") from error
    if isinstance(batch, UserError):
        raise batch
    return batch


def _worker_ended(reason: str) -> UserError:
    why = "perhaps because memory ran out or too few files may be open (ulimit -n)"
    found = f"a process that loads data has ended ({reason}), {why}"
    return UserError("run.process_ended", found=found, advice="use fewer data.workers or smaller batches")


class ResumableLoader(SequenceLoader):
    """A loader whose state counts the batches handed out, not the batches that its workers have prepared."""

    batch_sampler: MixedBatchSampler

    def __iter__(self) -> Iterator[SequenceBatch]:  # type: ignore[override]
        for batch in super().__iter__():
            self.batch_sampler.advance()
            yield batch

    def state_dict(self) -> dict[str, int]:
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch_sampler.load_state_dict(state)


def leave_signals_to_the_parent(worker: int) -> None:
    """Ignore Ctrl-C and the signals of a cluster in a worker, because the parent needs its workers to end cleanly."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # Only the parent sends SIGTERM to a single worker; schedulers send it to process groups.
    os.setpgid(0, 0)
    while signal.SIGTERM in signal.sigpending():
        signal.sigwait({signal.SIGTERM})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
