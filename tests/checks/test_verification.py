"""Verification: a dataset without faults has none, and every kind of damage is told with its file."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events, write_labelled
from user_errors import raises

from rvtssm.checks import verify_dataset
from rvtssm.cli.main import main
from rvtssm.datasets import DATASETS, PreprocessConfig, prepare_recording
from rvtssm.datasets.agreement import raw_lines
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit
from rvtssm.datasets.store import open_sequence
from rvtssm.events.label_files import CORNERS, FROM_ONE, OVER, SAME_TIME
from rvtssm.events.label_formats import CROWD, EXCHANGED, NO_BOX
from rvtssm.events.labels import read_boxes, write_boxes
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.faults import noted
from rvtssm.records import WindowSettings

CONFIG = PreprocessConfig(splits=("train", "test"), workers=1)
WINDOWS = WindowSettings()
RECORDINGS = (("train", "a", 1), ("train", "b", 2), ("test", "c", 3))


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A raw tree and its prepared form; of `b`, no box is left after cleaning."""
    folder = tmp_path_factory.mktemp("sound")
    for split, name, seed in RECORDINGS:
        side = 2 if name == "b" else 20
        rows = [(250_000, 5, 5, side, side), (500_000, 8, 5, side, side), (750_000, 30, 10, side, side)]
        boxes = boxes_of(*rows, class_id=[0, 1, 1])
        write_labelled(folder / "raw" / split, name, random_events(4_000, seed), boxes)
    preprocess_dataset(SPEC, folder / "raw", folder / "prepared", WINDOWS, CONFIG, progress=False)
    return folder


@pytest.fixture
def tree(sound, tmp_path) -> Path:
    """A copy to break."""
    shutil.copytree(sound, tmp_path / "tree")
    return tmp_path / "tree"


def check(tree: Path, raw: bool = True, prepared: bool = True, windows=WINDOWS, config=CONFIG):
    folders = (tree / "raw" if raw else None, tree / "prepared" if prepared else None)
    return verify_dataset(SPEC, *folders, windows, config)


def faults_of(tree: Path, **options) -> list[str]:
    return [f"{name}: {message}" for name, message in check(tree, **options).faults]


@pytest.mark.parametrize(("raw", "prepared", "num_checked"), [(True, True, 5), (True, False, 3), (False, True, 2)])
def test_a_sound_dataset_has_no_faults(sound, raw, prepared, num_checked):
    found = check(sound, raw, prepared)
    assert {name for name, _ in found.notes} == ({"raw/train/b"} if raw else set())  # whose boxes are too small
    assert found.faults == [] and found.num_checked == num_checked


@pytest.mark.usefixtures("prepared_workers")
def test_processes_find_what_one_process_finds(tree):
    (tree / "raw" / "test" / "c_td.dat").write_bytes(b"% Version 2\n")
    assert check(tree, config=replace(CONFIG, workers=2)) == check(tree)


@pytest.mark.parametrize(("folder", "spec"), [("gen1", DATASETS["gen1"]), ("gen4", DATASETS["onempx"])])
def test_published_trees_have_no_faults(golden_dir, tmp_path, folder, spec):
    shutil.copytree(golden_dir / "preprocess" / folder, tmp_path / folder)
    config = PreprocessConfig(workers=1)
    found = verify_dataset(spec, tmp_path / folder / "raw", tmp_path / folder / "official", WINDOWS, config)
    assert found.faults == [] and found.num_checked == 6


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def rewrite_boxes(**columns):
    def change(path: Path) -> None:
        boxes = read_boxes(path)
        for name, values in columns.items():
            boxes[name] = values
        write_boxes(path, boxes)

    return change


