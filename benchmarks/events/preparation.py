"""Preparing a recording from its file to a file of frames, against RVT's preparation on one core.

The baseline is rebuilt from the description of that script: it reads recordings that were converted to HDF5 (blosc),
takes the whole column of times and makes it non-decreasing, looks up the windows in it (int64 in uint32, so that numpy
converts the column each time), and for each window reads its events, makes int64 tensors, checks their order and
polarity, scatters them into a frame in torch, halves 1Mpx frames by nearest-exact interpolation and
appends the frame to a dataset packed with blosc zstd level 1. Ours reads the DAT file and is timed as it comes, with
the convention `exact`; that its frames are RVT's with the convention `rvt` is checked first.

Recordings are simulated traffic, played faster until they have the event rate, and repeated; every frame is packed on
its own, so that repeating makes none of them smaller.

    python -m benchmarks.events --json FILE --only preparation
    python -m benchmarks.events.preparation --memory 10     # GB of DAT: peak memory beside that of a tenth
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import torch

from benchmarks.events.histogram import rvt_frame, shape_of
from benchmarks.measuring import take_turns, times_faster
from rvtssm.contrib.demo.generate_recordings import simulated_recording
from rvtssm.contrib.demo.simulation_config import SyntheticConfig
from rvtssm.datasets import PreprocessConfig
from rvtssm.datasets.compress import FrameCompressor, decompress_into
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.prepare_recording import Recipe, prepare_recording
from rvtssm.datasets.store import open_sequence
from rvtssm.datasets.tree import RawRecording
from rvtssm.readers.dat import write_dat
from rvtssm.readers.recording import join_events
from rvtssm.records import DatasetSpec, Events, WindowSettings
from rvtssm.system.workers import Processes

SENSORS = {"gen1": (240, 304, 1, 3.0), "onempx": (720, 1280, 2, 0.6)}  # height, width, downsample, seconds simulated
RATES = (5.5, 10.0)  # million events per second
NUM_EVENTS = 40_000_000
WINDOW_US = 50_000
NUM_RUNS = 3
REACH, REACH_TWO = 5.0, 9.0
RVT_PACKING = dict(hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE))
PACKINGS: dict[str, dict[str, Any]] = {
    "blosc zstd 1, byte shuffle (RVT)": RVT_PACKING,
    "blosc zstd 3, bit shuffle": dict(hdf5plugin.Blosc("zstd", 3, hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc lz4 5": dict(hdf5plugin.Blosc("lz4", 5, hdf5plugin.Blosc.NOSHUFFLE)),
    "HDF5 zstd 1": dict(hdf5plugin.Zstd(1)),
    "HDF5 zstd 3": dict(hdf5plugin.Zstd(3)),
}
CODEC_FRAMES = 48
PREPARE_AND_SAY_PEAK = """
import sys
from pathlib import Path
from rvtssm.datasets.prepare_recording import Recipe, prepare_recording
from rvtssm.datasets.tree import RawRecording
from rvtssm.records import DatasetSpec, WindowSettings
raw, height, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
spec = DatasetSpec("any", height, width, ("car",), 50_000, 1, 1, 1, 1)
recipe = Recipe(spec, WindowSettings(), is_labelled=False)
prepare_recording(RawRecording("a", raw, None), raw.with_name("a.h5"), recipe)
# not ru_maxrss, which begins with that of the process it was forked from
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) // 1000)
"""


def rows() -> list[dict[str, Any]]:
    """Return the seconds per window of both, the sizes, and the codecs on the same frames."""
    torch.set_num_threads(1)
    of_recordings: list[dict[str, Any]] = []
    for sensor, (height, width, downsample, seconds) in SENSORS.items():
        scene = simulated(height, width, seconds)
        for rate in RATES:
            spec = spec_of(sensor, height, width, downsample)
            with tempfile.TemporaryDirectory() as folder:
                of_recordings += _rows_of_recording(Path(folder), spec, scene, rate)
    return of_recordings


def simulated(height: int, width: int, seconds: float) -> Events:
    config = SyntheticConfig(duration_s=seconds, ego_motion_share=1.0)
    return join_events(list(simulated_recording(config, "train", 0, (height, width))[0]))


def at_rate(scene: Events, rate: float, num_events: int) -> Iterator[Events]:
    """Return the scene at a rate in million events per second, repeated until there are enough events."""
    t = ((scene.t - scene.t[0]) * (len(scene) / rate / float(np.ptp(scene.t)))).astype(np.int64)
    for turn in range(-(-num_events // len(scene))):
        yield Events(t + turn * (int(t[-1]) + 1), scene.x, scene.y, scene.p)


def spec_of(name: str, height: int, width: int, downsample: int) -> DatasetSpec:
    limits: Any = dict.fromkeys(
        ("min_side_px", "min_diagonal_px", "prepare_min_side_px", "prepare_min_diagonal_px"), 1.0
    )
    return DatasetSpec(name, height, width, ("car",), WINDOW_US, downsample=downsample, **limits)


def _rows_of_recording(folder: Path, spec: DatasetSpec, scene: Events, rate: float) -> Iterator[dict[str, Any]]:
    raw, converted = folder / "raw" / "train" / "a_td.dat", folder / "a.h5"
    write_dat(raw, at_rate(scene, rate, NUM_EVENTS), spec.height, spec.width)
    _convert(converted, at_rate(scene, rate, NUM_EVENTS), spec)
    config = PreprocessConfig(labels="none", splits=("train",))
    ours, theirs = folder / "out" / "train" / "a.h5", folder / "rvt.h5"
    # also builds the index and compiles the kernels
    rvt = WindowSettings(WINDOW_US, WINDOW_US, "rvt")
    prepare_recording(RawRecording("a", raw, None), ours, Recipe(spec, rvt, is_labelled=False))
    sequence = open_sequence(ours)
    ends_us = sequence.windows.ends_us
    _rvt_preparation(converted, theirs, ends_us, spec)
    with h5py.File(theirs) as file, closing(sequence):
        for i in range(0, len(ends_us), 16):
            if not np.array_equal(sequence.histograms(i, min(i + 16, len(ends_us))), file["data"][i : i + 16]):
                raise AssertionError(f"the frames differ ({spec.name}, {rate} Mev/s, windows from {i})")

    def one_core() -> None:
        prepare_recording(RawRecording("a", raw, None), ours, Recipe(spec, WindowSettings(), is_labelled=False))

    def two_cores(workers: Processes) -> None:
        ours.unlink()
        folders = folder / "raw", folder / "out"
        summary = preprocess_dataset(spec, *folders, WindowSettings(), config, progress=False, workers=workers)
        assert summary.written == ["train/a"], summary

    one_core()
    with closing(Processes(2)) as workers:
        two_cores(workers)  # processes are there, their kernels loaded: a second that a data set does not notice
        runs: dict[str, Callable[[], object]] = {
            "1 core": one_core,
            "2 cores": lambda: two_cores(workers),
            "theirs": lambda: _rvt_preparation(converted, theirs, ends_us, spec),
        }
        taken = take_turns(runs, NUM_RUNS, warm_up=0)
    num_events = sum(map(len, at_rate(scene, rate, NUM_EVENTS)))
    sizes = [path.stat().st_size / len(ends_us) / 1e3 for path in (ours, theirs)]
    for cores, reach in (("1 core", REACH), ("2 cores", REACH_TWO)):
        ratio = times_faster(taken[cores], taken["theirs"])
        yield {
            "name": "preparation",
            "shape": shape_of(spec.height, spec.width, spec.downsample),
            "pass": f"{rate:g} Mev/s, {cores}",
            "seconds": median(taken[cores]) / len(ends_us),
            "baseline": median(taken["theirs"]) / len(ends_us),
            "baseline_name": "RVT's preparation, 1 core",
            "ratio": ratio,
            "reach": f">= {reach:g}",
            "is_reached": ratio >= reach and sizes[0] <= sizes[1],
            "events_per_s": num_events / median(taken[cores]),
            "kb": sizes[0],
            "baseline_kb": sizes[1],
        }
    with h5py.File(theirs) as file:
        frames = file["data"][:CODEC_FRAMES]
    yield from _codec_rows(frames, spec, rate)


def _codec_rows(frames: np.ndarray, spec: DatasetSpec, rate: float) -> Iterator[dict[str, Any]]:
    """Measure every codec on the same frames in memory, one frame at a time like a loader."""
    found = {name: _hdf5_codec(frames, packing) for name, packing in PACKINGS.items()}
    found["ours"] = _own_codec(frames)
    write, read, size = found["blosc zstd 1, byte shuffle (RVT)"]
    for name, (seconds, read_seconds, num_bytes) in found.items():
        yield {
            "name": f"codec: {name}",
            "shape": shape_of(spec.height, spec.width, spec.downsample),
            "pass": f"{rate:g} Mev/s",
            "seconds": seconds,
            "baseline": write,
            "baseline_name": "writing with RVT's codec",
            "ratio": write / seconds,
            "kb": num_bytes / 1e3,
            "baseline_kb": size / 1e3,
            "read_seconds": read_seconds,
            "read_ratio": read / read_seconds,
        }


def _hdf5_codec(frames: np.ndarray, packing: dict[str, Any]) -> tuple[float, float, float]:
    """Return the seconds to write and to read a frame, and its bytes."""
    writes, reads = [], []
    with h5py.File("codec", "w", driver="core", backing_store=False, rdcc_nbytes=0) as file:
        stored = file.create_dataset("data", frames.shape, np.uint8, chunks=(1, *frames.shape[1:]), **packing)
        for i, frame in enumerate(frames):
            began = time.perf_counter()
            stored[i] = frame
            writes.append(time.perf_counter() - began)
        for i in range(len(frames)):
            began = time.perf_counter()
            stored[i]
            reads.append(time.perf_counter() - began)
        size = stored.id.get_storage_size() / len(frames)
    return float(np.median(writes)), float(np.median(reads)), size


def _own_codec(frames: np.ndarray) -> tuple[float, float, float]:
    compressor, writes, reads, sizes = FrameCompressor(frames[0].nbytes), [], [], []
    for frame in frames:
        began = time.perf_counter()
        data = compressor.compress(frame)
        writes.append(time.perf_counter() - began)
        began = time.perf_counter()
        decompress_into(data, np.zeros_like(frame))
        reads.append(time.perf_counter() - began)
        sizes.append(len(data))
    return float(np.median(writes)), float(np.median(reads)), float(np.mean(sizes))


def _convert(path: Path, blocks: Iterator[Events], spec: DatasetSpec) -> None:
    """Write a recording in the HDF5 layout of RVT."""
    with h5py.File(path, "w") as file:
        columns = {"t": np.uint32, "x": np.uint16, "y": np.uint16, "p": np.uint8}
        stored = {
            name: file.create_dataset(f"events/{name}", (0,), dtype, maxshape=(None,), chunks=(1 << 16,), **RVT_PACKING)
            for name, dtype in columns.items()
        }
        for block in blocks:
            for name, column in stored.items():
                column.resize(len(column) + len(block), axis=0)
                column[-len(block) :] = getattr(block, name)
        file["events/height"], file["events/width"] = spec.height, spec.width


def _rvt_preparation(source: Path, target: Path, ends_us: np.ndarray, spec: DatasetSpec) -> None:
    frame_shape = (20, spec.frame_height, spec.frame_width)
    with h5py.File(source) as file, h5py.File(target, "w") as out:
        data = out.create_dataset(
            "data", (1, *frame_shape), np.uint8, maxshape=(None, *frame_shape), chunks=(1, *frame_shape), **RVT_PACKING
        )
        t = np.maximum.accumulate(file["events/t"][()])
        starts = np.searchsorted(t, ends_us - WINDOW_US, side="left")
        stops = np.searchsorted(t, ends_us, side="right")
        for window, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            x, y, p = (file[f"events/{name}"][start:stop].astype(np.int64) for name in "xyp")
            p, times = np.maximum(p, 0), t[start:stop].astype(np.int64)
            assert (times[:-1] <= times[1:]).all()
            x, y, p, time_us = (torch.from_numpy(column) for column in (x, y, p, times))
            data.resize(window + 1, axis=0)
            if stop > start:  # a new frame holds zeros
                assert p.min() >= 0 and p.max() <= 1
                data[window] = rvt_frame(time_us, x, y, p, spec.height, spec.width, spec.downsample).numpy()


def memory_rows(gigabytes: float) -> list[dict[str, Any]]:
    """Return the peak memory of a process that prepares a DAT file of this size, and of one with a tenth of it."""
    height, width, _, seconds = SENSORS["gen1"]
    scene, found = simulated(height, width, seconds), []
    for size in (gigabytes / 10, gigabytes):
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder, "a_td.dat")
            write_dat(raw, at_rate(scene, RATES[0], round(size * 1e9 / 8)), height, width)
            began = time.perf_counter()
            child = [sys.executable, "-c", PREPARE_AND_SAY_PEAK, str(raw), str(height), str(width)]
            peak = int(subprocess.run(child, capture_output=True, text=True, check=True).stdout)
            found.append({"gb": raw.stat().st_size / 1e9, "peak_mb": peak, "seconds": time.perf_counter() - began})
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events.preparation")
    parser.add_argument("--memory", type=float, metavar="GB", help="peak memory for a recording of this size")
    arguments = parser.parse_args()
    if arguments.memory:
        for row in memory_rows(arguments.memory):
            print("{gb:.1f} GB: peak {peak_mb} MB, {seconds:.0f} s".format(**row))
    else:
        parser.error("give --memory GB, or run python -m benchmarks.events --json FILE --only preparation")
