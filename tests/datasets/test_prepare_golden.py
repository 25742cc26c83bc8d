"""Convention `rvt` against the files RVT's own preparation wrote for the same recordings."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_examples import assert_equal
from user_errors import raises

from rvtssm.datasets.prepare_recording import Recipe, prepare_recording
from rvtssm.datasets.specs import GEN1, ONEMPX
from rvtssm.datasets.store import StoredSequence, open_rvt_sequence, open_sequence
from rvtssm.datasets.tree import RawRecording, find_recordings, find_sequences
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close
from rvtssm.events.label_rules import clean_boxes
from rvtssm.events.labels import read_boxes
from rvtssm.readers import open_recording
from rvtssm.records import DatasetSpec, Windows, WindowSettings

pytestmark = pytest.mark.golden

SPECS = {"gen1": GEN1, "gen4": ONEMPX}
SPLITS = ("train", "val", "test")
BOX_FIELDS = ("t", "x", "y", "w", "h", "class_id")


@dataclass
class Pair:
    """A raw recording and the folder RVT made of it."""

    raw: RawRecording
    official: Path
    spec: DatasetSpec
    is_train: bool

    @property
    def histograms_dir(self) -> Path:
        (folder,) = (self.official / "event_representations_v2").iterdir()
        return folder

    @property
    def length_us(self) -> int:
        return 1000 * int(re.findall(r"dt=(\d+)", self.histograms_dir.name)[0])

    @cached_property
    def histograms(self) -> np.ndarray:
        (path,) = self.histograms_dir.glob("*.h5")
        with h5py.File(path) as file:
            return file["data"][()]

    @property
    def windows(self) -> Windows:
        ends = np.load(self.histograms_dir / "timestamps_us.npy")
        return Windows(np.stack([ends - self.length_us, ends], axis=1), np.diff(ends, prepend=ends[0] - self.length_us))

    @property
    def labels(self) -> np.ndarray:
        return np.load(self.official / "labels_v2" / "labels.npz")["labels"]


@pytest.fixture(scope="module", params=[f"{dataset}/{split}" for dataset in SPECS for split in SPLITS])
def pairs(request, golden_dir) -> list[Pair]:
    """All recordings of one split that RVT kept, the spec at the size of the sensor in the file."""
    dataset, split = request.param.split("/")
    root = golden_dir / "preprocess" / dataset
    found = []
    for raw in find_recordings(root / "raw", split, SPECS[dataset]):
        recording = open_recording(raw.events_path)
        spec = replace(SPECS[dataset], height=recording.height, width=recording.width)
        if (official := root / "official" / split / raw.name).is_dir():
            found.append(Pair(raw, official, spec, split == "train"))
    assert found
    return found


def prepared(pair: Pair, folder: Path) -> StoredSequence:
    settings = WindowSettings(pair.length_us, pair.length_us, "rvt")
    outcome = prepare_recording(pair.raw, folder / "a.h5", Recipe(pair.spec, settings, pair.is_train))
    assert outcome.status == "written"
    return open_sequence(folder / "a.h5")


def test_histograms_at_the_official_times_are_equal_byte_for_byte(pairs):
    for pair in pairs:
        pixels = frame_pixels(pair.spec.height, pair.spec.width, pair.spec.downsample)
        counter = FrameCounter(WindowSettings(convention="rvt"), pixels)
        blocks = open_recording(pair.raw.events_path).iterate()
        counts = [frames for _, frames in count_as_they_close(blocks, pair.windows, counter, 8)]
        assert_equal(np.concatenate(counts), pair.histograms)


def test_labels_and_label_times_are_equal(pairs):
    for pair in pairs:
        boxes = clean_boxes(read_boxes(pair.raw.boxes_path), pair.spec, "rvt", pair.is_train)
        for name in BOX_FIELDS:
            assert_equal(boxes[name], pair.labels[name])
        times = np.load(pair.official / "labels_v2" / "timestamps_us.npy")
        assert_equal(np.unique(boxes["t"]), times)


def test_prepared_recordings_hold_the_official_labels_and_histograms(pairs, tmp_path):
    for pair in pairs:
        sequence, official = prepared(pair, tmp_path), pair.labels
        assert_equal(sequence.labels.t_us, official["t"])
        boxes = np.stack([official[name] for name in "xywh"], axis=1)
        assert_equal(sequence.labels.boxes_ltwh, boxes)
        assert_equal(sequence.labels.class_id, official["class_id"])
        shared, ours, theirs = np.intersect1d(sequence.windows.ends_us, pair.windows.ends_us, return_indices=True)
        assert np.isin(np.unique(official["t"]), shared).all()
        histograms = pair.histograms
        for our, their in zip(ours, theirs, strict=True):
            assert_equal(sequence.histograms(our, our + 1)[0], histograms[their])
        if pair.spec.name == "onempx":  # the official grid of gen1 has one window per 125 ms between labels
            assert_equal(sequence.windows.ends_us, pair.windows.ends_us)
        else:
            assert np.abs(sequence.windows.dt_us - pair.length_us).max() <= 2_000


def test_trees_prepared_by_rvt_are_read_as_they_are(pairs):
    for pair in pairs:
        assert pair.official in find_sequences(pair.official.parents[1], pair.official.parent.name)
        sequence = open_rvt_sequence(pair.official, pair.spec)
        assert sequence.name == pair.raw.name
        assert_equal(sequence.windows.bounds_us, pair.windows.bounds_us)
        assert_equal(sequence.histograms(0, len(sequence.windows)), pair.histograms)
        assert_equal(sequence.labels.t_us, pair.labels["t"])
        steps = np.load(pair.histograms_dir / "objframe_idx_2_repr_idx.npy")
        assert_equal(np.unique(sequence.labels.window_index), steps)
        assert (sequence.meta["convention"], sequence.meta["length_us"]) == ("rvt", pair.length_us)


def test_a_tree_of_another_dataset_is_refused(pairs):
    pair = pairs[0]
    other = replace(pair.spec, width=pair.spec.width // 2)
    with raises("prepared.rvt_shape"):
        open_rvt_sequence(pair.official, other)
