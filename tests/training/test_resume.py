"""A run that was interrupted or killed goes on to the numbers of one that was not; where runs begin and end."""

import contextlib
import csv
import errno
import functools
import io
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

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.strategies import SingleDeviceStrategy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from user_errors import raises

from rvtssm.cli import train as verb
from rvtssm.cli.config import Config
from rvtssm.cli.main import main
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.system.files import atomic_file
from rvtssm.training import OptimConfig, TrainingConfig
from rvtssm.training.checkpoints import Averaging, Checkpoints, DirectCheckpointIO, best_checkpoint, last_checkpoint
from rvtssm.training.optim import build_optimizer
from rvtssm.training.resume import find_resume
from rvtssm.training.trainer import build_trainer
from tests.training.conftest import SEVEN_STEPS, die
from tests.training.watched import become_rank, train_with

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


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1, "all 2 steps and the last validation are done; weights: .*best.ckpt .*last.ckpt$"),
        (2, "all 2 steps are done, but .*last.ckpt has those of step 1, .* resume=auto"),
    ],
)
def test_an_interruption_in_the_last_validation_says_that_all_steps_are_done(
    toy_data, tmp_path, monkeypatch, capsys, times, said
):
    def in_last_validation(trainer, *rest) -> None:
        for _ in range(times if trainer.global_step == 2 else 0):
            ask_to_stop(signal.SIGINT)

    callback = LambdaCallback(on_validation_start=in_last_validation)
    monkeypatch.setattr(verb, "train", functools.partial(verb.train, callbacks=[callback]))
    assert main(["train", *toy_data, "training.steps=2", "training.validate_every=1", f"out={tmp_path}"]) == 130
    assert re.search(said, " ".join(capsys.readouterr().out.split()))


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
    lightning_module = torch.nn.Linear(1, 1)
    callbacks = ()

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
    with raises("run.other_settings") as refused:
        train(toy_config(whole, *SETTINGS, *map("=".join, changes.items()), "resume=auto"))
    (differences,) = re.findall(r"other settings \((.*)\); resume", str(refused.value))
    found = dict(re.findall(r"([\w.]+)=[^;]*?, now ([^;]*)", differences))
    assert found == changes


def test_other_data_do_not_resume_and_leave_the_folder_as_it_is(toy_config, whole, tmp_path):
    config = toy_config(whole, *SETTINGS, "resume=auto")
    shutil.copytree(config.dataset.prepared_dir, tmp_path / "fewer")
    next((tmp_path / "fewer/train").glob("*.h5")).unlink()
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    fewer = replace(config, dataset=replace(config.dataset, prepared_dir=str(tmp_path / "fewer"), source="prepared"))
    with raises("run.other_settings"):
        train(fewer)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_run_is_not_overwritten(toy_config, whole, tmp_path):
    with raises("run.exists"):
        train(toy_config(whole, *SETTINGS))
    # nor by one that goes on from elsewhere
    other = tmp_path / "other.ckpt"
    other.write_bytes(last_checkpoint(whole).read_bytes())
    with raises("run.exists"):
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
    with raises("file.missing"):
        train(toy_config(tmp_path, f"resume={tmp_path / 'none.ckpt'}"))
    loaded = read_checkpoint(best_checkpoint(whole))
    write_checkpoint(tmp_path / "weights.ckpt", loaded.detector, loaded)
    with raises("file.kind"):
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
    killed.join(timeout=1800)
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


# where a run begins and ends


STILL = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")  # weights that do not change


