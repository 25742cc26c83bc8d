"""DSEC-Det: the published tree and splits, absolute time, labels in the view of the sensor."""

import numpy as np
import pytest
from dsec_examples import CAR, HEIGHT, OFFSET_US, PEDESTRIAN, TRAIN, WIDTH, boxes_at, image_times, write_sequence
from user_errors import raises

from rvtssm.datasets import DatasetConfig
from rvtssm.datasets.data_config import DataConfig, PreprocessConfig, SamplingConfig
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.specs import DSEC as SPEC
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings
from rvtssm.events.label_rules import clean_boxes
from rvtssm.readers import open_recording
from rvtssm.records import WindowSettings

# as in dsec-det, config/train_val_test_split.yaml
PUBLISHED = {
    "train": "thun_00_a interlaken_00_c interlaken_00_d interlaken_00_e interlaken_00_f interlaken_00_g "
    "zurich_city_00_a zurich_city_00_b zurich_city_01_a zurich_city_01_b zurich_city_01_c zurich_city_01_d "
    "zurich_city_01_e zurich_city_01_f zurich_city_02_a zurich_city_02_b zurich_city_02_c zurich_city_02_d "
    "zurich_city_02_e zurich_city_03_a zurich_city_04_a zurich_city_04_b zurich_city_04_c zurich_city_04_d "
    "zurich_city_04_e zurich_city_04_f zurich_city_05_a zurich_city_05_b zurich_city_06_a zurich_city_07_a "
    "zurich_city_08_a zurich_city_09_a zurich_city_09_b zurich_city_09_c zurich_city_09_d zurich_city_09_e "
    "zurich_city_10_a zurich_city_10_b zurich_city_11_a zurich_city_11_b zurich_city_11_c",
    "val": "zurich_city_16_a zurich_city_17_a zurich_city_18_a zurich_city_19_a zurich_city_20_a zurich_city_21_a",
    "test": "thun_01_a thun_01_b thun_02_a interlaken_00_a interlaken_00_b interlaken_01_a zurich_city_12_a "
    "zurich_city_13_a zurich_city_13_b zurich_city_14_a zurich_city_14_b zurich_city_14_c zurich_city_15_a",
}


def test_the_splits_are_the_published_ones(tmp_path):
    for split, names in PUBLISHED.items():
        for name in names.split():
            path = tmp_path / ("test" if split == "test" else "train") / name / "events/left/events.h5"
            path.parent.mkdir(parents=True)
            path.touch()
    for split, names in PUBLISHED.items():
        assert [found.name for found in find_recordings(tmp_path, split, SPEC)] == sorted(names.split())


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("dsec") / "raw"
    write_sequence(root / "train/thun_00_a")
    write_sequence(root / "train/zurich_city_16_a", seed=1)
    write_sequence(root / "test/thun_01_a", 7, seed=2)
    write_sequence(root / "test/thun_01_b", 7, has_tracks=False)
    return root


def test_events_and_labels_share_one_clock_and_one_view(tree):
    (found,) = find_recordings(tree, "val", SPEC)
    recording = open_recording(found.events_path, SPEC.height, SPEC.width)
    assert (recording.format, recording.height, recording.width) == ("dsec", HEIGHT, WIDTH)
    boxes = clean_boxes(found.read_boxes(SPEC), SPEC, "exact", False)
    times_us = image_times(10)[1:]
    np.testing.assert_array_equal(np.unique(boxes["t"]), times_us)  # the jitter of the camera costs no label
    assert sorted(set(boxes["class_id"])) == [PEDESTRIAN, CAR, TRAIN]
    events = recording.between(int(times_us[3]) - 1_000, int(times_us[3]))
    (car, walker), inside = boxes_at(times_us[3:4])[0], np.zeros(len(events), bool)
    for left, top, width, height in (car, walker):
        inside |= (np.abs(events.x - left - width / 2) < width / 2 + 3) & (
            np.abs(events.y - top - height / 2) < height / 2 + 3
        )
    assert len(events) > 20 and inside.all()
    recording.close()


def test_sequences_without_tracks_are_recordings_without_labels(tree):
    labelled, plain = find_recordings(tree, "test", SPEC)
    assert (labelled.name, plain.name) == ("thun_01_a", "thun_01_b")
    assert labelled.boxes_path == tree / "test/thun_01_a/object_detections/left/tracks.npy"
    assert plain.boxes_path is None
    assert not len(plain.read_boxes(SPEC))
    assert "thun_01_b/events/left/events.h5 has no labels" in plain.why_unlabelled(SPEC)


def test_tracks_whose_events_were_not_copied_are_found(tmp_path):
    write_sequence(tmp_path / "train/thun_00_a", 3)
    (tmp_path / "train/thun_00_a/events/left/events.h5").unlink()
    assert find_recordings(tmp_path, "train", SPEC) == []
    expected = tmp_path / "train/thun_00_a/object_detections/left/tracks.npy"
    assert find_boxes_without_events(tmp_path, "train", SPEC) == [expected]
    with raises("files.missing", "test"):
        find_recordings(tmp_path, "test", SPEC)


def test_prepared_and_read(tree, tmp_path):
    summary = preprocess_dataset(SPEC, tree, tmp_path, WindowSettings(), PreprocessConfig(workers=1), progress=False)
    assert sorted(summary.written) == ["test/thun_01_a", "train/thun_00_a", "val/zurich_city_16_a"]
    ((name, message),) = summary.dropped
    assert name == "test/thun_01_b" and "object_detections/left/tracks.npy" in message
    data = SequenceDataModule(
        DatasetConfig("dsec", str(tree), str(tmp_path)),
        SamplingConfig(mode="random", batch_size=2, chunk_length=2),
        data=DataConfig(workers=0),
    )
    (sequence,) = data.sequences("train")
    np.testing.assert_array_equal(sequence.labels.t_us[::3], image_times(10)[1:])
    assert sequence.windows.ends_us[0] > OFFSET_US
    batch = next(iter(data.train_dataloader()))
    assert batch.hist.shape == (2, 2, 20, HEIGHT, WIDTH) and {*batch.targets[..., 0].flatten().tolist()} == {
        0,
        CAR,
        TRAIN,
    }
    raw, prepared = (data.eval_sequences("val", WindowSettings(), source)[0] for source in ("raw", "prepared"))
    np.testing.assert_array_equal(raw.read(0, 3), prepared.read(0, 3))