RAW_DAMAGES = {
    "no events": ("train/a_td.dat", lambda path: write_dat(path, random_events(0), HEIGHT, WIDTH), "holds no events"),
    "other sensor": ("train/a_td.dat", lambda path: write_dat(path, random_events(9), 240, 304), "304x240"),
    "missing events": ("train/a_td.dat", Path.unlink, "a_bbox.npy belongs to no recording"),
    "damaged labels": ("train/a_bbox.npy", cut, "a_bbox.npy is not a file of boxes"),
    "labels too late": (
        "train/a_bbox.npy",
        rewrite_boxes(t=9_000_000),
        "but labels from 9000000 to 9000000 us; .* give dataset.label_offset_us=-8",
    ),
    "labels too early": (
        "train/a_bbox.npy",
        rewrite_boxes(t=-9),
        r"events from \d+ to \d+ us but labels from -9 to -9 us",
    ),
    "milliseconds": (
        "train/a_bbox.npy",
        rewrite_boxes(t=[250, 500, 750]),
        r"labels span 0.0005 s of \S+ s, 250 us apart where label_interval_us is 250000; .* look like milliseconds",
    ),
    "events are missing": (
        "train/a_bbox.npy",
        rewrite_boxes(t=[250_000, 900_000, 2_500_000]),
        "but labels from 250000 to 2500000 us; events are missing, or the labels are of another recording$",
    ),
    "nanoseconds": ("train/a_bbox.npy", rewrite_boxes(t=750_000_000), "must be microseconds; .* like nanoseconds"),
    "corners": (
        "train/a_bbox.npy",
        rewrite_boxes(w=[25, 28, 50], h=[25, 25, 30]),
        "1 of 3 boxes that reach past the right or bottom edge of 64x48 pixels, .* are they x1, y1, x2, y2",
    ),
    "boxes elsewhere": (
        "train/a_bbox.npy",
        rewrite_boxes(x=[900, 900, 0]),
        "2 of 3 boxes that lie outside 64x48 pixels, .* x=900, .* another resolution: .* correct dataset, ",
    ),
    "fractions": (
        "train/a_bbox.npy",
        rewrite_boxes(x=0.1, y=0.1, w=0.5, h=0.25),
        "3 of 3 boxes that are left out .* as too small .*; they look like fractions of the sensor, write .* pixels$",
    ),
    "boxes that are none": ("train/a_bbox.npy", rewrite_boxes(w=[1, np.nan, -4]), "2 of 3 boxes that have a side"),
    "other classes": ("train/a_bbox.npy", rewrite_boxes(class_id=7), "3 of 3 boxes that are of classes that tiny"),
    "a class too many": (
        "train/a_bbox.npy",
        rewrite_boxes(class_id=[0, 1, 2]),
        "1 of 3 boxes that are of classes that tiny",
    ),
}


def test_a_dataset_that_names_its_class_ids_may_leave_others_out(tree):
    rewrite_boxes(class_id=[0, 1, 2])(tree / "raw" / "train" / "a_bbox.npy")
    found = verify_dataset(replace(SPEC, class_ids=(0, 1)), tree / "raw", None, WINDOWS, CONFIG)
    assert found.faults == []


@pytest.mark.parametrize("kind", RAW_DAMAGES)
def test_damaged_recordings(tree, kind):
    name, damage, message = RAW_DAMAGES[kind]
    damage(tree / "raw" / name)
    (fault,) = faults_of(tree, prepared=False)
    assert fault.startswith("raw/train/a")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(fault)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (rewrite_boxes(x=[5, 900, 30]), "1 boxes are outside the sensor, and are left out"),
        (rewrite_boxes(w=[20, 0, 20]), "1 of 3 boxes that are left out by preprocess and train as too small"),
        (rewrite_boxes(w=[20, 60, 20]), "1 of 3 boxes that reach past the right or bottom edge"),
        (rewrite_boxes(t=[250_000, 300_000, 340_000]), "labels span 0.09 s"),
        (Path.unlink, "a_td.dat has no labels"),
        (lambda path: write_boxes(path, read_boxes(path)[:0]), "a_bbox.npy holds no boxes"),
        (lambda path: write_boxes(path, np.repeat(read_boxes(path)[:1], 21)), "all 21 boxes are at 250000 us"),
        (
            rewrite_boxes(t=[-200_000, 500_000, 750_000]),
            "from -200000 to 750000 us, so 1 of 3 label times have no events",
        ),
        (
            rewrite_boxes(t=[500_000, 750_000, 1_900_000]),
            "to 1900000 us, so 1 of 3 label times have no events; if something moved",
        ),
    ],
    ids=["outside", "small", "overhanging", "a part", "missing", "empty", "one moment", "early", "late"],
)
def test_what_is_unusual_but_possible_is_noted(tree, change, note):
    change(tree / "raw" / "train" / "a_bbox.npy")
    found = check(tree, prepared=False)
    assert found.faults == []
    assert any(note in message for name, message in found.notes if name in ("raw", "raw/train/a"))


