"""Every named dataset is a record in one file that reads recordings in its layout; eTraM is read as it is published."""

import json
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest

from rvtssm.datasets import DATASETS, DatasetConfig, PreprocessConfig, build_spec, custom
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit, open_prepared_split
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings, find_sequences
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.records.settings import SPLITS
from rvtssm.system.files import configs_dir

NAMED = sorted({*DATASETS} - {"custom"})
TIMES_US = np.arange(533_333, 1_600_000, 33_333)


def test_the_files_are_the_table():
    assert {path.stem for path in (configs_dir() / "dataset").glob("*.yaml")} == {*NAMED}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_dataset_is_a_file_that_own_recordings_could_have(name, tmp_path):
    content = (configs_dir() / "dataset" / f"{name}.yaml").read_bytes()
    (tmp_path / custom.FILE).write_bytes(content)
    own, named = custom.read_spec(tmp_path), build_spec(DatasetConfig(name))
    assert own.name == "custom" and named.name == name
    assert {field: getattr(own, field) for field in own.__slots__ if field != "name"} == {
        field: getattr(named, field) for field in named.__slots__ if field != "name"
    }


def write_coco(path: Path, boxes: np.ndarray, spec: DatasetSpec) -> None:
    """Write boxes in the form of COCO, with the times of the images."""
    times_us = np.unique(boxes["t"]).tolist()
    annotations = []
    for box in boxes:
        sides = [float(box[side]) for side in "xywh"]
        annotations.append({"image_id": times_us.index(box["t"]), "category_id": int(box["class_id"]), "bbox": sides})
    ids = zip(spec.disk_class_ids, spec.class_names, strict=True)
    content = {
        "images": [{"id": number, "t_us": t_us} for number, t_us in enumerate(times_us)],
        "annotations": annotations,
        "categories": [{"id": disk_id, "name": name} for disk_id, name in ids],
    }
    path.write_text(json.dumps(content))


def write_recording(raw_dir, spec: DatasetSpec, pattern: str) -> None:
    """Write a recording of moving noise with a box of each class at 30 Hz, where the files of a split may be."""
    suffix = next((suffix for suffix in spec.event_suffixes if suffix.endswith(".h5")), spec.event_suffixes[0])
    rng, n = np.random.default_rng(0), 60_000
    name = raw_dir / pattern.replace("*", "a").replace("[c-g]", "c").replace("[0-9]", "0").replace("[01]", "0")
    name = name.with_name(name.name.replace("[6-9]", "6"))
    path = Path(f"{name}{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    t = np.sort(rng.integers(0, 1_700_000, n))
    x = rng.integers(0, spec.width, n).astype("u2")
    y = rng.integers(0, spec.height, n).astype("u2")
    p = rng.integers(0, 2, n).astype("u1")
    if suffix.endswith(".h5"):
        with h5py.File(path, "w") as file:
            for column, values in (("t", t.astype("u4")), ("x", x), ("y", y), ("p", p)):
                file[f"events/{column}"] = values
            file["events/height"], file["events/width"] = spec.height, spec.width
    else:  # the content tells the format, not the name
        write_dat(path, Events(t, x, y, p), spec.height, spec.width)
    boxes = np.zeros(len(TIMES_US) * spec.num_classes, BOX_DTYPE)
    boxes["t"] = np.repeat(TIMES_US, spec.num_classes)
    boxes["class_id"] = np.tile(spec.disk_class_ids, len(TIMES_US))
    boxes["x"] = 8 + 8 * boxes["class_id"]
    boxes["y"], boxes["w"], boxes["h"], boxes["class_confidence"] = 12, 64, 48, 1
    labels = Path(f"{name}{spec.boxes_suffix}")
    labels.parent.mkdir(parents=True, exist_ok=True)
    if labels.suffix == ".json":
        write_coco(labels, boxes, spec)
    else:
        assert labels.suffix == ".npy", "write labels of this form here"
        write_boxes(labels, boxes)


@pytest.mark.parametrize("name", NAMED)
def test_a_recording_in_the_layout_of_a_dataset_is_found_and_prepared_with_all_its_classes(name, tmp_path):
    spec = DATASETS[name]
    for split in SPLITS:
        write_recording(tmp_path, spec, spec.split_sources.get(split, (f"{split}/*",))[0])
    config = PreprocessConfig(workers=1)
    summary = preprocess_dataset(spec, tmp_path, tmp_path / "out", WindowSettings(), config, progress=False)
    assert len(summary.written) == 3 and not summary.failed and not summary.dropped
    for split in SPLITS:
        (recording,) = find_recordings(tmp_path, split, spec)
        assert recording.boxes_path is not None and not find_boxes_without_events(tmp_path, split, spec)
        assert len(find_sequences(tmp_path / "out", split)) == 1
        (prepared,) = open_prepared_split(tmp_path / "out", split, spec)
        (raw,) = RawSplit(tmp_path, split, spec).sequences(WindowSettings())
        with closing(prepared), closing(raw):
            assert set(prepared.labels.class_id) == set(range(spec.num_classes))
            np.testing.assert_array_equal(prepared.labels.boxes_ltwh, raw.labels.boxes_ltwh)
            np.testing.assert_array_equal(prepared.read(0, 4), raw.read(0, 4))


def test_etram_is_read_as_it_is_published(tmp_path):
    spec = DATASETS["etram"]
    assert (spec.height, spec.width, spec.num_classes, spec.frame_height) == (720, 1280, 8, 360)
    write_recording(tmp_path, spec, "val/*")
    (recording,) = find_recordings(tmp_path, "val", spec)
    assert (recording.name, recording.boxes_path) == ("a", tmp_path / "val/a_bbox.npy")
    (sequence,) = RawSplit(tmp_path, "val", spec).sequences(WindowSettings())
    with closing(sequence):
        # Of labels at 30 Hz, every third is used.
        assert np.unique(sequence.labels.t_us).tolist() == TIMES_US[::3].tolist()
        first = sequence.labels[sequence.labels.t_us == TIMES_US[0]]
        assert first.class_id.tolist() == list(range(8))
        assert first.boxes_ltwh[7].tolist() == [32, 6, 32, 24]
