"""Prepare all raw recordings of a dataset in parallel. A second run prepares what is still missing.

Most recordings are prepared by one worker each. A recording that is much longer than others is split into sections of
consecutive windows. All workers count and compress sections, and this process writes them in order.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from rvtssm.datasets import DatasetConfig, PreprocessConfig, build_spec, custom, sections
from rvtssm.datasets.agreement import RECORDING_IS_ELSEWHERE, raw_lines
from rvtssm.datasets.prepare_recording import Outcome, Recipe, is_complete
from rvtssm.datasets.sections import FAILURES, Job, Run, failure
from rvtssm.datasets.tree import find_boxes_without_events, find_recordings, nothing_there, suffixes_of
from rvtssm.events.label_notes import lines_on
from rvtssm.events.windows import WindowsConfig
from rvtssm.readers.faults import say
from rvtssm.readers.index import index_folder
from rvtssm.records import DatasetSpec, WindowSettings
from rvtssm.system.files import remove_abandoned
from rvtssm.system.machine import num_usable_cores
from rvtssm.system.remote import check_local
from rvtssm.system.user_error import UserError
from rvtssm.system.workers import DaskCluster, Processes, SameProcess, Workers, progress_bar

WORTH_A_WORKER = 1 << 23  # bytes; starting a process takes about a second
# For the estimate of disk space: the smallest measured size of raw files, and the largest of prepared files.
# Bytes per event in a raw file
_LEAST_RAW_BYTES = {".dat": 8.0, ".npy": 8.0, ".csv": 8.0}
_LEAST_RAW_BYTES_ELSEWHERE = 2.5  # EVT3 with vectors, HDF5 with blosc
# bytes per event and frame that shows it
_STORED_BYTES = {"histogram": 1.0, "surfaces": 8.0}
_SURFACES_SHOW_US = 50_000  # frames of surfaces have the same size at any stride; the entry above holds at this one


@dataclass
class PreprocessSummary:
    """What happened to the recordings of a dataset. Names are `split/name`, in order."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by name

    @property
    def written(self) -> list[str]:
        """The names of the recordings that were prepared now."""
        return list(self._messages("written"))

    @property
    def skipped(self) -> list[str]:
        """The names of the recordings that were complete already."""
        return list(self._messages("skipped"))

    @property
    def dropped(self) -> list[tuple[str, str]]:
        """The names of the recordings without boxes, and the reasons."""
        return list(self._messages("dropped").items())

    @property
    def failed(self) -> list[tuple[str, str]]:
        """The names of the recordings that cannot be prepared, and the reasons, one line each."""
        return list(self._messages("failed").items())

    def lines(self, spec: DatasetSpec) -> list[str]:
        """Return what is unusual with the recordings that were prepared now, see `lines_on`."""
        return lines_on({name: outcome.noticed for name, outcome in sorted(self.outcomes.items())}, spec)

    def _messages(self, status: str) -> dict[str, str]:
        return {name: outcome.message for name, outcome in sorted(self.outcomes.items()) if outcome.status == status}


def preprocess(
    raw_dir: str | Path,
    prepared_dir: str | Path,
    *,
    dataset: DatasetConfig | None = None,
    windows: WindowsConfig | None = None,
    progress: bool = False,
    **settings: Any,
) -> PreprocessSummary:
    """Turn the recordings of a folder into histograms on disk, as `rvtssm preprocess` does.

    >>> summary = rvtssm.preprocess("street", "prepared", windows=rvtssm.WindowsConfig(stride_ms=100), workers=1)
    >>> sorted(summary.written)
    ['test/test_0000', 'train/train_0000', 'val/val_0000']

    Args:
        raw_dir: Folder or URL of the raw recordings.
        prepared_dir: Folder for the prepared files.
        dataset: Which dataset, if the folder does not say it.
        windows: How events become frames.
        progress: Whether to show a progress bar.
        **settings: Fields of `PreprocessConfig`, such as splits=["train"].

    Raises:
        UserError: There is nothing to prepare, the disk has less room than the files are likely to need, or the folder
            has another description of the dataset that is no copy.
    """
    spec = build_spec(replace(dataset or DatasetConfig(), raw_dir=str(raw_dir)))
    custom.copy_descriptions(raw_dir, prepared_dir, spec, replaces=False)  # now, in case the work is interrupted
    config = PreprocessConfig(**settings)
    counting = (windows or WindowsConfig()).settings
    for line in raw_lines(raw_dir, spec, has_strays=False):
        say(line)
    summary = preprocess_dataset(spec, raw_dir, prepared_dir, counting, config, progress)
    if summary.written or summary.skipped:  # otherwise it may not fit the files that are there
        custom.copy_descriptions(raw_dir, prepared_dir, spec)
    return summary


