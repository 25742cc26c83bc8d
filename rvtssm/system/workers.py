"""Workers for many recordings, and the progress bar of all commands except training.

A worker is this process, other processes on this machine, or a cluster, each as an Executor. Processes are spawned:
they copy no threads of the parent and do not import its main program, so that a script needs no `if __name__ ==
"__main__"`. They end when the parent ends, even if it is killed.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from concurrent.futures.process import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

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

from rvtssm.system.extras import check_extra
from rvtssm.system.machine import num_usable_cores
from rvtssm.system.user_error import UserError, in_one_line

_PR_SET_PDEATHSIG = 1  # Linux
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Task = tuple[Any, Callable[..., Any], Sequence[Any]]  # key, function, arguments


@dataclass(frozen=True)
class Done:
    """A task that has ended, with the key it was submitted with and either a result or an error."""

    key: Any
    result: Any = None
    error: BaseException | None = None


class SameProcess(Executor):
    """Runs each task in this process when it is submitted."""

    num_workers = 1

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: no task runs after `submit`."""


@contextlib.contextmanager
def without_main_program() -> Iterator[None]:
    """Let processes that start in this block, by spawn or forkserver, import nothing of the main program.

    They would otherwise run the whole program again if it has no `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Processes(ProcessPoolExecutor):
    """Runs tasks in at most `num_workers` processes on this machine. Each is started when it is first needed.

    Args:
        num_workers: The most processes that run at the same time.
        environments: Additional environment variables, given to the processes in turn before they import anything.
    """

    def __init__(self, num_workers: int, environments: Sequence[Mapping[str, str]] = ({},)) -> None:
        context = multiprocessing.get_context("spawn")
        begin = context.Value("i", 0), [*map(dict, environments)]
        super().__init__(num_workers, context, _begin, begin)
        self.num_workers = num_workers

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until it has begun, see `_begin`
        try:
            with without_main_program():
                return super().submit(function, *arguments, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def close(self) -> None:
        """End all processes at once, whatever they do."""
        for process in list((self._processes or {}).values()):
            process.kill()
        self.shutdown(cancel_futures=True)


class DaskCluster(Executor):
    """Runs tasks on a running dask cluster. Its workers must see the same folders as this process.

    Args:
        address: Address of the scheduler.
        timeout_s: How long the scheduler has time to answer.

    Raises:
        UserError: dask is not installed, no scheduler answers, or the cluster has no workers.
    """

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        check_extra("preprocess.scheduler=ADDRESS", "cluster", "distributed")
        from distributed import Client

        try:
            self._client = Client(address, timeout=timeout_s, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = in_one_line(error)
            found = f"no dask scheduler answers ({reason})"
            advice = "start one there"
            raise UserError("remote.cluster", name=f"scheduler={address}", found=found, advice=advice) from None
        self.num_workers = sum(self._client.nthreads().values())
        if not self.num_workers:
            self._client.close()
            found = "the dask cluster has no workers"
            advice = f"start them with `dask worker {address}`"
            raise UserError("remote.cluster", name=f"scheduler={address}", found=found, advice=advice)
        self._executor = self._client.get_executor()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = self._executor.submit(function, *arguments, **named)
        return future

    def close(self) -> None:
        """Cancel all tasks and leave the cluster."""
        self._executor.shutdown(wait=False)
        self._client.close()


Workers = SameProcess | Processes | DaskCluster  # always call `close`


def finished(
    workers: Workers, next_task: Callable[[], Task | None], name: Callable[[Any], str] = str
) -> Iterator[Done]:
    """Run the tasks that `next_task` returns, and yield each task when it ends.

    Args:
        workers: Where the tasks run.
        next_task: Returns the next task, or None if there is nothing to start now. After None, it is called again when
            a task has ended. The run is over when it returns None and no task is running.
        name: Returns the name of a task from its key, for errors.

    Raises:
        UserError: A worker process has ended. The message names the tasks that were running.
    """
    running: dict[Future[Any], Any] = {}
    while True:
        try:
            # As many tasks as there are workers, then wait for the first that ends.
            while len(running) < workers.num_workers and (task := next_task()) is not None:
                key, function, arguments = task
                running[workers.submit(function, *arguments)] = key
            if not running:
                return
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            error = future.exception()
        except (BrokenExecutor, CancelledError) as lost:
            raise _worker_ended(map(name, running.values())) from lost
        # A worker that died takes its task with it.
        if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":  # of dask
            raise _worker_ended(map(name, running.values())) from error
        yield Done(running.pop(future), None if error else future.result(), error)


def _worker_ended(names: Iterator[str]) -> UserError:
    return UserError(
        "run.process_ended",
        name=" or ".join(sorted(set(names))),
        found="the worker process ended, perhaps because memory ran out",
        advice="run again with fewer workers",
    )


def _begin(counter: Any, environments: Sequence[Mapping[str, str]]) -> None:
    """Prepare a new worker process: its variables, and which signals end it."""
    with counter:
        number = counter.value
        counter.value = counter.value + 1
    os.environ.update(environments[number % len(environments)])
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which decides what to do
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while a library holds the interpreter lock.

    This works on Linux only, and takes effect when the thread that started this process ends.
    """
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it ended before the call
        os._exit(1)


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
