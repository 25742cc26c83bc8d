"""A run that was interrupted and goes on gives what an uninterrupted run gives, bit for bit."""

import errno
import functools
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from user_errors import raises

from rvtssm.cli.main import main
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.system.files import atomic_file
from rvtssm.training.checkpoints import Checkpoints, DirectCheckpointIO, best_checkpoint, last_checkpoint
from rvtssm.training.optim import build_optimizer
from rvtssm.training.resume import find_resume
from rvtssm.training.training_config import OptimConfig
from tests.training.conftest import SEVEN_STEPS
from tests.training.watched import train_with

NUM_STEPS, SETTINGS = 7, SEVEN_STEPS


def ask_to_stop(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def interrupted(train_until, toy_config):
    """A function: runs a toy training until something happens to it."""

    def run(out: Path, step: int, action, *overrides: str, error=KeyboardInterrupt) -> None:
        train_until(toy_config(out, *SETTINGS, *overrides), step, action, error)

    return run


@pytest.fixture(scope="module")
def whole(seven_steps, tmp_path_factory) -> Path:
    """The folder of a run that nobody interrupted."""
    return shutil.copytree(seven_steps, tmp_path_factory.mktemp("whole") / "run")


wanted_weights = functools.cache(lambda path: load_file(path)["state_dict"])


def assert_same_weights(found: Path, wanted: Path) -> None:
    for name in (last_checkpoint, best_checkpoint):
        found_weights, weights = load_file(name(found))["state_dict"], wanted_weights(name(wanted))
        assert found_weights.keys() == weights.keys()
        for key, value in weights.items():
            assert torch.equal(found_weights[key], value), key


def test_every_step_is_logged_and_the_last_one_is_validated(whole, logged):
    log = logged(whole)
    losses = [log[step]["train/total"] for step in range(NUM_STEPS)]
    assert len(set(losses)) == NUM_STEPS
    # what Lightning calls a step is the number of those before it
    assert [step for step in log if "val/AP" in log[step]] == [2, 5, 6]


def assert_on_schedule(log: dict[int, dict[str, str]], num_steps: int) -> None:
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), OptimConfig(), num_steps, batch_size=8)
    for step in range(num_steps):
        assert float(log[step]["lr-AdamW"]) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_a_run_that_is_asked_to_stop_goes_on_in_another_folder_and_loses_nothing(
    interrupted, toy_data, toy_config, whole, tmp_path, logged
):
    """One worker has read ahead when the run stops. The settings that change decide no number."""
    first, second = tmp_path / "first", tmp_path / "second"
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = []

    def train_another() -> None:
        codes.append(main(["train", *toy_data, f"out={first}", *SETTINGS, "resume=auto"]))

    def start_another_and_ask_to_stop() -> None:
        another = threading.Thread(target=train_another)  # a lock belongs to a thread
        another.start()
        another.join()
        ask_to_stop(signal.SIGINT)

    interrupted(first, 4, start_another_and_ask_to_stop, "data.workers=1")
    assert codes == [2] and not (first / ".rvtssm.lock").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    stopped = load_file(last_checkpoint(first))
    assert stopped["global_step"] == 4
    before = logged(first)
    assert [index for index in before if "train/total" in before[index]] == list(range(4))
    words = ("data.eval_batch_size=1", "data.eval_chunk_length=9", f"resume={last_checkpoint(first)}")
    train(toy_config(second, *SETTINGS, *words))
    assert_same_weights(second, whole)
    assert before | logged(second) == logged(whole)
    # the time of all parts counts
    assert 0 < stopped["train_seconds"] < load_file(last_checkpoint(second))["train_seconds"]


