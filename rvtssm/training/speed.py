"""What makes a training step faster or smaller and leaves its results as they are, each by one key of `training`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from shutil import which

import torch

from rvtssm.models.detector import Detector

# Weights of lower precision are none of them: there are no complex numbers of 16 bits.
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")
_COMPILERS = ("g++", "clang++", "c++")


def check_stages(key: str, stages: Sequence[int]) -> None:
    """ValueError unless they are some of the stages 1 to 4, each once."""
    if len(set(stages)) < len(stages) or not set(stages) <= {1, 2, 3, 4}:
        raise ValueError(f"{key}={list(stages)}; name stages once each, of 1, 2, 3 and 4, or none: []")


def speed_up(
    detector: Detector,
    device: torch.device | str,
    *,
    recompute_stages: Sequence[int] = (),
    channels_last: bool = False,
    compile_parts: bool = False,
    backend: str = "inductor",
) -> None:
    """Prepare a detector for training on a device; the names of its weights, and so its checkpoints, stay.

    `recompute_stages` (1 to 4) keep only their input for the backward, and run again there; `channels_last` lays the
    weights of convolutions out as their inputs always are, channels last, so that none is turned around at each call;
    `compile_parts` compiles backbone, neck and head, each as one graph; for training batches, which are all of one
    shape, so who runs others does it under `torch.compiler.set_stance("force_eager")`. ValueError where there is no
    compiler for it.
    """
    for number, stage in enumerate(detector.backbone.stages, start=1):
        stage.recomputes = number in recompute_stages
    if channels_last:
        detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compile_parts:
        check_compiler(torch.device(device).type)
        for part in (detector.backbone, detector.neck, detector.head):
            part.compile(fullgraph=True, backend=backend)


def check_compiler(device_type: str) -> None:
    """ValueError where torch.compile has nothing to compile with."""
    if device_type == "cuda":
        if find_spec("triton") is None:
            raise ValueError("training.compile=true needs Triton on a GPU; install it, or set training.compile=false")
    elif not any(which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        raise ValueError(
            f"training.compile=true needs a C++ compiler on a CPU, and none of {', '.join(_COMPILERS)} is there; "
            "install one, name it in the variable CXX, or set training.compile=false"
        )
