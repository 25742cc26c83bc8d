"""Training batches per second from raw events and from prepared files, at rates from 20 to 200 Hz.

Recordings are generated, of Gen1's and of 1 Mpx's size and event rate; windows are as long as the stride. Raw events
are sent packed and counted in the receiving process (`events`), as the loader does it, or counted in the workers and
sent as frames (`frames`); without workers there is no difference. Bytes read are those of this process's read calls.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.events.histogram import traffic
from benchmarks.measuring import times_faster
from rvtssm.datasets import AugmentConfig, DataConfig, DatasetConfig, PreprocessConfig, SamplingConfig, build_spec
from rvtssm.datasets.datamodule import SequenceDataModule
from rvtssm.datasets.loader import Chunk, Collate
from rvtssm.datasets.packed_batch import counted
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events, SequenceBatch, WindowSettings

RATES_HZ = (20, 40, 80, 100, 200)
NUM_RECORDINGS = 2
ROUNDS = 3  # the ways of one row take turns
SECONDS = 1.5  # of each turn


@dataclass(frozen=True)
class Kind:
    """A dataset's recordings, and the batches that are made of them."""

    dataset: str
    events_per_s: float
    seconds: int
    batch_size: int
    chunk_length: int


KINDS = (Kind("gen1", 0.67e6, 20, 4, 21), Kind("onempx", 5e6, 5, 2, 10))


@dataclass(frozen=True)
class CountedInWorkers:
    """Collates chunks of events into frames at once, so that frames are what a worker sends."""

    collate: Collate

    def __call__(self, chunks: list[Chunk]) -> SequenceBatch:
        return counted(self.collate(chunks))


def rows() -> list[dict[str, Any]]:
    """Return one row per kind of recording, rate, source and number of workers; the baseline is prepared files."""
    torch.set_num_threads(1)
    of_loaders = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="rvtssm-loading-") as folder:
            raw_dir = Path(folder) / "raw"
            _write_recordings(kind, raw_dir / "train")
            for hz in RATES_HZ:
                prepared_dir = Path(folder) / f"prepared_{hz}"
                config = DatasetConfig(kind.dataset, str(raw_dir), str(prepared_dir))
                windows, how = WindowSettings(round(1e6 / hz)), PreprocessConfig(splits=("train",), workers=1)
                preprocess_dataset(build_spec(config), raw_dir, prepared_dir, windows, how, progress=False)
                for num_workers in (0, 2):
                    for is_augmented in (False, True) if hz == RATES_HZ[0] else (False,):
                        of_loaders += _rows_of(kind, config, windows, num_workers, is_augmented)
    return of_loaders


def _rows_of(
    kind: Kind, config: DatasetConfig, windows: WindowSettings, num_workers: int, is_augmented: bool
) -> list[dict[str, Any]]:
    ways = ("prepared", "events", "frames") if num_workers else ("prepared", "events")
    loaders = {}
    for way in ways:
        config.source = "prepared" if way == "prepared" else "raw"
        data = SequenceDataModule(
            config,
            SamplingConfig(batch_size=kind.batch_size, chunk_length=kind.chunk_length),
            AugmentConfig() if is_augmented else None,
            DataConfig(workers=num_workers),
            windows=windows,
        )
        loaders[way] = data.train_dataloader()
        loaders[way].count_on = torch.device("cpu")
        if way == "frames":
            collate: Any = loaders[way].collate_fn
            loaders[way].collate_fn = CountedInWorkers(collate)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    bytes_read: dict[str, float] = {}
    for turn in range(ROUNDS):
        for way in ways if turn % 2 else reversed(ways):
            per_batch, bytes_read[way] = _timed(loaders[way], num_workers)
            seconds[way].append(per_batch)
    spec = build_spec(config)
    found = []
    for way in ways:
        per_batch, ratio = median(seconds[way]), times_faster(seconds[way], seconds["prepared"])
        has_bar = way == "events" and windows.stride_us == 50_000
        folder = config.prepared_dir if way == "prepared" else config.raw_dir
        found.append(
            {
                "name": "loading" + (", augmented" if is_augmented else ""),
                "shape": f"{kind.chunk_length}x{kind.batch_size}x20x{spec.frame_height}x{spec.frame_width}",
                "pass": f"{way}, {windows.hz:g} Hz, {num_workers} workers",
                "dataset": kind.dataset,
                "source": way,
                "hz": windows.hz,
                "num_workers": num_workers,
                "seconds": per_batch,
                "baseline": median(seconds["prepared"]),
                "baseline_name": "prepared files",
                "ratio": ratio,
                "reach": ">= 1" if has_bar else "",
                "is_reached": ratio >= 1 if has_bar else None,
                "batches_per_s": 1 / per_batch,
                "windows_per_s": kind.chunk_length * kind.batch_size / per_batch,
                "bytes_read_per_batch": bytes_read[way] if num_workers == 0 else None,
                "bytes_on_disk_per_s": _num_bytes(Path(str(folder))) / (NUM_RECORDINGS * kind.seconds),
            }
        )
    return found


def _timed(loader: Any, num_workers: int) -> tuple[float, float]:
    """Return the seconds per batch, without those ready at the start, and the bytes that this process read for each."""
    batches = _endless(loader)
    for _ in range(2 * num_workers + 1):
        next(batches)
    count, began, bytes_before = 0, time.perf_counter(), _bytes_read()
    while count < 3 or time.perf_counter() - began < SECONDS:
        next(batches)
        count += 1
    per_batch, num_bytes = (time.perf_counter() - began) / count, (_bytes_read() - bytes_before) / count
    batches.close()
    return per_batch, num_bytes


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


def _bytes_read() -> int:
    """Return the bytes that this process read from files or from the page cache."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix in (".dat", ".h5"))


def _write_recordings(kind: Kind, folder: Path) -> None:
    """Write traffic at a constant rate with a box of a car every 250 ms."""
    spec = build_spec(DatasetConfig(kind.dataset))
    folder.mkdir(parents=True)
    for index in range(NUM_RECORDINGS):
        events = traffic(round(kind.events_per_s * kind.seconds), spec.height, spec.width, seed=index)
        t = (events.t / (kind.events_per_s / 1e6)).astype(np.int64)
        write_dat(folder / f"{index}_td.dat", Events(t, events.x, events.y, events.p), spec.height, spec.width)
        times = np.arange(250_000, kind.seconds * 1_000_000, 250_000)
        boxes = np.zeros(len(times), BOX_DTYPE)
        boxes["t"], boxes["x"], boxes["y"], boxes["w"], boxes["h"] = times, 20, 20, 100, 100
        boxes["class_id"] = spec.disk_class_ids[0]
        boxes["still_us"] = -1
        write_boxes(folder / f"{index}_bbox.npy", boxes)
