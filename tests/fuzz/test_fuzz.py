"""A short attack with mutants that are the same every time, and attacks on readers that break the promise."""

import mmap
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from rvtssm.system.user_error import UserError
from tests.fuzz import attack
from tests.fuzz.mutants import CHANGES
from tests.fuzz.targets import TARGETS, Target

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits memory by /proc")
NUM_MUTANTS = 12  # per target


def test_mutants_of_every_kind_of_file_are_read_or_refused_in_one_line(tmp_path):
    numbers = [(name, number) for number in range(NUM_MUTANTS) for name in TARGETS]
    tally = attack.attack(tmp_path, 0, numbers, num_processes=1)
    assert not tally.failures, "\n\n".join(tally.failures)
    assert {name: tally.count(name) for name in TARGETS} == dict.fromkeys(TARGETS, NUM_MUTANTS)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_and_is_the_same_again(change):
    data = b"17 events at [3, 4]: " + bytes(range(256)) * 4
    seeds = range(10)
    first, second = ([bytearray(data) for _ in seeds] for _ in range(2))
    for mutants in (first, second):
        for mutant, seed in zip(mutants, seeds, strict=True):
            change(mutant, np.random.default_rng(seed))
            change(bytearray(), np.random.default_rng(seed))  # of nothing: no error
    assert first == second and sum(mutant != data for mutant in first) > 3


def _raise(error: Exception) -> None:
    raise error


def _compute() -> None:
    while True:
        pass


BROKEN = {
    "KeyError: 'x'": lambda path: _raise(KeyError("x")),
    "not one line that names the file: 'wrong'": lambda path: _raise(UserError("wrong")),
    "not one line that names": lambda path: _raise(UserError(f"{path}\nis wrong")),
    "the process ended with 3": lambda path: os._exit(3),
    f"the process ended with -{int(signal.SIGSEGV)}": lambda path: os.kill(os.getpid(), signal.SIGSEGV),
    "it computed for more than 0.2 s": lambda path: _compute(),
    "for example after 1 s without an answer": lambda path: signal.pause(),
    "MB of memory": lambda path: mmap.mmap(-1, 64 << 20).write(bytes(64 << 20)),  # not memory that was freed before
    "MemoryError": lambda path: bytes(8 << 30),
}


@pytest.mark.parametrize("cause", BROKEN)
def test_what_breaks_the_promise_is_a_failure_whose_file_is_kept(tmp_path, monkeypatch, cause):
    def read(path: Path) -> None:
        if path.read_bytes() != b"valid":
            BROKEN[cause](path)

    monkeypatch.setattr(attack, "TARGETS", {"broken": Target("a.bin", lambda path: path.write_bytes(b"valid"), read)})
    most_s = 0.2 if "it computed" in cause else 60.0  # of a busy processor
    blocked_s = 1.0 if "without an answer" in cause else 60.0
    for limit, value in {"_MOST_S": most_s, "_BLOCKED_S": blocked_s, "_MOST_BYTES": 20 << 20}.items():
        monkeypatch.setattr(attack, limit, value)
    monkeypatch.setitem(TARGETS, "broken", attack.TARGETS["broken"])
    tally = attack.attack(tmp_path, 0, [("broken", 0), ("broken", 1)], num_processes=2)
    assert len(tally.failures) == 2 and all(cause in failure for failure in tally.failures)
    kept = sorted((tmp_path / "failures").rglob("a.bin"))
    assert len(kept) == 2 and all(any(f"repeat 'broken' {path}" in text for text in tally.failures) for path in kept)
    assert all(path.read_bytes() != b"valid" for path in kept)
