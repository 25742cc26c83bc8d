"""The order in which workers prepare recordings, of which a long one is counted in sections by all of them."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from rvtssm.datasets.prepare_recording import Outcome, Plan, Recipe, count_section, plan_recording, prepare_recording
from rvtssm.datasets.store_writer import SequenceWriter, sequence_writer
from rvtssm.datasets.tree import RawRecording
from rvtssm.system.user_error import in_one_line
from rvtssm.system.workers import Done, SameProcess, Task, Workers, finished

SECTION_BYTES = 1 << 23  # smallest section in bytes of the raw file; recordings below two sections stay whole
_SECTIONS_PER_WORKER = 32  # enough for all workers to finish at about the same time
_SECTION_WINDOWS = 256  # the most windows of a section, since all its frames are in memory at once
FAILURES = (ValueError, OSError, MemoryError, RuntimeError)  # HDF5 raises RuntimeError on a full disk


@dataclass(frozen=True)
class Job:
    """One recording to prepare, and the file that it becomes."""

    split: str
    recording: RawRecording
    path: Path
    recipe: Recipe = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.split}/{self.recording.name}"

    @property
    def num_bytes(self) -> int:
        return self.recording.events_path.stat().st_size


class SectionedRecording:
    """A recording that workers count in sections and this process writes.

    Args:
        job: The recording and its file.
        plan: The plan of the file.
        num_workers: Number of workers.
    """

    def __init__(self, job: Job, plan: Plan, num_workers: int) -> None:
        self.plan = plan
        sequence = plan.sequence
        num_windows = len(sequence.windows)
        least = -(-num_windows // _SECTION_WINDOWS)
        most = min(job.num_bytes // SECTION_BYTES, _SECTIONS_PER_WORKER * num_workers)
        num_sections = min(num_windows, max(least, most))
        edges = num_windows * np.arange(num_sections + 1) // num_sections
        self.bounds = list(itertools.pairwise(edges.tolist()))
        self._begun = self._written = 0
        self._waiting: dict[int, list[bytes]] = {}  # sections that finished before their turn
        self._stack = ExitStack()
        self._writer: SequenceWriter = self._stack.enter_context(
            sequence_writer(job.path, sequence.windows, sequence.labels, sequence.frame_shape)
        )

    def next_section(self, most_ahead: int) -> int | None:
        """Return the next section to count. None if none is left, or if too many wait for a slower one.

        Args:
            most_ahead: The most sections that may be counted but not written.
        """
        if self._begun == len(self.bounds) or self._begun >= self._written + most_ahead:
            return None
        self._begun += 1
        return self._begun - 1

    def take(self, section: int, frames: list[bytes]) -> float:
        """Write a section as soon as all earlier ones are written.

        Args:
            section: Its number.
            frames: Its compressed frames.

        Returns:
            The share of the windows that is written.
        """
        self._waiting[section] = frames
        while self._written in self._waiting:
            self._writer.append(self._waiting.pop(self._written))
            self._written += 1
        return self.bounds[self._written - 1][1] / len(self.plan.sequence.windows) if self._written else 0.0

    def finish(self) -> Outcome:
        """Complete the file and return the outcome."""
        recording = self.plan.sequence.recording
        outcome = self.plan.complete(self._writer, recording.num_events, recording.time_range_us)
        self._stack.close()
        return outcome

    def abandon(self) -> None:
        """Close the file without keeping it."""
        with contextlib.suppress(Exception):  # the error raised here, or a full disk, which was reported before
            self._stack.__exit__(RuntimeError, RuntimeError("abandoned"), None)


def failure(error: BaseException) -> Outcome:
    """Return the outcome of a recording that cannot be prepared."""
    if isinstance(error, MemoryError):
        return Outcome("failed", f"not enough memory ({error}); run again, with fewer workers")
    return Outcome("failed", in_one_line(error))


class Run:
    """Assigns jobs to workers: the longest first, and sections of a recording that was begun before new recordings.

    Args:
        jobs: The recordings to prepare.
        workers: The workers.
        advance: Advances the progress bar by a number of bytes and sets its description.
    """

    def __init__(self, jobs: list[Job], workers: Workers, advance: Callable[..., None]) -> None:
        self._jobs = deque(sorted(jobs, key=lambda job: job.num_bytes, reverse=True))
        self._workers = workers
        self._advance = advance
        self._num_finished = 0
        self._shown = dict.fromkeys(jobs, 0.0)  # share of the windows that is done
        # A recording longer than half of a worker's share could keep the other workers waiting at the end.
        fair_share = sum(job.num_bytes for job in jobs) / workers.num_workers
        limit = max(fair_share / 2, 2 * SECTION_BYTES)
        self._longest_whole = limit if workers.num_workers > 1 else float("inf")
        self._cut: dict[Job, SectionedRecording] = {}

    def outcomes(self) -> Iterator[tuple[Job, Outcome]]:
        """Yield every job with its outcome, in the order in which the jobs end."""
        try:
            for done in finished(self._workers, self._next_task, lambda key: key[0].name):
                job: Job = done.key[0]
                outcome = self._advanced(job, done)
                if outcome is not None:
                    self._num_finished += 1
                    self._show(job, 1.0)
                    yield job, outcome
        finally:
            for cut in self._cut.values():
                cut.abandon()

    def _show(self, job: Job, share: float) -> None:
        text = f"{self._num_finished}/{len(self._shown)} recordings, {job.name}"
        self._advance((share - self._shown[job]) * job.num_bytes, text)
        self._shown[job] = share

    def _next_task(self) -> Task | None:
        for job, cut in self._cut.items():
            section = cut.next_section(4 * self._workers.num_workers)
            if section is not None:
                return (job, section), count_section, (cut.plan.sequence.section(*cut.bounds[section]),)
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        # Frames of surfaces need earlier events, so their recordings cannot be split into sections.
        if job.num_bytes > self._longest_whole and not job.recipe.settings.warmup_us:
            return (job,), plan_recording, (job.recording, job.recipe, True)
        report = partial(self._show, job) if isinstance(self._workers, SameProcess) else None
        return (job,), prepare_recording, (job.recording, job.path, job.recipe, report)

    def _advanced(self, job: Job, done: Done) -> Outcome | None:
        """Return the outcome of the job; None if it is not finished yet, or has failed before."""
        is_section = len(done.key) > 1
        if is_section and job not in self._cut:  # the job has failed
            return None
        try:
            if done.error is not None:
                raise done.error
            if isinstance(done.result, Plan):
                self._cut[job] = SectionedRecording(job, done.result, self._workers.num_workers)
            elif is_section:
                cut = self._cut[job]
                share = cut.take(done.key[1], done.result)
                self._show(job, share)
                if share == 1:  # all windows are written
                    del self._cut[job]
                    return cut.finish()
            else:
                return done.result
        except FAILURES as error:
            if job in self._cut:
                self._cut.pop(job).abandon()
            return failure(error)
        return None
