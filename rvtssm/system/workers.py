"""Workers for many recordings: this process, other processes on this machine, or a cluster, behind one interface.

Processes are started fresh: they copy no threads of the parent and import no module of its main program. They end when
the parent ends, even if it is killed. If a worker is killed, only its current task fails, and another worker takes its
place. In that case the pools of `concurrent.futures` and joblib lose all tasks, and workers of pebble outlive a killed
parent.
"""

import contextlib
import ctypes
import itertools
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from rvtssm.system.extras import check_extra
from rvtssm.system.user_error import UserError
from rvtssm.system.watchdog import EXIT_CODE

_WORKER = "import sys; from rvtssm.system.workers import serve; serve(int(sys.argv[1]))"
_END_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1  # Linux
CLUSTER_TIMEOUT_S = 10.0

Task = tuple[Any, Callable[..., Any], Sequence[Any]]  # key, function, arguments


class WorkerDied(Exception):
    """The process of a task ended before the task was complete."""


@dataclass(frozen=True)
class Done:
    """A task that has ended, with the key it was submitted with and either a result or an error."""

    key: Any
    result: Any = None
    error: BaseException | None = None


class Workers(Protocol):
    """The interface of all workers. Functions and arguments of tasks must be picklable. Always call `close`."""

    num_workers: int

    def submit(self, key: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Start a task. Submit few more than `num_workers` at a time, because results wait in memory.

        Args:
            key: Returned with the result.
            function: The function to call.
            arguments: Its positional arguments.
        """

    def wait(self) -> Done:
        """Return the next task that ends, in any order. At least one task must be running."""

    def close(self) -> None:
        """Stop all tasks and workers at once."""


class SameProcess:
    """Runs tasks in this process, each when `wait` asks for a result."""

    num_workers = 1

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def submit(self, key: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._tasks.append((key, function, arguments))

    def wait(self) -> Done:
        key, function, arguments = self._tasks.popleft()
        result, error = _attempt(function, arguments)
        return Done(key, result, error)

    def close(self) -> None:
        self._tasks.clear()


class Processes:
    """Runs tasks in at most `num_workers` processes on this machine. Each is started when it is first needed.

    Args:
        num_workers: The most processes that run at the same time.
        environments: Additional environment variables, given to the processes in turn.
    """

    def __init__(self, num_workers: int, environments: Sequence[Mapping[str, str]] = ({},)) -> None:
        self.num_workers = num_workers
        self._environments = itertools.cycle(environments)
        self._idle: list[_Process] = []
        self._busy: dict[Connection, tuple[_Process, Any]] = {}
        self._waiting: deque[Task] = deque()

    def submit(self, key: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._waiting.append((key, function, arguments))
        self._begin_tasks()

    def wait(self) -> Done:
        (connection, *_) = multiprocessing.connection.wait(list(self._busy))
        assert isinstance(connection, Connection)
        process, key = self._busy.pop(connection)
        try:
            result, error = connection.recv()
            self._idle.append(process)
        except (EOFError, OSError):
            result, error = None, process.died()
        self._begin_tasks()
        return Done(key, result, error)

    def close(self) -> None:
        self._waiting.clear()
        for process, _ in self._busy.values():
            process.end(at_once=True)
        for process in self._idle:
            process.end(at_once=False)
        self._busy, self._idle = {}, []

    def _begin_tasks(self) -> None:
        while self._waiting and len(self._busy) < self.num_workers:
            while self._idle and not self._idle[-1].is_running:
                self._idle.pop().end(at_once=True)
            process = self._idle.pop() if self._idle else _Process(next(self._environments))
            key, function, arguments = self._waiting.popleft()
            # If the process ends now, `wait` notices.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.connection.send((function, arguments))
            self._busy[process.connection] = process, key


class _Process:
    def __init__(self, environment: Mapping[str, str]) -> None:
        here, there = socket.socketpair()
        with there:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(there.fileno())],
                pass_fds=(there.fileno(),),
                process_group=0,  # Ctrl-C only reaches the parent, which decides what to do
                stdin=subprocess.PIPE,  # closes when the parent ends, and this ends the process
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.connection = Connection(here.detach())

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def died(self) -> WorkerDied:
        self.end(at_once=False)
        code = self._popen.returncode
        if code == EXIT_CODE:
            return WorkerDied(
                f"its worker process ended with exit code {code}; if `Timeout` is printed above, reading its file "
                "never ends, so the file is damaged: copy it or prepare it again"
            )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerDied(f"its worker process {how}, perhaps because memory ran out; run again with fewer workers")

    def end(self, at_once: bool) -> None:
        self.connection.close()
        with self._popen as popen:  # closes its stdin and waits
            if not at_once:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    popen.wait(_END_TIMEOUT_S)
            if popen.poll() is None:
                popen.kill()


class DaskCluster:
    """Runs tasks on a running dask cluster. Its workers must see the same folders as this process.

    Args:
        address: Address of the scheduler.

    Raises:
        UserError: dask is not installed, no scheduler answers, or the cluster has no workers.
    """

    def __init__(self, address: str) -> None:
        check_extra("preprocess.scheduler=ADDRESS", "cluster", "distributed")
        from distributed import Client, as_completed

        try:
            self._client = Client(address, timeout=CLUSTER_TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UserError(f"no dask scheduler answers at scheduler={address} ({said}); start one there") from None
        self.num_workers = sum(self._client.nthreads().values())
        if not self.num_workers:
            self._client.close()
            raise UserError(
                f"the dask cluster at scheduler={address} has no workers; start them with `dask worker {address}`"
            )
        self._keys: dict[str, Any] = {}
        self._done = as_completed(loop=self._client.loop)

    def submit(self, key: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        future = self._client.submit(_attempt, function, arguments, pure=False)
        self._keys[future.key] = key
        self._done.add(future)

    def wait(self) -> Done:
        future = next(self._done)
        key = self._keys.pop(future.key)
        if future.status != "finished":
            died = future.exception() if future.status == "error" else future.status
            message = f"no worker of the cluster completed the task ({' '.join(str(died).split())}); run again"
            return Done(key, None, WorkerDied(message))
        result, error = future.result()
        return Done(key, result, error)

    def close(self) -> None:
        self._client.cancel(list(self._done.futures))
        self._client.close()


def num_usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def finished(workers: Workers, next_task: Callable[[], Task | None]) -> Iterator[Done]:
    """Run the tasks that `next_task` returns, and yield each task when it ends.

    Args:
        workers: Where the tasks run.
        next_task: Returns the next task, or None if there is nothing to start now. After None, it is called again when
            a task has ended. The run is over when it returns None and no task is running.
    """
    num_running = 0
    while True:
        while num_running < 2 * workers.num_workers and (task := next_task()) is not None:
            workers.submit(*task)
            num_running += 1
        if not num_running:
            return
        done = workers.wait()
        num_running -= 1
        yield done


def serve(descriptor: int) -> None:
    """Run the tasks from a socket one after another until it closes. This is the main function of a worker process.

    Args:
        descriptor: Descriptor of the socket.
    """
    end_with_parent()
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            function, arguments = connection.recv()
            result, error = _attempt(function, arguments)
            if error is not None:  # the traceback is lost when the error is sent to the parent
                error.add_note("".join(traceback.format_exception(error)))
            connection.send((result, error))


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while a library holds the interpreter lock.

    This works on Linux only, and takes effect when the thread that started this process ends.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def _end_with_standard_input() -> None:
    os.read(0, 1)
    os._exit(1)


def _attempt(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