def test_a_box_outside_the_sensor_is_a_fault_of_own_labels(tree):
    rewrite_boxes(x=[5, 900, 30])(tree / "raw" / "train" / "a_bbox.npy")
    found = verify_dataset(replace(SPEC, name="custom"), tree / "raw", None, WINDOWS, CONFIG)
    ((_, message),) = found.faults
    assert "a_bbox.npy, row 1: a box of x, y, w, h = 900" in message and "images of another size" in message


def test_a_sensor_that_is_named_too_large_is_noted(tree):
    for size_hw, is_told in (((HEIGHT, WIDTH), False), ((2 * HEIGHT, WIDTH), True)):
        write_dat(tree / "raw" / "test" / "c_td.dat", random_events(12_000, 3), *size_hw)
        spec = replace(SPEC, name="custom", height=size_hw[0])
        found = verify_dataset(spec, tree / "raw", None, WINDOWS, replace(CONFIG, splits=("test",)))
        assert not found.faults and len(found.notes) == is_told
    assert "no events beyond x=63, y=47, but its sensor is said to have 64x96 (width x height)" in found.notes[0][1]
    assert found.notes[0][1].endswith("if it is smaller, correct height and width in dataset.yaml")


def test_a_split_without_recordings(tree):
    for path in (tree / "raw" / "test").iterdir():
        path.unlink()
    assert "holds no recordings of tiny in test" in faults_of(tree, prepared=False)[0]
    shutil.rmtree(tree / "raw" / "test")
    with raises("file.missing"):
        check(tree, prepared=False)


