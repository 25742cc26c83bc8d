"""How long a training waits for its loader: prepared recordings of Gen1's frame size, generated into a temporary
folder, read as `rvtssm train` reads them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.training.step import Shape, build_training
from rvtssm.cli.main import compose
from rvtssm.cli.preprocess import preprocess
from rvtssm.contrib.demo.generate import generate
from rvtssm.datasets.datamodule import SequenceDataModule

RECORDINGS, SECONDS = 4, 3


def prepare(folder: Path, shape: Shape, num_workers: int) -> list[str]:
    """Generate and prepare recordings; the overrides that read them in batches of this shape."""
    overrides = [
        "dataset=synthetic",
        f"dataset.raw_dir={folder / 'raw'}",
        f"dataset.prepared_dir={folder / 'prepared'}",
        f"dataset.height={shape.height}",
        f"dataset.width={shape.width}",
        f"synthetic.num_train={RECORDINGS}",
        "synthetic.num_val=0",
        "synthetic.num_test=0",
        f"synthetic.duration_s={SECONDS}",
        "preprocess.splits=[train]",
        f"sampling.mode={'mixed' if shape.batch > 1 else 'stream'}",
        f"sampling.batch_size={shape.batch}",
        f"sampling.chunk_length={shape.length}",
        f"data.workers={num_workers}",
    ]
    config = compose(overrides)
    generate(compose(overrides, "generate"))
    if preprocess(config):
        raise ValueError(f"the generated recordings in {folder} could not be prepared")
    return overrides


def measure_wait(name: str, shape: Shape, overrides: list[str], num_steps: int) -> dict[str, Any]:
    """Return the seconds per step and the share of waiting, over `num_steps` steps after the first."""
    config = compose(overrides)
    data = SequenceDataModule(config.dataset, config.sampling, config.augment, config.data)
    training, loader = build_training(name, shape), data.train_dataloader()
    batches = iter(loader)
    waiting = working = 0.0
    done = -1  # the first one starts workers, and compiles
    while done < num_steps:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:  # an epoch has ended
            batches = iter(loader)
            batch = next(batches)
        batch = batch.to(shape.device, non_blocking=True)
        began = time.perf_counter()
        if len(batch.frame_index):
            training.step(batch)
        if done >= 0:
            waiting += began - start
            working += time.perf_counter() - began
        done += 1
    return {
        "name": name,
        "seconds": (waiting + working) / num_steps,
        "data_wait": waiting / (waiting + working),
        "workers": config.data.workers,
    }
