"""Write an exported file only if it gives what PyTorch gives."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rvtssm.export import OPSETS, precisions
from rvtssm.export import export_detector as conversion
from rvtssm.export.exported import largest_difference, read_exported, read_weights_file
from rvtssm.models import PostprocessConfig
from rvtssm.models.checkpoint import SAFETENSORS, write_checkpoint
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.system.files import staging_folder
from rvtssm.system.limits import check_choice
from rvtssm.system.output_folder import result_file
from rvtssm.system.user_error import UserError

CHECK_STEPS = 10  # steps for which file and PyTorch are compared, with carried state and at changing rates
_LARGEST_DIFFERENCE = 1e-3  # ten times what any of our layers needs in float32


class Calibration(Protocol):
    """Frames of recordings on which a precision is calibrated."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield frames (T, C, H, W) of consecutive windows with their step scale."""

    def check(self) -> list[int]:
        """Return the number of windows of each recording that is read; raise UserError if one does not fit."""

    def first(self, num_frames: int) -> list[np.ndarray]:
        """Return the first frames (C, H, W)."""


@dataclass(frozen=True)
class CheckedExport:
    """What was written, and how far its results are from those of PyTorch."""

    description: dict[str, Any]
    boxes: float  # largest difference of a box, relative to the largest
    scores: float


def export_detector(
    checkpoint: str | Path,
    out: str | Path,
    *,
    height: int | None = None,
    width: int | None = None,
    precision: str = "float32",
) -> Path:
    """Write a detector as a file for other programs, as `rvtssm export` does, and return its path.

    A name that ends in .onnx or .xml gets the step of the detector, which is compared with PyTorch before it is kept;
    one that ends in .safetensors gets the weights. Use the command for a precision that has to be calibrated.

    >>> print(rvtssm.export_detector("street-tiny", "weights.safetensors"))
    weights.safetensors

    Args:
        checkpoint: A checkpoint, or the name of weights in the package.
        out: The file.
        height: Height of the frames in pixels; by default as in training.
        width: Width of the frames in pixels; by default as in training.
        precision: float32, or bf16 for .safetensors.

    Raises:
        UserError: The format cannot hold the detector or the precision, or its results differ from those of PyTorch.
    """
    check_choice("precision", precision, precisions())
    loaded = read_weights_file(checkpoint)
    out = Path(out)
    if out.suffix == SAFETENSORS and SAFETENSORS in precisions()[precision].suffixes:
        write_weights(loaded, out, precision)
    else:
        frame_hw = height or loaded.spec.frame_height, width or loaded.spec.frame_width
        export_checked(loaded, out, frame_hw, precision)
    return out


def write_weights(checkpoint: LoadedCheckpoint, out: Path, precision: str) -> None:
    """Write the weights and their description; it names no folders, because such a file goes to other machines.

    Args:
        checkpoint: The weights.
        out: The file.
        precision: float32, or bf16 for .safetensors.

    Raises:
        UserError: The weights are an exported file themselves, or no export has written the file that is there.
    """
    conversion.check_own(checkpoint)
    with result_file(out) as staged:
        write_checkpoint(staged, checkpoint.detector, checkpoint.without_folders(), precision)


def export_checked(
    checkpoint: LoadedCheckpoint,
    out: Path,
    frame_hw: tuple[int, int],
    precision: str,
    frames: Calibration | None = None,
    show: Callable[[str], object] = lambda text: None,
    opset: int = OPSETS[-1],
    suppression: PostprocessConfig | None = None,
) -> CheckedExport:
    """Write the step of a detector, and compare it with PyTorch before the file is put in its place.

    In lower precision the difference is measured on the calibration frames, and the file says it.

    Args:
        checkpoint: The detector and its description.
        out: The file; its suffix selects the format.
        frame_hw: Height and width of the frames in pixels.
        precision: A key of `precisions`.
        frames: Frames to calibrate it on.
        show: Called with what is going on.
        opset: Version of the operators of ONNX.
        suppression: As in `rvtssm.export.export_detector`.

    Raises:
        UserError: The results differ too much, and `out` is as it was; or as in `rvtssm.export.export_detector`.
    """
    with staging_folder(out.parent, "export") as folder:
        staged = folder / out.name
        show("converting (1 of 2)")
        description = conversion.export_detector(
            checkpoint, staged, *frame_hw, precision, frames or (), opset, suppression, show
        )
        exported = read_exported(staged)
        show(f"comparing {CHECK_STEPS} steps with PyTorch (2 of 2)")
        seen = [*map(torch.from_numpy, frames.first(CHECK_STEPS))] if frames else []
        boxes, scores = largest_difference(checkpoint, exported, CHECK_STEPS, frames=seen)
        largest = _LARGEST_DIFFERENCE if precision == "float32" else math.inf
        if not (boxes <= largest and scores <= largest):  # also if one is NaN
            found = f"boxes by {boxes:.1e}, scores by {scores:.1e} over {CHECK_STEPS} steps"
            raise UserError("export.differs", name=out, found=f"it differs from the weights, {found}")
        if precision != "float32":
            measured = {"precision": precision, "steps": CHECK_STEPS, "boxes": boxes, "scores": scores}
            conversion.describe(staged, description | {"measured": measured})
        conversion.move_file(staged, out)
    return CheckedExport(description, boxes, scores)