def change(name: str, function):
    """Replace a dataset of a prepared file by a function of it."""

    def damage(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            changed = np.asarray(function(file[name][()]))
            attributes = dict(file[name].attrs)
            del file[name]
            file[name] = changed
            file[name].attrs.update(attributes)

    return damage


PREPARED_DAMAGES = {
    "cut": cut,
    "not ours": lambda path: path.write_bytes(b"nothing"),
    "frames": change("frames", lambda data: data[:-40]),
    "boxes": change("labels/boxes_ltwh", lambda boxes: boxes + np.float32(60)),
}


@pytest.mark.parametrize("kind", PREPARED_DAMAGES)
def test_damaged_prepared_files(tree, kind):
    PREPARED_DAMAGES[kind](tree / "prepared" / "train" / "a.h5")
    faults = faults_of(tree, raw=False)
    assert any(fault.startswith("prepared/train/a: ") and "a.h5" in fault for fault in faults), faults


def test_a_recording_that_was_cut_or_damaged_after_it_was_prepared(tree):
    path = tree / "raw" / "test" / "c_td.dat"
    whole = path.read_bytes()
    path.write_bytes(whole[:-800])  # a hundred events
    faults = faults_of(tree)
    assert [fault.partition(": ")[0] for fault in faults] == ["prepared/test/c"]
    assert f"c_td.dat: it has {len(whole) - 800} bytes, but " in faults[0] and f"{len(whole)}; copy it" in faults[0]
    summary = preprocess_dataset(SPEC, tree / "raw", tree / "prepared", WINDOWS, CONFIG, progress=False)
    assert [name for name, _ in summary.failed] == ["test/c"]  # the good file is not replaced by less
    path.write_bytes(whole)


def test_a_changed_event_in_the_middle_of_a_recording_is_found(tree, monkeypatch):
    """It keeps the size, both ends and the number of events."""
    monkeypatch.setattr(prepare_recording, "SAMPLE_BYTES", 100)
    preprocess_dataset(SPEC, tree / "raw", tree / "again", WINDOWS, replace(CONFIG, splits=("test",)), progress=False)
    shutil.copy(tree / "again" / "test" / "c.h5", tree / "prepared" / "test" / "c.h5")
    assert faults_of(tree, config=replace(CONFIG, splits=("test",))) == []
    path = tree / "raw" / "test" / "c_td.dat"
    data = bytearray(path.read_bytes())
    middle = len(data) - 8 * 2_000 + 4  # the place of an event; its lowest bit is that of x
    data[middle] ^= 1
    path.write_bytes(data)
    (fault,) = faults_of(tree, config=replace(CONFIG, splits=("test",)))
    assert fault.startswith("prepared/test/c: ") and "c.h5 has other frames than" in fault
    events = open_recording(path, HEIGHT, WIDTH).read()
    start_us = open_sequence(tree / "prepared" / "test" / "c.h5").windows.bounds_us[:, 0]
    window = np.searchsorted(start_us, events.t[2_000], side="right") - 1
    assert f"from window {window} on" in fault


def test_files_made_with_different_settings_are_told_without_the_recordings(tree):
    config = replace(CONFIG, splits=("test",), overwrite=True)
    preprocess_dataset(SPEC, tree / "raw", tree / "prepared", WindowSettings(25_000), config, progress=False)
    (fault,) = faults_of(tree, raw=False)
    assert "c.h5 was made with stride_us=25000, others with 50000" in fault


def test_settings_are_held_against_those_of_the_run(tree):
    faults = faults_of(tree, windows=WindowSettings(50_000, 50_000, "rvt"))
    assert len(faults) == 2 and all("convention=exact, now rvt" in fault for fault in faults)


@pytest.mark.parametrize("name", ["c_td.dat", "c_bbox.npy"])
def test_a_recording_that_changed_afterwards(tree, name):
    path = tree / "raw" / "test" / name
    if name.endswith(".dat"):
        write_dat(path, random_events(4_000, 99), HEIGHT, WIDTH)
    else:
        rewrite_boxes(x=[6, 7, 8])(path)
    (fault,) = faults_of(tree)
    assert fault.startswith("prepared/test/c: ") and "was made from another c_td.dat or other labels" in fault


def test_a_recording_that_is_not_prepared_and_a_file_without_recording(tree):
    (tree / "prepared" / "train" / "a.h5").rename(tree / "prepared" / "train" / "z.h5")
    faults = faults_of(tree)
    assert [fault.partition(": ")[0] for fault in faults] == ["prepared", "prepared"]  # the file itself is whole
    assert "are not prepared (a)" in faults[0] and "(z)" in faults[1]


def test_a_file_of_a_recording_that_should_be_left_out(tree):
    rewrite_boxes(w=1)(tree / "raw" / "train" / "a_bbox.npy")
    assert any("was made from another" in fault for fault in faults_of(tree))


def test_the_verb_says_what_is_wrong_and_ends_with_2(tmp_path, refused, printed_by, capsys):
    raw = tmp_path / "raw"
    for seed, split in enumerate(("train", "val", "test")):
        write_labelled(raw / split, "a", random_events(2_000, seed), boxes_of((500_000, 50, 50, 40, 40)), (240, 304))
    arguments = ["inspect", str(raw), "full=true", "dataset=gen1", "preprocess.workers=1"]
    assert "3 checked, 0 faults, 0 notes" in printed_by(*arguments)
    cut(raw / "val" / "a_td.dat")
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "3 checked, 0 faults, 1 notes" in shown.out and "left out the last 3 bytes" in shown.out + shown.err
    write_dat(raw / "val" / "a_td.dat", random_events(0), 240, 304)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert "3 checked, 1 faults" in shown.out and "raw/val/a: " in shown.err
    assert main([*arguments, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 1
    assert "rvtssm inspect DIR full=true needs the folder" in refused("inspect", "full=true", "dataset=gen1")


FRAME_US = 33_333
KINDS_OF_NOTES = {CROWD, NO_BOX, EXCHANGED, OVER, CORNERS, FROM_ONE, SAME_TIME}


def write_unusual(folder: Path) -> None:
    """Recordings with labels of several kinds, in which something of every kind is noticed."""
    for seed, name in enumerate(("coco", "voc", "yolo", "array")):
        write_dat(folder / f"{name}_td.dat", random_events(4_000, seed), HEIGHT, WIDTH)
    with open(folder / "coco_td.dat", "ab") as file:
        file.write(b"abc")
    images = [{"id": i, "file_name": f"coco_{number}.png"} for i, number in enumerate((0, 5, 5, 29, 33))]
    boxes = [[1, 2, 20, 20], [30, 2, WIDTH - 29.6, 9], [9, 9, -10, 12]]
    annotations = [{"image_id": i, "category_id": 1, "bbox": box} for i, box in enumerate(boxes)]
    annotations += [{"image_id": 3, "category_id": 1, "bbox": boxes[0], "iscrowd": 1}]
    annotations += [{"image_id": 3, "category_id": 1}, {"image_id": 4, "category_id": 1, "bbox": boxes[0]}]
    content = {"images": images, "categories": [{"id": 1, "name": "car"}], "annotations": annotations}
    (folder / "coco.json").write_text(json.dumps(content))
    edges = "<xmin>24</xmin><ymin>6</ymin><xmax>8</xmax><ymax>18</ymax>"
    voc = f"<annotation><object><name>car</name><bndbox>{edges}</bndbox></object></annotation>"
    (folder / "voc_9.xml").write_text(voc)
    for number in (1, 9):
        (folder / f"yolo_{number}.txt").write_text("1 .5 .5 .4 .4")
    (folder / "gone_3.txt").write_text("1 .5 .5 .4 .4")
    corners = [(FRAME_US * (3 + i), 3 + i, 4, 20 + i, 20) for i in range(9)]
    write_boxes(folder / "array_bbox.npy", boxes_of(*corners))


def test_it_says_everything_that_other_verbs_say(tmp_path):
    (tmp_path / "raw" / "train").mkdir(parents=True)
    write_unusual(tmp_path / "raw" / "train")
    spec = replace(SPEC, name="custom", boxes_suffix=".json", more_suffixes=(".xml", ".txt", "_bbox.npy"))
    spec = replace(spec, label_fps=30.0, scores_empty_images=True)
    config = replace(CONFIG, splits=("train",))
    found = verify_dataset(spec, tmp_path / "raw", None, WINDOWS, config)
    told = [text for _, text in [*found.faults, *found.notes]]
    summary = preprocess_dataset(spec, tmp_path / "raw", tmp_path / "out", WINDOWS, config, progress=False)
    assert len(summary.written) == 4
    with noted() as by_training:
        RawSplit(tmp_path / "raw", "train", spec).sequences(WINDOWS)
    by_others = [*summary.lines(spec), *raw_lines(tmp_path / "raw", spec), *by_training]
    for kind in KINDS_OF_NOTES:
        assert any(line.endswith(kind) for line in by_others), kind
    for word in ("negative or non-finite", "labels left out", "have no events", "the last 3 bytes", "no recording"):
        assert any(word in line for line in by_others), word
    for line in by_others:
        assert any(line in text for text in told), (line, told)
