"""How a run adapts to its launcher: torchrun, SLURM or none."""

import os
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.plugins import DoublePrecision

from rvtssm.system.user_error import UserError


class _Srun(SLURMEnvironment):
    """Reads the variables of a SLURM task, without the checks that Lightning makes for a training."""

    @staticmethod
    def detect() -> bool:
        return "SLURM_NTASKS" in os.environ and SLURMEnvironment.job_name() not in ("bash", "interactive")

    @staticmethod
    def _validate_srun_used() -> None:
        pass

    @staticmethod
    def _validate_srun_variables() -> None:
        pass


# In Lightning's order of detection, since torchrun may run inside a SLURM job.
LAUNCHERS: dict[str, type[ClusterEnvironment]] = {"torchrun": TorchElasticEnvironment, "srun": _Srun}


def launcher() -> str | None:
    """Return the name in LAUNCHERS of this process's launcher; None without a launcher."""
    return next((name for name, environment in LAUNCHERS.items() if environment.detect()), None)


class DoubleWeights(DoublePrecision):
    """Weights and predictions in float64. Batches stay as they are, since they hold event counts and boxes."""

    def convert_input(self, data: Any) -> Any:
        return data


def build_plugins(precision: str) -> list[Any]:
    """Return the plugins that a trainer needs for this precision and for the launcher."""
    plugins: list[Any] = [DoubleWeights()] if precision == "float64" else []
    if launcher() == "srun":
        # Lightning's own handler of SIGUSR1 would save and requeue the job; checkpoints.py stops the run instead.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return plugins


def check_processes(devices: int, num_nodes: int) -> None:
    """Check that the launcher started as many processes as the configuration expects.

    With devices=1, each process would otherwise train on its own and write to the same folder.

    Args:
        devices: Processes per node.
        num_nodes: Number of nodes.

    Raises:
        UserError: The numbers differ, there are several nodes but no launcher, or srun was only told the total number
            of processes (--ntasks).
    """
    name = launcher()
    if name is None:
        if num_nodes > 1 and "MASTER_ADDR" not in os.environ:  # the processes would wait for each other in vain
            raise UserError(
                "launch.no_launcher",
                f"training.num_nodes={num_nodes} needs a launcher, which tells the machines of each other; start the "
                "training with scripts/train_torchrun.sh or scripts/train_slurm.sh",
            )
        return
    started = LAUNCHERS[name]().world_size()
    if started != devices * num_nodes:
        raise UserError(
            "launch.processes",
            f"{name} has started {started} processes, but training.devices={devices} per node and "
            f"training.num_nodes={num_nodes} make {devices * num_nodes}; set them as they were given to {name}",
        )
    if name == "srun" and started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:  # Lightning needs this variable
        raise UserError(
            "launch.srun_total",
            f"srun has started {started} processes without saying how many per node; start them with "
            f"--nodes={num_nodes} --ntasks-per-node={devices} instead of --ntasks",
        )
