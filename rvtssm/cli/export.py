"""`rvtssm export`: writes a detector as one file for other programs, and compares it with the original."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, changing_line, say
from rvtssm.cli.inputs import calibration_path, export_path, weights_path, writable
from rvtssm.detection.sources import find_sources
from rvtssm.detection.summary import counted
from rvtssm.export.calibration import CalibrationFrames
from rvtssm.export.export_detector import FORMATS, check_export, describe, export_detector, move_file
from rvtssm.export.exported import largest_difference, read_exported, read_weights_file
from rvtssm.models.checkpoint import SAFETENSORS, write_checkpoint
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.models.detector import Detector
from rvtssm.system.files import staging_folder
from rvtssm.system.user_error import UserError

_CHECK_STEPS = 20  # steps for which file and PyTorch are compared, with carried state and at changing rates
_LARGEST_DIFFERENCE = 1e-3  # ten times what any of our layers needs in float32


def export(config: Config) -> None:
    """Write `out`, whose name decides the format, and say how much its results differ from those of PyTorch.

    Raise ValueError if they differ too much; `out` is then left as it was. In lower precision the difference is
    measured on the calibration frames, if there are any, and the file says it. A `.safetensors` file holds weights and
    no program, so nothing is run for it.
    """
    out, options = export_path(config), config.export
    if out.suffix == SAFETENSORS and options.precision != "int8":
        if options.height or options.width:
            raise UserError(
                "export.size_of_weights",
                f"export.height and export.width have no effect on {out.name}, since weights take frames of any size; "
                f"leave them out, or name a file that ends in {' or '.join(FORMATS.values())}",
            )
        _export_weights(_read(config), writable(out.parent) / out.name, options.precision)
        return
    check_export(out, options.precision)  # raises ValueError before the work, which takes long
    where = calibration_path(config)
    paths = tuple(find_sources(where).values()) if where else ()
    checkpoint, judged = _read(config), ""
    spec, windows = checkpoint.spec, checkpoint.windows
    frame_hw = options.height or spec.frame_height, options.width or spec.frame_width
    announce(
        "export",
        weights=config.checkpoint,
        frames=f"{frame_hw[1]} x {frame_hw[0]}",
        precision=options.precision,
        check=f"{_CHECK_STEPS} steps against PyTorch",
        output=out,
    )
    with staging_folder(writable(out.parent), "export") as folder, changing_line("reading") as show:
        staged = folder / out.name
        frames = CalibrationFrames(paths, spec, windows, frame_hw, options.calibration_windows) if paths else None
        if frames:
            num_read = frames.check()  # before the work as well
            judged = (
                f"; ranges from {sum(num_read)} windows of {counted(len(num_read), 'recording')} in {where}; "
                "in 8 bits, differences of some tenths are usual, and `rvtssm evaluate` shows what they cost in AP"
            )
        show("converting (1 of 2)")
        description = export_detector(checkpoint, staged, *frame_hw, options.precision, frames or ())
        exported = read_exported(staged)
        show(f"comparing {_CHECK_STEPS} steps with PyTorch (2 of 2)")
        seen = [torch.from_numpy(frame) for frame in frames.first(_CHECK_STEPS)] if frames else []
        boxes, scores = largest_difference(checkpoint, exported, _CHECK_STEPS, frames=seen)
        largest = _LARGEST_DIFFERENCE if options.precision == "float32" else math.inf
        if not (boxes <= largest and scores <= largest):  # also if one is NaN
            raise UserError(
                "export.differs",
                f"the exported {out} differs from the weights: boxes by {boxes:.1e}, scores by {scores:.1e} over "
                f"{_CHECK_STEPS} steps; it was not kept, choose another format or precision",
            )
        if options.precision != "float32":
            measured = {"precision": options.precision, "steps": _CHECK_STEPS, "boxes": boxes, "scores": scores}
            describe(staged, description | {"measured": measured})
        move_file(staged, out)
    (height, width), files = description["frame_hw"], [out]
    if out.suffix == FORMATS["openvino"]:
        files.append(out.with_suffix(".bin"))
    size = sum(file.stat().st_size for file in files) / 1e6
    say(
        f"wrote {' and '.join(map(str, files))}: {size:.1f} MB, frames of {width} x {height}, any batch and step "
        f"scale; over {_CHECK_STEPS} carried steps at changing rates, boxes differ from PyTorch by {boxes:.1e} "
        f"of the largest, scores by {scores:.1e}{judged}"
    )


def _read(config: Config) -> LoadedCheckpoint:
    """Return the weights in float32, since `precision` is that of scores, with the note of the file to write."""
    checkpoint = read_weights_file(weights_path(config))
    return replace(checkpoint, note=config.export.note or checkpoint.note)


def _export_weights(checkpoint: LoadedCheckpoint, out: Path, precision: str) -> None:
    """Write the weights and their description; it names no folders, because such a file goes to other machines."""
    if not isinstance(checkpoint.detector, Detector):
        raise UserError("export.is_exported", "this model is an exported file; give the checkpoint it is from")
    write_checkpoint(out, checkpoint.detector, checkpoint.without_folders(), precision)
    say(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB of weights, which every verb takes as a checkpoint")
