"""A recording to prepare, and the writer of a recording that many workers count in sections."""

import contextlib
import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rvtssm.datasets.prepare_recording import Outcome, Plan, Recipe
from rvtssm.datasets.store_writer import SequenceWriter, sequence_writer
from rvtssm.datasets.tree import RawRecording

SECTION_BYTES = 1 << 23  # smallest section in bytes of the raw file; recordings below two sections stay whole
_SECTIONS_PER_WORKER = 32  # enough for all workers to finish at about the same time
_SECTION_WINDOWS = 256  # the most windows of a section, since all its frames are in memory at once


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
        edges = [num_windows * i // num_sections for i in range(num_sections + 1)]
        self.bounds = list(itertools.pairwise(edges))
        self._begun = self._written = 0
        self._waiting: dict[int, list[bytes]] = {}  # sections that finished before their turn
        self._stack = ExitStack()
        self._writer: SequenceWriter = self._stack.enter_context(
            sequence_writer(job.path, sequence.windows, sequence.labels, sequence.frame_shape)
        )

    @property
    def is_written(self) -> bool:
        return self._written == len(self.bounds)

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
        self._writer.meta = self.plan.final_meta(recording.num_events)
        self._stack.close()
        return self.plan.written(recording.time_range_us)

    def abandon(self) -> None:
        """Close the file without keeping it."""
        with contextlib.suppress(Exception):  # the error raised here, or a full disk, which was reported before
            self._stack.__exit__(RuntimeError, RuntimeError("abandoned"), None)
