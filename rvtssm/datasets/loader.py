"""Data loaders that count the events of the next batch while the model uses this one, and that can be resumed."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from shutil import disk_usage
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from rvtssm.datasets.packed_batch import counted
from rvtssm.datasets.sampling import MixedBatchSampler
from rvtssm.records import SequenceBatch
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import end_with_parent, without_main_program

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
