"""`rvtssm export`: writes a detector as one file for other programs, and compares it with the original."""

import os
from pathlib import Path

from rvtssm.atomic_files import staging_folder
from rvtssm.config import Config
from rvtssm.inference.export_detector import export_detector, format_of
from rvtssm.inference.exported import largest_difference, read_exported
from rvtssm.models.checkpoint import SAFETENSORS, CheckpointMeta, LoadedCheckpoint, write_checkpoint
from rvtssm.models.detector import Detector
from rvtssm.run.console import say
from rvtssm.run.inputs import export_path, writable
from rvtssm.run.weights import read_weights

_LARGEST_DIFFERENCE = 1e-3  # ten times what any of our layers needs


def export(config: Config) -> None:
    """Write `out`, whose name decides the format, and say how much its results differ from those of PyTorch.

    Raise ValueError if they differ too much; `out` is then left as it was.
    """
    out = export_path(config)
    if out.suffix == SAFETENSORS:
        _export_weights(read_weights(config), writable(out.parent) / out.name)
        return
    format_of(out)  # raises ValueError before the work, which takes long
    checkpoint = read_weights(config)
    with staging_folder(writable(out.parent), "export") as folder:
        staged = folder / out.name
        description = export_detector(checkpoint, staged, config.export.height, config.export.width)
        boxes, scores = largest_difference(checkpoint, read_exported(staged, trust=True), config.export.check_steps)
        if not (boxes <= _LARGEST_DIFFERENCE and scores <= _LARGEST_DIFFERENCE):  # also if one is NaN
            raise ValueError(
                f"the exported {out} differs from the weights: boxes by {boxes:.1e}, scores by {scores:.1e} over "
                f"{config.export.check_steps} steps; it was not kept, choose another format"
            )
        os.replace(staged, out)
    height, width = description["frame_hw"]
    say(
        f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB, frames of {width} x {height}, any batch and step scale; over "
        f"{config.export.check_steps} carried steps at changing rates, boxes differ from PyTorch by {boxes:.1e} of the "
        f"largest, scores by {scores:.1e}"
    )


def _export_weights(checkpoint: LoadedCheckpoint, out: Path) -> None:
    """Write the weights and their description; it names no folders, because such a file goes to other machines."""
    if not isinstance(checkpoint.detector, Detector):
        raise ValueError("this model is an exported file; give the checkpoint it is from")
    meta = CheckpointMeta(checkpoint.spec, checkpoint.model_config, checkpoint.temporal_config, checkpoint.windows)
    write_checkpoint(out, checkpoint.detector, meta)
    say(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB of weights, which every verb takes as a checkpoint")
