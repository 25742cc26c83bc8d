"""Datasets in an object store are those on a disk: prepared alike, read alike, and each process loads its share."""

import json
import re
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from event_examples import HEIGHT, SPEC, WIDTH, boxes_of, random_events, write_hdf5

from rvtssm.checks.verification import verify_dataset
from rvtssm.cli import main as cli
from rvtssm.datasets import DatasetConfig, custom
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.loading_config import DataConfig, SamplingConfig
from rvtssm.datasets.preparation_config import PreprocessConfig
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sampling import MixedBatchSampler
from rvtssm.datasets.sequence import RawSplit, has_sequences, open_prepared_split
from rvtssm.datasets.store import _frame_bytes, sequence_writer
from rvtssm.events.labels import write_boxes
from rvtssm.models.checkpoint import write_checkpoint
from rvtssm.readers import open_recording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.index import identity_of
from rvtssm.records import Labels, Windows, WindowSettings
from rvtssm.remote import copies, object_store
from rvtssm.remote.object_store import list_files, read_range, upload
from rvtssm.system.cache import cache_folder
from rvtssm.system.workers import DaskCluster

SETTINGS = WindowSettings(50_000)
CONFIG = PreprocessConfig(splits=("train",), workers=1)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(copies, "_BLOCK", 1 << 14)


def write_raw(folder: Path, names: str = "ab") -> Path:
    (folder / "train").mkdir(parents=True)
    for seed, name in enumerate(names):
        events = random_events(20_000, seed, span_us=1_100_000, start_us=30_000)
        write_dat(folder / "train" / f"{name}_td.dat", events, HEIGHT, WIDTH)
        boxes = boxes_of((250_000, 1, 2, 20, 20), (1_000_000, 5, 2, 20, 30), class_id=[0, 1])
        write_boxes(folder / "train" / f"{name}_bbox.npy", boxes)
    return folder


def put(folder: Path, url: str) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            upload(path, f"{url}/{path.relative_to(folder).as_posix()}")
    return url


def contents(url: str) -> dict[str, bytes]:
    return {name: read_range(f"{url}/{name}", 0, file.num_bytes) for name, file in list_files(url).items()}


def loaded() -> int:
    """Bytes in the cache."""
    return sum(path.stat().st_blocks * 512 for path in (cache_folder() / "remote" / "files").rglob("*.*"))


def test_preparing_into_a_store_gives_the_files_of_a_disk(store_url, tmp_path):
    local = write_raw(tmp_path / "raw")
    wanted = preprocess_dataset(SPEC, local, tmp_path / "out", SETTINGS, CONFIG, progress=False)
    raw, out = put(local, f"{store_url}/raw"), f"{store_url}/out"
    found = preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False)
    assert found == wanted and found.written == ["train/a", "train/b"]
    files = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.h5")}
    assert contents(out) == {name: path.read_bytes() for name, path in files.items()}
    again = preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False)
    assert again.skipped == wanted.written and not again.written
    assert not verify_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False).faults
    events = random_events(20_000, 7, span_us=1_100_000, start_us=30_000)
    write_dat(local / "train" / "a_td.dat", events, HEIGHT, WIDTH)  # of the same size
    put(local, raw)
    changed = preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False)
    assert (changed.written, changed.skipped) == (["train/a"], ["train/b"])
    with pytest.raises(ValueError, match=r"none does not exist; check dataset.raw_dir"):
        preprocess_dataset(SPEC, f"{store_url}/none", out, SETTINGS, CONFIG, progress=False)


def test_workers_of_a_cluster_prepare_into_a_store(store_url, tmp_path):
    distributed = pytest.importorskip("distributed")
    local = write_raw(tmp_path / "raw")
    preprocess_dataset(SPEC, local, tmp_path / "out", SETTINGS, CONFIG, progress=False)
    raw, out = put(local, f"{store_url}/raw"), f"{store_url}/out"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        workers = DaskCluster(cluster.scheduler_address)
        found = preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, False, workers)
        workers.close()
    assert found.written == ["train/a", "train/b"]
    assert contents(out) == {f"train/{name}.h5": (tmp_path / f"out/train/{name}.h5").read_bytes() for name in "ab"}


def test_an_upload_that_fails_is_one_line_and_is_made_up_for(store_url, tmp_path, monkeypatch):
    raw, out = put(write_raw(tmp_path / "raw"), f"{store_url}/raw"), f"{store_url}/out"
    files, _ = object_store.connected(out)
    monkeypatch.setattr(object_store, "PAUSES_S", (0,))
    with monkeypatch.context() as broken:

        def put_file(source, target):
            raise ConnectionResetError("broke off")

        broken.setattr(files, "put_file", put_file)
        found = preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False)
    message = f"{out}/train/a.h5 cannot be written (broke off): 2 attempts in 0 s failed; check the network and the"
    assert found.failed[0][0] == "train/a" and found.failed[0][1].startswith(message)
    assert not list_files(out)
    assert preprocess_dataset(SPEC, raw, out, SETTINGS, CONFIG, progress=False).written == ["train/a", "train/b"]


