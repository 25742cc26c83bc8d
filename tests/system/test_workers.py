"""Workers: every task ends, a worker that dies ends the run and names its task, and none outlives its parent."""

import os
import signal
import struct
import subprocess
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path

import pytest
from event_examples import HEIGHT, WIDTH, random_events
from user_errors import raises

from rvtssm.system.workers import DaskCluster, Processes, SameProcess, finished
from tests.readers.ecf_encoder import write_ecf

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")

HOUR_S = 3600.0  # of a task that a test does not wait for
HANGS_S = 300.0  # after which what has not ended hangs, on any machine


def done_by_key(workers, tasks):
    waiting = iter(tasks)
    return {done.key: done for done in finished(workers, lambda: next(waiting, None))}


@pytest.mark.parametrize("build", [SameProcess, lambda: Processes(2)], ids=["same", "processes"])
def test_every_task_ends_with_its_result_or_its_error(build):
    tasks = [(i, divmod, (10, i)) for i in range(-4, 5)]
    with closing(build()) as workers:
        found = done_by_key(workers, tasks)
    assert sorted(found) == list(range(-4, 5))
    assert all(found[i].result == divmod(10, i) for i in found if i)
    assert isinstance(found[0].error, ZeroDivisionError)
    assert "Traceback" in "".join(traceback.format_exception(found[0].error))


@pytest.mark.parametrize("end", ["import os; os.kill(os.getpid(), 9)", "import os; os._exit(7)"])
def test_a_worker_that_dies_ends_the_run_and_names_its_task(end):
    tasks = [("good", pow, (2, 3)), ("deadly", exec, (end,)), *((str(i), time.sleep, (HOUR_S,)) for i in range(8))]
    begun_s = time.monotonic()
    with closing(Processes(2)) as workers, raises("run.process_ended"):
        done_by_key(workers, tasks)
    assert time.monotonic() - begun_s < HOUR_S


WAIT_FOR_THE_OTHER = """
import os, time
open(os.path.join({folder!r}, os.environ["OWN"]), "w").close()
while len(os.listdir({folder!r})) < 2:
    time.sleep(0.01)
"""


def test_processes_have_their_variables_in_turn(tmp_path):
    with closing(Processes(2, [{"OWN": "a"}, {"OWN": "b"}])) as workers:
        for future in [workers.submit(exec, WAIT_FOR_THE_OTHER.format(folder=str(tmp_path))) for _ in "ab"]:
            future.result()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_closing_ends_what_is_under_way():
    with closing(Processes(2)) as workers:
        pid = workers.submit(os.getpid).result()
        workers.submit(time.sleep, HOUR_S)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < HOUR_S
    assert not Path(f"/proc/{pid}").exists()


def have_ended(pids: list[int]) -> bool:
    """Whether processes end, before this gives up. One that nobody has asked for its exit code yet has ended, too."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    deadline_s = time.monotonic() + HANGS_S
    while any(map(runs, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return not any(map(runs, pids))


PARENT = """
import time
from rvtssm.system.workers import Processes
workers = Processes(2)
say = "import os, time; os.write(2, str(os.getpid()).encode() + bytes([10])); time.sleep(3600)"
for future in [workers.submit(exec, say) for _ in range(2)]:  # without `if __name__ == "__main__"`
    future.result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(parent.stderr.readline()) for _ in range(2)]
    parent.send_signal(number)
    parent.wait()
    parent.stderr.close()
    assert have_ended(pids)


@pytest.fixture
def endless(tmp_path) -> Path:
    """A recording whose size, a text, lies in a heap with an object of no size, over which libhdf5 never gets."""
    path = write_ecf(tmp_path / "endless.hdf5", random_events(300), HEIGHT, WIDTH)
    data = bytearray(path.read_bytes())
    place = data.index(b"GCOL") + 16
    while struct.unpack_from("<H", data, place)[0]:  # the free space has the number 0
        place += 16 + (struct.unpack_from("<Q", data, place + 8)[0] + 7) // 8 * 8
    struct.pack_into("<Q", data, place + 8, 0)
    path.write_bytes(data)
    return path


READING_PARENT = """
import sys
from rvtssm.system.workers import Processes
workers = Processes(1)
workers.submit(exec, "import os, sys, rvtssm.readers; print(os.getpid(), file=sys.stderr, flush=True)").result()
workers.submit(exec, f"from rvtssm.readers import open_recording; open_recording({sys.argv[1]!r})", {}).result()
"""


def processor_ticks(pid: int) -> int:
    """The processor time of a process, in hundredths of a second."""
    _, _, facts = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    return int(facts.split()[11]) + int(facts.split()[12])


def test_a_worker_that_holds_the_interpreter_lock_ends_with_its_parent(endless):
    parent = subprocess.Popen([sys.executable, "-c", READING_PARENT, str(endless)], stderr=subprocess.PIPE, text=True)
    pid = int(parent.stderr.readline())
    while str(endless) not in [os.path.realpath(file) for file in Path(f"/proc/{pid}/fd").iterdir()]:
        time.sleep(0.01)
    begun = processor_ticks(pid)
    while processor_ticks(pid) < begun + 30:  # more than the opening takes, so that it is within the library
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    parent.stderr.close()
    assert have_ended([pid])


def test_a_cluster_that_does_not_answer_is_named():
    pytest.importorskip("distributed")
    with raises("remote.cluster", "tcp://127.0.0.1:9"):
        DaskCluster("tcp://127.0.0.1:9", timeout_s=0.1)
