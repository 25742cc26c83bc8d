"""Who has started the processes of a run: torchrun, SLURM or nobody."""

import os

from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment


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


def launched() -> ClusterEnvironment | None:
    """Return what the launcher of this process says of its place among the others; None without a launcher."""
    name = launcher()
    return LAUNCHERS[name]() if name else None


def launcher() -> str | None:
    """Return the name of the launcher of this process in LAUNCHERS."""
    return next((name for name, environment in LAUNCHERS.items() if environment.detect()), None)
