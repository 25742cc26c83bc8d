"""Files as other tools write them: read to the same events, or refused with the key of what is wrong."""

import json
import os
import pickle
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, assert_same, random_events
from format_encoders import rows_of, structured
from user_errors import raises

from rvtssm.checks.inspect_recording import inspect_recording
from rvtssm.readers import open_recording

EVENTS = random_events(3_000, span_us=900_000, start_us=1_000)
COLUMNS = {"t": EVENTS.t, "x": EVENTS.x, "y": EVENTS.y, "p": EVENTS.p}


def hdf5(path, datasets, **attributes):
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
        for name, values in attributes.items():
            dataset, _, attribute = name.partition("__")
            file[dataset].attrs[attribute] = values


def npy(path, array):
    with open(path, "wb") as file:
        np.save(file, array)


def npz(path, **arrays):
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def text(path, head, *columns, mark=",", newline="\n"):
    lines = [mark.join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_bytes(newline.join([*head, *lines, ""]).encode())


def of_link(path, link):
    hdf5(path, {f"raw/{name}": values for name, values in COLUMNS.items()})
    with h5py.File(path, "a") as file:
        file["events"] = link


def named(*names):
    return structured(EVENTS, names, ("<i8", "<u2", "<u2", "u1"))


T, X, Y, P = COLUMNS.values()
SIZE_NOTE = {"events__sensor_resolution": (HEIGHT, WIDTH)}
READ = {
    "MATLAB rows": lambda path: hdf5(path, {name: values[None] for name, values in COLUMNS.items()}),
    "MATLAB columns": lambda path: hdf5(path, {f"ev/{name}": values[:, None] for name, values in COLUMNS.items()}),
    "big endian": lambda path: hdf5(path, {f"events/{name}": values.astype(">i8") for name, values in COLUMNS.items()}),
    "soft link": lambda path: of_link(path, h5py.SoftLink("/raw")),
    "unit in an attribute": lambda path: hdf5(path, COLUMNS | {"t": 1000 * T}, t__unit="ns"),
    "units in an attribute": lambda path: hdf5(path, COLUMNS | {"t": T / 1e6}, t__units="seconds"),
    "uint64 nanoseconds": lambda path: hdf5(
        path, {"timestamp_ns": np.uint64(1000) * T.astype("u8"), "x": X, "y": Y, "p": P}
    ),
    "four rows": lambda path: npy(path, rows_of(EVENTS).T.copy()),
    "row and col": lambda path: npy(path, named("ts", "col", "row", "pol")),
    "x_pos": lambda path: npy(path, named("timestamp", "x_pos", "y_pos", "polarity")),
    "xAddr": lambda path: npy(path, named("timeStamp", "xAddr", "yAddr", "pol")),
    "events beside labels": lambda path: npz(path, events=rows_of(EVENTS), labels=np.zeros(3)),
    "capitals and quotes": lambda path: text(
        path, ['"Timestamp (us)";"X";"Y";"Polarity"'], T, X, Y, P, mark=";", newline="\r\n"
    ),
    "ON and OFF": lambda path: text(path, ["t,x,y,p"], T, X, Y, np.where(P, "ON", "OFF")),
    "true and false": lambda path: text(path, ["t,x,y,p"], T, X, Y, np.where(P, "True", "False")),
    "units in brackets": lambda path: text(path, ["timestamp [us], x [px], y [px], polarity"], T, X, Y, P, mark=", "),
    "notes of C": lambda path: text(path, ["// from a recorder", "t,x,y,p"], T, X, Y, P),
    "resolution": lambda path: hdf5(path, {f"events/{name}s": values for name, values in COLUMNS.items()}, **SIZE_NOTE),
    "a column of numbers first": lambda path: text(path, [",t,x,y,p"], range(len(T)), T, X, Y, P),
}
REFUSED = {
    "0 and 255": ("events.polarity", lambda path: npy(path, structured(EVENTS, kinds=("i8", "u2", "u2", "u1")))),
    "newest first": ("events.faulty", lambda path: npy(path, structured(EVENTS)[::-1])),
    "dates": ("file.content", lambda path: npy(path, structured(EVENTS, kinds=("M8[us]", "u2", "u2", "u1")))),
    "two cameras": (
        "file.ambiguous",
        lambda path: hdf5(path, {f"cam{i}/{name}": values for i in (0, 1) for name, values in COLUMNS.items()}),
    ),
    "external link": ("file.content", lambda path: hdf5_of_link(path)),
    "MATLAB 5": ("file.kind", lambda path: path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(200))),
    "Event Stream": ("file.kind", lambda path: path.write_bytes(b"Event Stream\2\0\0\1".ljust(200))),
    "Parquet": ("file.kind", lambda path: path.write_bytes(b"PAR1".ljust(200))),
    "Arrow": ("file.kind", lambda path: path.write_bytes(b"ARROW1".ljust(200))),
    "pickle": ("file.kind", lambda path: path.write_bytes(pickle.dumps(rows_of(EVENTS)))),
    "tar": ("file.kind", lambda path: write_tar(path)),
}


def hdf5_of_link(path):
    with h5py.File(path, "w") as file:
        file["events"] = h5py.ExternalLink("other.h5", "/events")


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "events.csv")


@pytest.mark.parametrize("write", READ.values(), ids=READ)
def test_files_of_other_tools_give_the_same_events(tmp_path, write):
    write(tmp_path / "a.bin")
    assert_same(open_recording(tmp_path / "a.bin", HEIGHT, WIDTH).read(), EVENTS)


@pytest.mark.parametrize(("key", "write"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_named(tmp_path, key, write):
    write(tmp_path / "a.bin")
    if key == "events.polarity":
        rows = np.load(tmp_path / "a.bin")
        rows["p"] *= 255
        npy(tmp_path / "a.bin", rows)
    with raises(key) as error:
        open_recording(tmp_path / "a.bin", HEIGHT, WIDTH).read()
    assert str(tmp_path / "a.bin") in str(error.value)


# real cameras


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
