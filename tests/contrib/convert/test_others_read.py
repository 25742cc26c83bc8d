"""What `convert` writes, programs that are not ours read: event by event, also with gaps, jumps and one event."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from event_examples import random_events, to_events

from rvtssm.contrib.convert.formats import FORMATS
from rvtssm.records import Events

SIZE_HW = (260, 346)
RANDOM = np.random.default_rng(0)


def events_at(t) -> Events:
    n = len(t)
    return to_events(t, RANDOM.integers(0, SIZE_HW[1], n), RANDOM.integers(0, SIZE_HW[0], n), RANDOM.integers(0, 2, n))


CASES = {
    "plain": random_events(20_000, span_us=3_000_000, size_hw=SIZE_HW),
    "one event": events_at([1234]),
    "many at one time": events_at(np.repeat(1000 * np.arange(50), 300)),
    "late": events_at(5_000_000 + 7 * np.arange(3000)),
    "a gap": events_at(np.r_[np.arange(5000), 20_000_000 + np.arange(5000)]),
    "a jump": events_at(np.r_[np.arange(1000), 3_600_000_000 + np.arange(1000)]),
}


def by_aedat(path: Path, encoding: str) -> np.ndarray:
    packets = importlib.import_module("aedat").Decoder(str(path))
    return np.concatenate([packet["events"] for packet in packets if "events" in packet])


def by_faery(path: Path, encoding: str) -> np.ndarray:
    return np.concatenate(list(importlib.import_module("faery").events_stream_from_file(path)))


def by_dv_processing(path: Path, encoding: str) -> np.ndarray:
    recording, batches = importlib.import_module("dv_processing").io.MonoCameraRecording(str(path)), []
    while recording.isRunning() and (batch := recording.getNextEventBatch()) is not None:
        batches.append(batch.numpy())
    return np.concatenate(batches)


def by_expelliarmus(path: Path, encoding: str) -> np.ndarray:
    return importlib.import_module("expelliarmus").Wizard(encoding=encoding, fpath=path).read()


READERS = {
    "aedat": (by_aedat, ("aedat4",)),
    "faery": (by_faery, ("aedat4", "dat", "evt2", "evt3")),
    "dv_processing": (by_dv_processing, ("aedat4",)),
    "expelliarmus": (by_expelliarmus, ("dat", "evt2", "evt3")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("tool", "format"), [(tool, format) for tool, (_, of) in READERS.items() for format in of])
def test_another_program_reads_every_event(tmp_path, tool, format, case):
    pytest.importorskip(tool, reason=f"{tool} has no wheel for this machine")
    if (tool, format) == ("expelliarmus", "evt3") and case != "one event":
        pytest.skip("expelliarmus adds 4096 us at every step of the upper time, also to the files of cameras")
    events = CASES[case]
    path = tmp_path / f"events{FORMATS[format].suffixes[0]}"
    blocks = [events[start : start + 999] for start in range(0, len(events), 999)]
    FORMATS[format].write(path, blocks, *SIZE_HW)
    found = READERS[tool][0](path, format)
    names = {name: next(n for n in found.dtype.names if n in known) for name, known in FIELDS.items()}
    for name in "txyp":
        np.testing.assert_array_equal(found[names[name]].astype(np.int64), getattr(events, name).astype(np.int64))


FIELDS = {"t": ("t", "timestamp"), "x": ("x",), "y": ("y",), "p": ("p", "on", "polarity")}


def test_the_formats_that_others_know_are_read_by_others():
    assert {format for _, formats in READERS.values() for format in formats} == {"aedat4", "dat", "evt2", "evt3"}
