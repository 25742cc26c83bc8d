"""Training from raw events: the same batches as from prepared files, bit for bit, without preparation."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events
from test_datamodule import assert_all_equal
from user_errors import raises

from rvtssm.datasets import (
    DATASETS,
    AugmentConfig,
    DataConfig,
    PreprocessConfig,
    SamplingConfig,
    build_spec,
)
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit, open_prepared, open_prepared_split, to_frame_labels
from rvtssm.events.labels import BOX_DTYPE, nothing_at, write_boxes
from rvtssm.events.windows import WindowsConfig
from rvtssm.readers.dat import write_dat
from rvtssm.records import WindowSettings

SAMPLING = SamplingConfig(batch_size=4, chunk_length=8)
AUGMENT = AugmentConfig(zoom_prob=0.9)


def module(config, **windows):
    data = DataConfig(workers=0, eval_batch_size=2, eval_chunk_length=6)
    return SequenceDataModule(config, SAMPLING, AUGMENT, data, seed=3, **windows)


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
    with raises("prepared.fixed"):
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


# sequences


SETTINGS = WindowSettings(50_000, None, "exact", 10, 10)
LABEL_FIELDS = ("boxes_ltwh", "class_id", "t_us", "window_index", "still_us")


def assert_same(left, right):
    assert left.name == right.name and left.frame_shape == right.frame_shape
    np.testing.assert_array_equal(left.windows.bounds_us, right.windows.bounds_us)
    np.testing.assert_array_equal(left.windows.dt_us, right.windows.dt_us)
    for name in LABEL_FIELDS:
        np.testing.assert_array_equal(getattr(left.labels, name), getattr(right.labels, name))
    np.testing.assert_array_equal(left.read(0, len(left.windows)), right.read(0, len(right.windows)))


@pytest.mark.parametrize("hz", [20, 200, 30])
def test_at_every_rate_the_same_labels_end_windows(small_tree, hz):
    split = RawSplit(small_tree.raw_dir, "val", build_spec(small_tree))
    usual = split.sequences(SETTINGS)
    for sequence, reference in zip(split.sequences(replace(SETTINGS, stride_us=1e6 / hz)), usual, strict=True):
        np.testing.assert_array_equal(sequence.labels.boxes_ltwh, reference.labels.boxes_ltwh)
        np.testing.assert_array_equal(sequence.windows.ends_us[sequence.labels.window_index], sequence.labels.t_us)
        np.testing.assert_allclose(sequence.windows.dt_us, 1e6 / hz, rtol=0.1)
        # windows without gaps or overlaps: every event is in one of them
        np.testing.assert_array_equal(sequence.windows.bounds_us[1:, 0], sequence.windows.bounds_us[:-1, 1])


@pytest.mark.parametrize("source", ["raw", "prepared"])
def test_parts_join_to_the_whole_and_survive_pickling(small_tree, source):
    spec = build_spec(small_tree)
    if source == "raw":
        sequence = RawSplit(small_tree.raw_dir, "val", spec).sequences(SETTINGS)[0]
    else:
        sequence = open_prepared_split(small_tree.prepared_dir, "val", spec)[0]
    whole = sequence.read(0, len(sequence.windows))
    copy = pickle.loads(pickle.dumps(sequence))
    sequence.close()
    for reader in (sequence, copy):
        parts = [reader.read(i, min(i + 7, len(reader.windows))) for i in range(0, len(reader.windows), 7)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_labels_come_in_frame_pixels_and_end_at_its_last(make_labels):
    spec = replace(DATASETS["onempx"], height=20, width=40)
    labels = to_frame_labels(make_labels([0, 1, 2], [[3, 5, 10, 4], [30, 8, 9, 11], [38.5, 2, 0.5, 6]]), spec)
    np.testing.assert_allclose(labels.boxes_ltwh, [[1.5, 2.5, 5, 2], [15, 4, 4, 5]])
    np.testing.assert_array_equal(labels.window_index, [0, 1])


def test_recordings_without_boxes_are_named_or_left_out(small_tree, tmp_path):
    spec = build_spec(small_tree)
    folder = tmp_path / "val"
    folder.mkdir()
    for path in (Path(small_tree.raw_dir) / "val").iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "drive_1_bbox.npy").unlink()
    assert [s.name for s in RawSplit(tmp_path, "val", spec).sequences(SETTINGS)] == ["drive_0"]
    too_small = np.zeros(3, BOX_DTYPE)
    too_small["w"] = too_small["h"] = 3
    write_boxes(folder / "drive_1_bbox.npy", too_small)
    assert [s.name for s in RawSplit(tmp_path, "val", spec).sequences(SETTINGS)] == ["drive_0"]
    (tmp_path / "test").mkdir()
    with raises("file.missing"):
        RawSplit(tmp_path, "test", spec)
    with raises("file.missing"):
        open_prepared_split(tmp_path, "test", spec)


def test_files_of_another_dataset_size_or_setting_are_refused(small_tree):
    path = Path(small_tree.prepared_dir) / "val" / "drive_0.h5"
    spec = build_spec(small_tree)
    with raises("prepared.other"):
        open_prepared(path, DATASETS["onempx"])
    with raises("prepared.other"):
        open_prepared(path, DATASETS["gen1"])
    with raises("prepared.fixed"):
        open_prepared(path, spec).check_settings(replace(SETTINGS, stride_us=25_000), 1)
    with raises("prepared.fixed"):
        open_prepared(path, spec).check_settings(replace(SETTINGS, reduce="sum"), 2)
    open_prepared(path, spec).check_settings(replace(SETTINGS, reduce="sum"), 1)
    open_prepared(path, spec).check_settings(replace(SETTINGS, stride_us=50_000.4), 1)
