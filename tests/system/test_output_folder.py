"""Folders of results: one writer at a time, and a set of files that replaces the one before."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from user_errors import raises

from rvtssm.cli.main import main
from rvtssm.datasets import DATASETS
from rvtssm.models.checkpoint import read_checkpoint, write_checkpoint
from rvtssm.system import output_folder
from rvtssm.system.files import atomic_file, remove_abandoned, staging_folder
from rvtssm.system.output_folder import claim, locked, result_file, result_set, write_files
from tests.failing_disk import files_of_at_most, one_failing_call
from tests.killed import killed_at_each_call

PATTERNS = ("a", "b", "c", "still_*")
OLD, NEW = {"a": b"1", "b": b"22", "still_1": b"old"}, {"b": b"x", "c": b"yy", "still_2": b"new"}


def publish(folder: Path, content: dict[str, bytes], name: str = "set") -> None:
    with result_set(folder, name, PATTERNS) as staged:
        write_files(staged, content)


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def hidden(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    return [name for name in names if name != ".rvtssm.files.json"]


def test_a_set_replaces_the_set_before_and_nothing_else(tmp_path):
    publish(tmp_path / "out", OLD)
    assert visible(tmp_path / "out") == OLD
    (tmp_path / "out" / "mine.txt").write_text("kept")
    publish(tmp_path / "out", NEW)
    assert visible(tmp_path / "out") == {**NEW, "mine.txt": b"kept"} and not hidden(tmp_path / "out")
    publish(tmp_path / "out", {})
    assert visible(tmp_path / "out") == {"mine.txt": b"kept"}


def test_files_with_different_names_are_written_to_one_folder_at_a_time(tmp_path):
    with result_file(tmp_path / "a[1]") as first, result_file(tmp_path / "b") as second:
        first.write_bytes(b"a")
        second.write_bytes(b"b")
        with ThreadPoolExecutor(1) as other:  # can lock the folder
            other.submit(publish, tmp_path, {}).result()
        assert visible(tmp_path) == {}
    assert visible(tmp_path) == {"a[1]": b"a", "b": b"b"} and not hidden(tmp_path)
    with result_file(tmp_path / "b") as second:
        second.write_bytes(b"new")
    assert visible(tmp_path) == {"a[1]": b"a", "b": b"new"}
    with raises("file.exists"), result_file(tmp_path / "c") as third:
        third.write_bytes(b"new")
        (tmp_path / "c").write_bytes(b"of someone else")
    assert visible(tmp_path)["c"] == b"of someone else" and not hidden(tmp_path)


def test_a_link_that_leads_nowhere_is_a_file_of_someone_else(tmp_path):
    (tmp_path / "a").symlink_to("nowhere")
    with raises("file.exists"):
        publish(tmp_path, NEW)
    assert (tmp_path / "a").is_symlink()


def test_an_error_keeps_the_old_set_and_removes_a_new_folder(tmp_path):
    publish(tmp_path / "out", OLD)
    for folder in (tmp_path / "out", tmp_path / "new"):
        with pytest.raises(ValueError, match="wrong"), result_set(folder, "set", PATTERNS) as staged:
            (staged / "a").write_bytes(b"half")
            raise ValueError("wrong")
    assert visible(tmp_path / "out") == OLD and not (tmp_path / "new").exists()


def test_files_that_are_kept_stay_in_their_set(tmp_path):
    publish(tmp_path, OLD)
    with result_set(tmp_path, "set", PATTERNS, kept=["a"]) as staged:
        write_files(staged, NEW)
    assert visible(tmp_path) == {**NEW, "a": OLD["a"]}
    publish(tmp_path, NEW)
    assert visible(tmp_path) == NEW


@pytest.mark.parametrize("when", ["before", "changed", "meanwhile"])
def test_a_file_of_someone_else_is_neither_replaced_nor_deleted(tmp_path, when):
    publish(tmp_path / "out", OLD)
    place = {"before": "c", "changed": "a", "meanwhile": "still_2"}[when]
    if when != "meanwhile":
        (tmp_path / "out" / place).write_bytes(b"of someone else")
    before = visible(tmp_path / "out")
    with raises("file.exists"), result_set(tmp_path / "out", "set", PATTERNS) as staged:
        assert when == "meanwhile"
        write_files(staged, NEW)
        (tmp_path / "out" / place).write_bytes(b"of someone else")
    assert visible(tmp_path / "out") == {**before, place: b"of someone else"}
    with result_set(tmp_path / "out", "set", ["b"]) as staged:  # names that are not written do not matter
        write_files(staged, {"b": b"y"})
    assert visible(tmp_path / "out")[place] == b"of someone else"


def test_a_name_with_brackets_that_appears_meanwhile_is_not_replaced(tmp_path):
    name = "day[1].json"
    with raises("file.exists", name), result_set(tmp_path, "set", ["*.json"]) as staged:
        write_files(staged, {name: b"new"})
        (tmp_path / name).write_bytes(b"of someone else")
    assert visible(tmp_path) == {name: b"of someone else"}


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
        time.sleep(3600)
    print(os.getpid(), flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_a_folder_has_one_writer_who_is_named_and_whose_lock_ends_with_it(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(output_folder, "_WAIT_S", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out"), mode], stdout=subprocess.PIPE, text=True, process_group=0
    ) as holder:
        try:
            pid = int(holder.stdout.readline())
            with raises("run.in_use") as error, locked(tmp_path / "out"):
                raise AssertionError("two writers")
            since = rf"out: it is in use by process {pid} on \S+ since {time.strftime('%Y')}-\d\d-\d\d "
            assert re.search(since + ".*network disk.*delete", str(error.value))
            os.kill(pid, signal.SIGKILL)
            holder.wait()
            publish(tmp_path / "out", NEW)  # also while a process that it had forked is still there
            assert visible(tmp_path / "out") == NEW
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
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


# a disk that is full or broken


SENSOR = ("dataset=synthetic", "dataset.height=64", "dataset.width=96")
TOY = (
    *("synthetic.num_train=1", "synthetic.num_val=1", "synthetic.num_test=1"),
    *("synthetic.duration_s=0.6", "synthetic.workers=1"),
)
TRAIN = (
    *("model=tiny", "model.embed_dim=8", "model.head_dim=8", "model.num_blocks=[1,0,0,0]", "model.fpn_blocks=0"),
    *("sampling.batch_size=1", "sampling.chunk_length=2", "sampling.mode=random", "data.workers=0"),
    *("training.steps=2", "training.checkpoint_every=1", "training.accelerator=cpu"),
    *("training.pictures=false", "training.log_every=1"),
)
FAULTS = {
    "a file": lambda folder: files_of_at_most(1_000),
    "a large file": lambda folder: files_of_at_most(20_000),
    "first call": lambda folder: one_failing_call(folder, 0),
    "early call": lambda folder: one_failing_call(folder, 1),
    "late call": lambda folder: one_failing_call(folder, 6),
}
CAUSES = ("File too large", "No space left on device", "Input/output error")
OLD_RESULTS = {  # a file that each verb replaces
    "evaluate": "evaluation.json",
    "predict": "prediction.json",
    "export": "model.safetensors",
    "audit": "audit.json",
    "inspect": "inspection.json",
}


def recording_in(made: Path) -> Path | None:
    return next((made / "generate" / "test").glob("*.dat"), None)


def words_of(verb: str, made: Path, out: Path) -> list[str]:
    """The command line of a verb that writes to `out` and reads what the verbs before it wrote below `made`."""
    raw, prepared = f"dataset.raw_dir={made / 'generate'}", f"dataset.prepared_dir={made / 'preprocess'}"
    checkpoint = f"checkpoint={made / 'best.ckpt'}"
    return [
        verb,
        *{
            "generate": (*SENSOR, *TOY, f"dataset.raw_dir={out}"),
            "preprocess": (*SENSOR, raw, f"dataset.prepared_dir={out}", "preprocess.workers=1", "overwrite=true"),
            "train": (*SENSOR, *TRAIN, raw, prepared, f"out={out}"),
            "evaluate": (checkpoint, f"out={out}", "hz=[20]", "data.workers=0"),
            "predict": (checkpoint, f"recording={recording_in(made)}", f"out={out}"),
            "export": (checkpoint, f"out={out / 'model.safetensors'}"),
            "audit": (checkpoint, f"out={out}", "duration_s=1.2", "hz=[20]", "finer=[1]"),
            "inspect": (str(recording_in(made)), f"out={out}"),
        }[verb],
    ]


@pytest.fixture(scope="module")
def made(made_once, live_checkpoint) -> Path:
    """A folder with what `generate` and `preprocess` write if nothing fails, and with weights for these recordings."""

    def fill(folder: Path) -> None:
        for verb in ("generate", "preprocess"):
            assert main(words_of(verb, folder, folder / verb)) == 0, verb
        spec = replace(DATASETS["synthetic"], height=64, width=96)
        weights = replace(live_checkpoint(), spec=spec, raw_dir=str(folder / "generate"))
        write_checkpoint(folder / "best.ckpt", weights.detector, weights)

    return made_once("failing_disk", fill)


def results_in(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not any(part.startswith(".") for part in Path(name).parts)}


# every verb at an early call, and the other faults with verbs that write in different ways
# (the early call of a training is one of its logger)
CASES = [(verb, "early call") for verb in ("generate", "preprocess", *OLD_RESULTS)] + [("train", "first call")]
CASES += [("generate", "a file"), ("train", "a large file"), ("predict", "a file")]
CASES += [("train", "late call"), ("evaluate", "late call")]


@pytest.mark.parametrize(("verb", "fault"), CASES)
def test_a_verb_ends_with_one_line_and_keeps_what_was_there(tmp_path, capsys, made, verb, fault):
    out = tmp_path / "out"
    if verb in OLD_RESULTS:
        out.mkdir()
        name = OLD_RESULTS[verb]
        of_verb = name if verb == "export" else name.partition(".")[0]
        with result_set(out, of_verb, [name]) as staged:
            (staged / name).write_text("{}")
    elif verb != "train":
        shutil.copytree(made / verb, out)
        for path in (out / "val").iterdir():  # so that there is something to do
            path.unlink()
    before = results_in(out)
    capsys.readouterr()
    with FAULTS[fault](out):
        code = main(words_of(verb, made, out))
    printed = "".join(capsys.readouterr())
    assert code == 2, printed
    assert "Traceback" not in printed
    (line,) = (line for line in printed.splitlines() if any(cause in line for cause in CAUSES))
    assert line.startswith(f"rvtssm {verb}: ") or verb == "preprocess"  # that names each recording that failed
    after = results_in(out)
    if verb == "train":
        for path in (out / "checkpoints").glob("*.ckpt"):
            read_checkpoint(path)
    elif verb in ("generate", "preprocess"):
        whole = results_in(made / verb)
        assert after.keys() >= before.keys() and all(whole[name] == data for name, data in after.items())
    elif fault != "late call":  # files that were moved before it are new
        assert after == before


@pytest.mark.parametrize("verb", ["generate", "preprocess", "train", *OLD_RESULTS])
def test_a_place_below_a_file_is_refused_in_one_line_before_the_work(tmp_path, capsys, made, verb):
    file = tmp_path / "file"
    file.write_text("in the way")
    capsys.readouterr()
    assert main(words_of(verb, made, file / "below")) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert str(file) in line and "is or lies below a file" in line and "Traceback" not in printed.out
    assert file.read_text() == "in the way" and list(tmp_path.iterdir()) == [file]


@pytest.mark.filterwarnings("default:the logger TensorBoardLogger has failed")
def test_a_training_outlives_the_folder_of_its_logger(tmp_path, capsys, made):
    out = tmp_path / "out"
    with FAULTS["early call"](out):
        assert main(words_of("train", made, out)) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "Input/output error" in line)
    assert line.startswith("warning: the logger TensorBoardLogger has failed") and "the run goes on" in line
    assert read_checkpoint(out / "checkpoints" / "last.ckpt").detector is not None


def test_a_set_that_is_written_within_another_can_be_replaced(tmp_path):
    """As a report is within the files of its run."""
    for text in ("first", "second"):
        with result_set(tmp_path, "run", ["run.txt"]) as outer:
            (outer / "run.txt").write_text(text)
            with result_set(tmp_path, "report", ["report.txt"]) as inner:
                (inner / "report.txt").write_text(text)
    assert (tmp_path / "run.txt").read_text() == (tmp_path / "report.txt").read_text() == "second"


def test_settings_claim_a_folder_once(tmp_path):
    path = tmp_path / "made.json"
    claim(path, {"a": 1}, has_files=False)
    claim(path, {"a": 1}, has_files=True)
    claim(path, {"a": 1, "b": 0}, has_files=True, completed=lambda earlier: {"b": 0, **earlier})
    with raises("run.other_settings", "a=1 instead of 2"):
        claim(path, {"a": 2}, has_files=True)
    for damaged in ("{", "[1]"):
        path.write_text(damaged)
        with raises("file.damaged", "made.json"):
            claim(path, {"a": 1}, has_files=True)
    with raises("file.exists", "files, but no other.json"):
        claim(tmp_path / "other.json", {}, has_files=True)
