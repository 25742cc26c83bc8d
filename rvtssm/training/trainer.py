"""Set up Lightning's trainer for a launcher and a machine: precision, and options that save time or memory."""

import logging
import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.optim.swa_utils import get_ema_multi_avg_fn

from rvtssm.models.detector import Detector, fastest_precision, usual_device
from rvtssm.system.user_error import UserError
from rvtssm.training import LIGHTNING_PRECISIONS, TrainingConfig, logs
from rvtssm.training.checkpoints import Averaging, Checkpoints, DirectCheckpointIO
from rvtssm.training.progress import Progress

_COMPILERS = ("g++", "clang++", "c++")
_IGNORED_WARNINGS = (
    "does not have many workers",  # the user chooses `data.workers`, and two are enough
    "smaller than the logging interval",  # logs count steps, while epochs can be short
    "in eval mode at the start of training",  # `freeze_batchnorm` does this on purpose
    "LeafSpec",  # concerns how Lightning uses torch
    "exists and is not empty",  # `OneCSV` reads the file before Lightning removes it
)


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
    # Without a launcher, there is one machine.
    name = launcher()
    if name is None:
        if num_nodes > 1 and "MASTER_ADDR" not in os.environ:  # the processes would wait for each other in vain
            needed = "a launcher tells the machines of each other"
            advice = "start the training with scripts/train_torchrun.sh or scripts/train_slurm.sh"
            raise UserError("setting.needs", name="training.num_nodes", found=num_nodes, needed=needed, advice=advice)
        return
    # With one, it has started as many processes as the settings say.
    started = LAUNCHERS[name]().world_size()
    if started != devices * num_nodes:
        needed = (
            f"with training.num_nodes={num_nodes} this makes {devices * num_nodes} processes, but {name} has "
            f"started {started}"
        )
        advice = f"set both as they were given to {name}"
        raise UserError("setting.conflict", name="training.devices", found=devices, needed=needed, advice=advice)
    if name == "srun" and started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:  # Lightning needs this variable
        needed = f"srun has started {started} processes without saying how many per node"
        advice = f"start them with --nodes={num_nodes} --ntasks-per-node={devices} instead of --ntasks"
        raise UserError("setting.needs", name="training.num_nodes", found=num_nodes, needed=needed, advice=advice)


