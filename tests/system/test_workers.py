"""Workers: every task ends, a process that is killed costs the task it had, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path

import pytest

from rvtssm.system.workers import Processes, SameProcess, WorkerDied, finished

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")


def done_by_key(workers, tasks):
    left = iter(tasks)
    return {done.key: done for done in finished(workers, lambda: next(left, None))}


@pytest.mark.parametrize("build", [SameProcess, lambda: Processes(2)], ids=["same", "processes"])
def test_every_task_ends_with_its_result_or_its_error(build):
    tasks = [(i, divmod, (10, i)) for i in range(-4, 5)]
    with closing(build()) as workers:
        found = done_by_key(workers, tasks)
    assert sorted(found) == list(range(-4, 5))
    assert all(found[i].result == divmod(10, i) for i in found if i)
    assert isinstance(found[0].error, ZeroDivisionError)
    assert "Traceback" in "".join(traceback.format_exception(found[0].error))


def test_a_worker_that_is_killed_costs_its_task_only():
    tasks = [(i, pow, (i, 2)) for i in range(8)]
    tasks.insert(1, ("killed", exec, ("import os; os.kill(os.getpid(), 9)",)))
    tasks.insert(4, ("bad", os._exit, (7,)))
    with closing(Processes(2)) as workers:
        found = done_by_key(workers, tasks)
    assert [found[i].result for i in range(8)] == [i * i for i in range(8)]
    assert isinstance(found["killed"].error, WorkerDied) and isinstance(found["bad"].error, WorkerDied)
    assert "was killed by SIGKILL" in str(found["killed"].error) and "fewer workers" in str(found["killed"].error)
    assert "ended with exit code 7" in str(found["bad"].error)


def test_a_worker_that_died_while_it_had_nothing_to_do_is_replaced():
    with closing(Processes(1)) as workers:
        workers.submit(0, os.getpid, ())
        pid = workers.wait().result
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        workers.submit(1, os.getpid, ())
        done = workers.wait()
    assert done.error is None and done.result != pid


def test_closing_ends_what_is_under_way():
    with closing(Processes(2)) as workers:
        workers.submit("pid", os.getpid, ())
        pid = workers.wait().result
        workers.submit("long", time.sleep, (60,))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not Path(f"/proc/{pid}").exists()


PARENT = """
import time
from rvtssm.system.workers import Processes
workers = Processes(2)
workers.submit(0, exec, ("import os, sys; print(os.getpid(), file=sys.stderr, flush=True)",))
workers.wait()
workers.submit(1, time.sleep, (60,))
workers.submit(2, exec, ("import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)",))
workers.wait()
"""


def test_workers_end_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.PIPE, text=True)
    pids = [int(parent.stderr.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stderr.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
