"""Recordings of real cameras against a manifest of what several independent decoders agreed on.

Those whose licence permits it lie in tests/golden/recordings; RVTSSM_RECORDINGS=DIR checks every file of another
folder with a manifest.json.
"""

import json
import os
from pathlib import Path

import pytest
from event_examples import assert_same

from rvtssm.checks.inspect_recording import inspect_recording
from rvtssm.readers import open_recording

GOLDEN = Path(__file__).parents[1] / "golden" / "recordings"
OTHERS = Path(os.environ.get("RVTSSM_RECORDINGS") or "/nonexistent")
SIZES_HW = {"ncars_obj_004397_td.dat": (240, 304)}  # a crop, whose header gives no size


def manifest(folder: Path, name: str) -> dict[str, dict]:
    path = folder / name
    return json.loads(path.read_text()) if path.is_file() else {}


FILES = [
    *((GOLDEN / name, wanted) for name, wanted in manifest(GOLDEN, "expected.json").items()),
    *((OTHERS / name, wanted) for name, wanted in manifest(OTHERS, "manifest.json").items()),
]


@pytest.mark.golden
@pytest.mark.parametrize(("path", "wanted"), FILES, ids=[f"{path.parent.name}-{path.name}" for path, _ in FILES])
def test_a_recording_is_what_its_manifest_says(path: Path, wanted: dict):
    recording = open_recording(path, *SIZES_HW.get(path.name, (None, None)))
    found = inspect_recording(recording, has_checksum=True).to_json()
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.golden
def test_slices_of_real_packets_are_slices_of_the_whole():
    recording = open_recording(GOLDEN / "evl_sample.aedat4")
    events = recording.read()
    first_us, last_us = recording.time_range_us
    for start_us in range(first_us, last_us, 20_000):
        assert_same(recording.between(start_us, start_us + 20_000), events.between(start_us, start_us + 20_000))
