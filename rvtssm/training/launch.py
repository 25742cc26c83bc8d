"""How a run fits to its launcher: torchrun, SLURM or none."""

import os
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.plugins import DoublePrecision

from rvtssm.evaluation.launchers import LAUNCHERS, launcher
from rvtssm.system.user_error import UserError


class DoubleWeights(DoublePrecision):
    """Weights and predictions in float64; batches stay as they are, since they hold counts of events and boxes."""

    def convert_input(self, data: Any) -> Any:
        return data


def build_plugins(precision: str) -> list[Any]:
    """Return the plugins that a trainer needs for this precision and for the launcher."""
    plugins: list[Any] = [DoubleWeights()] if precision == "float64" else []
    if launcher() == "srun":
        # Lightning's own handler of SIGUSR1 would save and requeue as well; checkpoints.py ends the run instead.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return plugins


def check_processes(devices: int, num_nodes: int) -> None:
    """Raise ValueError if a launcher has started another number of processes than the configuration says, or if
    srun was told their number by --ntasks only.

    With one device, each of them would train separately and write to the same folder.
    """
    name = launcher()
    if name is None:
        return
    started = LAUNCHERS[name]().world_size()
    if started != devices * num_nodes:
        raise UserError(
            f"{name} has started {started} processes, but training.devices={devices} per node and "
            f"training.num_nodes={num_nodes} are {devices * num_nodes}; set them to what {name} was told"
        )
    if name == "srun" and started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:  # as Lightning needs
        raise UserError(
            f"srun has started {started} processes and does not say how many on each node; start them with "
            f"--nodes={num_nodes} --ntasks-per-node={devices} instead of --ntasks"
        )
