"""DAT: what is written is read back, and every fault of real files is repaired and counted."""

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events, to_events
from user_errors import raises

from rvtssm.readers import ReadFaults, open_recording
from rvtssm.readers.dat import write_dat


def write_words(path, t, x, y, p, header=b"% Version 2\n% Height 48\n% Width 64\n\x00\x08", tail=b""):
    words = np.empty((len(t), 2), "<u4")
    words[:, 0] = np.asarray(t, np.uint64) & 0xFFFFFFFF
    words[:, 1] = np.asarray(x) | np.asarray(y) << 14 | np.asarray(p) << 28
    path.write_bytes(header + words.tobytes() + tail)
    return path


def test_blocks_are_written_like_the_whole(tmp_path):
    events = random_events(1000)
    write_dat(tmp_path / "whole.dat", events, HEIGHT, WIDTH)
    blocks = (events.between(t, t + 100_000) for t in range(0, 10**6, 100_000))
    write_dat(tmp_path / "blocks.dat", blocks, HEIGHT, WIDTH)
    assert (tmp_path / "whole.dat").read_bytes() == (tmp_path / "blocks.dat").read_bytes()


@pytest.mark.parametrize(
    ("t", "x", "key"),
    [([-1], [0], "file.cannot_hold"), ([1 << 32], [0], "file.cannot_hold"), ([0], [WIDTH], "events.outside_frame")],
)
def test_what_dat_cannot_hold_is_refused_and_leaves_nothing(tmp_path, t, x, key):
    with raises(key):
        write_dat(tmp_path / "a.dat", to_events(t, x, [0], [0]), HEIGHT, WIDTH)
    assert list(tmp_path.iterdir()) == []


def test_the_clock_wraps_only_on_a_big_drop(tmp_path):
    near = (1 << 32) - 10
    path = write_words(tmp_path / "a.dat", [near, near - 5, near + 8, 3, 1, 20, near, 25], [1] * 8, [2] * 8, [1] * 8)
    recording = open_recording(path)
    wrapped = 1 << 32
    expected = [near, near, near + 8, wrapped + 3, wrapped + 3, wrapped + 20, wrapped + 20, wrapped + 25]
    assert recording.read().t.tolist() == expected
    assert recording.faults.backward_steps == 3
    assert recording.time_range_us == (near, wrapped + 25)
    rising = list(range(2048)) + [near] * 2048 + [5000]  # the late events begin a block without a step back
    path = write_words(tmp_path / "b.dat", [near, *[1] * 2047, *rising], [1] * 6145, [2] * 6145, [1] * 6145)
    assert open_recording(path, repair=True).read().t[-1] == wrapped + 5000
    hour_us = 3_600_000_000  # without an event, after the clock has begun again
    path = write_words(tmp_path / "c.dat", [near, 3, hour_us, hour_us + 1], [1] * 4, [2] * 4, [1] * 4)
    assert open_recording(path).read().t.tolist() == [near, wrapped + 3, wrapped + hour_us, wrapped + hour_us + 1]


def test_pixels_outside_are_dropped_polarity_is_a_bit_and_the_tail_is_counted(tmp_path):
    path = write_words(tmp_path / "a.dat", [1, 2, 3, 4], [64, 63, 0, 5], [0, 47, 48, 5], [1, 1, 0, 3], tail=b"12345")
    recording = open_recording(path, repair=True)
    assert recording.faults == ReadFaults(truncated_bytes=5)
    assert_same(recording.read(), to_events([2, 4], [63, 5], [47, 5], [1, 1]))
    assert recording.faults == ReadFaults(out_of_frame=2, truncated_bytes=5)


def test_old_files_have_no_header_and_some_no_size(tmp_path):
    bare = write_words(tmp_path / "bare.dat", [7], [1], [2], [1], header=b"")
    unsized = write_words(tmp_path / "unsized.dat", [7], [1], [2], [1], header=b"% Data file\n% Version 2\n\x00\x08")
    for path in (bare, unsized):
        assert_same(open_recording(path, HEIGHT, WIDTH).read(), to_events([7], [1], [2], [1]))
        with raises("sensor.unknown"):
            open_recording(path)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"% Version 2\n% Height 48\n% Width 64\n\x0e\x10" + b"0" * 16, "file.kind"),
        (b"% Version 2\n% Height 48\n% Width 64\n\x00", "file.cut"),
        (b"% Version 2\n% Height 48\n% Width " + b"9" * 5000 + b"\n\x00\x08", "file.damaged"),
        (b"% Version 2", "file.cut"),
        (b"", "file.cut"),
    ],
)
def test_unusable_files_are_named(tmp_path, content, key):
    path = tmp_path / "a_td.dat"
    path.write_bytes(content)
    with raises(key) as error:
        open_recording(path)
    assert str(path) in str(error.value)
