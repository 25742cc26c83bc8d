"""How a run meets what started its processes: nobody, torchrun or SLURM; and how many there must be."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.plugins import DoublePrecision

# in the order in which Lightning looks: torchrun may run inside a job of SLURM
LAUNCHERS: dict[str, type[ClusterEnvironment]] = {"torchrun": TorchElasticEnvironment, "srun": SLURMEnvironment}


class WholeBatches(DoublePrecision):
    """float64 weights and predictions; batches stay as they are: counts of events, and boxes for the loss."""

    def convert_input(self, data: Any) -> Any:
        return data


def build_plugins(precision: str) -> list[Any]:
    """What a trainer needs beside its options."""
    plugins: list[Any] = []
    if precision == "64-true":
        plugins.append(WholeBatches())
    if _launcher() == "srun":
        # its own answer to SIGUSR1 would save and requeue beside ours, which ends the run (see checkpoints.py)
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return plugins


def check_processes(devices: int, num_nodes: int) -> None:
    """ValueError when a launcher has started another number of processes than the configuration says.

    One device would then mean that each of them trains alone, all into the same folder.
    """
    launcher = _launcher()
    if launcher is None:
        return
    started = LAUNCHERS[launcher]().world_size()
    if started != devices * num_nodes:
        raise ValueError(
            f"{launcher} has started {started} processes, but training.devices={devices} per node and "
            f"training.num_nodes={num_nodes} are {devices * num_nodes}; set them to what {launcher} was told"
        )


def _launcher() -> str | None:
    return next((name for name, environment in LAUNCHERS.items() if environment.detect()), None)
