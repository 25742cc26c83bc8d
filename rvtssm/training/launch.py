"""How a run fits to its launcher: torchrun, SLURM or none."""

import os
from typing import Any

from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.plugins import DoublePrecision

from rvtssm.system.user_error import UserError


class _Srun(SLURMEnvironment):
    """Reads the variables of a task of SLURM, without the checks that Lightning makes of them for a training."""

    @staticmethod
    def detect() -> bool:
        return "SLURM_NTASKS" in os.environ and SLURMEnvironment.job_name() not in ("bash", "interactive")

    @staticmethod
    def _validate_srun_used() -> None:
        pass

    @staticmethod
    def _validate_srun_variables() -> None:
        pass


# in the order in which Lightning looks: torchrun may run inside a SLURM job
LAUNCHERS: dict[str, type[ClusterEnvironment]] = {"torchrun": TorchElasticEnvironment, "srun": _Srun}


class DoubleWeights(DoublePrecision):
    """Weights and predictions in float64; batches stay as they are, since they hold counts of events and boxes."""

    def convert_input(self, data: Any) -> Any:
        return data


def build_plugins(precision: str) -> list[Any]:
    """Return the plugins that a trainer needs for this precision and for the launcher."""
    plugins: list[Any] = [DoubleWeights()] if precision == "float64" else []
    if _launcher() == "srun":
        # Lightning's own handler of SIGUSR1 would save and requeue as well; checkpoints.py ends the run instead.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return plugins


def check_processes(devices: int, num_nodes: int) -> None:
    """Raise ValueError if a launcher has started another number of processes than the configuration says, or if
    srun was told their number by --ntasks only.

    With one device, each of them would train separately and write to the same folder.
    """
    launcher = _launcher()
    if launcher is None:
        return
    started = LAUNCHERS[launcher]().world_size()
    if started != devices * num_nodes:
        raise UserError(
            f"{launcher} has started {started} processes, but training.devices={devices} per node and "
            f"training.num_nodes={num_nodes} are {devices * num_nodes}; set them to what {launcher} was told"
        )
    if launcher == "srun" and started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:  # as Lightning needs
        raise UserError(
            f"srun has started {started} processes and does not say how many on each node; start them with "
            f"--nodes={num_nodes} --ntasks-per-node={devices} instead of --ntasks"
        )


def launched() -> ClusterEnvironment | None:
    """Return what the launcher of this process says of its place among the others; None without a launcher."""
    launcher = _launcher()
    return LAUNCHERS[launcher]() if launcher else None


def _launcher() -> str | None:
    return next((name for name, environment in LAUNCHERS.items() if environment.detect()), None)
