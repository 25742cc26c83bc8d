"""`rvtssm preprocess`: turns raw recordings into histograms on disk."""

from dataclasses import asdict
from pathlib import Path

from rvtssm.cli.config import Config
from rvtssm.cli.console import announce, say, say_error
from rvtssm.cli.inputs import needed, recordings_path
from rvtssm.datasets import build_spec
from rvtssm.datasets.prepare_dataset import PreprocessSummary
from rvtssm.datasets.prepare_dataset import preprocess as prepare
from rvtssm.datasets.tree import find_recordings
from rvtssm.records import DatasetSpec
from rvtssm.system.output_folder import locked
from rvtssm.system.user_error import UserError


def preprocess(config: Config) -> int:
    """Prepare all recordings of `dataset.raw_dir`; return 2 if one of them cannot be prepared."""
    spec = build_spec(config.dataset)
    raw_dir = recordings_path(config)
    prepared_dir = needed(config.dataset.prepared_dir, "dataset.prepared_dir=DIR", "where to write")
    # Prepared files beside recordings would be taken for recordings.
    if Path(raw_dir).resolve() == Path(prepared_dir).resolve():
        why = "it holds the recordings"
        advice = "choose another folder for the prepared files"
        raise UserError("setting.conflict", name="dataset.prepared_dir", found=prepared_dir, needed=why, advice=advice)
    announce(
        "preprocess",
        source=f"{raw_dir} ({spec.name}, {spec.width} x {spec.height})",
        stride=f"{config.windows.stride_ms:g} ms",
        recordings=sum(len(find_recordings(raw_dir, split, spec)) for split in config.preprocess.splits),
        labels=config.preprocess.labels,
        output=prepared_dir,
    )
    # Only one process at a time prepares a folder.
    with locked(Path(prepared_dir)):
        summary = prepare(
            raw_dir,
            prepared_dir,
            dataset=config.dataset,
            windows=config.windows,
            progress=True,
            **asdict(config.preprocess),
        )
    _print_summary(summary, prepared_dir, spec)
    # If no recording has a box, the dataset is described wrongly.
    is_useless = summary.dropped and not (summary.written or summary.skipped)
    if is_useless and not summary.failed:
        classes = ", ".join(map(" ".join, spec.names_on_disk.items()))
        raise UserError(
            "labels.missing",
            name=raw_dir,
            found=f"no recording has a usable box: classes {classes}, sensor {spec.width}x{spec.height} (width x "
            "height)",
            advice=f"`rvtssm inspect {raw_dir} full=true` says what is wrong with the labels",
        )
    return 2 if summary.failed else 0


def _print_summary(summary: PreprocessSummary, prepared_dir: str, spec: DatasetSpec) -> None:
    # What was not prepared.
    for name, message in summary.failed:
        say_error(f"{name}: {message}")
    for name, message in summary.dropped:
        say(f"{name}: left out, {message}", style="yellow")
    for line in summary.lines(spec):
        say(line, style="yellow")
    say(
        f"{len(summary.written)} recordings prepared, {len(summary.skipped)} were complete, "
        f"{len(summary.dropped)} left out, {len(summary.failed)} failed; they are in {prepared_dir}"
    )