def preprocess_dataset(
    spec: DatasetSpec,
    raw_dir: Path | str,
    prepared_dir: Path | str,
    settings: WindowSettings,
    config: PreprocessConfig,
    progress: bool = True,
    workers: Workers | None = None,
) -> PreprocessSummary:
    """Prepare every recording of the splits as `prepared_dir/<split>/<name>.h5`.

    Complete files that were made from the same source with the same settings are skipped. A recording that cannot be
    prepared is reported in `failed`, and the others are still prepared.

    Args:
        spec: The dataset.
        raw_dir: Folder or URL of the raw recordings.
        prepared_dir: Folder for the prepared files.
        settings: How events become frames.
        config: Which splits to prepare, and how.
        progress: Whether to show a progress bar.
        workers: Workers to use, which stay open. None starts and closes workers as `config` says.

    Raises:
        UserError: There is nothing to prepare, or the disk has less room than the files are likely to need.
    """
    summary, jobs = PreprocessSummary(), []
    check_local("prepared_dir", str(prepared_dir))
    prepared_dir = Path(prepared_dir)
    for split in config.splits:
        folder, recipe = prepared_dir / split, Recipe(spec, settings, split == "train", config.is_labelled)
        for recording in find_recordings(raw_dir, split, spec):
            jobs.append(Job(split, recording, folder / f"{recording.name}.h5", recipe))
        for boxes_path in find_boxes_without_events(raw_dir, split, spec) if config.is_labelled else ():
            suffixes = ", *".join(suffixes_of(spec))
            message = f"{boxes_path} belongs to no recording (*{suffixes}); {RECORDING_IS_ELSEWHERE}"
            name = f"{split}/{boxes_path.name.removesuffix(spec.boxes_suffix)}"
            summary.outcomes[name] = Outcome("failed", message)
    if not jobs and not summary.failed:
        raise nothing_there(raw_dir, f"no recordings in {', '.join(config.splits)}")
    folders = {job.path.parent for job in jobs}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)  # if this fails, it is one error and not one per recording
    folders.add(index_folder())
    for folder in folders:
        remove_abandoned(folder)
    jobs = _missing(jobs, config.overwrite, summary)
    if not jobs:
        return summary
    _check_disk(jobs, spec, settings, prepared_dir)
    try:
        with ExitStack() as stack:
            workers = workers or stack.enter_context(closing(_build_workers(config, jobs)))
            num_bytes = sum(job.num_bytes for job in jobs)
            advance = stack.enter_context(progress_bar("preparing" if progress else None, num_bytes, of_bytes=True))
            for job, outcome in Run(jobs, workers, advance).outcomes():
                if outcome.status == "dropped" and job.path.exists():  # a training would go on reading the file
                    outcome = Outcome("failed", f"{outcome.message}; delete {job.path}, made from earlier labels")
                summary.outcomes[job.name] = outcome
    finally:
        for folder in folders:
            remove_abandoned(folder)  # temporary files of workers that were killed
    return summary


def _missing(jobs: list[Job], overwrite: bool, summary: PreprocessSummary) -> list[Job]:
    """Return the recordings that have to be prepared, and add the others to the summary."""

    def outcome(job: Job) -> Outcome | None:
        try:
            job.num_bytes  # noqa: B018  raises an error for a broken link
            return Outcome("skipped") if is_complete(job.recording, job.path, job.recipe, overwrite) else None
        except FAILURES as error:
            return failure(error)

    with ThreadPoolExecutor(8) as threads:  # the threads wait for a disk or a network
        outcomes = [*threads.map(outcome, jobs)]
    missing = []
    for job, known in zip(jobs, outcomes, strict=True):
        if known is None:
            missing.append(job)
        else:
            summary.outcomes[job.name] = known
    return missing


def _check_disk(jobs: list[Job], spec: DatasetSpec, settings: WindowSettings, folder: Path) -> None:
    """Raise UserError if the disk has less room than the prepared files are likely to need."""
    shown_us = _SURFACES_SHOW_US if settings.warmup_us else settings.length_us or 0
    overlap = max(1.0, shown_us / settings.stride_us)
    stored = _STORED_BYTES[settings.representation] * overlap / spec.downsample**2
    needed = 0.0
    for job in jobs:
        least = _LEAST_RAW_BYTES.get(job.recording.events_path.suffix, _LEAST_RAW_BYTES_ELSEWHERE)
        needed += stored * job.num_bytes / least
    free = shutil.disk_usage(folder).free
    if needed > free:
        needs = f"{len(jobs)} recordings need about {decimal(round(needed))} ({stored:.2g} bytes per event)"
        advice = "make room, choose another folder, or prepare fewer splits at once"
        raise UserError("machine.full", name=folder, found=f"{decimal(free)} free, but {needs}", advice=advice)


def _build_workers(config: PreprocessConfig, jobs: list[Job]) -> Workers:
    if config.scheduler is not None:
        return DaskCluster(config.scheduler)
    sizes = [job.num_bytes for job in jobs]
    num_workers = config.workers or min(num_usable_cores(), sum(sizes) // WORTH_A_WORKER)
    num_workers = min(num_workers, sum(max(1, size // sections.SECTION_BYTES) for size in sizes))
    return Processes(num_workers) if num_workers > 1 else SameProcess()
