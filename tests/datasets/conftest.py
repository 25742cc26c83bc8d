"""Sequences in memory whose histograms name the step they belong to, and a small tree of recordings on disk."""

from typing import Any

import numpy as np
import pytest
from event_examples import HEIGHT, WIDTH, random_events

from rvtssm.datasets import DatasetConfig, PreprocessConfig, build_spec
from rvtssm.datasets.prepare_dataset import preprocess_dataset
from rvtssm.datasets.sequence import FrameSequence
from rvtssm.events.labels import BOX_DTYPE, write_boxes
from rvtssm.readers.dat import write_dat
from rvtssm.records import Labels, Windows, WindowSettings

SHAPE = (2, 12, 16)


class NumberedFrames:
    """Frame i of recording r holds r in channel 0 and i in channel 1."""

    def __init__(self, recording: int) -> None:
        self.recording = recording
        self.is_open = False

    def frames(self, start: int, stop: int, placement=None) -> np.ndarray:
        self.is_open = True
        hist = np.empty((stop - start, *SHAPE), np.uint8)
        hist[:, 0] = self.recording
        hist[:, 1] = np.arange(start, stop)[:, None, None]
        return placement.histograms(hist) if placement else hist

    def close(self) -> None:
        self.is_open = False


def labels_at(steps: list[int], boxes: list[list[float]] | None = None) -> Labels:
    """One box at each of the (possibly repeated) steps."""
    count = len(steps)
    return Labels(
        np.array(boxes or [[2, 3, 5, 4]] * count, np.float32).reshape(count, 4),
        np.arange(count, dtype=np.int64) % 2,
        np.array(steps, np.int64) * 50_000 + 50_000,
        np.array(steps, np.int64),
        np.full(count, -1, np.int64),
    )


def numbered(recording: int, num_steps: int, label_steps: list[int]) -> FrameSequence:
    ends = 50_000 * np.arange(1, num_steps + 1, dtype=np.int64)
    frames: Any = NumberedFrames(recording)
    return FrameSequence(
        f"recording_{recording}",
        Windows(np.stack([ends - 50_000, ends], axis=1), np.full(num_steps, 50_000, np.int64)),
        labels_at(label_steps),
        SHAPE,
        WindowSettings(50_000, None, "exact", 1, 10),
        frames,
    )


@pytest.fixture(scope="session")
def numbered_sequence():
    return numbered


@pytest.fixture(scope="session")
def make_labels():
    return labels_at


def write_recording(folder, name: str, seconds: float, seed: int) -> None:
    """Events all over a small sensor, boxes about every 250 ms, at no round time."""
    events, rng = (
        random_events(int(40_000 * seconds), seed, int(seconds * 1e6) - 1_234, 1_234),
        np.random.default_rng(seed),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_dat(folder / f"{name}_td.dat", events, HEIGHT, WIDTH)
    times = np.arange(240_000, int(seconds * 1e6), 250_000) + rng.integers(0, 9_000)
    boxes = np.zeros(2 * len(times), BOX_DTYPE)
    boxes["t"] = np.repeat(times, 2)
    boxes["x"], boxes["y"] = rng.integers(0, 20, len(boxes)) + 0.25, rng.integers(0, 10, len(boxes))
    boxes["w"], boxes["h"] = rng.integers(26, 40, len(boxes)), rng.integers(26, 34, len(boxes))
    boxes["class_id"] = rng.integers(0, 2, len(boxes))
    boxes["class_confidence"], boxes["still_us"] = 1, -1
    write_boxes(folder / f"{name}_bbox.npy", boxes)


@pytest.fixture(scope="session")
def small_tree(tmp_path_factory):
    """A folder `raw` of recordings, one `prepared` from it, and the config that finds them."""
    root = tmp_path_factory.mktemp("small_tree")
    for split, durations in {"train": [2.3, 1.1, 3.0], "val": [1.6, 0.9], "test": [1.3]}.items():
        for index, seconds in enumerate(durations):
            write_recording(root / "raw" / split, f"drive_{index}", seconds, seed=10 * index + len(split))
    config = DatasetConfig("gen1", str(root / "raw"), str(root / "prepared"), HEIGHT, WIDTH)
    summary = preprocess_dataset(
        build_spec(config),
        config.raw_dir,
        config.prepared_dir,
        WindowSettings(),
        PreprocessConfig(workers=1),
        progress=False,
    )
    assert len(summary.written) == 6 and not summary.failed
    return config
