"""Peak memory of reading recordings of many GB, one format at a time, each in a process of its own.

A file holds a few milliseconds of a busy 1280 x 720 sensor again and again, of which only the times are moved on, so
that it is written as fast as the disk takes it and never lies in memory. A fresh process opens it, builds the index,
reads 5 ms at 20 places and then all of it; what it found is checked against what was written.

    python -m benchmarks.events.memory --gb 10 --json FILE [--only ecf,evt2] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console

from benchmarks.events.__main__ import facts, table
from benchmarks.events.encoders import WRITERS, readout
from benchmarks.events.preparation import RVT_PACKING
from benchmarks.measuring import some_of, write_json
from rvtssm.readers.header import read_text_header
from rvtssm.records import Events

FORMATS = ("dat", "evt2", "evt21", "evt3", "ecf", "rvt")
LIMIT_MB = 1000
HEIGHT, WIDTH = 720, 1280
NUM_EVENTS, PIXELS_PER_ROW = 163_840, 6.0  # 16.384 ms: four times what EVT3 counts without its upper bits
_CHUNK_EVENTS = {"ecf": 1 << 14, "rvt": 1 << 16}  # a file repeats its chunks as they are stored
# how words hold their time: type, first bit, number of bits, microseconds in one; DAT's hold the whole of it
_TIMES = {
    "dat": ("<u8", 0, 32, 1),
    "evt2": ("<u4", 0, 28, 64),
    "evt21": ("<u8", 32, 28, 64),
    "evt3": ("<u2", 0, 12, 4096),
}
_TIME_HIGH = 8  # the kind of word that sets the upper bits, in its upper four
_DAT_TYPE_BYTES = 2  # between the header and the words
_SPARE = 1.1  # disk for the index, and not to fill it
_READ_AND_SAY_PEAK = """
import json, sys, time
from pathlib import Path
from rvtssm.readers import open_recording
from rvtssm.readers.index import index_path
def peak_mb():  # not ru_maxrss, which begins with that of the process it was forked from
    (peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(peak) * 1024 // 10**6
imports_mb, clock = peak_mb(), [time.process_time()]
recording = open_recording(sys.argv[1])
num_blocks = len(recording._built_index().states)
begin_us, last_us = recording.time_range_us
clock.append(time.process_time())
for place in range(20):
    start_us = begin_us + (last_us - begin_us) * place // 20
    recording.between(start_us, start_us + 5000)
clock.append(time.process_time())
num_events = sum(map(len, recording.iterate(reuse=True)))
clock.append(time.process_time())
index, faults = index_path(Path(sys.argv[1])), recording.faults
print(json.dumps({
    "read": [num_events, recording.num_events, begin_us, last_us],
    "faults": [faults.backward_steps, faults.out_of_frame, faults.truncated_bytes],
    "blocks": num_blocks, "index_bytes": index.stat().st_size if index.exists() else 0,
    "index_cpu_s": clock[1] - clock[0], "slice_cpu_ms": (clock[2] - clock[1]) / 20 * 1e3,
    "iterate_cpu_s": clock[3] - clock[2],
    "imports_mb": imports_mb, "peak_mb": peak_mb(),
}))
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events.memory", description=__doc__)
    parser.add_argument("--gb", type=float, default=10.0, help="size of the recordings")
    parser.add_argument("--json", type=Path, required=True, help="file for the rows and the facts about the machine")
    parser.add_argument("--only", type=some_of(FORMATS), default=",".join(FORMATS), help=f"some of {','.join(FORMATS)}")
    parser.add_argument("--folder", type=Path, help="where there is room for one recording; a temporary folder")
    chosen = parser.parse_args(arguments)
    folder, num_bytes = chosen.folder or Path(tempfile.gettempdir()), chosen.gb * 1e9
    if not 0 < num_bytes < float("inf"):
        parser.error(f"--gb {chosen.gb}; give a size above 0, such as 10")
    if not Path("/proc/self/status").exists():
        parser.error("peak memory is read from /proc/self/status, which this system lacks; run it on Linux")
    if not folder.is_dir():
        parser.error(f"--folder {folder} is no folder; create it or choose another")
    if (free := shutil.disk_usage(folder).free) < _SPARE * num_bytes:
        parser.error(f"{folder} has {free / 1e9:.1f} GB free, {_SPARE * chosen.gb:.1f} are needed; choose a --folder")
    result: dict[str, Any] = {"machine": facts(), "rows": {"memory": []}}
    for kind in chosen.only:
        result["rows"]["memory"].append(memory_row(kind, int(num_bytes), folder))
        write_json(chosen.json, result)  # after every format: the rest may be interrupted
    Console(width=200).print(table("memory", result["rows"]["memory"]))


def memory_row(kind: str, num_bytes: int, folder: Path) -> dict[str, Any]:
    """Write a recording of `num_bytes` or a little more, read it, remove it; AssertionError if the two differ."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own, f"a.{kind}")
        written = write_recording(path, kind, num_bytes)
        size = path.stat().st_size
        child = [sys.executable, "-c", _READ_AND_SAY_PEAK, str(path)]
        environment = {**os.environ, "RVTSSM_CACHE_DIR": own}  # for the index
        told = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        measured = json.loads(told)
    num_events, last_us = written
    read, faults = measured.pop("read"), measured.pop("faults")
    if read != [num_events, num_events, 0, last_us] or any(faults):
        raise AssertionError(f"{kind}: {read} was read with the faults {faults}, {written} was written")
    reached = {"reach": f"<= {LIMIT_MB} MB", "is_reached": measured["peak_mb"] <= LIMIT_MB}
    return {"format": kind, "bytes": size, "events": num_events, "recorded_s": last_us / 1e6, **measured, **reached}


def write_recording(path: Path, kind: str, num_bytes: int) -> tuple[int, int]:
    """Write a recording of at least `num_bytes` that begins at 0 us; return its number of events and its last time."""
    events = readout(NUM_EVENTS, HEIGHT, WIDTH, PIXELS_PER_ROW)
    chunk = _CHUNK_EVENTS.get(kind, NUM_EVENTS)
    events = Events(events.t[:chunk], events.x[:chunk], events.y[:chunk], events.p[:chunk])
    if kind == "rvt":
        turns, step_us = _write_rvt(path, events, num_bytes)
    else:
        WRITERS[kind](path, events, HEIGHT, WIDTH)
        turns, step_us = (
            _repeat_chunk(path, events, num_bytes) if kind == "ecf" else _repeat_words(path, kind, events, num_bytes)
        )
    return turns * len(events), (turns - 1) * step_us + int(events.t[-1])


def _repeat_words(path: Path, kind: str, events: Events, num_bytes: int) -> tuple[int, int]:
    """Append a file's words to it with later times; return the number of copies and the microseconds between them."""
    dtype, first_bit, num_bits, unit_us = _TIMES[kind]
    words = np.fromfile(path, dtype, offset=read_text_header(path).num_bytes + _DAT_TYPE_BYTES * (kind == "dat"))
    is_time = slice(None) if kind == "dat" else np.flatnonzero(words >> (first_bit + num_bits) == _TIME_HIGH)
    mask = (1 << num_bits) - 1
    times = words[is_time] >> first_bit & mask
    others = words[is_time] - (times << first_bit)
    step, turns = int(events.t[-1]) // unit_us + 1, 1
    with open(path, "ab") as file:
        while file.tell() < num_bytes:
            words[is_time] = others + ((times + turns * step % (mask + 1) & mask) << first_bit)
            file.write(words.data)
            turns += 1
    return turns, step * unit_us


def _repeat_chunk(path: Path, events: Events, num_bytes: int) -> tuple[int, int]:
    """Append the only chunk of a Metavision file to it with later times, which a number at the chunk's start sets."""
    step_us = int(events.t[-1]) + 1
    with h5py.File(path, "r+") as file:
        table = file["CD/events"]
        chunk = bytearray(table.id.read_direct_chunk((0,))[1])
        turns = max(1, -(-num_bytes // len(chunk)))
        table.resize((turns * len(events),))
        for turn in range(1, turns):
            chunk[4:12] = (turn * step_us).to_bytes(8, "little")
            table.id.write_direct_chunk((turn * len(events),), bytes(chunk))
    return turns, step_us


def _write_rvt(path: Path, events: Events, num_bytes: int) -> tuple[int, int]:
    """Write the HDF5 layout of RVT like `_repeat_words`; only the times are packed again."""
    step_us, size = int(events.t[-1]) + 1, len(events)
    with h5py.File(path, "w") as file:
        group = file.create_group("events")
        group["height"], group["width"] = HEIGHT, WIDTH
        columns = {
            name: group.create_dataset(
                name, data=getattr(events, name), chunks=(size,), maxshape=(None,), **RVT_PACKING
            )
            for name in ("t", "x", "y", "p")
        }
        turns = max(1, -(-num_bytes // sum(column.id.get_storage_size() for column in columns.values())))
        packed = {name: columns[name].id.read_direct_chunk((0,))[1] for name in ("x", "y", "p")}
        for column in columns.values():
            column.resize((turns * size,))
        for start in range(size, turns * size, size):
            columns["t"][start : start + size] = events.t + start // size * step_us
            for name, data in packed.items():
                columns[name].id.write_direct_chunk((start,), data)
    return turns, step_us


if __name__ == "__main__":
    main()
