"""Recordings and labels are found by the spec alone: suffixes, folders, and which of them belong to a split."""

from dataclasses import replace

import pytest
from event_examples import SPEC, boxes_of, random_events
from user_errors import raises

from rvtssm.checks.inspect_dataset import inspect_raw
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings
from rvtssm.events.labels import write_boxes
from rvtssm.readers.dat import write_dat


def touch(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def found(root, split, spec):
    return {recording.name: recording for recording in find_recordings(root, split, spec)}


def test_a_file_belongs_to_one_recording_and_others_of_its_name_are_named(tmp_path):
    touch(tmp_path, "val/a_td.raw", "val/b_td.dat", "val/b_td.dat.h5", "val/c.raw", "val/.d_td.dat", "val/b_bbox.npy")
    with pytest.warns(UserWarning, match=r"1 event files .*val/b_td\.dat\.h5, because b_td\.dat is"):
        recordings = found(tmp_path, "val", SPEC)
    assert {name: recording.events_path.name for name, recording in recordings.items()} == {
        "a": "a_td.raw",
        "b": "b_td.dat",
        "c": "c.raw",
    }
    assert recordings["b"].boxes_path == tmp_path / "val/b_bbox.npy" and recordings["a"].boxes_path is None


def test_labels_are_no_recordings(tmp_path):
    spec = replace(SPEC, event_suffixes=(".npy",))
    touch(tmp_path, "val/a.npy", "val/a_bbox.npy", "val/b_bbox.npy")
    assert list(found(tmp_path, "val", spec)) == ["a"]
    assert find_boxes_without_events(tmp_path, "val", spec) == [tmp_path / "val/b_bbox.npy"]


def test_events_and_labels_may_lie_in_trees_of_their_own(tmp_path):
    spec = replace(SPEC, event_suffixes=(".npy",), boxes_suffix=".xml", events_dir="numpy", boxes_dir="xml")
    touch(tmp_path, "numpy/val/a.npy", "xml/val/a.xml", "xml/val/b.xml")
    assert found(tmp_path, "val", spec)["a"].boxes_path == tmp_path / "xml/val/a.xml"
    assert find_boxes_without_events(tmp_path, "val", spec) == [tmp_path / "xml/val/b.xml"]


def test_a_split_may_be_part_of_a_folder(tmp_path):
    touch(tmp_path, "train/day1_td.dat", "train/day2_td.dat", "train/night_td.dat", "train/day2_bbox.npy")
    spec = replace(SPEC, split_sources={"train": ("train/day1*", "train/night*"), "val": ("train/day2*",)})
    assert list(found(tmp_path, "train", spec)) == ["day1", "night"]
    assert list(found(tmp_path, "val", spec)) == ["day2"]
    assert find_boxes_without_events(tmp_path, "train", spec) == []
    with pytest.warns(
        UserWarning, match=r"1 recordings of val are training recordings as well, such as .*day2_td\.dat"
    ):
        found(tmp_path, "val", replace(spec, split_sources={"val": ("train/day2*",)}))
    touch(tmp_path, "more/night_td.raw")
    spec = replace(spec, split_sources={"train": ("train/*", "more/*")})
    with raises("dataset.same_name"):
        inspect_raw(tmp_path, spec)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with raises("files.missing", "val"):
        find_recordings(tmp_path, "val", SPEC)
    with raises("files.missing", "split_sources"):
        find_recordings(tmp_path, "val", replace(SPEC, name="custom"))
    with raises("dataset.folder_missing"):
        find_recordings(tmp_path / "ownn", "val", SPEC)


def test_labels_without_a_time_are_of_the_moment_after_the_last_event(tmp_path):
    (tmp_path / "val").mkdir()
    events = random_events(100, start_us=5_000)
    write_dat(tmp_path / "val/a_td.dat", events, SPEC.height, SPEC.width)
    (tmp_path / "val/a.txt").write_text("0 .5 .5 .2 .2")
    spec = replace(SPEC, boxes_suffix=".txt")
    assert found(tmp_path, "val", spec)["a"].read_boxes(spec)["t"].tolist() == [events.t[-1] + 1]
    write_boxes(tmp_path / "val/a_bbox.npy", boxes_of((7, 1, 1, 2, 2)))
    assert found(tmp_path, "val", SPEC)["a"].read_boxes(SPEC)["t"].tolist() == [7]


def test_labels_of_another_format_beside_the_recording_are_named(tmp_path):
    spec = replace(SPEC, name="custom", event_suffixes=(".dat", ".npy"))
    touch(tmp_path, "val/a.dat", "val/a.txt", "val/b.npy")
    a, b = find_recordings(tmp_path, "val", spec)
    assert a.why_unlabelled(spec).endswith("there is a.txt, so set `labels: .txt` in dataset.yaml")
    assert b.why_unlabelled(spec).endswith("no labels (b_bbox.npy)") and not len(b.read_boxes(spec))
