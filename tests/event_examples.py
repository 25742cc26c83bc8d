"""Events, boxes and a small dataset for tests: random ones by seed, arbitrary ones by hypothesis."""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
from hypothesis import strategies as st

from rvtssm.events.label_files import LabelFiles
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.records import DatasetSpec, Events

HEIGHT, WIDTH = 48, 64
SPEC = DatasetSpec(
    name="tiny",
    height=48,
    width=64,
    class_names=("car", "pedestrian"),
    label_interval_us=250_000,
    min_side_px=4,
    min_diagonal_px=8,
    prepare_min_side_px=4,
    prepare_min_diagonal_px=8,
)


def to_events(t, x, y, p) -> Events:
    return Events(np.asarray(t, np.int64), np.asarray(x, np.uint16), np.asarray(y, np.uint16), np.asarray(p, np.uint8))


def random_events(
    num_events: int,
    seed: int = 0,
    span_us: int = 1_000_000,
    start_us: int = 0,
    size_hw: tuple[int, int] = (HEIGHT, WIDTH),
    fills_span: bool = False,
) -> Events:
    """Random events; with `fills_span`, the first and the last stand at the ends of the time."""
    rng = np.random.default_rng(seed)
    t = start_us + np.sort(rng.integers(0, span_us, num_events))
    if fills_span:
        t[0], t[-1] = start_us, start_us + span_us - 1
    height, width = size_hw
    return to_events(t, *(rng.integers(0, most, num_events) for most in (width, height, 2)))


@st.composite
def any_events(draw, min_size: int = 0, max_step_us: int = 50_000, max_start_us: int = 1 << 24) -> Events:
    """Recordings with bursts at one time and gaps."""
    steps = draw(st.lists(st.one_of(st.just(0), st.integers(0, max_step_us)), min_size=min_size, max_size=60))
    seed = draw(st.integers(0, 1000))
    events = random_events(len(steps), seed)
    t = np.cumsum([draw(st.integers(0, max_start_us - 1)), *steps[1:]], dtype=np.int64)[: len(steps)]
    return Events(t, events.x, events.y, events.p)


def assert_equal(found: np.ndarray, wanted: np.ndarray, name: str = "") -> None:
    """What numpy.testing asserts, which takes long to find that there is nothing to say."""
    if not np.array_equal(found, wanted):
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def assert_same(found: Events, wanted: Events) -> None:
    for name in ("t", "x", "y", "p"):
        assert_equal(getattr(found, name), getattr(wanted, name), name)


def boxes_of(*rows, **fields):
    """Boxes from (t, x, y, w, h) rows."""
    boxes = np.zeros(len(rows), BOX_DTYPE)
    for name, column in zip(("t", "x", "y", "w", "h"), zip(*rows, strict=True), strict=True):
        boxes[name] = column
    for name, column in fields.items():
        boxes[name] = column
    return boxes


def write_labelled(folder: Path, name: str, events: Events, boxes: np.ndarray, size_hw=(HEIGHT, WIDTH)) -> Path:
    """Write `NAME_td.dat` and `NAME_bbox.npy`, as Prophesee publishes recordings; return the path of the events."""
    folder.mkdir(parents=True, exist_ok=True)
    write_dat(folder / f"{name}_td.dat", events, *size_hw)
    write_boxes(folder / f"{name}_bbox.npy", boxes)
    return folder / f"{name}_td.dat"


def write_hdf5(path, events, **columns):
    with h5py.File(path, "w") as file:
        for name in ("t", "x", "y", "p"):
            file[f"events/{name}"] = columns.get(name, getattr(events, name))
        file["events/height"], file["events/width"] = columns.get("size", (HEIGHT, WIDTH))
    return path


@contextlib.contextmanager
def traced_memory() -> Iterator[Callable[[], int]]:
    """Yield a function: the bytes that were allocated in the block, by Python and numpy, and are in use."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def read_label_file(path: Path, spec: DatasetSpec, end_us: int | None = None) -> np.ndarray:
    """The boxes of a file with the labels of one recording."""
    return LabelFiles(path.stem, (path,)).read(spec, end_us, spec.label_offset_us)[0]