def build_trainer(
    config: TrainingConfig,
    out_dir: Path,
    clip_value: float,
    callbacks: Sequence[Callback] = (),
    first_step: int = 0,
) -> L.Trainer:
    """Build a trainer that writes checkpoints and logs to `out_dir`.

    Args:
        config: Settings of the training.
        out_dir: Folder of the run.
        clip_value: Gradients are clipped to this absolute value; 0 for no clipping.
        callbacks: Further callbacks, which come before all others except the one that averages weights.
        first_step: Steps that the run has taken already.

    Raises:
        UserError: The settings do not fit each other or this machine.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in _IGNORED_WARNINGS:
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    check_processes(config.devices, config.num_nodes)
    loggers = logs.build_loggers(config.loggers, out_dir, first_step)
    try:
        trainer = L.Trainer(
            max_steps=config.steps,
            max_epochs=-1,
            val_check_interval=config.validate_every * config.accumulate,
            check_val_every_n_epoch=None,
            log_every_n_steps=config.log_every,
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=LIGHTNING_PRECISIONS[config.precision],  # type: ignore[arg-type]
            plugins=[*build_plugins(config.precision), DirectCheckpointIO()],
            sync_batchnorm=config.sync_batchnorm,
            accumulate_grad_batches=config.accumulate,
            gradient_clip_val=clip_value or None,
            gradient_clip_algorithm="value",
            callbacks=_callbacks(config, out_dir),
            enable_progress_bar=False,  # `Progress` shows one
            enable_model_summary=False,
            logger=loggers,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=out_dir,
        )
    except (MisconfigurationException, ModuleNotFoundError) as error:
        raise UserError("setting.conflict", found=f"training cannot run with these settings: {error}") from None
    if config.sync_batchnorm and trainer.strategy.root_device.type != "cuda":
        needed = "it needs GPUs"
        advice = "on CPUs use larger batches or freeze_batchnorm"
        raise UserError("setting.needs", name="training.sync_batchnorm", found="true", needed=needed, advice=advice)
    trainer.callbacks[:0] = callbacks  # type: ignore[attr-defined]
    if config.average is not None:  # average = decay * average + (1 - decay) * weights, from the first step on
        average = get_ema_multi_avg_fn(config.average)
        # Lightning makes the average before it moves the weights to their device, so the device is named. It comes
        # first, so that a step is whole when others see its end.
        averaging = Averaging(trainer.strategy.root_device, use_buffers=True, multi_avg_fn=average)
        trainer.callbacks.insert(0, averaging)  # type: ignore[attr-defined]
    # Appended here, because the trainer moves callbacks that write checkpoints to the end, and these come after them.
    trainer.callbacks.append(Progress())  # type: ignore[attr-defined]
    if config.init_from:
        trainer.callbacks.append(logs.FirstValidation())  # type: ignore[attr-defined]
    return trainer


def _callbacks(config: TrainingConfig, out_dir: Path) -> list[Callback]:
    checkpoints = Checkpoints(out_dir, config.checkpoint_every, config.patience)
    callbacks: list[Callback] = [logs.LastStep(), checkpoints, LearningRateMonitor("step")]
    if config.pictures:
        callbacks += [logs.DetectionImages(), logs.SpectrumMonitor()]
    return callbacks


def speed_up(
    detector: Detector,
    device: torch.device | str,
    *,
    recompute_strides: Sequence[int] = (),
    compile_parts: bool = False,
    backend: str = "inductor",
) -> None:
    """Prepare a detector for training on a device. The names of its weights, and so its checkpoints, stay the same.

    Args:
        detector: The detector, changed in place.
        device: The device of the training.
        recompute_strides: Maps at these strides keep only their input for the backward pass, which computes them again.
        compile_parts: Compile backbone, neck and head, each as one graph, for the one shape of training batches.
            Batches of other shapes must run under `torch.compiler.set_stance("force_eager")`.
        backend: Backend of torch.compile.

    Raises:
        UserError: No compiler is available.
    """
    detector.backbone.recompute(recompute_strides)
    if compile_parts:
        check_compiler(torch.device(device).type)
        for part in (detector.backbone, detector.neck, detector.head):
            part.compile(fullgraph=True, backend=backend)


def choose_precision(precision: str, accelerator: str, num_processes: int = 1) -> str:
    """Return the precision of a training. `auto` is bf16 where products are faster in it, otherwise float32.

    Several processes on CPUs would each measure for themselves and might differ, so they take float32.

    Args:
        precision: One of PRECISIONS.
        accelerator: One of ACCELERATORS.
        num_processes: Number of processes that train together.

    Raises:
        UserError: float16 on a CPU, where Lightning would take bf16 instead without a word.
    """
    if precision not in ("auto", "float16"):
        return precision
    device_type = {"auto": usual_device(), "gpu": "cuda"}.get(accelerator, accelerator)
    if precision == "float16" and device_type == "cpu":
        found = "float16"
        advice = "on a CPU, set training.precision=bf16 or float32"
        raise UserError("setting.needs", name="training.precision", found=found, needed="it needs a GPU", advice=advice)
    if precision == "float16":
        return precision
    if device_type == "cpu" and num_processes > 1:
        return "float32"
    return fastest_precision(device_type)


def check_compiler(device_type: str) -> None:
    """Raise UserError if torch.compile finds no compiler for this type of device."""
    if device_type == "cuda":
        if find_spec("triton") is None:
            found = "Triton is not installed, which compiles for a GPU"
            advice = "install it, or set training.compile=false"
            raise UserError("install.compiler", name="training.compile=true", found=found, advice=advice)
    elif not any(which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        found = f"none of the C++ compilers {', '.join(_COMPILERS)} is installed"
        advice = "install one, name it in the variable CXX, or set training.compile=false"
        raise UserError("install.compiler", name="training.compile=true", found=found, advice=advice)
