"""The progress bar of all streaming commands, on stderr and with the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str | None, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar by a number of steps; without a description, there is no bar.

    An error removes the bar, so that only the error message remains.
    """
    if description is None:
        yield lambda steps: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, *times, console=console) as progress:
        task = progress.add_task(description, total=total)
        try:
            yield lambda steps: progress.advance(task, steps)
        except BaseException:
            progress.live.transient = True  # on a terminal
            console.quiet = not console.is_terminal
            raise
