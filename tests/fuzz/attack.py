"""Reads mutants of valid files: each is read, or refused by a UserError of one line that names the file.

Another exception, a crash, much memory and a read without an end are failures. The mutants are read in child processes
with limits. An HDF5 file over which libhdf5 computes for ever is no failure of the package.

    python -m tests.fuzz.attack SECONDS [SEED]         # `bash scripts/fuzz.sh` calls it
    python -m tests.fuzz.attack repeat TARGET FILE     # reads the file of one failure again
"""

import faulthandler
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rvtssm.system.user_error import UserError
from tests.fuzz.mutants import mutate
from tests.fuzz.targets import STREAM, TARGETS, valid_file

_MOST_S = 20.0  # processor time of one mutant
_BLOCKED_S = 120.0  # without any answer
_MOST_BYTES = 512 << 20  # of memory used by one mutant
_ADDRESS_BYTES = 4 << 30  # of memory asked for by one mutant, so that a failure does not fill the machine
_NOT_A_DIRECTORY = "/dev/null/cache"  # indexes of mutants are not kept
Number = tuple[str, int]  # a mutant: its target, and which one of its mutants


@dataclass
class Tally:
    """What became of the mutants, by target."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)  # HDF5 files over which libhdf5 computes for ever
    failures: list[str] = field(default_factory=list)

    def count(self, name: str) -> int:
        return self.read[name] + self.refused[name] + self.stopped[name]


def refusal(name: str, path: Path) -> str:
    """Read a file as a user would; return the message that refuses it, empty if it was read.

    What breaks the promise is raised: any error but a UserError, or a message that is not one line naming the file.
    """
    try:
        TARGETS[name].read(path)
    except UserError as error:
        message = str(error)
        is_named = str(TARGETS[name].named(path)) in message or STREAM in message
        if not is_named or len(message.splitlines()) != 1:
            raise AssertionError(f"not one line that names the file: {message!r}") from error
        return message
    return ""


def mutant(name: str, number: int, seed: int, valid: bytes) -> bytes:
    """Return the content of the file that is attacked with."""
    rng = np.random.default_rng([seed, sorted(TARGETS).index(name), number])
    return TARGETS[name].packed(mutate(valid, rng))


class _Lane:
    """One child process at a time, which reads mutants one after the other and is replaced if it ends early."""

    def __init__(self, folder: Path, seed: int, numbers: Iterator[Number], valid: dict[str, bytes]) -> None:
        self.folder, self.seed, self.numbers, self.valid = folder, seed, numbers, valid
        self.now: Number | None = None
        self._start()

    def _start(self) -> None:
        to_child, self.order = os.pipe()
        self.answer, from_child = os.pipe()
        self.errors = open(self.folder / "stderr.txt", "w+")  # noqa: SIM115  closed by `_end`
        self.pid = os.fork()
        if not self.pid:
            os.dup2(self.errors.fileno(), 2)
            os.close(self.order)  # else it would never see the end of its orders
            os.close(self.answer)
            try:
                _read_mutants(self.folder, self.seed, self.valid, to_child, from_child)
            finally:
                os._exit(0)  # nothing of the caller must run here
        os.close(to_child)
        os.close(from_child)
        self.buffer = b""
        self._next()

    def _next(self) -> None:
        """Order the next mutant."""
        self.since_s = time.monotonic()
        self.now = next(self.numbers, None)
        if self.now is not None:
            os.write(self.order, "{}\t{}\n".format(*self.now).encode())

    def advance(self, tally: Tally) -> None:
        """Take an answer of the child, or note its end, and go on."""
        assert self.now is not None
        name, _ = self.now
        data = os.read(self.answer, 1 << 16)
        self.buffer += data
        if not data:
            self._note_end(tally)
            self._start()
        elif self.buffer.endswith(b"\0"):
            outcome, text = self.buffer[:1], self.buffer[1:-1].decode()
            self.buffer = b""
            if outcome == b"F":
                tally.failures.append(self._kept(text))
            else:
                (tally.read if outcome == b"R" else tally.refused)[name] += 1
            self._next()

    def check_time(self) -> None:
        if time.monotonic() - self.since_s > _BLOCKED_S:
            os.kill(self.pid, signal.SIGKILL)

    def _note_end(self, tally: Tally) -> None:
        assert self.now is not None
        _, status = os.waitpid(self.pid, 0)
        self.errors.seek(0)
        said = self.errors.read()
        self._close()
        name, code = self.now[0], os.waitstatus_to_exitcode(status)
        if code == -signal.SIGPROF and TARGETS[name].file.endswith((".h5", ".hdf5")):
            tally.stopped[name] += 1
            return
        causes = {
            -signal.SIGPROF: f"it computed for more than {_MOST_S:g} s",
            -signal.SIGKILL: f"it was killed, for example after {_BLOCKED_S:g} s without an answer",
        }
        tally.failures.append(self._kept(f"{causes.get(code, f'the process ended with {code}')}\n{said}"))

    def _kept(self, text: str) -> str:
        """Keep the file of a failure; return what to say about it."""
        assert self.now is not None
        name, number = self.now
        folder = self.folder.parent / "failures" / f"{name.replace(' ', '_')}_{self.seed}_{number}"
        path = folder / TARGETS[name].file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / TARGETS[name].file, path)
        command = f"PYTHONPATH=.:tests {sys.executable} -m tests.fuzz.attack repeat '{name}' {path}"
        return f"{name}: {text.strip()}\n  repeat it: {command}"

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._close()

    def _close(self) -> None:
        os.close(self.order)
        os.close(self.answer)
        self.errors.close()


def _read_mutants(folder: Path, seed: int, valid: dict[str, bytes], orders: int, answers: int) -> None:
    """The child: read the mutants that are ordered, and answer R (read), V (refused) or F (failure) with a text."""
    os.environ["RVTSSM_CACHE_DIR"] = _NOT_A_DIRECTORY
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.enable(2)  # a crash says where it was
    used = int(re.findall(r"VmSize:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_BYTES, used + _ADDRESS_BYTES))
    with open(orders) as lines:
        for line in lines:
            name, number = line.rstrip("\n").split("\t")
            path = folder / TARGETS[name].file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mutant(name, int(number), seed, valid[name]))
            _forget_peak()
            before = _peak_bytes()
            signal.setitimer(signal.ITIMER_PROF, _MOST_S)
            try:
                answer = "V" if refusal(name, path) else "R"
            except BaseException:
                answer = f"F{traceback.format_exc(limit=-8, chain=False)}"
            signal.setitimer(signal.ITIMER_PROF, 0)
            if _peak_bytes() - before > _MOST_BYTES:
                answer = f"F it took {(_peak_bytes() - before) >> 20} MB of memory"
            os.write(answers, answer[:60_000].replace("\0", "").encode(errors="replace") + b"\0")


def _peak_bytes() -> int:
    """Return the most memory that was resident since `_forget_peak`; elsewhere than on Linux since the start."""
    with suppress(OSError):
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _forget_peak() -> None:
    with suppress(OSError):  # a forked process begins with the peak of its parent
        Path("/proc/self/clear_refs").write_text("5")


def attack(folder: Path, seed: int, numbers: Iterable[Number], num_processes: int, report_s: float = 1e9) -> Tally:
    """Read the mutants with these numbers in several processes. Files of failures are kept in `folder`/failures."""
    valid = {}
    for name, target in TARGETS.items():
        source = folder / "valid" / name
        source.mkdir(parents=True)
        valid[name] = valid_file(name, source)
        (source / target.file).write_bytes(target.packed(valid[name]))
        message = refusal(name, source / target.file)  # also compiles what the children need
        assert not message, message
    tally, left, next_report_s = Tally(), iter(numbers), time.monotonic() + report_s
    lanes = []
    for number in range(num_processes):
        (folder / str(number)).mkdir()
        lanes.append(_Lane(folder / str(number), seed, left, valid))
    while busy := {lane.answer: lane for lane in lanes if lane.now is not None}:
        for answer in select.select(list(busy), [], [], 1.0)[0]:
            busy[answer].advance(tally)
        for lane in busy.values():
            lane.check_time()
        if time.monotonic() > next_report_s:
            next_report_s += report_s
            _report(tally)
    for lane in lanes:
        lane.end()
    return tally


def all_numbers(seconds: float) -> Iterator[Number]:
    """Give every target its next mutant in turn until the time is over."""
    end_s, number = time.monotonic() + seconds, 0
    while True:
        for name in TARGETS:
            if time.monotonic() > end_s:
                return
            yield name, number
        number += 1


def _report(tally: Tally) -> None:
    total = sum(map(tally.count, TARGETS))
    print(f"{total} mutants, {len(tally.failures)} failures", flush=True)


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] == "repeat":
        print(refusal(arguments[1], Path(arguments[2])) or "it was read")
        return 0
    seconds, seed = float(arguments[0]), int(arguments[1]) if len(arguments) > 1 else time.time_ns() % 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="rvtssm_fuzz_"))
    print(f"seed {seed}, files in {folder}", flush=True)
    tally = attack(folder, seed, all_numbers(seconds), 2, report_s=10.0)
    print(f"{'':28}{'mutants':>8}{'read':>8}{'refused':>8}{'stopped':>8}")
    for name in TARGETS:
        counts = tally.count(name), tally.read[name], tally.refused[name], tally.stopped[name]
        print(f"{name:28}" + "".join(f"{count:>8}" for count in counts))
    _report(tally)
    if tally.failures:
        print("\n\n".join(tally.failures))
        return 1
    with suppress(OSError):
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
