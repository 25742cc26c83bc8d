"""All raw recordings of a dataset to prepared sequences, in parallel; a second run does what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rvtssm.events.aside import remove_abandoned
from rvtssm.events.prepare import Outcome, PreprocessConfig, preprocess_recording
from rvtssm.events.tree import RawRecording, find_boxes_without_events, find_recordings
from rvtssm.events.workers import num_usable_cores, worker_pool
from rvtssm.records import DatasetSpec

__all__ = ["Outcome", "PreprocessConfig", "PreprocessSummary", "preprocess_dataset", "preprocess_recording"]


@dataclass
class PreprocessSummary:
    """What became of the recordings of a dataset; names are `split/name`."""

    written: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # with one line on why
    repaired: dict[str, int] = field(default_factory=dict)  # number of events whose time ran backwards

    def add(self, name: str, outcome: Outcome) -> None:
        if outcome.status in ("dropped", "failed"):
            getattr(self, outcome.status).append((name, outcome.message))
        else:
            getattr(self, outcome.status).append(name)
        if outcome.backward_steps:
            self.repaired[name] = outcome.backward_steps


@dataclass(frozen=True)
class _Task:
    split: str
    recording: RawRecording
    path: Path

    @property
    def name(self) -> str:
        return f"{self.split}/{self.recording.name}"


def preprocess_dataset(
    spec: DatasetSpec, raw_dir: Path | str, prepared_dir: Path | str, config: PreprocessConfig, progress: bool = True
) -> PreprocessSummary:
    """Prepare every recording of the splits as `prepared_dir/<split>/<name>.h5`.

    Complete files made from the same source with the same settings are skipped. A recording that cannot be prepared
    is reported in `failed`, the others are done. ValueError where there is nothing to prepare.
    """
    summary, tasks = PreprocessSummary(), []
    for split in config.splits:
        folder = Path(prepared_dir) / split
        remove_abandoned(folder)
        for recording in find_recordings(raw_dir, split, spec):
            tasks.append(_Task(split, recording, folder / f"{recording.name}.h5"))
        for boxes_path in find_boxes_without_events(raw_dir, split, spec) if config.is_labelled else ():
            suffixes = ", *".join(spec.event_suffixes)
            message = f"{boxes_path} has no events beside it (*{suffixes}); copy them or delete it"
            summary.add(f"{split}/{boxes_path.name.removesuffix(spec.boxes_suffix)}", Outcome("failed", message))
    if not tasks and not summary.failed:
        raise ValueError(f"{raw_dir} holds no recordings in {', '.join(config.splits)}; see data_prep/README.md")
    for folder in sorted({task.path.parent for task in tasks}):
        folder.mkdir(parents=True, exist_ok=True)  # one error where that is impossible, not one per recording
    workers = min(config.workers or num_usable_cores(), len(tasks))
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        bar_id = bar.add_task("preparing", total=len(tasks))
        for task, outcome in _outcomes(tasks, spec, config, workers):
            summary.add(task.name, outcome)
            bar.update(bar_id, advance=1, description=task.name)
    return summary


def _outcomes(
    tasks: list[_Task], spec: DatasetSpec, config: PreprocessConfig, workers: int
) -> Iterator[tuple[_Task, Outcome]]:
    """Every task with what became of it, in the order they finish."""
    if workers <= 1:
        for task in tasks:
            yield task, _outcome(task, spec, config)
        return
    pool = worker_pool(workers)
    try:
        futures = {pool.submit(_outcome, task, spec, config): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                message = "a worker process died, perhaps for lack of memory; run again, with fewer workers"
                yield futures[future], Outcome("failed", message)
    finally:
        pool.shutdown(cancel_futures=True)


def _outcome(task: _Task, spec: DatasetSpec, config: PreprocessConfig) -> Outcome:
    try:
        return preprocess_recording(task.recording, task.path, spec, config, task.split == "train")
    except (ValueError, OSError) as error:
        return Outcome("failed", " ".join(str(error).split()))
    except MemoryError as error:
        return Outcome("failed", f"not enough memory ({error}); run again, with fewer workers")
