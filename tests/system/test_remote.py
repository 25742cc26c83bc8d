"""What lies behind a URL is read as from a disk, and nothing is written there."""

import functools
import http.server
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from event_examples import SPEC, boxes_of, random_events, write_labelled
from user_errors import raises

from rvtssm.datasets import PreprocessConfig
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import RawSplit, open_prepared_split
from rvtssm.readers import open_recording
from rvtssm.records import WindowSettings
from rvtssm.system.remote import local_path

SETTINGS = WindowSettings(50_000)
CONFIG = PreprocessConfig(splits=("train",), workers=1)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RVTSSM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def disk(tmp_path) -> Path:
    """A folder with two recordings in `raw` and their prepared files in `prepared`."""
    for seed, name in enumerate("ab"):
        events = random_events(20_000, seed, span_us=1_100_000, start_us=30_000)
        boxes = boxes_of((250_000, 1, 2, 20, 20), (1_000_000, 5, 2, 20, 30), class_id=[0, 1])
        write_labelled(tmp_path / "disk/raw/train", name, events, boxes)
    preprocess_dataset(SPEC, tmp_path / "disk/raw", tmp_path / "disk/prepared", SETTINGS, CONFIG, progress=False)
    return tmp_path / "disk"


@pytest.fixture(params=["memory", "http"])
def url(request, disk):
    """The URL of a copy of `disk`."""
    if request.param == "memory":
        store = fsspec.filesystem("memory")
        store.put(f"{disk}/", "/store/", recursive=True)
        yield "memory://store"
        store.rm("/store", recursive=True)
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=disk)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_recordings_and_prepared_files_of_a_url_are_those_of_a_disk(url, disk, tmp_path):
    found = preprocess_dataset(SPEC, f"{url}/raw", tmp_path / "again", SETTINGS, CONFIG, progress=False)
    assert found.written == ["train/a", "train/b"]
    for name in "ab":
        stored = disk / f"prepared/train/{name}.h5"
        assert (tmp_path / f"again/train/{name}.h5").read_bytes() == stored.read_bytes()
    assert open_recording(f"{url}/raw/train/a_td.dat").num_events == 20_000
    for wanted, *found in zip(
        open_prepared_split(disk / "prepared", "train", SPEC),
        open_prepared_split(f"{url}/prepared", "train", SPEC),
        RawSplit(f"{url}/raw", "train", SPEC).sequences(SETTINGS),
        strict=True,
    ):
        for sequence in found:
            np.testing.assert_array_equal(sequence.labels.boxes_ltwh, wanted.labels.boxes_ltwh)
            np.testing.assert_array_equal(sequence.read(3, 17), wanted.read(3, 17))
            sequence.close()


def test_a_copy_follows_the_store():
    store = fsspec.filesystem("memory")
    store.pipe({"/moving/a.raw": b"before", "/moving/b/c.raw": b"another"})
    copy = local_path("memory://moving")
    before = (copy / "b/c.raw").stat()
    store.pipe("/moving/a.raw", b"after!")
    local_path("memory://moving")
    assert (copy / "a.raw").read_bytes() == b"after!"
    assert (copy / "b/c.raw").stat().st_ino == before.st_ino  # not copied again
    store.rm("/moving/a.raw")
    local_path("memory://moving")
    assert not (copy / "a.raw").exists() and (copy / "b/c.raw").exists()
    store.rm("/moving", recursive=True)
    assert not local_path("memory://moving/b/c.raw").exists()


def test_a_copy_that_fails_leaves_no_file(monkeypatch, tmp_path):
    store = fsspec.filesystem("memory", use_listings_cache=False)
    store.pipe("/broken/a.raw", b"events")

    def get_file(address, path):
        Path(path).write_bytes(b"eve")
        raise ConnectionResetError("broke off")

    with monkeypatch.context() as broken:
        broken.setattr(store, "get_file", get_file)
        with raises("remote.not_copied"):
            local_path("memory://broken")
    assert not [path for path in (tmp_path / "cache").rglob("*a.raw*") if path.suffix != ".lock"]
    assert (local_path("memory://broken") / "a.raw").read_bytes() == b"events"
    store.rm("/broken", recursive=True)


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/x", "https://host/x?secret=1", "s3://bucket/../secret", "s3://bucket//secret"]
)
def test_an_address_with_credentials_or_a_way_out_is_refused_and_not_repeated(url):
    with raises("remote.address") as error:
        local_path(url)
    assert "secret" not in str(error.value)


def test_a_name_in_a_store_cannot_lead_out_of_its_folder(tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe({"/sly/../../../../escaped": b"1", "/sly/a.raw": b"2"})
    local_path("memory://sly")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == ["a.raw"]
    store.rm("/sly", recursive=True)


def test_nothing_is_written_to_a_url(tmp_path, refused):
    with raises("setting.form"):
        preprocess_dataset(SPEC, tmp_path, "s3://bucket/out", SETTINGS, CONFIG, progress=False)
    out = "dataset.prepared_dir=s3://bucket/out"
    assert f"{out}; this is a URL" in refused("preprocess", "dataset=synthetic", f"dataset.raw_dir={tmp_path}", out)
