"""`benchmarks.events.memory` at 2 MB: every format is read as it was written, and asking for the impossible is told."""

import json
import sys

import numpy as np
import pytest

from benchmarks.events import memory
from rvtssm.readers import ReadFaults, open_recording

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("kind", memory.FORMATS)
def test_a_recording_is_the_same_turn_after_turn_and_read_without_faults(tmp_path, kind):
    path = tmp_path / "a"
    num_events, last_us = memory.write_recording(path, kind, 2_000_000)
    recording = open_recording(path)
    found = recording.read()
    assert (len(found), recording.faults) == (num_events, ReadFaults())
    assert (found.t[0], found.t[-1]) == (0, last_us)
    assert 2_000_000 * 0.95 < path.stat().st_size < 2_000_000 + 8 * memory.NUM_EVENTS
    size = memory._CHUNK_EVENTS.get(kind, memory.NUM_EVENTS)
    assert num_events % size == 0 and num_events >= 2 * size
    turns = found.t.reshape(-1, size)
    assert np.ptp(np.diff(turns, axis=0)) == 0 and turns[1, 0] > turns[0, -1]
    for name in ("x", "y", "p"):
        column = getattr(found, name).reshape(-1, size)
        np.testing.assert_array_equal(column, np.broadcast_to(column[0], column.shape))


def test_the_command_measures_every_format_and_leaves_only_its_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "FORMATS", ("evt3", "rvt"))  # a process for each
    result = tmp_path / "found.json"
    memory.main(["--gb", "0.002", "--json", str(result), "--folder", str(tmp_path)])
    found = json.loads(result.read_text())
    assert list(tmp_path.iterdir()) == [result]
    assert {"cpu", "cores", "python", "commit"} <= set(found["machine"])
    rows = found["rows"]["memory"]
    assert [row["format"] for row in rows] == list(memory.FORMATS)
    for row in rows:
        assert 0.95 * 2e6 < row["bytes"] < 2e6 + 8 * memory.NUM_EVENTS
        assert row["blocks"] > 1 and row["index_bytes"] > 8 * 5 * row["blocks"]
        assert 30 < row["imports_mb"] <= row["peak_mb"] <= memory.LIMIT_MB and row["is_reached"]
        assert min(row["index_cpu_s"], row["slice_cpu_ms"], row["iterate_cpu_s"]) > 0
    assert "<= 1000 MB" in capsys.readouterr().out
