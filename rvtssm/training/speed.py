"""Options that make a training step faster or smaller without changing its results. Each is one key of `training`."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which

import torch

from rvtssm.models.detector import Detector, fastest_precision
from rvtssm.system.user_error import UserError

_COMPILERS = ("g++", "clang++", "c++")


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
    device_type = {"auto": "cuda" if torch.cuda.is_available() else "cpu", "gpu": "cuda"}.get(accelerator, accelerator)
    if precision == "float16":
        if device_type == "cpu":
            raise UserError(
                "training.float16_on_cpu",
                "training.precision=float16 needs a GPU; on a CPU, set training.precision=bf16 or float32",
            )
        return precision
    return "float32" if device_type == "cpu" and num_processes > 1 else fastest_precision(device_type)


def check_compiler(device_type: str) -> None:
    """Raise UserError if torch.compile finds no compiler for this type of device."""
    if device_type == "cuda":
        if find_spec("triton") is None:
            raise UserError(
                "training.no_triton",
                "training.compile=true needs Triton on a GPU; install it, or set training.compile=false",
            )
    elif not any(which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        raise UserError(
            "training.no_compiler",
            f"training.compile=true needs a C++ compiler on a CPU, but none of {', '.join(_COMPILERS)} is installed; "
            "install one, name it in the variable CXX, or set training.compile=false",
        )
