"""Raw and prepared recordings give the same sequence; labels arrive in pixels of the frame."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from user_errors import raises

from rvtssm.datasets import DATASETS, DatasetConfig, build_spec
from rvtssm.datasets.sequence import RawSplit, open_prepared, open_prepared_split, to_frame_labels
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.records import DatasetSpec, WindowSettings

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
    with raises("dataset.empty_split"):
        RawSplit(tmp_path, "test", spec)
    with raises("prepared.none_in_split"):
        open_prepared_split(tmp_path, "test", spec)


def test_files_of_another_dataset_size_or_setting_are_refused(small_tree):
    path = Path(small_tree.prepared_dir) / "val" / "drive_0.h5"
    spec = build_spec(small_tree)
    with raises("prepared.other_dataset"):
        open_prepared(path, DATASETS["onempx"])
    with raises("prepared.other_size"):
        open_prepared(path, DATASETS["gen1"])
    with raises("prepared.other_windows"):
        open_prepared(path, spec).check_settings(replace(SETTINGS, stride_us=25_000), 1)
    with raises("prepared.other_windows"):
        open_prepared(path, spec).check_settings(replace(SETTINGS, reduce="sum"), 2)
    open_prepared(path, spec).check_settings(replace(SETTINGS, reduce="sum"), 1)
    open_prepared(path, spec).check_settings(replace(SETTINGS, stride_us=50_000.4), 1)


def test_every_dataset_makes_a_spec():
    for name, spec in DATASETS.items():
        assert isinstance(spec, DatasetSpec) and spec.name == name
        if name == "custom":  # described in a file, see test_custom.py
            continue
        assert build_spec(DatasetConfig(name)) == spec
        assert build_spec(DatasetConfig(name, height=100)).height == 100
    with raises("settings.choice", "gen1, onempx, dsec, synthetic, custom"):
        build_spec(DatasetConfig("gen2"))
