"""The benchmarks' fast encoders write what the readers read, so that what is timed is a sound file."""

import numpy as np
import pytest

from benchmarks.events.encoders import WRITERS, readout, repeated
from rvtssm.readers import ReadFaults, open_recording


@pytest.mark.parametrize(("kind", "per_row"), [*((kind, 6.0) for kind in WRITERS), ("evt3", 1.1)])
def test_round_trip(tmp_path, kind, per_row):
    events = repeated(readout(20_000, 120, 160, per_row), 40_000)
    WRITERS[kind](tmp_path / "a.bin", events, 120, 160)
    recording = open_recording(tmp_path / "a.bin")
    found = recording.read()
    assert (recording.format, recording.faults) == (kind, ReadFaults())
    for name in ("t", "x", "y", "p"):
        np.testing.assert_array_equal(getattr(found, name), getattr(events, name))


def test_rows_have_as_many_pixels_as_asked(tmp_path):
    events = readout(50_000, 720, 1280, 6.0)
    rows = 1 + np.count_nonzero(np.diff(events.t) | np.diff(events.y.astype(int)) | (np.diff(events.x.astype(int)) < 0))
    assert 4 < len(events) / rows < 8
    WRITERS["evt3"](tmp_path / "a.raw", events, 720, 1280)
    assert (tmp_path / "a.raw").stat().st_size / len(events) < 3  # vectors, as a busy camera sends them
