"""Options that make a training step faster or smaller and leave its results as they are, one key of `training` each."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which

import torch

from rvtssm.models.detector import Detector
from rvtssm.models.low_precision import fastest_precision
from rvtssm.system.user_error import UserError

_COMPILERS = ("g++", "clang++", "c++")


def speed_up(
    detector: Detector,
    device: torch.device | str,
    *,
    recompute_strides: Sequence[int] = (),
    channels_last: bool = False,
    compile_parts: bool = False,
    backend: str = "inductor",
) -> None:
    """Prepare a detector for training on a device; the names of its weights, and so its checkpoints, stay.

    The maps at `recompute_strides` keep only their input for the backward pass, and are computed again there;
    `channels_last` lays the weights of convolutions out as their inputs are, channels last, so that none is moved at
    each call; `compile_parts` compiles backbone, neck and head, each as one graph, for training batches, which are all
    of one shape: batches of other shapes run under `torch.compiler.set_stance("force_eager")`. ValueError if there is
    no compiler for it.
    """
    detector.backbone.recompute(recompute_strides)
    if channels_last:
        detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compile_parts:
        check_compiler(torch.device(device).type)
        for part in (detector.backbone, detector.neck, detector.head):
            part.compile(fullgraph=True, backend=backend)


def choose_precision(precision: str, accelerator: str) -> str:
    """Return the precision of a training: `auto` is bf16 if the device has units for it, and float32 if not."""
    if precision != "auto":
        return precision
    device_type = {"auto": "cuda" if torch.cuda.is_available() else "cpu", "gpu": "cuda"}.get(accelerator, accelerator)
    return fastest_precision(device_type)


def check_compiler(device_type: str) -> None:
    """Raise ValueError if torch.compile has nothing to compile with."""
    if device_type == "cuda":
        if find_spec("triton") is None:
            raise UserError("training.compile=true needs Triton on a GPU; install it, or set training.compile=false")
    elif not any(which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        raise UserError(
            f"training.compile=true needs a C++ compiler on a CPU, and none of {', '.join(_COMPILERS)} is there; "
            "install one, name it in the variable CXX, or set training.compile=false"
        )