def test_frames_and_labels_of_a_store_are_those_of_a_disk(store_url, tmp_path):
    local = write_raw(tmp_path / "raw")
    preprocess_dataset(SPEC, local, tmp_path / "out", SETTINGS, CONFIG, progress=False)
    raw, out = put(local, f"{store_url}/raw"), put(tmp_path / "out", f"{store_url}/out")
    assert has_sequences(out, "train") and not has_sequences(out, "val")
    with pytest.raises(ValueError, match=r"val does not exist; prepare the recordings"):
        open_prepared_split(out, "val", SPEC)
    for wanted, *found in zip(
        open_prepared_split(tmp_path / "out", "train", SPEC),
        open_prepared_split(out, "train", SPEC),
        RawSplit(raw, "train", SPEC).sequences(SETTINGS),
        strict=True,
    ):
        for sequence in found:
            assert sequence.name == wanted.name
            np.testing.assert_array_equal(sequence.labels.boxes_ltwh, wanted.labels.boxes_ltwh)
            np.testing.assert_array_equal(sequence.windows.bounds_us, wanted.windows.bounds_us)
            np.testing.assert_array_equal(sequence.read(3, 17), wanted.read(3, 17))
            sequence.close()


def test_loader_processes_read_a_store(store_url, tmp_path):
    local = write_raw(tmp_path / "raw", "a")
    (local / custom.FILE).write_text(
        "classes: [car, pedestrian]\nheight: 48\nwidth: 64\nmin_side_px: 4\nevent_suffixes: [_td.dat]\n"
    )
    raw = put(local, f"{store_url}/raw")
    wanted, found = (
        list(data.eval_loader(data.sequences("train")))
        for data in (
            SequenceDataModule(DatasetConfig("custom", raw_dir=where), data=DataConfig(workers=num_workers))
            for where, num_workers in ((str(local), 0), (raw, 1))
        )
    )
    assert all(torch.equal(a.hist, b.hist) for a, b in zip(found, wanted, strict=True)) and wanted[0].hist.any()


def write_long(path: Path, num_windows: int) -> None:
    """A prepared file with frames that are hard to compress, of 6,144 bytes each."""
    ends_us = 50_000 * np.arange(1, num_windows + 1)
    windows = Windows(np.stack([ends_us - 50_000, ends_us], axis=1), np.full(num_windows, 50_000))
    last = np.array([num_windows - 1])
    labels = Labels(np.ones((1, 4), np.float32), np.zeros(1, np.int64), ends_us[last], last, np.full(1, -1))
    rng = np.random.default_rng(num_windows)
    with sequence_writer(path, windows, labels, (20, HEIGHT, WIDTH), np.uint8) as writer:
        writer.append([rng.bytes(6144) for _ in range(num_windows)])
        writer.meta = {
            **{"dataset": "tiny", "height": HEIGHT, "width": WIDTH, "downsample": 1, "class_names": SPEC.class_names},
            **{"convention": "exact", "stride_us": 50_000, "num_bins": 10, "count_cutoff": 10},
        }


def test_each_process_loads_its_share_of_the_frames(store_url, tmp_path, monkeypatch):
    for number in range(4):
        write_long(tmp_path / "out" / "train" / f"{number}.h5", 50 + number)
    out = put(tmp_path / "out", f"{store_url}/out")
    all_bytes = sum(file.num_bytes for file in list_files(out).values())
    shares = []
    for rank in range(2):
        monkeypatch.setenv("RVTSSM_CACHE_DIR", str(tmp_path / f"node{rank}"))
        sequences = open_prepared_split(out, "train", SPEC)
        opened = loaded()
        assert opened < all_bytes / 8
        config = SamplingConfig(mode="stream", batch_size=2, chunk_length=10)
        steps = [len(sequence.windows) for sequence in sequences]
        plan = MixedBatchSampler(steps, [sequence.label_steps for sequence in sequences], config, 0, rank, 2)
        for request in [request for batch in plan for request in batch if not request.is_empty]:
            stored = sequences[request.recording].source.stored
            start, stop = stored.offsets[[request.start, request.stop]]
            found = stored._read(partial(_frame_bytes, part=slice(start, stop)))
            with h5py.File(tmp_path / "out" / "train" / stored.path.name) as wanted:
                np.testing.assert_array_equal(found, wanted["frames"][start:stop])
        shares.append(loaded())
        for sequence in sequences:
            sequence.close()
    assert max(shares) < 0.7 * all_bytes and sum(shares) < 1.3 * all_bytes


