"""`rvtssm export`: writes a detector as one file for other programs, and compares it with the original."""

from dataclasses import replace

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, changing_line, say
from rvtssm.cli.inputs import calibration_path, export_path, weights_path, writable
from rvtssm.cli.verbs import named
from rvtssm.detection.sources import find_sources
from rvtssm.detection.summary import counted
from rvtssm.export import precisions
from rvtssm.export.checked_export import CHECK_STEPS, export_checked, write_weights
from rvtssm.export.export_detector import FORMATS, check_export, files_of
from rvtssm.export.exported import read_weights_file
from rvtssm.models.checkpoint import SAFETENSORS
from rvtssm.models.checkpoint_meta import LoadedCheckpoint
from rvtssm.system.user_error import UserError


def export(config: Config) -> None:
    """Write `out`, whose name decides the format, and say how much its results differ from those of PyTorch.

    Raise ValueError if they differ too much; `out` is then left as it was. In lower precision the difference is
    measured on the calibration frames, if there are any, and the file says it. A `.safetensors` file holds weights and
    no program, so nothing is run for it.
    """
    out = export_path(config)
    options = config.export
    precision = precisions()[options.precision]
    # Weights without a graph have no size of frames and need no comparison.
    if out.suffix == SAFETENSORS and SAFETENSORS in precision.suffixes:
        if options.height or options.width or options.nms:
            needed = "it holds weights, which take frames of any size; height, width and nms have no effect"
            advice = f"leave them out, or name a file that ends in {' or '.join(FORMATS.values())}"
            raise UserError("setting.conflict", name="out", found=out.name, needed=needed, advice=advice)
        write_weights(_read(config), writable(out.parent) / out.name, options.precision)
        say(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB of weights, which every verb takes as a checkpoint")
        return
    check_export(out, options.precision)  # raises ValueError before the work, which takes long
    # Recordings whose activations decide the ranges of int8.
    where = calibration_path(config)
    paths = tuple(find_sources(where).values()) if where else ()
    # The graph, which is compared with PyTorch before it gets its name.
    checkpoint = _read(config)
    judged = ""
    spec = checkpoint.spec
    frame_hw = options.height or spec.frame_height, options.width or spec.frame_width
    announce(
        "export",
        weights=config.checkpoint,
        frames=f"{frame_hw[1]} x {frame_hw[0]}",
        precision=options.precision,
        check=f"{CHECK_STEPS} steps against PyTorch",
        output=out,
    )
    writable(out.parent)
    with changing_line("reading") as show:
        frames = named(precision.calibration)(paths, spec, checkpoint.windows, frame_hw) if paths else None
        if frames is not None:
            num_read = frames.check()  # before the work as well
            judged = (
                f"; ranges from {sum(num_read)} windows of {counted(len(num_read), 'recording')} in {where}; "
                f"{precision.note}"
            )
        suppression = config.postprocess if options.nms else None
        written = export_checked(checkpoint, out, frame_hw, options.precision, frames, show, options.opset, suppression)
    height, width = written.description["frame_hw"]
    files = files_of(out)
    size = sum(file.stat().st_size for file in files) / 1e6
    say(
        f"wrote {' and '.join(map(str, files))}: {size:.1f} MB, frames of {width} x {height}, any batch and step "
        f"scale; over {CHECK_STEPS} carried steps at changing rates, boxes differ from PyTorch by {written.boxes:.1e} "
        f"of the largest, scores by {written.scores:.1e}{judged}"
    )


def _read(config: Config) -> LoadedCheckpoint:
    """Return the weights in float32, since `precision` is that of scores, with the note of the file to write."""
    checkpoint = read_weights_file(weights_path(config))
    return replace(checkpoint, note=config.export.note or checkpoint.note)