def same_weights(found, wanted) -> bool:
    first, second = (load_file(last_checkpoint(out))["state_dict"] for out in (found, wanted))
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_weights_that_a_run_starts_from_are_validated_before_the_first_step(
    toy_config, seven_steps, tmp_path, capsys, logged, train_until
):
    """The weights do not change, so the AP stays. A run that is resumed is the same, and not validated again."""
    words = (f"training.init_from={last_checkpoint(seven_steps)}", "training.steps=2", "training.checkpoint_every=1")
    config = toy_config(tmp_path / "whole", *words, *STILL)
    train(config)
    said = " ".join(capsys.readouterr().out.split())
    assert "step 0: validation AP" in said and "at the start, " in said
    assert f"tensorboard --logdir {tmp_path / 'whole'}" in said
    log = logged(tmp_path / "whole")
    assert {"val/AP", "train/total"} <= log[0].keys() and "val/AP" in log[1]
    assert float(log[0]["val/AP"]) == pytest.approx(float(log[1]["val/AP"]), abs=1e-6)
    config = replace(config, out=str(tmp_path / "resumed"), resume="auto")
    train_until(config, 2, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 1
    train(config)
    assert capsys.readouterr().out.count("step 0: validation AP") == 1
    assert same_weights(tmp_path / "resumed", tmp_path / "whole")
    assert logged(tmp_path / "resumed") == log


def test_a_run_from_nothing_is_not_validated_at_its_start(seven_steps, logged):
    assert "val/AP" not in logged(seven_steps)[0]
    assert load_file(last_checkpoint(seven_steps))["callbacks"]["Checkpoints"]["start_ap"] is None


def test_patience_ends_a_run(toy_config, tmp_path, capsys, train_until):
    """The weights do not change, so no validation after the first one has a higher AP, also after an interruption."""
    words = ("training.steps=50", "training.validate_every=1", "training.patience=2", *STILL)
    train_until(toy_config(tmp_path, *words), 3, die, MemoryError)
    train(toy_config(tmp_path, *words, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 3
    told = "ended before step 50: 2 validations in a row had no higher AP (training.patience=2)"
    assert told in " ".join(capsys.readouterr().out.split())
    assert train(toy_config(tmp_path, *words, "resume=auto")) == best_checkpoint(tmp_path)
    assert "3 steps, after which training.patience=2 ended the run" in " ".join(capsys.readouterr().out.split())
    train(toy_config(tmp_path, *words[:2], "training.patience=3", *STILL, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 4


def test_a_finished_run_is_extended_with_the_schedule_of_the_longer_run(
    toy_config, seven_steps, tmp_path, capsys, logged, train_until
):
    """A run that has not finished takes no more steps, and a finished one not fewer."""

    def resumed(name: str, steps: int) -> Config:
        words = ("model.drop_path=0.2", "training.checkpoint_every=1", "resume=auto")
        return toy_config(tmp_path / name, f"training.steps={steps}", *words)

    for name in ("whole", "resumed"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        for path in (last_checkpoint, best_checkpoint):
            path(tmp_path / name).write_bytes(path(seven_steps).read_bytes())
    with raises("run.other_settings"):
        train(resumed("whole", 6))
    train(resumed("whole", 9))
    said = " ".join(capsys.readouterr().out.split())
    assert "has all its 7 steps and goes on to 9: from now on its learning rate is that of a run of 9 steps" in said
    log = logged(tmp_path / "whole")
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), OptimConfig(), 9, 3)
    for step in range(9):
        rates = [float(value) for name, value in log[step].items() if name.startswith("lr-")] if step > 6 else []
        assert rates == pytest.approx([schedule.get_last_lr()[0]] * len(rates), rel=1e-6) and bool(rates) == (step > 6)
        optimizer.step()
        schedule.step()
    train_until(resumed("resumed", 9), 9, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 8
    with raises("run.other_settings"):
        train(resumed("resumed", 10))
    train(resumed("resumed", 9))
    assert same_weights(tmp_path / "resumed", tmp_path / "whole") and not same_weights(tmp_path / "whole", seven_steps)
    state = load_file(last_checkpoint(tmp_path / "resumed"))
    assert (state["global_step"], state["extended_at"], state["decisive"]["training.steps"]) == (9, [7], 9)


# errors that end a run


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("on_after_backward", 4),  # in the middle of the fifth step, from which nothing must stay
        ("on_train_batch_end", 5),  # after it
        ("on_validation_batch_end", 3),  # its validation is done anew
    ],
)
def test_an_error_loses_no_step(toy_config, whole, tmp_path, logged, moment, step):
    """The run goes on as if nothing had been, with the same logs, in one file."""

    def fail(trainer, *rest) -> None:
        if trainer.global_step == step:
            raise RuntimeError("a bug of somebody else")

    settings = (*SETTINGS, "training.average=0.5", "dataset.source=raw")
    train(toy_config(tmp_path / "uncut", *settings))
    with pytest.raises(RuntimeError, match="somebody else"):
        train(toy_config(tmp_path / "cut", *settings), callbacks=[LambdaCallback(**{moment: fail})])
    assert load_file(last_checkpoint(tmp_path / "cut"))["global_step"] == step
    train(toy_config(tmp_path / "cut", *settings, "resume=auto"))
    for name in (last_checkpoint, best_checkpoint):
        found, wanted = load_file(name(tmp_path / "cut")), load_file(name(tmp_path / "uncut"))
        for part in ("state_dict", "current_model_state"):
            assert all(torch.equal(found[part][key], value) for key, value in wanted[part].items()), part
    found, wanted = logged(tmp_path / "cut"), logged(tmp_path / "uncut")
    if moment == "on_train_batch_end":  # the numbers of this step were not logged yet
        assert found.pop(step - 1).items() <= wanted.pop(step - 1).items()
    assert found == wanted


def test_weights_that_are_cut_are_not_taken(toy_config, whole, tmp_path):
    """resume=auto takes the best ones with a line; who names the last ones is told of the best ones."""
    shutil.copytree(whole, tmp_path / "run")
    last, best = last_checkpoint(tmp_path / "run"), best_checkpoint(tmp_path / "run")
    last.write_bytes(last.read_bytes()[:-1000])
    step = load_file(best)["global_step"]
    with pytest.warns(UserWarning, match=f"last.ckpt is cut; resume=auto takes .*best.ckpt, which has step {step}"):
        assert find_resume("auto", tmp_path / "run") == best
    with raises("file.cut", f"resume={best}, which has step {step}"):
        find_resume(str(last), tmp_path / "run")
    best.write_bytes(b"")
    with raises("file.cut", "anew"):
        find_resume("auto", tmp_path / "run")


def test_a_run_goes_on_with_a_lower_learning_rate_and_with_no_higher_one(
    toy_config, whole, tmp_path, logged, capsys, train_until
):
    """From then on all rates are those of the whole run, times the factor between the two peaks."""
    settings = (*SETTINGS, "training.checkpoint_every=1")
    train_until(toy_config(tmp_path, *settings), 4, die, MemoryError)
    with raises("run.other_settings", "optim.learning_rate=0.0002, now 0.0003"):
        train(toy_config(tmp_path, *settings, "resume=auto", "optim.learning_rate=3e-4"))
    train(toy_config(tmp_path, *settings, "resume=auto", "optim.learning_rate=5e-5"))
    assert "from step 3 on, the peak of the learning rate is 5e-05" in capsys.readouterr().out
    found, wanted = logged(tmp_path), logged(whole)
    for step in range(NUM_STEPS):
        factor = 0.25 if step >= 3 else 1
        assert float(found[step]["lr-AdamW"]) == pytest.approx(factor * float(wanted[step]["lr-AdamW"]), rel=1e-6)


def test_no_step_stands_twice_in_the_logs(toy_config, tmp_path, train_until):
    """A run that was killed had logged more steps than its last weights have."""
    settings = (*SETTINGS, "training.checkpoint_every=2")

    def stop_at_once() -> None:
        raise KeyboardInterrupt

    train_until(toy_config(tmp_path, *settings), 6, stop_at_once, KeyboardInterrupt)
    train(toy_config(tmp_path, *settings, "resume=auto"))
    (path,) = tmp_path.glob("csv/*/metrics.csv")
    with open(path, newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train/total"]]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert steps == [event.step for event in board.Scalars("train/total")] == list(range(NUM_STEPS))


# averaged weights


DECAYS = ("0.0", "0.6")


@pytest.fixture(scope="module")
def runs(toy_config, two_steps, tmp_path_factory):
    """The last checkpoints of a run without an average, and of the same with averages of decay 0 and 0.6.

    What the latter have printed is in `said.txt`.
    """
    out = tmp_path_factory.mktemp("runs")
    for decay in DECAYS:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            train(toy_config(out / decay, "training.steps=2", f"training.average={decay}"))
        (out / decay / "said.txt").write_text(" ".join(said.getvalue().split()))
    found = {decay: load_file(last_checkpoint(out / decay)) for decay in DECAYS}
    return {"null": load_file(last_checkpoint(two_steps)), **found}, out


def test_with_decay_0_the_average_is_the_weights(runs, two_steps, logged):
    found, out = runs
    weights = found["null"]["state_dict"]
    assert all(torch.equal(found["0.0"]["state_dict"][name], value) for name, value in weights.items())
    assert logged(out / "0.0") == logged(two_steps)


def test_training_is_the_same_with_an_average_and_its_checkpoint_has_both(runs):
    found, out = runs
    weights, average = found["null"]["state_dict"], found["0.6"]["state_dict"]
    own = found["0.6"]["current_model_state"]
    assert all(torch.equal(own[name], value) for name, value in weights.items())
    moved = [name for name, value in weights.items() if not torch.equal(average[name], value)]
    assert len(moved) > len(weights) / 2
    kept = read_checkpoint(str(best_checkpoint(out / "0.6"))).detector.state_dict()
    assert all(torch.equal(kept[name.removeprefix("detector.")], average[name]) for name in moved)


def test_the_average_lies_on_the_device_of_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", torch.device("meta"))  # in place of a GPU
    trainer = build_trainer(TrainingConfig(accelerator="cpu", average=0.5), tmp_path, 1.0)
    module = L.LightningModule()
    module.layer = torch.nn.Linear(1, 1)  # Lightning moves it later
    trainer.callbacks[0].setup(trainer, module, "fit")
    assert {weight.device.type for weight in trainer.callbacks[0]._average_model.parameters()} == {"meta"}


class SpoiledAverage(L.Callback):
    """Makes the average not finite after the second step, while the weights stay finite."""

    def on_train_batch_end(self, trainer, pl_module, *rest):
        if trainer.global_step == 2:
            averaging = next(callback for callback in trainer.callbacks if isinstance(callback, Averaging))
            next(averaging.average.parameters()).data.fill_(math.nan)


def test_an_average_that_is_not_finite_is_not_written(toy_config, tmp_path, caplog):
    config = toy_config(tmp_path, *FOUR_STEPS, "training.average=0.5", "training.checkpoint_every=1")
    train(config, callbacks=[SpoiledAverage()])
    assert all(f"weights of step {step}, or their average, are not finite" in caplog.text for step in (2, 3, 4))
    last = load_file(last_checkpoint(tmp_path))
    assert last["global_step"] == 1
    assert all(value.isfinite().all() for value in last["state_dict"].values() if value.is_floating_point())


def test_a_training_that_is_too_short_for_its_average_is_told(runs):
    _, out = runs
    told = "training.average=0.6 is too slow for 2 steps: 36% of the average would be the weights of the first step"
    for decay in DECAYS:
        assert (told in (out / decay / "said.txt").read_text()) == (decay == "0.6")


# numbers that are not finite


FOUR_STEPS = ("training.steps=4", "training.validate_every=2", "model.drop_path=0.2")


class Poison(L.Callback):
    """Before the third step: a weight, frames or a gradient that are not numbers."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 2 and self.what == "weight":
            first_parameter(pl_module).data.view(-1)[0] = math.nan
        if trainer.global_step == 2 and self.what == "batch":
            object.__setattr__(batch, "hist", batch.hist.float().fill_(math.nan))  # as from broken voxel grids

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step == 2 and self.what == "gradient":
            first_parameter(pl_module).grad.view(-1)[0] = math.inf


def first_parameter(module):
    return next(module.detector.neck.parameters())


@pytest.fixture
def poisoned(toy_config):
    """A function: trains until the poison works; returns the message."""

    def run(out: Path, what: str, *overrides: str) -> str:
        with raises("run.not_finite", "before step 3") as stopped:
            train(toy_config(out, *FOUR_STEPS, *overrides), callbacks=[Poison(what)])
        last = load_file(last_checkpoint(out))  # what was saved before is as it was
        assert last["global_step"] == 2
        assert all(value.isfinite().all() for value in last["state_dict"].values())
        return str(stopped.value)

    return run


@pytest.mark.parametrize(("what", "accumulate"), [("weight", 1), ("batch", 2)])
def test_a_loss_that_is_not_finite_ends_the_run_and_names_its_recordings(poisoned, tmp_path, what, accumulate):
    message = poisoned(tmp_path, what, f"training.accumulate={accumulate}")
    assert "\n" not in message and "total nan" in message and "train_000" in message
    assert ("; weights neck." in message) == (what == "weight")


def test_a_gradient_alone_ends_the_run_and_the_command_that_is_named_goes_on(poisoned, toy_config, tmp_path):
    options = ("optim.h2_weight=0.1", "training.precision=float64", "training.freeze_batchnorm=true")
    out = tmp_path / "my run"
    message = poisoned(out, "gradient", *options, "training.validate_every=4")  # nothing was saved before
    assert "nan" not in message and "; gradients neck." in message
    assert f"rvtssm train 'out={out}' resume=auto optim.learning_rate=2e-05" in message
    words = ("training.validate_every=4", "resume=auto", "optim.learning_rate=2e-05")
    train(toy_config(out, *FOUR_STEPS, *options, *words))
    assert load_file(last_checkpoint(out))["global_step"] == 4


def test_weights_that_are_not_finite_are_not_written(toy_config, tmp_path):
    def poison(trainer, pl_module, *rest) -> None:
        if trainer.global_step == 3:
            first_parameter(pl_module).data.view(-1)[0] = math.nan

    config = toy_config(tmp_path, *FOUR_STEPS, "training.checkpoint_every=1")
    with raises("run.not_finite", "before step 4"):
        train(config, callbacks=[LambdaCallback(on_train_batch_end=poison)])
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 2


class PoisonSecond(Poison):
    """Works in the second of two processes alone."""

    def on_train_batch_start(self, trainer, *rest):
        if trainer.global_rank == 1:
            super().on_train_batch_start(trainer, *rest)


def train_poisoned(out: Path, _, overrides: list[str], environment: dict) -> None:
    become_rank(out, environment)
    sys.exit(train_with(PoisonSecond("batch"), overrides))


@pytest.mark.distributed
def test_all_processes_stop(ranks, toy_data, tmp_path):
    settings = [*toy_data, *FOUR_STEPS, "training.validate_every=10"]
    assert ranks(tmp_path, *settings, train=train_poisoned) == [2, 2]
    for rank in (0, 1):
        told = (tmp_path / f"rank{rank}.txt").read_text()
        assert "Traceback" not in told
        assert "which is not finite" in told, told
    assert "which is not finite: loss " in told and "total nan" in told, told
