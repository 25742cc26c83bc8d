"""A reversed recording has every event once, and a reversed window has the mirrored frame."""

import numpy as np
import pytest

from rvtssm.contrib.labeling.pseudo_labels import ReversedRecording
from rvtssm.events.frame_counter import count_windows
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import join_events
from rvtssm.records import Events, Windows

HEIGHT, WIDTH, FIRST_US, LAST_US = 24, 32, 5_000, 1_204_999


@pytest.fixture
def recording(tmp_path):
    rng, n = np.random.default_rng(0), 4_000
    t = np.sort(rng.integers(FIRST_US, LAST_US, n))
    t[0], t[-1] = FIRST_US, LAST_US
    t[100:140] = t[100]  # events of one microsecond
    x, y, p = (rng.integers(0, limit, n) for limit in (WIDTH, HEIGHT, 2))
    write_dat(tmp_path / "a_td.dat", Events(t, *(a.astype(k) for a, k in ((x, "u2"), (y, "u2"), (p, "u1")))), 24, 32)
    return open_recording(tmp_path / "a_td.dat")


def test_every_event_is_there_once_in_the_opposite_order_with_the_opposite_sign(recording):
    events = recording.read()
    blocks = list(ReversedRecording(recording).blocks())
    back = join_events(blocks)
    assert len(blocks) > 2 and (np.diff(back.t) >= 0).all()
    assert (back.t[::-1] == FIRST_US + LAST_US - events.t).all() and (back.p[::-1] == 1 - events.p).all()
    assert (back.x[::-1] == events.x).all() and (back.y[::-1] == events.y).all()


def test_a_reversed_window_has_the_frame_with_bins_and_signs_reversed(recording):
    mirror = ReversedRecording(recording)
    ends_us = FIRST_US + 50_000 * np.arange(1, 25)
    windows = Windows(np.stack([ends_us - 50_000, ends_us], axis=1), np.full(24, 50_000))
    bounds_us = np.array([[mirror.at(end), mirror.at(start)] for start, end in windows.bounds_us.tolist()])
    assert [mirror.at(mirror.at(t)) for t in (0, 7)] == [0, 7]
    back = join_events(list(mirror.blocks()))
    frames = count_windows(recording.read(), windows, HEIGHT, WIDTH)
    mirrored = count_windows(back, Windows(bounds_us[::-1].copy(), windows.dt_us), HEIGHT, WIDTH)
    assert frames.sum() == 4_000 and (mirrored[::-1, ::-1] == frames).all()
