"""The progress bar of preparing recordings, with an estimate of the time left."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rvtssm.preparation.prepare_recording import Outcome
from rvtssm.preparation.sections import Job


class PreparationBar:
    """Shows recordings, bytes, events and the time left at the rate of the last minutes, on stderr."""

    def __init__(self, jobs: list[Job], is_shown: bool) -> None:
        self._bytes = {job: job.num_bytes for job in jobs}
        self._shares: dict[Job, float] = {}
        self._events: dict[Job, int] = {}
        self._num_finished = 0
        columns = (
            BarColumn(),
            TextColumn("{task.fields[finished]}"),
            DownloadColumn(),
            TextColumn("{task.fields[events]}"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(
            *columns, console=Console(stderr=True), disable=not is_shown, speed_estimate_period=120
        )
        self._id = self._progress.add_task("preparing", total=sum(self._bytes.values()), finished="", events="")

    def __enter__(self) -> PreparationBar:
        self._progress.start()
        self._show("")
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def advance(self, job: Job, share: float, num_events: int) -> None:
        """Show how much of a recording is done: a share of its windows and a number of events."""
        self._shares[job], self._events[job] = share, num_events
        self._show(job.name)

    def finish(self, job: Job, outcome: Outcome) -> None:
        self._num_finished += 1
        self.advance(job, 1.0, outcome.num_events)

    def _show(self, name: str) -> None:
        self._progress.update(
            self._id,
            completed=sum(share * self._bytes[job] for job, share in self._shares.items()),
            description=name,
            finished=f"{self._num_finished}/{len(self._bytes)} recordings",
            events=f"{sum(self._events.values()) / 1e6:.1f} M events",
        )
