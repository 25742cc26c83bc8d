"""The same batches from any number of workers, a place to resume at, and evaluation from raw events."""

import shutil
from collections import defaultdict
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from user_errors import raises

from rvtssm.cli.console import with_labels
from rvtssm.datasets.data_config import AugmentConfig, DataConfig, SamplingConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.records import SequenceBatch, WindowSettings

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
    assert data.num_without_boxes("train", sequences) == 1
    assert data.num_without_boxes("val", data.sequences("val")) == 0
    assert with_labels(sequences, 1).endswith(" labels, 1 without boxes left out")


@pytest.mark.parametrize("source", ["prepared", "raw"])
def test_evaluation_streams_every_recording_and_every_label(small_tree, source):
    data = module(small_tree)
    loader = data.eval_loader(data.eval_sequences("val", WindowSettings(), source))
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


def test_a_higher_rate_has_more_steps_and_the_same_labels(small_tree):
    data = module(small_tree)
    slow, fast = (
        list(data.eval_loader(data.eval_sequences("test", WindowSettings(stride_us), "raw")))
        for stride_us in (50_000, 5_000)
    )
    assert sum(len(batch.hist) for batch in fast) > 8 * sum(len(batch.hist) for batch in slow)
    assert torch.cat([batch.t_us for batch in slow]).tolist() == torch.cat([batch.t_us for batch in fast]).tolist()
    assert float(fast[0].dt_us.float().mean()) == pytest.approx(5_000, rel=0.02)


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
    with raises("dataset.folder_not_set"):
        module(replace(small_tree, prepared_dir=None, source="prepared")).train_dataloader()
    with raises("dataset.folder_not_set"):
        module(replace(small_tree, raw_dir=None)).eval_sequences("val", WindowSettings(), "raw")
    with raises("prepared.other_windows"):
        module(small_tree).eval_sequences("val", WindowSettings(5_000))
    with raises("settings.choice", "raw, prepared"):
        module(small_tree).eval_sequences("val", WindowSettings(), "disk")
    with raises("settings.choice", "dataset.source"):
        module(replace(small_tree, source="disk"))
