"""One progress bar for everything that streams: on stderr, with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str | None, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function that moves a bar on, which shows the time left; a silent one when there is no description.

    An error takes the bar away, so that the line which tells it stands alone.
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
