"""Recordings of real cameras against a manifest of what several independent decoders agreed on.

Those whose licence permits it lie in tests/golden/recordings; RVTSSM_RECORDINGS=DIR checks every file of another
folder with a manifest.json, and PEDRo's examples where `DIR/pedro` holds them.
"""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from event_examples import assert_same, to_events

from rvtssm.checks.inspect_recording import inspect_recording
from rvtssm.readers import open_recording

GOLDEN = Path(__file__).parents[1] / "golden" / "recordings"
OTHERS = Path(os.environ.get("RVTSSM_RECORDINGS") or "/nonexistent")
SIZES_HW = {"ncars_obj_004397_td.dat": (240, 304)}  # a crop, whose header gives no size
PEDRO_HW = (260, 346)


def manifest(folder: Path, name: str) -> dict[str, dict]:
    path = folder / name
    return json.loads(path.read_text()) if path.is_file() else {}


FILES = [
    *((GOLDEN / name, wanted) for name, wanted in manifest(GOLDEN, "expected.json").items()),
    *((OTHERS / name, wanted) for name, wanted in manifest(OTHERS, "manifest.json").items()),
]
PEDRO = sorted((OTHERS / "pedro" / "examples" / "numpy").glob("*/*.npy"))


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


@pytest.mark.skipif(not PEDRO, reason="set RVTSSM_RECORDINGS to a folder with pedro/examples")
@pytest.mark.parametrize("path", PEDRO, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_windows_of_pedro_hold_their_rows_and_boxes(path: Path):
    rows = np.load(path)
    recording = open_recording(path, *PEDRO_HW)
    assert recording.num_events == len(rows)
    assert_same(recording.read(), to_events(*rows.T))
    labels = path.parents[2] / "xml" / path.parent.name / f"{path.stem}.xml"
    text = path.parents[2] / "yolo" / path.parent.name / f"{path.stem}.txt"
    found = ElementTree.parse(labels).getroot()
    boxes = [[int(box.findtext(edge, "")) for edge in ("xmin", "ymin", "xmax", "ymax")] for box in found.iter("bndbox")]
    lines = [[float(word) for word in line.split()[1:]] for line in text.read_text().splitlines()]
    assert boxes and len(boxes) == len(lines)
    for (left, top, right, bottom), (cx, cy, w, h) in zip(boxes, lines, strict=True):
        assert 0 <= left < right <= PEDRO_HW[1] and 0 <= top < bottom <= PEDRO_HW[0]
        scaled = [cx * PEDRO_HW[1], cy * PEDRO_HW[0], w * PEDRO_HW[1], h * PEDRO_HW[0]]
        wanted = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        np.testing.assert_allclose(scaled, wanted, atol=1.01)
