"""Folders of results: one writer at a time, and a set of files that replaces the one before."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from user_errors import raises

from rvtssm.system import output_folder
from rvtssm.system.files import atomic_file, remove_abandoned, staging_folder
from rvtssm.system.output_folder import locked, result_set, write_files
from tests.killed import killed_at_each_call

PATTERNS = ("a", "b", "c", "still_*")
OLD, NEW = {"a": b"1", "b": b"22", "still_1": b"old"}, {"b": b"x", "c": b"yy", "still_2": b"new"}


def publish(folder: Path, content: dict[str, bytes], name: str = "set") -> None:
    with result_set(folder, name, PATTERNS) as staged:
        write_files(staged, content)


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_set_replaces_the_set_before_and_nothing_else(tmp_path):
    publish(tmp_path / "out", OLD)
    assert visible(tmp_path / "out") == OLD
    (tmp_path / "out" / "mine.txt").write_text("kept")
    publish(tmp_path / "out", NEW)
    assert visible(tmp_path / "out") == {**NEW, "mine.txt": b"kept"} and not hidden(tmp_path / "out")
    publish(tmp_path / "out", {})
    assert visible(tmp_path / "out") == {"mine.txt": b"kept"}


def test_an_error_keeps_the_old_set_and_removes_a_new_folder(tmp_path):
    publish(tmp_path / "out", OLD)
    for folder in (tmp_path / "out", tmp_path / "new"):
        with pytest.raises(ValueError, match="wrong"), result_set(folder, "set", PATTERNS) as staged:
            (staged / "a").write_bytes(b"half")
            raise ValueError("wrong")
    assert visible(tmp_path / "out") == OLD and not (tmp_path / "new").exists()


@pytest.mark.parametrize("old", [{}, OLD], ids=["first", "second"])
def test_killed_at_any_moment_each_file_is_whole_or_absent_and_the_next_run_mends_the_folder(tmp_path, old):
    for folder in killed_at_each_call(tmp_path, lambda out: publish(out, old), lambda out: publish(out, NEW)):
        for name, data in visible(folder).items():
            assert data in (old.get(name), NEW.get(name))
        publish(folder, NEW)
        assert visible(folder) == NEW and not hidden(folder)


HOLD = """
import os, sys, time
from rvtssm.system import output_folder
from rvtssm.system.output_folder import locked
with locked(sys.argv[1]):
    if sys.argv[2] == "fork" and not os.fork():
        time.sleep(60)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_a_folder_has_one_writer_who_is_named_and_whose_lock_ends_with_it(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(output_folder, "_WAIT_S", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out"), mode], stdout=subprocess.PIPE, text=True, process_group=0
    ) as holder:
        try:
            pid = int(holder.stdout.readline())
            with raises("output.in_use") as error, locked(tmp_path / "out"):
                raise AssertionError("two writers")
            pattern = (
                rf"out is in use by process {pid} on \S+ since {time.strftime('%Y')}-\d\d-\d\d .*network disk.*delete"
            )
            assert re.search(pattern, str(error.value))
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            publish(tmp_path / "out", NEW)  # also while a process that it had forked is still there
            assert visible(tmp_path / "out") == NEW
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_locks_nest_and_leave_nothing(tmp_path):
    with locked(tmp_path / "out"):
        with locked(tmp_path / "out"), result_set(tmp_path / "out", "set", PATTERNS) as staged:
            (staged / "a").write_bytes(b"1")
        assert (tmp_path / "out" / ".rvtssm.lock").exists()
    assert not hidden(tmp_path / "out")


def test_a_folder_that_another_process_removes_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    acquire, removed = FileLock.acquire, []

    def late(lock, *arguments, **named):
        if not removed:
            removed.append((tmp_path / "out").rmdir())
        return acquire(lock, *arguments, **named)

    monkeypatch.setattr(FileLock, "acquire", late)
    publish(tmp_path / "out", NEW)
    assert removed and visible(tmp_path / "out") == NEW


def test_a_disk_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("filelock.UnixFileLock._acquire", refuse)
    publish(tmp_path / "out", NEW)
    assert visible(tmp_path / "out") == NEW and "cannot be locked" in caplog.text


def test_a_full_disk_is_named_and_keeps_the_old_set(tmp_path, monkeypatch):
    publish(tmp_path, OLD)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space") as error:
        publish(tmp_path, NEW)
    assert error.value.filename == str(tmp_path) and visible(tmp_path) == OLD


# single files


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_file(path) as staged:
        staged.write_text("first")
        assert not path.exists() and staged.parent == path.parent
    with pytest.raises(ValueError, match="half"), atomic_file(path) as staged:
        staged.write_text("sec")
        raise ValueError("half")
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


def test_leftovers_of_dead_writers_are_removed_and_work_in_progress_is_not(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with atomic_file(tmp_path / "mine.h5") as mine:
        mine.write_bytes(b"half")
        _, _, started = mine.name.removesuffix(".tmp").rpartition("-")
        leftover = mine.with_name(mine.name.replace(f".{os.getpid()}-", f".{gone.pid}-"))
        same_number = mine.with_name(mine.name.replace(f"-{started}.tmp", f"-{int(started) - 1}.tmp"))
        elsewhere = tmp_path / f".b.h5.otherhost.{os.getpid()}-1.tmp"
        forgotten = tmp_path / f".c.h5.otherhost.{os.getpid()}-1.tmp"
        foreign = tmp_path / ".notes.of.mine.tmp"
        for path in (leftover, same_number, elsewhere, forgotten, foreign):
            path.write_bytes(b"half")
        for path in (forgotten, foreign):
            os.utime(path, (time.time() - 7200,) * 2)
        remove_abandoned(tmp_path.parent)
        assert not any(path.exists() for path in (leftover, same_number, forgotten))
        assert mine.exists() and elsewhere.exists() and foreign.exists()
    assert (tmp_path / "mine.h5").read_bytes() == b"half"
    remove_abandoned(tmp_path / "missing")


def test_a_folder_aside_is_removed_even_after_its_writer_was_killed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with staging_folder(tmp_path / "new", "work") as mine:
        (mine / "file").write_text("kept")
        left = mine.with_name(mine.name.replace(f".{os.getpid()}-", f".{gone.pid}-"))
        left.mkdir()
        (left / "file").write_text("half")
        with staging_folder(tmp_path / "new", "work") as other:
            assert mine.is_dir() and other.is_dir() and mine != other and not left.exists()
        os.replace(mine / "file", tmp_path / "new" / "file")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
