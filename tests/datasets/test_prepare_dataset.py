"""Preparing: complete, resumable, parallel, and one line for every recording that cannot be used."""

import errno
import os
import pickle
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from event_examples import (
    HEIGHT,
    SPEC,
    WIDTH,
    assert_equal,
    boxes_of,
    random_events,
    to_events,
    write_hdf5,
    write_labelled,
)
from user_errors import raises

from rvtssm.datasets import DATASETS, PreprocessConfig, sections
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.prepare_recording import Recipe, count_section, prepare_recording
from rvtssm.datasets.sequence import RawSplit
from rvtssm.datasets.store import StoredSequence, open_rvt_sequence, open_sequence
from rvtssm.datasets.store_writer import SequenceWriter
from rvtssm.datasets.tree import RawRecording, find_recordings, find_sequences
from rvtssm.events.cells import frame_pixels
from rvtssm.events.frame_counter import FrameCounter, count_as_they_close, count_windows
from rvtssm.events.label_rules import clean_boxes, unusable_boxes
from rvtssm.events.labels import read_boxes, write_boxes
from rvtssm.events.windows import WindowsConfig
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.records import DatasetSpec, Windows, WindowSettings
from rvtssm.records.settings import exact_us
from rvtssm.system.workers import SameProcess

HALVED = replace(SPEC, downsample=2)
CONFIG = PreprocessConfig(splits=("train",), workers=1)
WINDOW_KEYS = {field.name for field in fields(WindowsConfig)}


def write_recording(folder: Path, name: str, num_events: int = 20_000, seed: int = 0) -> Path:
    events = random_events(num_events, seed, span_us=1_100_000, start_us=30_000)
    boxes = boxes_of((250_000, 1, 2, 20, 20), (250_000, 30, 2, 12, 20), (1_000_000, 5, 2, 20, 30), class_id=[0, 1, 1])
    return write_labelled(folder, name, events, boxes)


def prepare(tmp_path, config=CONFIG, spec=SPEC, workers_given=None, **changes):
    """`changes` are keys of either section of the configuration."""
    windows = WindowsConfig(**{key: value for key, value in changes.items() if key in WINDOW_KEYS}).settings
    config = replace(config, **{key: value for key, value in changes.items() if key not in WINDOW_KEYS})
    return preprocess_dataset(spec, tmp_path / "raw", tmp_path / "out", windows, config, False, workers_given)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("stride_ms", "window_ms", "downsample", "reduce"),
    [(50, None, 1, "nearest"), (12.5, 50, 2, "nearest"), (100 / 3, None, 1, "nearest"), (50, None, 2, "sum")],
)
def test_a_prepared_recording_is_its_events_counted_on_the_label_grid(
    tmp_path, stride_ms, window_ms, downsample, reduce
):
    source = write_recording(tmp_path / "raw" / "train", "a")
    spec = replace(SPEC, downsample=downsample)
    summary = prepare(tmp_path, spec=spec, stride_ms=stride_ms, window_ms=window_ms, reduce=reduce)
    assert summary.written == ["train/a"] and not summary.failed
    (path,) = find_sequences(tmp_path / "out", "train")
    sequence = open_sequence(path)
    assert np.isin([250_000, 1_000_000], sequence.windows.ends_us).all()
    assert sequence.labels.t_us.tolist() == [250_000, 250_000, 1_000_000]
    assert sequence.windows.bounds_us[0, 0] >= 30_000
    settings = WindowSettings(reduce=reduce)
    counts = count_windows(open_recording(source).read(), sequence.windows, HEIGHT, WIDTH, settings, downsample)
    assert sequence.settings.reduce == reduce
    np.testing.assert_array_equal(sequence.histograms(0, len(sequence.windows)), counts)
    assert counts.any()
    meta = sequence.meta
    assert (meta["stride_us"], meta["length_us"]) == (exact_us(stride_ms * 1000), window_ms and round(window_ms * 1000))
    assert (meta["dataset"], meta["convention"], meta["grid"]) == ("tiny", "exact", "labels")
    assert (meta["height"], meta["width"], meta["downsample"]) == (HEIGHT, WIDTH, downsample)
    assert meta["source"]["name"] == "a_td.dat" and meta["source"]["num_bytes"] == source.stat().st_size
    assert meta["num_events"] == 20_000
    assert meta["faults"] == {"backward_steps": 0, "out_of_frame": 0, "truncated_bytes": 0}


