"""The same batches from any number of workers, a place to resume at, and evaluation from raw events."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from user_errors import raises

from rvtssm.datasets import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.datasets import loader as loading
from rvtssm.datasets.datamodule import SequenceDataModule, eval_loader
from rvtssm.datasets.loader import ChunkDataset, Collate, ResumableLoader, leave_signals_to_the_parent
from rvtssm.datasets.sampling import MixedBatchSampler
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.records import SequenceBatch, WindowSettings
from rvtssm.system.user_error import UserError

SAMPLING = SamplingConfig(batch_size=4, chunk_length=8)


def module(config, num_workers=0, **options):
    data = DataConfig(workers=num_workers, eval_batch_size=2, eval_chunk_length=6)
    return SequenceDataModule(config, SAMPLING, AugmentConfig(), data, **options)


def assert_all_equal(left: list[SequenceBatch], right: list[SequenceBatch]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        for field in fields(SequenceBatch):
            torch.testing.assert_close(getattr(one, field.name), getattr(other, field.name), rtol=0, atol=0)


def test_batches_do_not_depend_on_the_workers(small_tree):
    alone, helped = module(small_tree).train_dataloader(), module(small_tree, num_workers=2).train_dataloader()
    first = list(alone)
    assert_all_equal(first, list(helped))
    second = list(alone)
    assert_all_equal(second, list(helped))
    assert len(first) == len(alone) == len(second)
    assert not torch.equal(first[0].hist, second[0].hist), "every epoch is another one"
    assert {batch.hist.shape for batch in first} == {(8, 4, 20, 48, 64)}


def test_a_loader_resumes_after_the_batches_handed_out(small_tree):
    loader = module(small_tree).train_dataloader()
    expected = [*loader, *loader]
    interrupted = module(small_tree, num_workers=2).train_dataloader()
    batches = iter(interrupted)
    consumed = [next(batches) for _ in range(2)]
    state = interrupted.state_dict()
    assert state == {"epoch": 0, "batch": 2}
    resumed = module(small_tree).train_dataloader()
    resumed.load_state_dict(state)
    assert len(resumed) == len(loader)
    assert_all_equal([*consumed, *resumed, *resumed], expected)


def test_recordings_without_boxes_are_left_out_and_counted(small_tree, tmp_path):
    shutil.copytree(small_tree.raw_dir, tmp_path / "raw")
    write_boxes(tmp_path / "raw" / "train" / "drive_1_bbox.npy", np.zeros(0, BOX_DTYPE))
    config = replace(small_tree, raw_dir=str(tmp_path / "raw"), source="raw")
    data = module(config)
    sequences = data.sequences("train")
    assert [sequence.name for sequence in sequences] == ["drive_0", "drive_2"]
    assert data.in_words("train", sequences).endswith(" labels, 1 without boxes left out")
    assert data.in_words("val", data.sequences("val")).endswith(" labels")


@pytest.mark.parametrize("source", ["prepared", "raw"])
def test_evaluation_streams_every_recording_and_every_label(small_tree, source):
    data = module(small_tree)
    loader = eval_loader(data.eval_sequences("val", WindowSettings(), source), data.data)
    sequences = loader.dataset.sequences
    seen, slots, found = defaultdict(int), {}, defaultdict(dict)
    for batch in list(loader):  # whose thread reads the same recordings
        for b, recording in enumerate(batch.recording.tolist()):
            assert slots.setdefault(recording, int(batch.slot[b])) == int(batch.slot[b])
            assert bool(batch.is_first[b]) == (seen[recording] == 0)
            count = int((~batch.is_pad[:, b]).sum())
            start = seen[recording]
            np.testing.assert_array_equal(
                batch.hist[:count, b], sequences[recording].read(start, start + count), strict=True
            )
            np.testing.assert_array_equal(
                batch.dt_us[:count, b], sequences[recording].windows.dt_us[start : start + count]
            )
            seen[recording] += count
        for m, (_, stream) in enumerate(batch.frame_index.tolist()):
            found[int(batch.recording[stream])][int(batch.t_us[m])] = batch.targets[m, : batch.num_targets[m]]
    assert seen == {i: len(sequence.windows) for i, sequence in enumerate(sequences)}
    for recording, sequence in enumerate(sequences):
        assert list(found[recording]) == sorted(set(sequence.labels.t_us.tolist()))
        targets = torch.cat(list(found[recording].values())).numpy()
        ltwh = sequence.labels.boxes_ltwh
        np.testing.assert_array_equal(targets[:, 0], sequence.labels.class_id)
        np.testing.assert_allclose(targets[:, 1:3] - targets[:, 3:] / 2, ltwh[:, :2], atol=1e-5)
        np.testing.assert_array_equal(targets[:, 3:], ltwh[:, 2:])


def test_processes_share_the_work(small_tree):
    class Trainer:
        world_size, accumulate_grad_batches = 2, 3

        def __init__(self, rank: int) -> None:
            self.global_rank = rank
            self.strategy = SimpleNamespace(root_device=torch.device("cpu"))

    streamed, evaluated, lengths = [], [], []
    for rank in range(2):
        data = module(small_tree)
        data.trainer = Trainer(rank)
        loader = data.train_dataloader()
        lengths.append(len(loader))
        for batch in loader.batch_sampler:
            streamed += [(r.recording, r.start, r.stop) for r in batch if r.slot >= 0 and not r.is_empty]
        evaluated.append(
            {r.recording for batch in data.val_dataloader().batch_sampler for r in batch if not r.is_empty}
        )
    assert lengths[0] == lengths[1] and lengths[0] % 3 == 0
    assert len(streamed) == len(set(streamed))
    whole = sum(len(sequence.windows) for sequence in data.sequences("train"))
    assert sum(stop - start for _, start, stop in streamed) == whole
    assert evaluated[0] | evaluated[1] == {0, 1} and not evaluated[0] & evaluated[1]


def test_what_is_missing_is_named(small_tree):
    with raises("setting.missing"):
        module(replace(small_tree, prepared_dir=None, source="prepared")).train_dataloader()
    with raises("setting.missing"):
        module(replace(small_tree, raw_dir=None)).eval_sequences("val", WindowSettings(), "raw")
    with raises("prepared.fixed"):
        module(small_tree).eval_sequences("val", WindowSettings(5_000))
    with raises("setting.choice", "raw, prepared"):
        module(small_tree).eval_sequences("val", WindowSettings(), "disk")
    with raises("setting.choice", "dataset.source"):
        module(replace(small_tree, source="disk"))


# the loader of streams


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
        late = time.monotonic() + 300  # the second one may still be starting
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
        assert counted.acquire(timeout=300)
        assert own.state_dict() == {"epoch": 0, "batch": number}, "batches that wait have not been handed out"
    assert counted.acquire(timeout=300), "the third batch is counted before it is asked for"
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
        raise UserError("prepared.damaged", "a.h5 is damaged; prepare it again")

    monkeypatch.setattr(ChunkDataset, "__getitem__", fail)  # which forked workers inherit
    with raises("prepared.damaged") as caught:
        list(loader("stream", 0, 1, num_workers))
    assert str(caught.value) == "a.h5 is damaged; prepare it again"


def test_a_batch_that_does_not_fit_in_shared_memory_is_an_error_and_no_hang(loader, monkeypatch):
    def fail(tensor):
        raise RuntimeError("unable to allocate shared memory(shm) for file: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)  # which forked workers inherit
    with raises("machine.full"):
        list(loader("stream", 0, 1, num_workers=1))


def test_a_worker_that_is_killed_ends_the_loading(loader, monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # seconds between looks
    earlier = set(multiprocessing.active_children())
    batches = iter(loader("stream", 0, 1, num_workers=1))
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - earlier
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises((UserError, RuntimeError), match="DataLoader worker"):
        list(batches)
        while True:  # the few batches had been loaded already, and the signal of its death may be on its way
            time.sleep(0.1)


def test_an_error_ends_the_workers_while_its_traceback_is_kept(loader, monkeypatch):
    """Else the death of one of them would be an error later, wherever the main thread is."""
    earlier = set(multiprocessing.active_children())
    batches = iter(loader("stream", 0, 1, num_workers=2))
    next(batches)

    def break_off(batches):
        raise ConnectionResetError

    monkeypatch.setattr(loading, "next_batch", break_off)
    with pytest.raises(ConnectionResetError) as kept:
        list(batches)
    assert kept.tb and set(multiprocessing.active_children()) == earlier
