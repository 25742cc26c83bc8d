"""The synthetic dataset on disk: reproducible, resumable, readable as Gen1, and in need of memory."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from user_errors import raises

from rvtssm.contrib.demo.generate_recordings import SPLITS, SYNTHETIC, generate_dataset, simulated_recording
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.datasets import DATASETS
from rvtssm.datasets.tree import find_recordings
from rvtssm.events.labels import read_boxes
from rvtssm.readers import open_recording

SPEC = DATASETS["synthetic"]
SMALL = SyntheticConfig(seed=5, num_train=2, num_val=1, num_test=1, duration_s=0.6, workers=1)
STREET = SYNTHETIC.sized(48, 64)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "raw"
    generate_dataset(SMALL, folder, STREET, progress=False)
    return folder


def test_it_lies_on_disk_like_gen1(raw_dir):
    for split, count in zip(SPLITS, (2, 1, 1), strict=True):
        recordings = find_recordings(raw_dir, split, SPEC)
        assert len(recordings) == count
        for found in recordings:
            recording = open_recording(found.events_path)
            assert (recording.format, recording.height, recording.width) == ("dat", 48, 64)
            events = recording.read()
            assert len(events) > 100 and events.t[-1] <= 600_000
            assert recording.faults.backward_steps == recording.faults.out_of_frame == 0
            boxes = read_boxes(found.boxes_path)
            assert set(boxes["class_id"]) <= set(SPEC.disk_class_ids)
            assert set(boxes["t"]) <= set(range(100_000, 600_001, 50_000))


def test_a_second_run_does_only_what_is_missing(raw_dir):
    before = files(raw_dir)
    assert generate_dataset(SMALL, raw_dir, STREET, progress=False) == []
    boxes = raw_dir / "train" / "train_0001_bbox.npy"
    boxes.unlink()  # as after a kill between the two files
    (raw_dir / "train" / "train_0001_td.dat").write_bytes(b"cut off")
    assert generate_dataset(SMALL, raw_dir, STREET, progress=False, only=["test/test_0000"]) == []
    assert generate_dataset(SMALL, raw_dir, STREET, progress=False) == ["train/train_0001"]
    assert files(raw_dir) == before


@pytest.mark.usefixtures("prepared_workers")
def test_neither_recordings_written_first_nor_the_number_of_workers_changes_anything(raw_dir, tmp_path):
    assert generate_dataset(SMALL, tmp_path / "raw", STREET, progress=False, only=["val/val_0000"]) == ["val/val_0000"]
    assert len(generate_dataset(replace(SMALL, workers=2), tmp_path / "raw", STREET, progress=False)) == 3
    assert files(tmp_path / "raw") == files(raw_dir)


def test_recordings_differ_by_seed_split_and_index_and_not_by_the_counts():
    def boxes(config: SyntheticConfig, split: str, index: int) -> bytes:
        return simulated_recording(config, split, index, STREET.spec.sensor_hw)[1].tobytes()

    one = boxes(SMALL, "train", 0)
    assert one == boxes(replace(SMALL, num_train=100), "train", 0)
    others = [boxes(SMALL, "train", 1), boxes(SMALL, "val", 0), boxes(replace(SMALL, seed=6), "train", 0)]
    assert len({one, *others}) == 4


def test_a_folder_of_other_settings_is_refused(raw_dir, tmp_path):
    before = files(raw_dir)
    with raises("run.other_settings"):
        generate_dataset(replace(SMALL, seed=9), raw_dir, STREET, progress=False)
    with raises("run.other_settings"):
        generate_dataset(replace(SMALL, num_train=1), raw_dir, STREET, progress=False)
    assert files(raw_dir) == before
    (tmp_path / "train").mkdir()
    with raises("file.exists"):
        generate_dataset(SMALL, tmp_path, STREET, progress=False)
    assert json.loads((raw_dir / "synthetic.json").read_text())["seed"] == 5
    for content in ('{"seed": 5', "[]"):
        (tmp_path / "synthetic.json").write_text(content)
        with raises("file.damaged", "synthetic.json"):
            generate_dataset(SMALL, tmp_path, STREET, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        *({"num_val": -1}, {"ego_motion_share": 1.5}, {"duration_s": 0.05}, {"duration_s": 4295.0}),
        *({"label_interval_us": 0}, {"label_interval_us": 700_000}),
    ],
)
def test_impossible_settings_are_refused(change, tmp_path):
    """Before the folder has settings, which would be in the way of other ones."""
    with pytest.raises(ValueError, match=r"^synthetic\."):
        generate_dataset(replace(SMALL, **change), tmp_path / "raw", STREET, progress=False)
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("size", [(8, 64), (64, 16385)])
def test_a_sensor_that_is_too_small_or_too_large_for_a_file_is_refused(size):
    """DAT has 14 bits for a coordinate."""
    with raises("setting.out_of_range", "dataset.height, dataset.width={} x {}".format(*size)):
        SYNTHETIC.sized(*size)


@pytest.mark.parametrize("interval_us, first_us", [(50_000, 100_000), (30_000, 120_000), (250_000, 250_000)])
def test_labels_come_at_multiples_of_their_interval(interval_us, first_us):
    config = SyntheticConfig(label_interval_us=interval_us, duration_s=2.0)
    times = np.unique(simulated_recording(config, "train", 0)[1]["t"])
    assert times[0] == first_us and times[-1] > 1_700_000
    assert (times % interval_us == 0).all()


def test_a_tenth_of_many_recordings_moves_the_camera_if_asked_in_every_part():
    moving = [SyntheticConfig(ego_motion_share=0.1).is_ego_moving(index) for index in range(100)]
    assert [sum(moving[start : start + 20]) for start in range(0, 100, 20)] == [2, 2, 2, 2, 2]
    assert not any(SyntheticConfig(ego_motion_share=0.0).is_ego_moving(index) for index in range(20))


def test_the_default_set_has_enough_of_everything():
    config = SyntheticConfig(ego_motion_share=0.0)
    boxes = [simulated_recording(config, "train", index)[1] for index in range(8)]
    per_frame = [len(recording) / len(np.unique(recording["t"])) for recording in boxes]
    assert 2 <= np.mean(per_frame) <= 5
    everything = np.concatenate(boxes)
    assert np.mean(everything["still_us"] >= 300_000) >= 0.15
    assert everything["still_us"].max() <= 2_000_000
    assert 0.3 < np.mean(everything["class_id"] == 0) < 0.7
    sides = np.concatenate((everything["w"], everything["h"]))
    assert np.mean((sides >= 10) & (sides <= 70)) > 0.85
    cars, pedestrians = (everything[everything["class_id"] == k] for k in (0, 1))
    assert np.median(cars["w"] / cars["h"]) > 1.5 and np.median(pedestrians["h"] / pedestrians["w"]) > 1.8