def test_a_second_run_does_only_what_is_missing_or_has_changed(tmp_path):
    for name in "abc":
        write_recording(tmp_path / "raw" / "train", name)
    prepare(tmp_path)
    before = contents(tmp_path / "out")
    assert len(prepare(tmp_path, reduce="nearest").skipped) == 3  # without downsample, both reductions are the same
    (tmp_path / "out" / "train" / "b.h5").unlink()
    write_recording(tmp_path / "raw" / "train", "c", seed=5)
    summary = prepare(tmp_path)
    assert (summary.skipped, summary.written) == (["train/a"], ["train/b", "train/c"])
    after = contents(tmp_path / "out")
    assert after["train/a.h5"] == before["train/a.h5"] and after["train/c.h5"] != before["train/c.h5"]


@pytest.mark.parametrize(
    ("first", "changes", "spec", "difference"),
    [
        (SPEC, {"stride_ms": 25.0}, SPEC, "stride_us=50000, now 25000"),
        (SPEC, {"reduce": "nearest"}, HALVED, "downsample=1, now 2"),
        (HALVED, {"reduce": "nearest"}, HALVED, "reduce=sum, now nearest"),
    ],
)
def test_output_from_other_settings_is_kept_unless_told(tmp_path, first, changes, spec, difference):
    write_recording(tmp_path / "raw" / "train", "a")
    prepare(tmp_path, spec=first)
    write_recording(tmp_path / "raw" / "train", "b")
    before = contents(tmp_path / "out")
    summary = prepare(tmp_path, spec=spec, **changes)
    assert summary.written == ["train/b"]
    ((name, message),) = summary.failed
    assert name == "train/a" and difference in message and "overwrite=true" in message
    assert contents(tmp_path / "out")["train/a.h5"] == before["train/a.h5"]
    summary = prepare(tmp_path, spec=spec, overwrite=True, **changes)
    assert (summary.written, summary.skipped) == (["train/a"], ["train/b"])


@pytest.mark.parametrize("changes", [{"class_ids": (1, 0)}, {"label_interval_us": 40_000}, {"key": "other"}])
def test_a_second_run_prepares_anew_what_is_read_in_another_way(tmp_path, changes):
    write_recording(tmp_path / "raw" / "train", "a")
    spec = replace(SPEC, name="custom")
    assert prepare(tmp_path, spec=spec).written == ["train/a"]
    assert prepare(tmp_path, spec=replace(spec, **changes)).written == ["train/a"]
    assert prepare(tmp_path, spec=replace(spec, **changes)).skipped == ["train/a"]


def test_a_recording_in_the_place_of_an_output_is_never_replaced(tmp_path):
    write_recording(tmp_path / "raw" / "train", "a")
    (tmp_path / "out" / "train").mkdir(parents=True)
    recording = write_hdf5(tmp_path / "out" / "train" / "a.h5", random_events(100, 0))
    before = recording.read_bytes()
    for overwrite in (False, True):
        ((_, message),) = prepare(tmp_path, overwrite=overwrite).failed
        assert "was not written by `rvtssm preprocess`; choose another folder" in message
    assert recording.read_bytes() == before


def change_a_frame(path):
    with h5py.File(path, "r+") as file:
        file["frames"][len(file["frames"]) // 2] ^= 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_a_frame, "a.h5: its frames have changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "cannot be opened"),
    ],
)
def test_a_damaged_output_is_named_and_replaced_when_told(tmp_path, damage, message):
    write_recording(tmp_path / "raw" / "train", "a")
    prepare(tmp_path)
    damage(tmp_path / "out" / "train" / "a.h5")
    ((name, found),) = prepare(tmp_path).failed
    assert name == "train/a" and message in found
    assert prepare(tmp_path, overwrite=True).written == ["train/a"] and prepare(tmp_path).skipped == ["train/a"]


