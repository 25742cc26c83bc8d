"""What a few labelled windows of new footage add: training on them from the weights, and from nothing.

The first part of a recording is for training, the rest of it is scored, with a gap between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.transfer.scoring import LabelledRecording, read_split, score
from rvtssm.cli.config import Config
from rvtssm.cli.main import compose
from rvtssm.cli.train import train
from rvtssm.datasets import custom
from rvtssm.events.labels import Boxes, read_boxes, write_boxes
from rvtssm.events.windows import WindowsConfig
from rvtssm.models.checkpoint import read_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta, LoadedCheckpoint

TRAINING_SHARE = 0.6  # of the time of a recording between its first and its last label
GAP_US = 500_000  # between the last label for training and the first that is scored, which would be nearly the same
STARTS = ("weights", "nothing")
RECIPE = (
    *("experiment=street_tiny", "dataset=custom"),  # its model and windows become those of the weights
    # the size of the footage, not that of the recipe
    *("dataset.height=null", "dataset.width=null", "dataset.source=null"),
    *("augment.window_ms=null", "augment.stream_window_ms=null"),
    *("sampling.chunk_length=6", "sampling.frames_per_chunk=3"),
    *("optim.name=adamw", "training.average=null", "training.precision=auto"),
    "sampling.stream_share=0.25",  # random chunks end at labels, which are rare
    *("data.workers=0", "optim.learning_rate=3.0e-4"),
)
FROM_NOTHING = ("optim.learning_rate=1.0e-3",)  # random weights need larger steps


def split_times(times_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the label times (N,) for training and those that are scored, in order: first the one, then the other."""
    times_us = np.unique(times_us)
    if not len(times_us):
        return times_us, times_us
    border_us = times_us[0] + TRAINING_SHARE * (times_us[-1] - times_us[0])
    return times_us[times_us <= border_us], times_us[times_us > border_us + GAP_US]


def spread(times_us: np.ndarray, number: int) -> np.ndarray:
    """Return a number of times that are spread evenly over those given. Raise ValueError if these are fewer."""
    if not 0 < number <= len(times_us):
        raise ValueError(f"there are {len(times_us)} labelled windows for training, and {number} are asked for")
    return times_us[np.linspace(0, len(times_us) - 1, number).round().astype(int)]


def write_few(tree: Path, few: Path, times_us: np.ndarray) -> None:
    """Fill `few` with a dataset of the recordings of the test split of `tree`, with labels at these times only.

    Training and validation are the same, because labels for a choice among checkpoints would be further labels.
    """
    few.mkdir(parents=True, exist_ok=True)
    (few / custom.FILE).write_text((tree / custom.FILE).read_text())
    for split in ("train", "val"):
        (few / split).mkdir(exist_ok=True)
        for path in sorted((tree / "test").glob("*_bbox.npy")):
            events = path.name.replace("_bbox.npy", "_td.dat")
            if not (few / split / events).exists():
                (few / split / events).symlink_to((tree / "test" / events).resolve())
            boxes: Boxes = read_boxes(path)
            write_boxes(few / split / path.name, boxes[np.isin(boxes["t"], times_us)])


def config_of(checkpoint: CheckpointMeta, words: Sequence[str]) -> Config:
    """Return the configuration of a training whose model and windows are those of the weights."""
    config = compose(list(words))
    settings = checkpoint.windows
    windows = WindowsConfig(
        stride_ms=settings.stride_us / 1000,
        window_ms=None if settings.length_us is None else settings.length_us / 1000,
        num_bins=settings.num_bins,
        count_cutoff=settings.count_cutoff,
        convention=settings.convention,
        representation=settings.representation,
        time_constants_ms=[tau / 1000 for tau in settings.time_constants_us],
    )
    return replace(config, model=checkpoint.model_config, temporal=checkpoint.temporal_config, windows=windows)


def kept_apart(recordings: Sequence[LabelledRecording]) -> tuple[np.ndarray, list[LabelledRecording]]:
    """Return the label times for training of the only recording, and the recording with labels at scored times only."""
    (recording,) = recordings
    training_us, scored_us = split_times(recording.labels.t_us)
    labels = recording.labels[np.isin(recording.labels.t_us, scored_us)]
    return training_us, [replace(recording, labels=labels)]


def finetune(
    tree: Path,
    checkpoint: LoadedCheckpoint,
    weights: str,
    number: int,
    start: str,
    steps: int,
    folder: Path,
    unsure: dict[int, np.ndarray],
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the scores on the last part of the recording of `tree`, after a training on windows of its first part.

    `number` is that of the labelled windows, `start` one of STARTS, and `weights` names those of `checkpoint`. With 0
    windows, the weights are scored as they are. A training that was interrupted goes on.
    """
    spec = custom.read_spec(tree)
    training_us, apart = kept_apart(read_split(tree, "test", spec, checkpoint, unsure=unsure))
    if not number:
        return score(checkpoint, apart, 1)
    own = folder / f"{number}_{start}"
    write_few(tree, own / "tree", spread(training_us, number))
    words = [*RECIPE, *(FROM_NOTHING if start == "nothing" else ()), *overrides, f"training.steps={steps}"]
    words += [f"training.validate_every={steps}", f"dataset.raw_dir={own / 'tree'}", "resume=auto"]
    words += [f"out={own / 'run'}"]
    words += [f"training.init_from={weights}"] if start == "weights" else []
    trained = read_checkpoint(train(config_of(checkpoint, words)), checkpoint.detector.device)
    rules = replace(checkpoint.spec, class_names=trained.spec.class_names, class_ids=())
    trained.spec = replace(rules, height=trained.spec.height, width=trained.spec.width, downsample=1)
    _, apart = kept_apart(read_split(tree, "test", spec, trained, unsure=unsure))
    return score(trained, apart, 1)
