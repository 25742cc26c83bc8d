"""Training from raw events: the same batches as from prepared files, bit for bit, without preparation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events
from test_datamodule import assert_all_equal
from user_errors import raises

from rvtssm.datasets import build_spec
from rvtssm.datasets.data_config import AugmentConfig, DataConfig, PreprocessConfig, SamplingConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit
from rvtssm.events.labels import nothing_at, write_boxes
from rvtssm.events.windows import WindowsConfig
from rvtssm.readers.dat import write_dat
from rvtssm.records import WindowSettings

SAMPLING = SamplingConfig(batch_size=4, chunk_length=8)
AUGMENT = AugmentConfig(zoom_prob=0.9)


def module(config, windows=None):
    data = DataConfig(workers=0, eval_batch_size=2, eval_chunk_length=6)
    return SequenceDataModule(config, SAMPLING, AUGMENT, data, seed=3, windows=windows)


def test_raw_and_prepared_train_on_the_same_batches(small_tree):
    prepared = module(replace(small_tree, source="prepared"))
    raw = module(replace(small_tree, source="raw"))
    assert raw.settings == prepared.settings
    alike, other = raw.train_dataloader(), prepared.train_dataloader()
    assert_all_equal([*alike, *alike], [*other, *other])  # two epochs
    assert_all_equal(list(raw.val_dataloader()), list(prepared.val_dataloader()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("onempx", {"stride_ms": 25.0, "window_ms": 100.0}),
        ("gen1", {"convention": "rvt"}),
        ("onempx", {"stride_ms": 33.0, "num_bins": 5}),
    ],
)
def test_under_any_settings_raw_and_prepared_are_equal(small_tree, tmp_path, name, options):
    config = replace(small_tree, name=name, prepared_dir=str(tmp_path))
    windows = WindowsConfig(**options).settings
    how = PreprocessConfig(workers=1, splits=("train",))
    preprocess_dataset(build_spec(config), config.raw_dir, tmp_path, windows, how, progress=False)
    prepared = module(replace(config, source="prepared"))
    raw = module(replace(config, source="raw"), windows=windows)
    assert raw.settings == prepared.settings
    batches = list(raw.train_dataloader())
    assert batches[0].hist.shape[2] == raw.settings.num_channels and batches[0].hist.any()
    assert_all_equal(batches, list(prepared.train_dataloader()))


def test_raw_surfaces_are_the_prepared_ones_but_for_what_was_before_the_warm_up(small_tree, tmp_path):
    config = replace(small_tree, name="onempx", prepared_dir=str(tmp_path))
    spec, how = build_spec(config), PreprocessConfig(workers=1, splits=("train",))
    short = WindowsConfig(representation="surfaces", time_constants_ms=[5.0, 20.0]).settings
    preprocess_dataset(spec, config.raw_dir, tmp_path, short, how, progress=False)
    prepared = module(replace(config, source="prepared"))
    assert prepared.settings == short
    for raw, stored in zip(
        module(config, windows=short).sequences("train", "raw"), prepared.sequences("train"), strict=True
    ):
        wanted = stored.read(0, len(stored.windows))
        np.testing.assert_array_equal(raw.read(0, len(raw.windows)), wanted)
        middle = len(raw.windows) // 2
        assert raw.windows.bounds_us[middle, 0] - 2 * short.warmup_us > raw.windows.bounds_us[0, 0]
        found = raw.read(middle, len(raw.windows)).astype(int)
        assert np.abs(found - wanted[middle:]).max() <= 1 and (found != wanted[middle:]).mean() < 0.01
        without = replace(raw.source.plan, settings=replace(short, representation="histogram")).span_us
        assert without[0] == raw.source.plan.span_us[0] + 100_000
    batches = list(module(config, windows=short).train_dataloader())
    assert batches[0].hist.shape[2] == 4 and batches[0].hist.any()


def test_the_source_is_chosen_by_what_there_is(small_tree, tmp_path):
    assert module(small_tree).source == "prepared"
    assert module(replace(small_tree, prepared_dir=None)).source == "raw"
    assert module(replace(small_tree, prepared_dir=str(tmp_path))).source == "raw"
    assert module(replace(small_tree, source="raw")).source == "raw"
    assert module(replace(small_tree, raw_dir=None)).source == "prepared"


@pytest.mark.filterwarnings("error:'pin_memory' argument")
def test_memory_for_a_gpu_is_not_asked_for_where_there_is_none(small_tree, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for source in ("raw", "prepared"):
        (batch, *_) = module(replace(small_tree, source=source)).train_dataloader()
        assert not batch.hist.is_pinned()


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_a_gpu_batches_lie_where_it_reads_them(small_tree, num_workers, monkeypatch):
    tree, data = replace(small_tree, source="prepared"), DataConfig(workers=num_workers)
    pinned = list(SequenceDataModule(tree, SAMPLING, AUGMENT, data, seed=3).train_dataloader())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = list(SequenceDataModule(tree, SAMPLING, AUGMENT, data, seed=3).train_dataloader())
    assert pinned[0].hist.is_pinned() and not plain[0].hist.is_pinned()
    assert_all_equal(pinned, plain)


def test_a_model_refuses_data_of_another_representation(small_tree):
    with raises("prepared.other_windows"):
        module(small_tree).eval_sequences("val", WindowSettings(representation="surfaces"), "prepared")


def test_label_times_without_a_box_are_as_far_apart_as_those_with_one(tmp_path):
    (tmp_path / "train").mkdir()
    write_dat(tmp_path / "train/a_td.dat", random_events(100, span_us=1_000_000), HEIGHT, WIDTH)
    times_us = np.arange(100_000, 900_001, 10_000)  # labels at 100 Hz: nothing, then a box, then nothing
    is_box = (times_us > 300_000) & (times_us <= 600_000)
    boxes = boxes_of(*((int(t_us), 1, 2, 20, 20) for t_us in times_us[is_box]))
    found = np.concatenate([nothing_at(times_us[~is_box]), boxes])
    write_boxes(tmp_path / "train/a_bbox.npy", found[np.argsort(found["t"], kind="stable")])
    (sequence,) = RawSplit(tmp_path, "train", replace(SPEC, label_interval_us=50_000)).sequences(WindowSettings())
    ends_us = sequence.windows.ends_us
    wanted_us = [*range(100_000, 250_001, 50_000), *range(310_000, 560_001, 50_000), *range(610_000, 860_001, 50_000)]
    assert ends_us[sequence.label_steps].tolist() == wanted_us
    assert ends_us[sequence.nothing].tolist() == [t_us for t_us in wanted_us if not 300_000 < t_us <= 600_000]
