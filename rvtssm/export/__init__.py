"""Writes one step of a detector as a file for other programs, and reads such files. The settings need no torch."""

from dataclasses import dataclass

from rvtssm.records.settings import SMALLEST_SIDE
from rvtssm.system.extras import installed_parts
from rvtssm.system.limits import Settings, check_choice, check_note, setting


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision of exported files. Functions and classes are names such as "package.module:function"."""

    suffixes: tuple[str, ...]  # of the names of files that can hold it
    extra: str = ""  # the extra that installs `packages`
    packages: tuple[str, ...] = ()
    # rewrites an ONNX file of float32, given its path, its `DetectorStep`, the calibration and what shows the progress
    lower: str = ""
    calibration: str = ""  # a `Calibration` of paths, spec, windows and frame size; "": this precision needs none
    note: str = ""  # what to expect of the results, as a clause


OPSETS = (17, 18, 20)  # 20 is the first with an operator for GELU, 17 the last that TensorRT 8 reads (JetPack 5)
PRECISIONS = {"float32": Precision((".onnx", ".xml", ".safetensors")), "bf16": Precision((".safetensors",))}


def precisions() -> dict[str, Precision]:
    """Return all precisions by name: those of PRECISIONS, and the entry points of the group `rvtssm.precisions`."""
    return {**PRECISIONS, **installed_parts("rvtssm.precisions")}


@dataclass
class ExportConfig(Settings, section="export"):
    """One run of `rvtssm export`; the suffix of the file selects the format."""

    height: int | None = setting(None, at_least=SMALLEST_SIDE)
    """Height of the frame in pixels; null: as in training."""
    width: int | None = setting(None, at_least=SMALLEST_SIDE)
    """Width of the frame in pixels; null: as in training."""
    precision: str = "float32"
    """float32, bf16 (which halves a .safetensors file), or one that an installed part adds."""
    note: str | None = None
    """One line about the weights, shown on terminals and pictures; null: as in the checkpoint."""
    calibrate: str | None = setting(None, is_path=True)
    """Recordings, on which the ranges of small numbers are found: a file, or a folder of them."""

    opset: int = OPSETS[-1]
    """Version of the operators of ONNX: 20, 18, or 17 for TensorRT of JetPack 5."""
    nms: bool = False
    """Add the boxes after non-maximum suppression to the outputs, as `postprocess` selects them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("export.precision", self.precision, precisions())
        check_choice("export.opset", self.opset, OPSETS)
        check_note("export.note", self.note)
