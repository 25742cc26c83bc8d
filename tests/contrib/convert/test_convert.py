"""What is written in one format and converted to another is read as the same arrays; what cannot be held is refused."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from event_examples import HEIGHT, SPEC, WIDTH, any_events, assert_same, boxes_of, random_events, to_events
from hypothesis import given, settings

from rvtssm.cli.main import main
from rvtssm.contrib.convert.formats import FORMATS, convert, format_for
from rvtssm.contrib.convert.rvt_layout import write_rvt_sequence, write_rvt_tree
from rvtssm.datasets.compress import FrameCompressor
from rvtssm.datasets.store import open_rvt_sequence, open_sequence
from rvtssm.datasets.store_writer import sequence_writer
from rvtssm.datasets.tree import find_sequences
from rvtssm.events.labels import to_labels
from rvtssm.readers import open_recording
from rvtssm.records import Windows
from rvtssm.system.user_error import UserError

SIZE_HW = (HEIGHT, WIDTH)


def written(folder: Path, format: str, events, size_hw=SIZE_HW, block: int = 7) -> Path:
    """Events in several blocks as a file of this format."""
    path = folder / f"events{FORMATS[format].suffixes[0]}"
    blocks = [events[start : start + block] for start in range(0, len(events), block)]
    FORMATS[format].write(path, blocks, *size_hw)
    return path


def opened(path: Path, format: str, size_hw=SIZE_HW):
    size = {} if FORMATS[format].holds_size else {"height": size_hw[0], "width": size_hw[1]}
    recording = open_recording(path, **size)
    assert recording.format == format and (recording.height, recording.width) == size_hw
    return recording


NAMES = list(FORMATS)
PAIRS = [(NAMES[i - shift], NAMES[i]) for i in range(len(NAMES)) for shift in (1, 3)]  # each twice on either side


@pytest.mark.parametrize(("source", "target"), [*PAIRS, ("dat", "dat")])
@settings(max_examples=10, deadline=None)
@given(events=any_events(min_size=1))
def test_events_are_the_same_in_any_pair_of_formats(source, target, events):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = written(folder, source, events)
        out = folder / f"converted{FORMATS[target].suffixes[-1]}"
        recording = opened(path, source)
        result = convert(recording, out, target)
        assert format_for(out) == target
        assert (result.num_events, result.first_us, result.last_us) == (len(events), events.t[0], events.t[-1])
        assert_same(opened(out, target).read(), events)
        recording.close()


@pytest.mark.parametrize("format", FORMATS)
def test_a_recording_may_be_long_late_and_have_gaps(format, tmp_path):
    """Over several periods of the clocks of EVT2 and EVT3, whose first event comes after minutes."""
    start_us, gaps_us = 400_000_000, np.array([0, 1, 63, 64, 4095, 4096, 4_194_304, 16_777_216, 268_439_552, 5, 3])
    times_us = start_us + gaps_us.cumsum()
    events = to_events(times_us, *(np.arange(11) % most for most in (2047, 1280, 2)))
    path = written(tmp_path, format, events, (1280, 2048), block=3)
    assert_same(opened(path, format, (1280, 2048)).read(), events)


@pytest.mark.parametrize("format", FORMATS)
def test_the_ends_of_what_a_format_holds(format, tmp_path):
    known = FORMATS[format]
    most, last_us = known.largest_side, (known.end_us or 1_800_000_000_000_000) - 1
    events = to_events([last_us - 9, last_us], [0, most - 1], [most - 1, 0], [1, 0])
    path = written(tmp_path, format, events, (most, most))
    assert_same(opened(path, format, (most, most)).read(), events)


@pytest.mark.parametrize(
    ("format", "time_us", "side", "key"),
    [
        ("dat", 1 << 32, 64, "file.content"),
        ("evt2", 1 << 34, 64, "file.content"),
        ("evt3", 1 << 36, 64, "file.content"),
        ("evt2", 0, 2049, "file.content"),
        ("evt3", 0, 2049, "file.content"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_written(format, time_us, side, key, tmp_path):
    path = written(tmp_path, "rvt_hdf5", to_events([time_us], [1], [1], [1]), (side, side))
    with pytest.raises(UserError) as refused:
        convert(open_recording(path), tmp_path / "out", format)
    assert refused.value.key == key and [file.name for file in tmp_path.iterdir()] == ["events.h5"]


def test_a_clock_that_a_format_cannot_hold_is_moved_as_the_message_says(tmp_path):
    epoch_us = 1_600_000_000_000_000
    path = written(tmp_path, "aedat4", random_events(50, start_us=epoch_us))
    with pytest.raises(UserError, match=r"write \.h5, .*\.npy") as refused:
        convert(open_recording(path), tmp_path / "a.raw", "evt3")
    (shift_us,) = re.findall(r"subtract (\d+) from its t_us", str(refused.value))
    convert(open_recording(path), tmp_path / "a.npy", "npy")
    rows = np.load(tmp_path / "a.npy")
    rows["t_us"] -= int(shift_us)
    np.save(tmp_path / "a.npy", rows)
    convert(open_recording(tmp_path / "a.npy", *SIZE_HW), tmp_path / "a.raw", "evt3")
    events = open_recording(path).read()
    assert_same(open_recording(tmp_path / "a.raw").read(), replace(events, t=events.t - events.t[0]))


def test_the_verb_says_what_it_wrote_and_overwrites_nothing(tmp_path, refused, capsys):
    events = random_events(500)
    path = written(tmp_path, "dat", events)
    for name in ("a.raw", "b.evt2.raw", "e.npy"):
        assert main(["convert", str(path), str(tmp_path / name)]) == 0
        assert_same(open_recording(tmp_path / name, *(SIZE_HW if name == "e.npy" else ())).read(), events)
        printed = " ".join(capsys.readouterr().out.split())
        assert f"64 x 48 pixels, 500 events from {events.t[0]} to {events.t[-1]} us" in printed
        assert ("npy does not hold the size of the sensor" in printed) == (name == "e.npy")
    before = (tmp_path / "a.raw").read_bytes()
    for words, answer in (
        (["a.raw"], "exists already"),
        (["a.mp4"], "end it with one of .dat, .raw, .evt2.raw, .h5"),
        ([], "rvtssm convert IN OUT is needed"),
        (["a.h5", "b.h5"], "name one path"),
    ):
        assert answer in refused("convert", str(path), *(str(tmp_path / word) for word in words))
    assert (tmp_path / "a.raw").read_bytes() == before


def test_a_new_file_with_an_equals_sign_in_its_path_needs_its_key(tmp_path, refused):
    events = random_events(500)
    path = written(tmp_path, "dat", events)
    line = refused("convert", path, tmp_path / "a=b.raw")
    advised = line.rsplit("as in ", 1)[1]
    assert main(["convert", str(path), advised]) == 0
    assert_same(open_recording(tmp_path / "a=b.raw").read(), events)
    assert "out=" not in refused("convert", "c=d.raw", tmp_path / "a.raw")


def prepared(folder: Path, length_us: int = 50_000):
    """A prepared recording of four windows, with boxes in the second and the last."""
    ends_us = 600_000 + 50_000 * np.arange(4)
    windows = Windows(np.stack([ends_us - length_us, ends_us], axis=1), np.diff(ends_us, prepend=550_000))
    boxes = boxes_of((650_000, 5, 5, 20, 20), (750_000, 1, 2, 30, 20), (750_000, 3, 3, 9, 9), class_id=[1, 0, 1])
    boxes["pseudo_score"][2] = 0.5
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 10, (4, 20, HEIGHT, WIDTH), np.uint8)
    labels = to_labels(boxes, windows)
    compressor = FrameCompressor(frames[0].nbytes)
    with sequence_writer(folder / "test" / "a.h5", windows, labels, frames.shape[1:]) as writer:
        writer.append([compressor.compress(frame) for frame in frames])
        writer.meta = {"dataset": SPEC.name, "stride_us": 50_000, "length_us": length_us, "num_bins": 10}
    return frames, windows


def test_prepared_recordings_are_the_same_in_the_layout_of_rvt(tmp_path):
    frames, windows = prepared(tmp_path / "prepared")
    result = write_rvt_tree(tmp_path / "prepared", tmp_path / "rvt", SPEC)
    assert (result.num_recordings, result.num_frames, result.num_left_out) == (1, 4, 1)
    (folder,) = find_sequences(tmp_path / "rvt", "test")
    again = open_rvt_sequence(folder, SPEC)
    np.testing.assert_array_equal(again.histograms(0, 4), frames)
    np.testing.assert_array_equal(again.windows.bounds_us, windows.bounds_us)
    ours = open_sequence(tmp_path / "prepared/test/a.h5").labels[:2]
    for name in ("boxes_ltwh", "class_id", "t_us", "window_index"):
        np.testing.assert_array_equal(getattr(again.labels, name), getattr(ours, name))
    objects = np.load(next(folder.rglob("objframe_idx_2_repr_idx.npy")))
    np.testing.assert_array_equal(objects, [1, 3])


def test_windows_that_rvt_cannot_read_are_refused(tmp_path):
    prepared(tmp_path / "prepared", length_us=2_500)
    with pytest.raises(UserError) as refused:
        write_rvt_tree(tmp_path / "prepared", tmp_path / "rvt", SPEC)
    assert refused.value.key == "file.content" and not (tmp_path / "rvt").exists()


def test_a_folder_without_prepared_recordings_is_refused(tmp_path, refused):
    (tmp_path / "test").mkdir()
    assert "no prepared recordings" in refused("convert", str(tmp_path), str(tmp_path / "rvt"), "dataset=gen1")


@pytest.mark.parametrize(("name", "folder"), [("gen1", "gen1"), ("onempx", "gen4")])
def test_what_rvt_prepared_is_written_as_it_was(golden_dir, tmp_path, name, folder):
    """All arrays but the numbers of tracks, which we do not keep, equal those of the public code."""
    from rvtssm.datasets import DatasetConfig, build_spec

    spec = build_spec(DatasetConfig(name=name))
    for path in find_sequences(golden_dir / "preprocess" / folder / "official", "test"):
        stored = open_sequence(path, spec)
        write_rvt_sequence(stored, tmp_path / path.name, spec)
        np.testing.assert_array_equal(
            open_sequence(tmp_path / path.name, spec).histograms(0, len(stored.windows)),
            stored.histograms(0, len(stored.windows)),
        )
        for file in sorted(path.rglob("*.np*")):
            ours, theirs = np.load(tmp_path / path.name / file.relative_to(path)), np.load(file)
            if file.suffix == ".npy":
                np.testing.assert_array_equal(ours, theirs)
                assert ours.dtype == theirs.dtype
                continue
            np.testing.assert_array_equal(ours["objframe_idx_2_label_idx"], theirs["objframe_idx_2_label_idx"])
            assert ours["labels"].dtype == theirs["labels"].dtype
            for column in set(theirs["labels"].dtype.names) - {"track_id"}:
                np.testing.assert_array_equal(ours["labels"][column], theirs["labels"][column])
