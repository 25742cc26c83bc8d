"""Whatever its bytes, a file is read, or refused by a UserError of one line that names it.

Mutants of a small valid file of every kind are read in a process with bounds of time and memory. `bash scripts/fuzz.sh`
tries more of them. A file that once broke the promise goes to tests/fuzz/test_hostile_files.py.
"""

import contextlib
import faulthandler
import mmap
import os
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rvtssm.system.user_error import UserError
from tests.fuzz.mutants import mutants
from tests.fuzz.targets import STREAM, TARGETS, Target, valid_file

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits memory by /proc")
_MOST_S = 20.0  # processor time of one mutant
_BLOCKED_S = 120  # without an answer
_MOST_BYTES = 512 << 20  # of memory used by one mutant
_ADDRESS_BYTES = 4 << 30  # of memory asked for, so that a failure does not fill the machine
_NUM_MUTANTS = int(os.environ.get("RVTSSM_MUTANTS", 12))  # of each kind of file
_IS_SAME_EACH_TIME = "RVTSSM_MUTANTS" not in os.environ


def memory_kb(row: str) -> int:
    """A number of /proc/self/status, such as VmHWM, the most memory that was resident."""
    return int(re.findall(rf"{row}:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


@contextlib.contextmanager
def bounded(most_s: float = _MOST_S, most_bytes: int = _MOST_BYTES) -> Iterator[None]:
    """End the process after this processor time; fail if the work takes more memory."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before_kb = memory_kb("VmHWM")
    signal.setitimer(signal.ITIMER_PROF, most_s)
    signal.alarm(_BLOCKED_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    used_bytes = (memory_kb("VmHWM") - before_kb) << 10
    assert used_bytes < most_bytes, f"it took {used_bytes >> 20} MB of memory"


def read_or_refuse(target: Target, path: Path) -> None:
    """Read a file as a user would; fail if an error is no UserError, or not one line that names the file."""
    try:
        target.read(path)
    except UserError as error:
        assert str(target.named(path)) in error.text or STREAM in error.text, f"no name: {error.text!r}"
        assert len(error.text.splitlines()) == 1, f"not one line: {error.text!r}"


def in_child(folder: Path, work: Callable[[], None]) -> tuple[int, str]:
    """Do the work in a forked process with bounds; return its exit code and what it wrote to standard error."""
    with open(folder / "stderr.txt", "w+") as told:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(told.fileno(), 2)
                faulthandler.disable()  # another library may have replaced its handler
                faulthandler.enable(2)  # a crash says where it was
                os.environ["RVTSSM_CACHE_DIR"] = "/dev/null/cache"  # indexes of mutants are not kept
                for number in (signal.SIGPROF, signal.SIGALRM):
                    signal.signal(number, signal.SIG_DFL)
                most = (memory_kb("VmSize") << 10) + _ADDRESS_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
                work()
                code = 0
            except BaseException:
                os.write(2, traceback.format_exc(limit=-8).encode(errors="replace")[-20_000:])
            finally:
                os._exit(code)  # nothing of the caller must run here
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told.seek(0)
        return code, told.read()


@pytest.fixture(scope="module")
def _constants_of_the_source() -> None:
    """What hypothesis reads from all modules when it first draws a number, so that children need not do it again."""

    @settings(max_examples=20, derandomize=True, database=None)
    @given(mutants(bytes(999)))
    def draw(content: bytes) -> None:
        assert content is not None

    draw()


@pytest.mark.usefixtures("_constants_of_the_source")
@pytest.mark.parametrize("name", TARGETS)
def test_a_mutant_is_read_or_refused_in_one_line(name, tmp_path):
    target = TARGETS[name]
    valid = valid_file(name, tmp_path / "valid")
    path = tmp_path / "mutant" / target.file
    path.parent.mkdir(parents=True)
    path.write_bytes(target.packed(valid))
    target.read(path)  # also compiles what the process needs

    @settings(
        max_examples=_NUM_MUTANTS,
        derandomize=_IS_SAME_EACH_TIME,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(content=mutants(valid))
    def law(content: bytes) -> None:
        path.write_bytes(target.packed(content))
        with bounded():
            read_or_refuse(target, path)

    code, told = in_child(tmp_path, law)
    if code == -signal.SIGPROF and target.file.endswith((".h5", ".hdf5")):
        pytest.skip(f"libhdf5 computes for ever over {path}")
    assert code == 0, f"{path} ended the process with {code}\n{told}"


BROKEN: dict[str, Callable[[Path], object]] = {
    "KeyError: 'x'": lambda path: {}["x"],
    "no name: 'wrong'": lambda path: refuse("wrong"),
    "not one line": lambda path: refuse(f"{path}\nis wrong"),
    "Segmentation fault": lambda path: os.kill(os.getpid(), signal.SIGSEGV),
    "MB of memory": lambda path: mmap.mmap(-1, 64 << 20).write(bytes(64 << 20)),  # not memory that was freed before
    "MemoryError": lambda path: bytes(8 << 30),
    "": lambda path: any(iter(int, 1)),  # computes for ever
}


def refuse(text: str) -> None:
    raise UserError("fuzz.broken", text)


@pytest.mark.parametrize("cause", BROKEN)
def test_a_reader_that_breaks_the_promise_is_noticed(cause, tmp_path):
    target = Target("a.bin", lambda path: path.touch(), BROKEN[cause])

    def work() -> None:
        with bounded(0.2 if not cause else 60.0, 20 << 20):
            read_or_refuse(target, tmp_path / "a.bin")

    code, told = in_child(tmp_path, work)
    assert code != 0 and cause in told
    assert cause or code == -signal.SIGPROF


@given(st.data())
@settings(max_examples=20)
def test_mutants_differ_from_the_file(data):
    valid = b"17 events at [3, 4]: " + bytes(range(256)) * 4
    contents = [data.draw(mutants(valid)) for _ in range(10)]
    assert sum(content != valid for content in contents) > 2