def change_labels(*rows):
    return lambda path: write_boxes(path.with_name("bad_bbox.npy"), boxes_of(*rows))


def replace_with_hdf5(path, events):
    path.unlink()
    return write_hdf5(path.with_name("bad_td.h5"), events)


OUTSIDE = to_events([40_000, 1_000_000, 1_000_001], [1, 2, WIDTH], [1] * 3, [0] * 3)
SHORT = change_labels((3_000_000, 1, 2, 20, 20))
DAMAGES = [
    (lambda path: write_dat(path, random_events(0), HEIGHT, WIDTH), "holds no events"),
    (lambda path: replace_with_hdf5(path, OUTSIDE), "has 1 of 3 events outside its 64x48"),
    (SHORT, "events from .* us but labels from .* to 3000000 us"),
    (lambda path: path.with_name("bad_bbox.npy").unlink(), "has no labels .bad_bbox"),
    (lambda path: write_boxes(path.with_name("bad_bbox.npy"), boxes_of((0,) * 5)[:0]), "holds no boxes"),
    (lambda path: path.unlink(), "bad_bbox.npy belongs to no recording"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_bad_input_gets_one_line_and_the_others_are_done(tmp_path, damage, message):
    for name in ("a", "bad", "c"):
        write_recording(tmp_path / "raw" / "train", name)
    damage(tmp_path / "raw" / "train" / "bad_td.dat")
    summary = prepare(tmp_path)
    assert summary.written == ["train/a", "train/c"]
    ((name, found),) = summary.failed or summary.dropped
    assert name == "train/bad" and "\n" not in found
    assert re.search(message, found)
    assert sorted(contents(tmp_path / "out")) == ["train/a.h5", "train/c.h5"]


def test_time_that_runs_backwards_too_often_is_repaired_only_when_told(tmp_path):
    source = write_recording(tmp_path / "raw" / "train", "a")
    source.unlink()
    events = random_events(5000, span_us=1_100_000)
    t = events.t.copy()
    t[2000:2200] -= 300_000
    write_hdf5(source.with_suffix(".h5"), events, t=t)
    ((name, reason),) = prepare(tmp_path).failed
    assert name == "train/a" and "has 200 of 5000 events that are earlier" in reason
    assert "dataset.repair=true" in reason
    assert prepare(tmp_path, spec=replace(SPEC, repair=True)).outcomes["train/a"].noticed.backward_steps == 200
    assert open_sequence(tmp_path / "out" / "train" / "a.h5").meta["faults"]["backward_steps"] == 200


def test_a_recording_whose_boxes_are_all_cleaned_away_is_dropped(tmp_path):
    write_recording(tmp_path / "raw" / "train", "a")
    write_boxes(tmp_path / "raw" / "train" / "a_bbox.npy", boxes_of((250_000, 1, 1, 2, 2)))
    summary = prepare(tmp_path)
    assert summary.dropped[0][0] == "train/a" and "no box left" in summary.dropped[0][1]
    assert not summary.failed and contents(tmp_path / "out") == {}
    write_recording(tmp_path / "raw" / "train", "a")  # with other boxes: a file of these must not stay unnoticed
    assert prepare(tmp_path).written == ["train/a"]
    write_boxes(tmp_path / "raw" / "train" / "a_bbox.npy", boxes_of((250_000, 1, 1, 2, 2)))
    summary = prepare(tmp_path)
    assert not summary.dropped and re.search(r"no box left .*; delete .*a\.h5", summary.failed[0][1])


def test_recordings_without_labels_are_prepared_when_asked(tmp_path):
    write_recording(tmp_path / "raw" / "train", "a")
    (tmp_path / "raw" / "train" / "a_bbox.npy").unlink()
    assert prepare(tmp_path, labels="none").written == ["train/a"]
    sequence = open_sequence(tmp_path / "out" / "train" / "a.h5")
    assert len(sequence.labels) == 0 and sequence.meta["grid"] == "free"
    assert (sequence.windows.dt_us == 50_000).all()
    assert sequence.histograms(0, len(sequence.windows)).sum() > 15_000  # all events, but for saturated cells


def test_a_split_without_recordings_is_refused(tmp_path):
    (tmp_path / "raw" / "val").mkdir(parents=True)
    with raises("file.missing"):
        prepare(tmp_path, splits=("val",))


@pytest.mark.parametrize(
    ("suffix", "changes"),
    [
        ("_td.h5", {}),
        ("_td.dat", {"stride_ms": 12.5, "window_ms": 50.0}),
        ("_td.h5", {"convention": "rvt"}),
        ("_td.dat", {"labels": "none"}),
    ],
    ids=str,
)
def test_a_recording_that_is_cut_becomes_the_same_file(tmp_path, monkeypatch, suffix, changes):
    source = write_recording(tmp_path / "raw" / "train", "a", num_events=40_000)
    if suffix == "_td.h5":
        source.unlink()
        events = random_events(40_000, span_us=1_100_000)
        t = events.t.copy()
        t[9000:9100] -= 40_000
        write_hdf5(source.with_name("a_td.h5"), events, t=t)
    spec = replace(SPEC, downsample=2)
    assert prepare(tmp_path, spec=spec, **changes).written == ["train/a"]
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "train" / "a.h5").unlink()
    monkeypatch.setattr(sections, "SECTION_BYTES", 20_000)
    workers = TwoHere()
    summary = prepare(tmp_path, spec=spec, workers_given=workers, **changes)
    assert summary.written == ["train/a"] and workers.tasks.count("count_section") >= 6
    assert contents(tmp_path / "out") == whole
    assert summary.outcomes["train/a"].noticed.backward_steps == (100 if suffix == "_td.h5" else 0)


def test_surfaces_are_prepared_whole_since_a_section_would_lack_what_came_before(tmp_path, monkeypatch):
    write_recording(tmp_path / "raw" / "train", "a", num_events=40_000)
    monkeypatch.setattr(sections, "SECTION_BYTES", 20_000)
    workers = TwoHere()
    assert prepare(tmp_path, workers_given=workers, representation="surfaces").written == ["train/a"]
    assert workers.tasks == ["prepare_recording"]
    sequence = open_sequence(tmp_path / "out" / "train" / "a.h5")
    assert sequence.settings.representation == "surfaces" and sequence.histograms(0, 1).shape[1] == 8
    assert prepare(tmp_path, representation="surfaces").skipped == ["train/a"]
    (_, message) = prepare(tmp_path, representation="surfaces", time_constants_ms=[5.0, 20.0]).failed[0]
    assert "was made with time_constants_us=[5000, 17100, 58500, 200000], now [5000, 20000]" in message


class TwoHere:
    """As two workers would do it: all that is sent is pickled."""

    num_workers = 2

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def submit(self, function, /, *arguments):
        self.tasks.append(function.__name__)
        return SameProcess().submit(_pickled, function, pickle.dumps(arguments))


def _pickled(function, arguments):
    return pickle.loads(pickle.dumps(function(*pickle.loads(arguments))))


@pytest.mark.usefixtures("prepared_workers")
def test_one_long_recording_keeps_all_workers_busy(tmp_path, monkeypatch):
    write_recording(tmp_path / "raw" / "train", "long", num_events=200_000)
    write_recording(tmp_path / "raw" / "train", "short", num_events=10_000)
    assert len(prepare(tmp_path).written) == 2
    os.rename(tmp_path / "out", tmp_path / "alone")
    monkeypatch.setattr(sections, "SECTION_BYTES", 100_000)
    assert prepare(tmp_path, workers=2).written == ["train/long", "train/short"]
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_cut_recording_that_is_damaged_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "SECTION_BYTES", 100_000)
    bad = write_recording(tmp_path / "raw" / "train", "bad", num_events=200_000)
    write_recording(tmp_path / "raw" / "train", "good", num_events=10_000)
    SHORT(bad)
    summary = prepare(tmp_path, workers_given=TwoHere())
    assert summary.written == ["train/good"] and "us but labels from 3000000 to 3000000 us" in summary.failed[0][1]

    write_recording(tmp_path / "raw" / "train", "bad", num_events=200_000)
    monkeypatch.setattr(sections, "count_section", _fails_late)
    summary = prepare(tmp_path, workers_given=TwoHere())
    assert summary.failed == [("train/bad", "no more")] and summary.skipped == ["train/good"]
    assert sorted(contents(tmp_path / "out")) == ["train/good.h5"]


