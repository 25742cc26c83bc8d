"""Reading whole files: million events per second of our readers and of the libraries that are installed.

Processor time of one process (a library with several threads is charged for all of them), files of 20 million events
in the page cache, by turns, median. Every library's events are compared with those that were written: one that gives
others is listed as wrong, and its speed means little. Install what there is: pip install faery expelliarmus evt3 evlib.

`plain loop` tells how fast the machine is: one numba loop per block of a file that is known to be whole, ordered and
inside the sensor, so without a check or a repair, into the same arrays again and again.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from benchmarks.events.encoders import WRITERS, readout, repeated
from rvtssm.readers import open_recording
from rvtssm.readers.gate import EventBuffer
from rvtssm.readers.header import read_text_header
from rvtssm.records import Events

NUM_EVENTS = 20_000_000
NUM_RUNS = 5
HEIGHT, WIDTH = 720, 1280
REACH = {"dat": 1000, "evt2": 500, "evt3": 120, "ecf": 120}  # Mev/s where memory copies at 40 GB/s
REAL = Path(__file__).parents[2] / "tests" / "golden" / "recordings" / "evt3_trigger_noise.raw"

Summary = tuple[int, int, int, int, int]


def rows() -> list[dict[str, Any]]:
    """Return one row per file and reader."""
    logging.disable(logging.INFO)  # evlib tells of what it lacks
    of_files = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in SCENES.items():
            events = make()
            for kind, write in WRITERS.items():
                if kind in ("dat", "evt2") and name != "dense":  # one word per event, whatever the scene
                    continue
                path = Path(folder) / f"a{SUFFIXES.get(kind, '.raw')}"
                write(path, events, HEIGHT, WIDTH)
                of_files += _rows_of(path, kind, name, events)
                path.unlink()
    return of_files


def _rows_of(path: Path, kind: str, name: str, events: Events) -> list[dict[str, Any]]:
    expected = _summary([events])
    readers: dict[str, Callable[[Path], int]] = {"rvtssm": _count}
    verdicts = {"rvtssm": _verdict(_blocks, path, kind, expected)}
    for library, (kinds, whole) in LIBRARIES.items():
        if kind not in kinds:
            continue
        verdicts[library] = _verdict(whole, path, kind, expected)
        if verdicts[library] in ("equal", "wrong"):
            readers[library] = lambda path, whole=whole: sum(map(len, whole(path, kind)))  # type: ignore[misc]
    seconds: dict[str, list[float]] = {reader: [] for reader in readers}
    for _ in range(NUM_RUNS):
        for reader, read in readers.items():
            if len(seconds[reader]) and seconds[reader][0] > 3.0 and len(seconds[reader]) > 1:
                continue  # two runs tell enough of what is ten times slower
            began = time.process_time()
            read(path)
            seconds[reader].append(time.process_time() - began)
    return [
        {
            "format": kind,
            "events": name,
            "bytes_per_event": round(path.stat().st_size / len(events), 2),
            "reader": reader,
            "mev_per_s": round(len(events) / float(np.median(seconds[reader])) / 1e6, 1) if reader in seconds else None,
            "ours_faster_by": _ratio(seconds["rvtssm"], seconds[reader]) if reader in seconds else None,
            "reach_at_40_gb_per_s": REACH.get(kind) if reader == "rvtssm" else None,
            "result": verdict,
        }
        for reader, verdict in verdicts.items()
    ]


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(float(np.median([b / a for a, b in zip(ours, theirs, strict=False)])), 2)


def _count(path: Path) -> int:
    recording = open_recording(path)
    num_events = sum(len(block) for block in recording.iterate(reuse=True))
    recording.close()
    return num_events


def _verdict(whole: Callable[[Path, str], Any], path: Path, kind: str, expected: Summary) -> str:
    try:
        return "equal" if _summary(whole(path, kind)) == expected else "wrong"
    except ModuleNotFoundError:
        return "not installed"
    except BaseException as error:  # a panic of a Rust library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"fails: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}"


def _summary(blocks: Any) -> Summary:
    """Return the number of events and sums over the columns that depend on every event and on their order."""
    count = total_t = total_x = total_y = total_p = 0
    for block in blocks:
        place = np.arange(count, count + len(block), dtype=np.int64) % 1009
        count += len(block)
        total_t += int((block.t.astype(np.int64) * place).sum())
        total_x += int((block.x.astype(np.int64) * place).sum())
        total_y += int((block.y.astype(np.int64) * place).sum())
        total_p += int(((block.p > 0) * place).sum())
    return count, total_t, total_x, total_y, total_p


class _Block:
    """Columns of another library, under our names."""

    def __init__(self, t: Any, x: Any, y: Any, p: Any) -> None:
        self.t, self.x, self.y, self.p = (np.asarray(column) for column in (t, x, y, p))

    def __len__(self) -> int:
        return len(self.t)


def _blocks(path: Path, kind: str) -> list[Events]:
    return list(open_recording(path).iterate())


def _faery(path: Path, kind: str) -> list[_Block]:
    stream = importlib.import_module("faery").events_stream_from_file(path)
    return [_Block(block["t"], block["x"], block["y"], block["on"]) for block in stream]


def _expelliarmus(path: Path, kind: str) -> list[_Block]:
    wizard = importlib.import_module("expelliarmus").Wizard(encoding=kind, fpath=path)
    block = wizard.read()
    return [_Block(block["t"], block["x"], block["y"], block["p"])]


def _evt3(path: Path, kind: str) -> list[_Block]:
    block = importlib.import_module("evt3").decode_file(str(path))
    return [_Block(block.timestamp, block.x, block.y, block.polarity)]


def _evlib(path: Path, kind: str) -> list[_Block]:
    frame = importlib.import_module("evlib").load_events(str(path), sort=False).collect()
    return [_Block(frame["t"].to_physical().to_numpy(), frame["x"], frame["y"], frame["polarity"])]


def _plain_loop(path: Path, kind: str) -> Iterator[Events]:
    words = np.empty(1 << 16, "<u8" if kind == "dat" else "<u4")
    buffer, state = EventBuffer(len(words)), np.zeros(1, np.int64)
    with open(path, "rb", buffering=0) as file:
        file.seek(read_text_header(path).num_bytes + (2 if kind == "dat" else 0))  # DAT names its type there
        while size := file.readinto(words.data):
            part = words[: size // words.itemsize]
            yield buffer.events(_PLAIN_LOOPS[kind](part, state, buffer.t, buffer.x, buffer.y, buffer.p))


@numba.njit
def _plain_dat(words, state, t, x, y, p):  # type: ignore[no-untyped-def]
    for i in range(len(words)):
        word = words[i]
        t[i] = np.int64(word & np.uint64(0xFFFFFFFF))
        x[i] = np.uint16((word >> np.uint64(32)) & np.uint64(0x3FFF))
        y[i] = np.uint16((word >> np.uint64(46)) & np.uint64(0x3FFF))
        p[i] = np.uint8(word >> np.uint64(60))
    return len(words)


@numba.njit
def _plain_evt2(words, state, t, x, y, p):  # type: ignore[no-untyped-def]
    count, high = 0, state[0]
    for word in words:
        kind = word >> 28
        if kind == 8:
            high = np.int64(word & 0xFFFFFFF) << 6
        elif kind < 2:
            t[count] = high + np.int64((word >> 22) & 0x3F)
            x[count] = (word >> 11) & 0x7FF
            y[count] = word & 0x7FF
            p[count] = kind
            count += 1
    state[0] = high
    return count


_PLAIN_LOOPS = {"dat": _plain_dat, "evt2": _plain_evt2}
SCENES: dict[str, Callable[[], Events]] = {
    "dense": lambda: readout(NUM_EVENTS, HEIGHT, WIDTH, 6.0),
    "sparse": lambda: readout(NUM_EVENTS, HEIGHT, WIDTH, 1.1),
    "real noise": lambda: repeated(open_recording(REAL).read(), NUM_EVENTS),
}
SUFFIXES = {"dat": ".dat", "ecf": ".hdf5"}
LIBRARIES: dict[str, tuple[tuple[str, ...], Callable[[Path, str], Any]]] = {
    "plain loop": (("dat", "evt2"), _plain_loop),
    "faery": (("dat", "evt2", "evt21", "evt3"), _faery),
    "expelliarmus": (("dat", "evt2", "evt3"), _expelliarmus),
    "evt3": (("evt3",), _evt3),
    "evlib": (("evt2", "evt21", "evt3", "ecf"), _evlib),
}
