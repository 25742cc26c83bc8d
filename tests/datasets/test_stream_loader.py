"""The three invariants of a stream loader, on the batches themselves: over processes, over workers, over epochs."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from user_errors import raises

from rvtssm.datasets import loader as loading
from rvtssm.datasets.chunks import ChunkDataset, Collate
from rvtssm.datasets.data_config import SamplingConfig
from rvtssm.datasets.loader import ResumableLoader, leave_signals_to_the_parent
from rvtssm.datasets.sampling import MixedBatchSampler
from rvtssm.system.user_error import UserError

LENGTH = 4
NUM_STEPS = [23, 7, 1, 16, 40]


@pytest.fixture
def loader(numbered_sequence):
    """A function: batches whose frames say which recording (from 1) and which step (from 0) they are."""

    def of(mode: str, rank: int, world_size: int, num_workers: int) -> ResumableLoader:
        sequences = [numbered_sequence(r + 1, n, list(range(0, n, 3))) for r, n in enumerate(NUM_STEPS)]
        config = SamplingConfig(mode=mode, batch_size=3, chunk_length=LENGTH)
        labels = [sequence.label_steps for sequence in sequences]
        plan = MixedBatchSampler(NUM_STEPS, labels, config, 5, rank, world_size)
        dataset: Any = ChunkDataset(sequences, max_open=2)
        return ResumableLoader(
            dataset,
            batch_sampler=plan,
            collate_fn=Collate(LENGTH, 50_000),
            num_workers=num_workers,
            worker_init_fn=leave_signals_to_the_parent,
        )

    return of


@pytest.mark.parametrize(("mode", "world_size", "num_workers"), [("stream", 1, 0), ("mixed", 3, 0), ("mixed", 2, 2)])
def test_streams_are_constant_contiguous_and_complete(loader, mode, world_size, num_workers):
    loaders = [loader(mode, rank, world_size, num_workers) for rank in range(world_size)]
    for _ in range(2):
        read: Counter[tuple[int, int]] = Counter()
        lengths = set()
        for own in loaders:
            batches = list(own)
            lengths.add(len(batches))
            position: dict[int, tuple[int, int]] = {}  # of each slot: recording and the step that must come next
            for batch in batches:
                assert batch.hist.shape[:2] == (LENGTH, 3)
                for stream, slot in enumerate(batch.slot.tolist()):
                    frames = batch.hist[~batch.is_pad[:, stream], stream]
                    if slot < 0 or not len(frames):
                        continue
                    found = [(int(frame[0, 0, 0]), int(frame[1, 0, 0])) for frame in frames]
                    if not batch.is_first[stream]:
                        assert found[0] == position[slot]
                    recording, first = found[0]
                    assert found == [(recording, first + i) for i in range(len(found))]
                    position[slot] = (recording, first + len(found))
                    read.update(found)
        assert len(lengths) == 1, "nobody waits"
        assert read == {(r + 1, step): 1 for r, n in enumerate(NUM_STEPS) for step in range(n)}
    assert all(own.state_dict() == {"epoch": 2, "batch": 0} for own in loaders)


def test_signals_that_reach_all_processes_spare_the_workers(loader):
    batches = iter(loader("stream", 0, 1, num_workers=2))
    read = [next(batches)]
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        late = time.monotonic() + 60  # the second one may still be starting
        while os.getpgid(worker.pid) != worker.pid:  # what is sent to our group does not reach it
            assert time.monotonic() < late
            time.sleep(0.01)
        for number in (signal.SIGINT, signal.SIGUSR1):
            os.kill(worker.pid, number)
    read += batches
    alone = loader("stream", 0, 1, num_workers=0)
    assert all(torch.equal(found.hist, wanted.hist) for found, wanted in zip(read, alone, strict=True))


def test_the_next_batch_is_counted_while_one_is_in_use(loader, monkeypatch):
    own, counted, count = loader("stream", 0, 1, num_workers=0), threading.Semaphore(0), loading.counted

    def noting(batch, *place):
        found = count(batch, *place)
        counted.release()
        return found

    monkeypatch.setattr(loading, "counted", noting)
    batches = iter(own)
    for number in (1, 2):
        next(batches)
        assert counted.acquire(timeout=60)
        assert own.state_dict() == {"epoch": 0, "batch": number}, "batches that wait have not been handed out"
    assert counted.acquire(timeout=60), "the third batch is counted before it is asked for"
    batches.close()
    assert not any(thread.name.startswith("next_batch") for thread in threading.enumerate())


def test_an_error_of_the_next_batch_comes_when_it_is_asked_for(loader, monkeypatch):
    batches = iter(loader("stream", 0, 1, num_workers=0))
    next(batches)

    def fail(batch, *place):
        raise OSError("unreadable")

    monkeypatch.setattr(loading, "counted", fail)
    with pytest.raises(OSError, match="unreadable"):
        list(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_refused_recording_keeps_its_key_and_its_text_in_a_worker(loader, monkeypatch, num_workers):
    def fail(dataset, request):
        raise UserError("prepared.digest", "a.h5 is damaged; prepare it again")

    monkeypatch.setattr(ChunkDataset, "__getitem__", fail)  # which forked workers inherit
    with raises("prepared.digest") as caught:
        list(loader("stream", 0, 1, num_workers))
    assert str(caught.value) == "a.h5 is damaged; prepare it again"


def test_a_batch_that_does_not_fit_in_shared_memory_is_an_error_and_no_hang(loader, monkeypatch):
    def fail(tensor):
        raise RuntimeError("unable to allocate shared memory(shm) for file: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)  # which forked workers inherit
    with raises("loader.shared_memory"):
        list(loader("stream", 0, 1, num_workers=1))


def test_a_worker_that_is_killed_ends_the_loading_within_seconds(loader, monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # seconds between looks
    earlier = set(multiprocessing.active_children())
    batches = iter(loader("stream", 0, 1, num_workers=1))
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - earlier
    begun_s = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises((UserError, RuntimeError), match="DataLoader worker"):
        list(batches)
        time.sleep(10)  # the few batches had been loaded already
    assert time.monotonic() - begun_s < 30