def test_a_description_lies_in_the_store_as_well(store_url, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / custom.FILE).write_text("classes: [person]\nheight: 48\nwidth: 64\n")
    url = put(tmp_path / "raw", f"{store_url}/raw")
    assert custom.read_spec(url) == custom.read_spec(tmp_path / "raw")
    custom.copy_description(url, f"{store_url}/out")
    assert custom.read_spec(f"{store_url}/out") == custom.read_spec(tmp_path / "raw")
    with pytest.raises(ValueError, match=r"dataset\.yaml does not exist; it must describe the custom dataset"):
        custom.read_spec(f"{store_url}/none")


@pytest.mark.parametrize("suffix", ["_td.dat", ".h5"])
def test_a_recording_is_opened_by_its_url(store_url, tmp_path, suffix):
    events, path = random_events(3000), tmp_path / f"a{suffix}"
    write_dat(path, events, HEIGHT, WIDTH) if suffix == "_td.dat" else write_hdf5(path, events)
    upload(path, f"{store_url}/{path.name}")
    recording, wanted = open_recording(f"{store_url}/{path.name}"), open_recording(path)
    identity = identity_of(recording.path, b"")
    assert recording.time_range_us == wanted.time_range_us
    copies.unchecked[0] = float("inf")
    copies.make_room(1 << 62)  # its content is loaded again
    recording.close()
    assert loaded() == 0 and identity_of(recording.path, b"") == identity
    np.testing.assert_array_equal(recording.read().t, wanted.read().t)


def test_commands_take_urls_where_they_read(store_url, tmp_path, capsys):
    local = write_raw(tmp_path / "raw", "a")
    url = put(local, f"{store_url}/raw")
    name = "train/a_td.dat"
    reports = []
    for where in (str(local), url):
        assert cli.main(["inspect", f"{where}/{name}", "--json"]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]
    upload(local / "train" / "a_bbox.npy", f"{url}/{name}")
    assert cli.main(["inspect", f"{url}/{name}"]) == 2
    assert f"{url}/{name}" in capsys.readouterr().err
    for command in (
        ["preprocess", "dataset=gen1", f"dataset.raw_dir={store_url}/none", f"dataset.prepared_dir={store_url}/out"],
        ["verify", "dataset=gen1", f"dataset.prepared_dir={store_url}/none"],
    ):
        assert cli.main(command) == 2
        line = capsys.readouterr().err.strip()
        missing = rf"rvtssm {command[0]}: (the folder )?{re.escape(store_url)}/none(/train)? does not exist; .*"
        assert re.fullmatch(missing, line)


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("predict", ["min_score=0", "formats=[jsonl]"]),
        ("live", []),
        ("audit", ["duration_s=1.2", "num_timed=1", "hz=[20]", "finer=[1]"]),
    ],
)
def test_a_detector_reads_a_recording_by_its_url(store_url, live_checkpoint, tmp_path, command, keys):
    checkpoint = live_checkpoint()
    write_checkpoint(tmp_path / "small.ckpt", checkpoint.detector, checkpoint)
    write_dat(tmp_path / "a_td.dat", random_events(20_000, span_us=1_300_000), HEIGHT, WIDTH)
    upload(tmp_path / "a_td.dat", f"{store_url}/a_td.dat")
    found = []
    for number, folder in enumerate((str(tmp_path), store_url)):
        out = tmp_path / f"out{number}"
        words = [command, f"checkpoint={tmp_path / 'small.ckpt'}", f"recording={folder}/a_td.dat", f"out={out}", *keys]
        assert cli.main(words) == 0
        if command == "audit":
            report = json.loads((out / "audit.json").read_text())
            found.append({key: value for key, value in report.items() if key not in ("input", "cost")})
        elif command == "live":  # which windows it passes over depends on the time that a step takes
            found.append(json.loads((out / "live.json").read_text())["num_events"])
        else:
            found.append((out / "detections.jsonl").read_text())
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["generate", "dataset=synthetic", "dataset.raw_dir=s3://bucket/raw"], "dataset.raw_dir"),
        (["label", "checkpoint=a.ckpt", "dataset=gen1", "dataset.raw_dir=s3://bucket/raw"], "dataset.raw_dir"),
        (["train", "dataset=gen1", "dataset.raw_dir=data", "out=s3://bucket/run"], "out"),
    ],
)
def test_commands_that_need_a_local_folder_say_so(command, key, capsys):
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert f"{key}=s3://bucket/r" in error and "needs a folder of this machine there" in error
