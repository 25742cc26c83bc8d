"""A recording that is to be prepared, and the writer of one that is counted in sections by many workers."""

import contextlib
import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rvtssm.events.tree import RawRecording
from rvtssm.preparation.prepare_recording import Outcome, Plan, Recipe
from rvtssm.preparation.store import SequenceWriter, sequence_writer

SECTION_BYTES = 1 << 23  # of the raw file, at least; recordings shorter than two sections are never cut
_SECTIONS_PER_WORKER = 32  # so many let all workers end together
_SECTION_WINDOWS = 256  # at most, since the frames of a section are in memory at once


@dataclass(frozen=True)
class Job:
    """One recording to be prepared, and the file that it becomes."""

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
    """A recording that is counted in sections and written here."""

    def __init__(self, job: Job, plan: Plan, num_workers: int) -> None:
        self.plan = plan
        self.num_events = 0
        sequence = plan.sequence
        num_windows = len(sequence.windows)
        least = -(-num_windows // _SECTION_WINDOWS)
        most = min(job.num_bytes // SECTION_BYTES, _SECTIONS_PER_WORKER * num_workers)
        num_sections = min(num_windows, max(least, most))
        edges = [num_windows * i // num_sections for i in range(num_sections + 1)]
        self.bounds = list(itertools.pairwise(edges))
        self._begun = self._written = 0
        self._waiting: dict[int, list[bytes]] = {}  # sections that came before their turn
        self._stack = ExitStack()
        self._writer: SequenceWriter = self._stack.enter_context(
            sequence_writer(job.path, sequence.windows, sequence.labels, sequence.frame_shape, sequence.settings.dtype)
        )

    @property
    def is_written(self) -> bool:
        return self._written == len(self.bounds)

    def next_section(self, most_ahead: int) -> int | None:
        """Return a section to count now; None if none is left, or if too many already wait for a slower one."""
        if self._begun == len(self.bounds) or self._begun >= self._written + most_ahead:
            return None
        self._begun += 1
        return self._begun - 1

    def take(self, section: int, frames: list[bytes], num_events: int) -> float:
        """Write the section when its turn comes, and return the share of the windows that is written."""
        self._waiting[section] = frames
        self.num_events += num_events
        while self._written in self._waiting:
            self._writer.append(self._waiting.pop(self._written))
            self._written += 1
        return self.bounds[self._written - 1][1] / len(self.plan.sequence.windows) if self._written else 0.0

    def finish(self) -> Outcome:
        self._writer.meta = self.plan.final_meta(self.plan.sequence.recording.num_events)
        self._stack.close()
        faults = self.plan.sequence.recording.faults
        return Outcome("written", "", faults.backward_steps, self.num_events, self.plan.unusable_boxes)

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # its own, and errors of a full disk that have been reported
            self._stack.__exit__(RuntimeError, RuntimeError("abandoned"), None)
