"""Training at toy size: a few short recordings of a small sensor, a detector of eight channels, everything logged."""

import copy
import csv
import functools
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest

from rvtssm.cli.config import Config
from rvtssm.cli.main import compose
from rvtssm.cli.preprocess import preprocess
from rvtssm.cli.train import train
from rvtssm.contrib.demo.generate import generate
from tests.training.watched import train_as_rank

RECORDINGS = (
    "synthetic.num_train=2",
    "synthetic.num_val=2",
    "synthetic.num_test=0",
    "synthetic.duration_s=1.2",
    "synthetic.workers=1",
    "preprocess.splits=[train,val]",
    "preprocess.workers=1",
)
OVERRIDES = (
    "dataset=synthetic",
    "dataset.height=64",
    "dataset.width=96",
    "model=tiny",
    "model.embed_dim=8",
    "model.head_dim=8",
    "model.num_blocks=[1,0,0,0]",
    "model.fpn_blocks=0",
    "sampling.batch_size=3",
    "sampling.chunk_length=4",
    "data.workers=0",
    "training.accelerator=cpu",
    "training.log_every=1",
    "training.pictures=false",
)

# the toy data hold 6 batches per epoch: a run crosses one border
SEVEN_STEPS = ("training.steps=7", "training.validate_every=3", "model.drop_path=0.2")
BATCH = 8  # of all processes that train together
BOUND_S = 1800  # after which a job hangs, on any machine
MEASURED = ("train/data_wait",)  # with a clock: never twice the same


@pytest.fixture(scope="session")
def toy_data(made_once) -> list[str]:
    """Overrides that name the data and the sizes of a toy training run."""

    def with_data(folder: Path) -> list[str]:
        return [*OVERRIDES, f"dataset.raw_dir={folder / 'raw'}", f"dataset.prepared_dir={folder / 'prepared'}"]

    def fill(folder: Path) -> None:
        config = compose([*with_data(folder), *RECORDINGS], "generate")
        generate(config)
        assert preprocess(config) == 0

    return with_data(made_once("toy_data", fill))


@pytest.fixture(scope="session")
def toy_config(toy_data):
    """A function: output folder and overrides -> the configuration of a toy training run."""

    composed = functools.cache(lambda *overrides: compose([*toy_data, *overrides]))

    def configure(out: Path, *overrides: str) -> Config:
        if any(word.startswith("training.init_from") for word in overrides):  # whose files may change
            return compose([*toy_data, f"out={out}", *overrides])
        return copy.deepcopy(replace(composed(*overrides), out=str(out)))

    return configure


@pytest.fixture(scope="session")
def seven_steps(toy_config, made_once) -> Path:
    """The folder of a run with SEVEN_STEPS that nobody interrupted. Tests only read it."""
    return made_once("seven_steps", lambda folder: train(toy_config(folder, *SEVEN_STEPS)))


@pytest.fixture(scope="session")
def two_steps(toy_config, made_once) -> Path:
    """The folder of a run of two steps without any option. Tests only read it."""
    return made_once("two_steps", lambda folder: train(toy_config(folder, "training.steps=2")))


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
def logged():
    """The function `read_log`."""
    return read_log


def free_address() -> dict[str, str]:
    """Where processes of one machine may meet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def torchrun_variables(devices: int, nodes: int = 1) -> list[dict[str, str]]:
    """What torchrun would write into the environment of each process."""
    on_one = devices // nodes
    together = {"TORCHELASTIC_RUN_ID": "none", **free_address()}
    together |= {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(on_one)}
    return [
        {**together, "RANK": str(rank), "LOCAL_RANK": str(rank % on_one), "GROUP_RANK": str(rank // on_one)}
        for rank in range(devices)
    ]


def srun_variables(devices: int, nodes: int = 1) -> list[dict[str, str]]:
    """What srun would write into the environment of each process."""
    on_one = devices // nodes
    together = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "rvtssm", "SLURM_NODELIST": "localhost"}
    together |= {"SLURM_NTASKS": str(devices), "SLURM_NTASKS_PER_NODE": str(on_one), "SLURM_NNODES": str(nodes)}
    together |= free_address()
    places = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    return [
        {**together, **dict(zip(places, map(str, (rank, rank % on_one, rank // on_one)), strict=True))}
        for rank in range(devices)
    ]


def shares(out: Path, devices: int, nodes: int = 1) -> list[str]:
    """The settings of one of `devices` processes, which are spread over nodes."""
    counts = [f"training.devices={devices // nodes}", f"training.num_nodes={nodes}"]
    return [*counts, f"sampling.batch_size={BATCH // devices}", f"out={out}"]


@pytest.fixture(scope="session")
def ranks(prepared):
    """A function: runs processes that train together until all have ended; returns their exit codes.

    `train` is what each of them runs: output folder, `blow`, overrides and the variables that its launcher would set.
    """

    def to_the_end(
        out: Path,
        *overrides: str,
        devices: int = 2,
        nodes: int = 1,
        blow: tuple[int, int, int] | None = None,
        train: Callable[[Path, Any, list[str], dict], None] = train_as_rank,
        launcher: Callable[[int, int], list[dict[str, str]]] = torchrun_variables,
    ) -> list[int]:
        jobs = []
        for environment in launcher(devices, nodes):
            arguments = (out, blow, [*overrides, *shares(out, devices, nodes)], environment)
            jobs.append(prepared.Process(target=train, args=arguments))
            jobs[-1].start()
        began = time.monotonic()
        for job in jobs:
            job.join(timeout=max(BOUND_S - (time.monotonic() - began), 0))
        codes = [job.exitcode for job in jobs]
        for job in jobs:
            job.kill()
        assert None not in codes, "a process waits for one that has gone"
        return codes

    return to_the_end


class Interruption(L.Callback):
    """Does something to a run, once, in the middle of a step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step == self.step - 1:
            self.step = 0
            self.action()


def die() -> None:
    raise MemoryError("killed")


@pytest.fixture
def train_until():
    """A function: configuration, step, what happens in that step, and the error with which the training has to end."""

    def run(config: Config, step: int, action: Callable[[], object], error: type[BaseException]) -> None:
        with pytest.raises(error):
            train(config, callbacks=[Interruption(step, action)])

    return run
