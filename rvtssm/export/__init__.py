"""Writes one step of a detector as a file for other programs, and reads such files. The settings need no torch."""

from dataclasses import dataclass

from rvtssm.records.settings import SMALLEST_SIDE
from rvtssm.system.limits import check_at_least, check_choice, check_note

CALIBRATION_WINDOWS = 200  # of all recordings together; half of them at ten times the rate of training
EXPORT_PRECISIONS = ("float32", "bf16", "int8")


@dataclass
class ExportConfig:
    """One run of `rvtssm export`; the suffix of the file selects the format."""

    height: int | None = None
    """Height of the frame in pixels; null: as in training."""
    width: int | None = None
    """Width of the frame in pixels; null: as in training."""
    precision: str = "float32"
    """One of EXPORT_PRECISIONS; int8 is for .onnx and .xml and needs `calibrate`; bf16 halves a .safetensors file."""
    note: str | None = None
    """One line about the weights, shown on terminals and pictures; null: as in the checkpoint."""
    calibrate: str | None = None
    """Recordings for int8: a file, or a folder of them."""

    def __post_init__(self) -> None:
        check_choice("export.precision", self.precision, EXPORT_PRECISIONS)
        check_note("export.note", self.note)
        check_at_least("export", self, SMALLEST_SIDE, "height", "width")
