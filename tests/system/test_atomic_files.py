"""A file is there whole or not at all, alone and with others, and nobody's work in progress is taken away."""

import os
import subprocess
import time

import pytest

from rvtssm.system.files import atomic_file, remove_abandoned, staging_folder


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