def _fails_late(section):
    if section.windows.bounds_us[0, 0] >= 50_000:
        raise ValueError("no more")
    return count_section(section)


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    write_recording(tmp_path / "raw" / "train", "a")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10_000))
    with raises("machine.full", "20.0 kB"):
        prepare(tmp_path)
    with raises("machine.full", "80.0 kB"):
        prepare(tmp_path, stride_ms=12.5, window_ms=50)
    assert contents(tmp_path / "out") == {}
    with monkeypatch.context() as other:
        other.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100_000))
        assert prepare(tmp_path).written == ["train/a"]
    assert prepare(tmp_path).skipped == ["train/a"]  # nothing to write, nothing to check


def test_a_write_that_fails_is_the_failure_of_that_recording(tmp_path, monkeypatch):
    for name in "ab":
        write_recording(tmp_path / "raw" / "train", name)

    def write(self):
        if "a.h5" in str(self._disk.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(self)

    flush = SequenceWriter.flush
    monkeypatch.setattr(SequenceWriter, "flush", write)
    summary = prepare(tmp_path)
    assert summary.written == ["train/b"] and "No space left" in summary.failed[0][1]
    assert sorted(contents(tmp_path / "out")) == ["train/b.h5"]


def test_a_link_that_leads_nowhere_is_the_failure_of_that_recording(tmp_path):
    write_recording(tmp_path / "raw" / "train", "a")
    (tmp_path / "raw" / "train" / "b_td.dat").symlink_to(tmp_path / "moved_td.dat")
    summary = prepare(tmp_path)
    assert summary.written == ["train/a"] and [name for name, _ in summary.failed] == ["train/b"]
    assert "No such file" in summary.failed[0][1] and "b_td.dat" in summary.failed[0][1]


def test_boxes_left_out_as_faults_are_reported(tmp_path):
    path = write_recording(tmp_path / "raw" / "train", "a")
    boxes = boxes_of((250_000, 1, 2, 20, 20), (250_000, 1, 2, -20, 20), (1_000_000, 5, 2000, 20, 30))
    write_boxes(path.parent / "a_bbox.npy", boxes)
    summary = prepare(tmp_path)
    counts = unusable_boxes(boxes, SPEC, is_train=True)
    assert summary.written == ["train/a"] and summary.outcomes["train/a"].noticed.entries == counts
    assert [*counts.values()] == [1, 1] and f"train: 1 {[*counts][1]}" in summary.lines(SPEC)
    dense = boxes_of(*((250_000 + 1_000 * i, 1, 2, 20, 20) for i in range(100)))
    write_boxes(path.parent / "a_bbox.npy", dense)
    (line,) = prepare(tmp_path).lines(SPEC)
    assert "99 of 100 labels left out" in line and line.endswith("label_interval_us: 1000 keeps all")
    with pytest.warns(UserWarning, match="^" + re.escape(line)):
        RawSplit(tmp_path / "raw", "train", SPEC).sequences(WindowSettings())
    write_boxes(path.parent / "a_bbox.npy", boxes[1:])
    ((_, message),) = prepare(tmp_path).failed
    assert f"has no box left after cleaning (1 {next(iter(counts))}" in message


# files of RVT's own preparation


SPECS = {"gen1": DATASETS["gen1"], "gen4": DATASETS["onempx"]}
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
        with h5py.File(path, locking=False) as file:  # as our reader does, which may hold it open
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
    with raises("prepared.other"):
        open_rvt_sequence(pair.official, other)
