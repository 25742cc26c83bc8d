"""The progress bar of all commands except training, on stderr with the time left, and tasks that run with a bar."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from rvtssm.system.machine import num_usable_cores
from rvtssm.system.workers import Done, Processes, SameProcess, Task, finished

_RATE_S = 120  # the remaining time is estimated from the last two minutes


@contextmanager
def progress_bar(description: str | None, total: float | None, of_bytes: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function that advances a bar, and may change its description.

    An error removes the bar, so that only the error message remains.

    Args:
        description: Text beside the bar; None for no bar.
        total: Number of steps or bytes; None if unknown.
        of_bytes: Whether the bar counts bytes.
    """
    if description is None:
        yield lambda steps, description=None: None
        return
    name = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    # Bytes with a size and a rest of time, anything else with a count.
    columns: tuple[ProgressColumn, ...]
    if of_bytes:
        whole = Column(no_wrap=True)
        columns = (BarColumn(20), DownloadColumn(table_column=whole), TimeRemainingColumn(table_column=whole), name)
    else:
        left = TextColumn("left"), TimeRemainingColumn()
        columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *left)
    console = Console(stderr=True)
    with Progress(*columns, console=console, speed_estimate_period=_RATE_S) as progress:
        task = progress.add_task(description, total=total)
        try:
            yield lambda advance, description=None: progress.update(task, advance=advance, description=description)
        except BaseException:
            progress.live.transient = True  # on a terminal
            console.quiet = not console.is_terminal
            raise


def run_all(tasks: Sequence[Task], num_workers: int | None, description: str | None) -> Iterator[Done]:
    """Run tasks in parallel with a progress bar, and yield each when it ends.

    Args:
        tasks: The tasks.
        num_workers: Number of processes; None for one per core.
        description: Text beside the bar; None for no bar. There is none without tasks.
    """
    num_workers = min(num_workers or num_usable_cores(), len(tasks))
    remaining = iter(tasks)
    with (
        closing(Processes(num_workers) if num_workers > 1 else SameProcess()) as workers,
        progress_bar(description if tasks else None, len(tasks)) as advance,
    ):
        for done in finished(workers, lambda: next(remaining, None)):
            advance(1)
            yield done
