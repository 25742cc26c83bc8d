"""Which launcher has started the processes of a run: torchrun, SLURM or none."""

import os

from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment


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


def launched() -> ClusterEnvironment | None:
    """Return the environment of this process's launcher, which knows its rank; None without a launcher."""
    name = launcher()
    return LAUNCHERS[name]() if name else None


def launcher() -> str | None:
    """Return the name in LAUNCHERS of this process's launcher; None without a launcher."""
    return next((name for name, environment in LAUNCHERS.items() if environment.detect()), None)
