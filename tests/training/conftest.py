"""Training at toy size: a few short recordings of a small sensor, a detector of eight channels, everything logged."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

import pytest

from rvtssm.cli import compose
from rvtssm.config import Config
from rvtssm.run.generate import generate
from rvtssm.run.preprocess import preprocess

OVERRIDES = (
    "dataset=synthetic",
    "dataset.height=64",
    "dataset.width=96",
    "synthetic.num_train=2",
    "synthetic.num_val=2",
    "synthetic.num_test=0",
    "synthetic.duration_s=1.2",
    "synthetic.workers=1",
    "preprocess.splits=[train,val]",
    "preprocess.workers=1",
    "model=tiny",
    "model.embed_dim=8",
    "model.head_dim=8",
    "sampling.batch_size=3",
    "sampling.chunk_length=4",
    "data.num_workers=0",
    "training.accelerator=cpu",
    "training.log_every=1",
    "training.progress=false",
    "training.spectra=false",
)


MEASURED = ("train/data_wait",)  # with a clock: never twice the same


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory) -> list[str]:
    """Overrides that name the data and the sizes of a toy training run."""
    folder = tmp_path_factory.mktemp("toy_data")
    overrides = [*OVERRIDES, f"dataset.raw_dir={folder / 'raw'}", f"dataset.prepared_dir={folder / 'prepared'}"]
    config = compose(overrides)
    generate(config)
    assert preprocess(config) == 0
    return overrides


@pytest.fixture(scope="session")
def toy_config(toy_data):
    """A function: output folder and overrides -> the configuration of a toy training run."""

    def configure(out: Path, *overrides: str) -> Config:
        return compose([*toy_data, f"out={out}", *overrides])

    return configure


def read_log(out: Path) -> dict[int, dict[str, str]]:
    """All computed numbers that a run has logged, by step and name, as text; what was logged twice must be equal."""
    by_step: dict[int, dict[str, str]] = {}
    for path in sorted(out.glob("csv/version_*/metrics.csv")):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                known = by_step.setdefault(int(row["step"]), {})
                for name in set(row) - {"step", "epoch", *MEASURED}:
                    if row[name]:
                        assert known.setdefault(name, row[name]) == row[name], (path, row["step"], name)
    return by_step


@pytest.fixture(scope="session")
def prepared_process():
    """Like `multiprocessing.Process`: a process without threads that has everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rvtssm.run.train", "rvtssm.cli", "pytest"])
    return context.Process


@pytest.fixture(scope="session")
def logged():
    """The function `read_log`."""
    return read_log