def test_what_a_killed_run_was_writing_is_removed_and_no_room_is_needed_elsewhere(toy_config, tmp_path, monkeypatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with atomic_file(last_checkpoint(tmp_path)) as staged:
        staged.write_bytes(b"half")
        left = staged.with_name(staged.name.replace(f".{os.getpid()}-", f".{gone.pid}-"))
    left.write_bytes(b"half")
    last_checkpoint(tmp_path).unlink()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    train(toy_config(tmp_path, *SETTINGS, "training.steps=1"))
    assert {path.name for path in left.parent.iterdir()} == {"best.ckpt", "last.ckpt"}


def test_asked_twice_a_run_stops_at_once(interrupted, tmp_path):
    def twice() -> None:
        ask_to_stop(signal.SIGINT)
        ask_to_stop(signal.SIGINT)

    interrupted(tmp_path, 3, twice)
    assert not last_checkpoint(tmp_path).exists()


def test_accumulated_gradients_are_not_cut(interrupted, toy_config, tmp_path, logged):
    """Neither by the end of an epoch, after three batches, nor by a validation, nor by a signal."""
    settings = ("training.accumulate=2", "sampling.chunk_length=8", "training.steps=2", "training.validate_every=1")
    train(toy_config(tmp_path / "whole", *SETTINGS, *settings))
    log = logged(tmp_path / "whole")
    assert [step for step in log if "val/AP" in log[step]] == [0, 1]
    assert_on_schedule(log, 2)
    interrupted(tmp_path / "cut", 1, lambda: ask_to_stop(signal.SIGINT), *settings)
    assert load_file(last_checkpoint(tmp_path / "cut"))["global_step"] == 1
    train(toy_config(tmp_path / "cut", *SETTINGS, *settings, "resume=auto"))
    assert_same_weights(tmp_path / "cut", tmp_path / "whole")
    assert logged(tmp_path / "cut") == log


class Validated:
    """A trainer after each of some validations; what it saves is the number of the validation."""

    is_global_zero, world_size, global_step = True, 1, 5

    def __init__(self, aps: list[float | None]) -> None:
        self.aps, self.count, self.num_saves = aps, 0, 0

    @property
    def callback_metrics(self) -> dict[str, float]:
        ap = self.aps[self.count]
        return {} if ap is None else {"val/AP": ap}

    def save_checkpoint(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(self.count))
        self.num_saves += 1


@pytest.mark.parametrize(
    ("aps", "best"),
    [
        ([0.1, 0.3, 0.2], 1),
        ([0.0, 0.0, 0.0], 2),  # of equal ones the later
        ([math.nan, 0.0, math.nan], 1),  # nothing was there to be found
        ([None, math.nan], 1),
    ],
)
def test_the_best_weights_are_those_of_the_highest_ap(tmp_path, aps, best):
    trainer, checkpoints = Validated(aps), Checkpoints(tmp_path, every=10)
    for trainer.count in range(len(aps)):
        checkpoints.on_validation_end(trainer, None)
        assert last_checkpoint(tmp_path).read_text() == str(trainer.count)
        assert trainer.num_saves == trainer.count + 1  # the last checkpoint is a copy of the best one, if it is that
        resumed = Checkpoints(tmp_path, every=10)
        resumed.load_state_dict(checkpoints.state_dict())
        checkpoints = resumed
    assert best_checkpoint(tmp_path).read_text() == str(best)


def test_a_full_disk_is_named(toy_config, tmp_path, monkeypatch):
    def fill_the_disk(path: Path, content: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    with pytest.raises(OSError, match="No space") as stopped:
        train(toy_config(tmp_path, *SETTINGS, "training.steps=1"))
    assert stopped.value.filename == str(best_checkpoint(tmp_path))
    assert not any((tmp_path / "checkpoints").iterdir())


def test_a_complete_run_is_not_repeated(toy_config, whole, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".rvtssm.lock"}
    assert train(toy_config(whole, *SETTINGS, "resume=auto")) == best_checkpoint(whole)
    assert {path: path.stat().st_mtime_ns for path in before} == before and {*before} >= {*whole.rglob("*.*")} - {
        whole / ".rvtssm.lock"
    }
    said = capsys.readouterr().out
    assert f"all {NUM_STEPS} steps" in said and "about to" not in said
    complete = last_checkpoint(whole)  # there are no best weights in another folder
    assert train(toy_config(tmp_path, *SETTINGS, f"resume={complete}")) == complete


def test_other_settings_do_not_resume_and_each_is_named(toy_config, whole):
    changes = {
        "optim.learning_rate": "0.1",
        "sampling.batch_size": "4",
        "training.steps": "5",
        "model.drop_path": "0.1",
        "augment.stream_zoom_prob": "0.01",
        "temporal.name": "s4d",
        "seed": "1",
    }
    with raises("resume.other_settings") as refused:
        train(toy_config(whole, *SETTINGS, *map("=".join, changes.items()), "resume=auto"))
    (differences,) = re.findall(r"other settings \((.*)\); resume", str(refused.value))
    found = dict(re.findall(r"([\w.]+)=[^;]*?, now ([^;]*)", differences))
    assert found == changes


def test_other_data_do_not_resume_and_leave_the_folder_as_it_is(toy_config, whole, tmp_path):
    config = toy_config(whole, *SETTINGS, "resume=auto")
    shutil.copytree(config.dataset.prepared_dir, tmp_path / "fewer")
    next((tmp_path / "fewer/train").glob("*.h5")).unlink()
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    fewer = replace(config, dataset=replace(config.dataset, prepared_dir=str(tmp_path / "fewer")))
    with raises("resume.other_settings"):
        train(fewer)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_run_is_not_overwritten(toy_config, whole, tmp_path):
    with raises("resume.holds_run"):
        train(toy_config(whole, *SETTINGS))
    # nor by one that goes on from elsewhere
    other = tmp_path / "other.ckpt"
    other.write_bytes(last_checkpoint(whole).read_bytes())
    with raises("resume.holds_run"):
        train(toy_config(whole, *SETTINGS, f"resume={other}"))
    assert find_resume(str(last_checkpoint(whole)), whole) == last_checkpoint(whole)
    assert find_resume("auto", whole) == last_checkpoint(whole)
    best = best_checkpoint(tmp_path / "best")  # killed before the last weights were written, or these were deleted
    best.parent.mkdir(parents=True)
    shutil.copyfile(best_checkpoint(whole), best)
    assert find_resume("auto", tmp_path / "best") == best
    assert find_resume(None, tmp_path) is None and find_resume("auto", tmp_path) is None


def test_the_last_checkpoint_is_written_when_it_is_time(toy_config, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def wait(*_) -> None:
        clock[0] += 60 * 7

    # seven minutes a step: every second one, and the validation after the third starts the clock anew
    written: list[int] = []

    def noted(self, content, path, storage_options=None) -> None:
        written.append(content["global_step"])
        path.parent.mkdir(exist_ok=True)
        path.touch()

    monkeypatch.setattr(DirectCheckpointIO, "save_checkpoint", noted)
    config = toy_config(tmp_path, "training.steps=6", "training.validate_every=3")
    train(config, callbacks=[LambdaCallback(on_train_batch_start=wait)])
    assert written == [2, 3, 5, 6]


def test_resuming_needs_a_checkpoint_of_a_run(toy_config, whole, tmp_path):
    with raises("resume.missing"):
        train(toy_config(tmp_path, f"resume={tmp_path / 'none.ckpt'}"))
    loaded = read_checkpoint(best_checkpoint(whole))
    write_checkpoint(tmp_path / "weights.ckpt", loaded.detector, loaded)
    with raises("resume.weights_only"):
        train(toy_config(tmp_path, f"resume={tmp_path / 'weights.ckpt'}"))


# killed by any signal


# killed with workers in the middle of a step, and asked to end without them in a validation
CASES = [
    ("mixed", signal.SIGKILL, 2, 3, "on_after_backward"),
    ("random", signal.SIGTERM, 0, 3, "on_validation_batch_start"),
]
OF_MODE = {"mixed": SEVEN_STEPS, "random": (*SEVEN_STEPS, "sampling.mode=random", "dataset.source=raw")}


class Blow(L.Callback):
    """Sends a signal to all processes of the run at a moment of a step."""

    def __init__(self, number: int, step: int, moment: str) -> None:
        self.number, self.step = number, step
        setattr(self, moment, self.strike)

    def strike(self, trainer: L.Trainer, *rest: object) -> None:
        if trainer.global_step == self.step:
            self.step = -1
            if self.number == signal.SIGKILL:
                os.kill(os.getpid(), self.number)  # the workers find out for themselves
            else:
                os.killpg(0, self.number)


def train_until(overrides: list[str], num_threads: int, number: int, step: int, moment: str) -> None:
    """In a process of its own: `rvtssm train` until the signal comes."""
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # of the workers, as where nobody chose another
    torch.set_num_threads(num_threads)
    sys.exit(train_with(Blow(number, step, moment), overrides))


@pytest.fixture
def whole_run(toy_config, seven_steps, tmp_path):
    """A function: mode -> the folder of a run that nobody killed."""

    def of(mode: str) -> Path:
        if mode == "mixed":
            return seven_steps
        train(toy_config(tmp_path / "whole_run", *OF_MODE[mode]))
        return tmp_path / "whole_run"

    return of


@pytest.mark.parametrize(("mode", "number", "num_workers", "step", "moment"), CASES)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    prepared, whole_run, toy_data, toy_config, tmp_path, logged, mode, number, num_workers, step, moment
):
    out, uncut = tmp_path / "killed", whole_run(mode)
    settings = (*OF_MODE[mode], "training.checkpoint_every=2", f"data.workers={num_workers}")
    overrides = [*toy_data, *settings, f"out={out}"]
    killed = prepared.Process(target=train_until, args=(overrides, torch.get_num_threads(), number, step, moment))
    killed.start()
    killed.join(timeout=120)
    assert killed.exitcode == (-signal.SIGKILL if number == signal.SIGKILL else 130)

    last = last_checkpoint(out)
    reached = load_file(last)["global_step"] if last.exists() else 0
    if number == signal.SIGKILL:
        assert step - 2 <= reached <= step
    else:
        assert reached == step
    train(toy_config(out, *settings, "resume=auto"))
    for name in (last_checkpoint, best_checkpoint):
        found, wanted = load_file(name(out))["state_dict"], load_file(name(uncut))["state_dict"]
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
    log = logged(out)
    following = [row for row in logged(uncut) if row >= reached]
    assert [log[row] for row in following] == [logged(uncut)[row] for row in following]
    assert len({log[row]["train/total"] for row in following}) == NUM_STEPS - reached
    assert not list((out / "checkpoints").glob(".*"))
