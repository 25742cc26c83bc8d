"""A run that was interrupted and goes on gives what an uninterrupted run gives, bit for bit."""

import errno
import functools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch

from rvtssm.commands.cli import main
from rvtssm.commands.train import train
from rvtssm.models.checkpoint import load_file, read_checkpoint, write_checkpoint
from rvtssm.system.atomic_files import atomic_file
from rvtssm.training import fit
from rvtssm.training.checkpoints import Checkpoints, best_checkpoint, last_checkpoint
from rvtssm.training.fit import find_resume
from rvtssm.training.optim import build_optimizer
from rvtssm.training.training_config import OptimConfig

NUM_STEPS = 9  # the toy data hold 6 batches per epoch: a run crosses one border
SETTINGS = (f"training.steps={NUM_STEPS}", "training.validate_every=4", "model.drop_path=0.2")


class Interruption(L.Callback):
    """Does something to a run at the end of a step, or in the middle of one."""

    def __init__(self, step: int, action, at_end: bool) -> None:
        self.step, self.action, self.at_end = step, action, at_end

    def on_after_backward(self, trainer, pl_module):
        if not self.at_end and trainer.global_step == self.step - 1:
            self.action()

    def on_train_batch_end(self, trainer, *rest):
        if self.at_end and trainer.global_step == self.step:
            self.action()


def die() -> None:
    raise MemoryError("killed")


def ask_to_stop(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def interrupted(monkeypatch, toy_config):
    """A function: runs a toy training until something happens to it."""
    build_trainer = fit.build_trainer

    def train_until(
        out: Path, step: int, action, *overrides: str, at_end: bool = False, error=KeyboardInterrupt
    ) -> None:
        def with_interruption(*arguments):
            trainer = build_trainer(*arguments)
            trainer.callbacks.insert(0, Interruption(step, action, at_end))
            return trainer

        with monkeypatch.context() as patch:
            patch.setattr("rvtssm.commands.train.build_trainer", with_interruption)
            with pytest.raises(error):
                train(toy_config(out, *SETTINGS, *overrides))

    return train_until


@pytest.fixture(scope="module")
def whole(toy_config, tmp_path_factory) -> Path:
    """The folder of a run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole")
    train(toy_config(out, *SETTINGS))
    return out


def exit_with_code(arguments: list[str]) -> None:
    sys.exit(main(["train", *arguments]))


def test_a_second_training_into_the_same_folder_is_refused(
    interrupted, toy_data, toy_config, tmp_path, prepared, whole, logged
):
    codes = []

    def start_another() -> None:
        arguments = [*toy_data, f"out={tmp_path}", *SETTINGS, "resume=auto"]
        another = prepared.Process(target=exit_with_code, args=(arguments,))
        another.start()
        another.join()
        codes.append(another.exitcode)
        raise MemoryError("killed")

    interrupted(tmp_path, 5, start_another, error=MemoryError)
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 4
    assert codes == [2] and not (tmp_path / ".rvtssm.lock").exists()
    train(toy_config(tmp_path, *SETTINGS, "resume=auto"))  # the lock ended with the run
    assert_same_run(tmp_path, whole, logged)


wanted_weights = functools.cache(lambda path: load_file(path)["state_dict"])


def assert_same_run(found: Path, wanted: Path, logged) -> None:
    for name in (last_checkpoint, best_checkpoint):
        found_weights, weights = load_file(name(found))["state_dict"], wanted_weights(name(wanted))
        assert found_weights.keys() == weights.keys()
        for key, value in weights.items():
            assert torch.equal(found_weights[key], value), key
    found_log, log = logged(found), logged(wanted)
    assert found_log == log


def test_every_step_is_logged_and_the_last_one_is_validated(whole, logged):
    log = logged(whole)
    losses = [log[step]["train/total"] for step in range(NUM_STEPS)]
    assert len(set(losses)) == NUM_STEPS
    # what Lightning calls a step is the number of those before it
    assert [step for step in log if "val/AP" in log[step]] == [3, 7, 8]


def assert_on_schedule(log: dict[int, dict[str, str]], num_steps: int) -> None:
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), OptimConfig(), num_steps, batch_size=8)
    for step in range(num_steps):
        assert float(log[step]["lr-AdamW"]) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_the_learning_rate_moves_with_every_step(whole, logged):
    assert_on_schedule(logged(whole), NUM_STEPS)


@pytest.mark.parametrize("step", [1, 4, 6, 9])
def test_a_run_that_is_asked_to_stop_loses_nothing(interrupted, toy_config, whole, tmp_path, logged, step):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    number = signal.SIGTERM if step % 2 else signal.SIGINT
    interrupted(tmp_path, step, lambda: ask_to_stop(number))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    stopped = load_file(last_checkpoint(tmp_path))
    assert stopped["global_step"] == step
    before = logged(tmp_path)
    assert [index for index in before if "train/total" in before[index]] == list(range(step))
    train(toy_config(tmp_path, *SETTINGS, "resume=auto"))
    assert_same_run(tmp_path, whole, logged)
    if step < NUM_STEPS:  # the time of all parts counts
        assert 0 < stopped["train_seconds"] < load_file(last_checkpoint(tmp_path))["train_seconds"]


@pytest.mark.parametrize(("step", "saved"), [(4, None), (7, 6)])  # None: the run is repeated from its beginning
def test_a_run_that_dies_goes_on_from_the_last_checkpoint(
    interrupted, toy_config, whole, tmp_path, logged, step, saved
):
    every = "training.checkpoint_every=6"
    interrupted(tmp_path, step, die, every, error=MemoryError)
    assert last_checkpoint(tmp_path).is_file() == (saved is not None)
    if saved is not None:
        assert load_file(last_checkpoint(tmp_path))["global_step"] == saved
    train(toy_config(tmp_path, *SETTINGS, every, "resume=auto"))
    assert_same_run(tmp_path, whole, logged)


def test_what_a_killed_run_was_writing_is_removed(toy_config, tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with atomic_file(last_checkpoint(tmp_path)) as staged:
        staged.write_bytes(b"half")
        left = staged.with_name(staged.name.replace(f".{os.getpid()}-", f".{gone.pid}-"))
    left.write_bytes(b"half")
    last_checkpoint(tmp_path).unlink()
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
        (1, f"all {NUM_STEPS} steps and the last validation are done; weights: .*best.ckpt .*last.ckpt$"),
        (2, f"all {NUM_STEPS} steps are done, but .*last.ckpt has those of step 8, .* resume=auto"),
    ],
)
def test_an_interruption_in_the_last_validation_says_that_all_steps_are_done(
    toy_data, tmp_path, monkeypatch, capsys, times, said
):
    build_trainer = fit.build_trainer

    class InLastValidation(L.Callback):
        def on_validation_start(self, trainer, *rest):
            for _ in range(times if trainer.global_step == NUM_STEPS else 0):
                ask_to_stop(signal.SIGINT)

    def with_interruption(*arguments):
        trainer = build_trainer(*arguments)
        trainer.callbacks.insert(0, InLastValidation())
        return trainer

    monkeypatch.setattr("rvtssm.commands.train.build_trainer", with_interruption)
    assert main(["train", *toy_data, *SETTINGS, f"out={tmp_path}"]) == 130
    assert re.search(said, " ".join(capsys.readouterr().out.split()))


def test_accumulated_gradients_are_not_cut(interrupted, toy_config, tmp_path, logged):
    """Neither by the end of an epoch, of four batches here, nor by a validation, nor by a signal."""
    settings = ("training.accumulate=3", "training.steps=4", "training.validate_every=1", "sampling.chunk_length=6")
    train(toy_config(tmp_path / "whole", *SETTINGS, *settings))
    log = logged(tmp_path / "whole")
    assert [step for step in log if "val/AP" in log[step]] == [0, 1, 2, 3]
    assert_on_schedule(log, 4)
    interrupted(tmp_path / "cut", 3, lambda: ask_to_stop(signal.SIGINT), *settings)
    train(toy_config(tmp_path / "cut", *SETTINGS, *settings, "resume=auto"))
    assert_same_run(tmp_path / "cut", tmp_path / "whole", logged)


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
    trainer, checkpoints = Validated(aps), Checkpoints(tmp_path, every=10, minutes=10)
    for trainer.count in range(len(aps)):
        checkpoints.on_validation_end(trainer, None)
        assert last_checkpoint(tmp_path).read_text() == str(trainer.count)
        assert trainer.num_saves == trainer.count + 1  # the last checkpoint is a copy of the best one, if it is that
        resumed = Checkpoints(tmp_path, every=10, minutes=10)
        resumed.load_state_dict(checkpoints.state_dict())
        checkpoints = resumed
    assert best_checkpoint(tmp_path).read_text() == str(best)


def test_a_checkpoint_that_is_cut_off_leaves_the_one_before(tmp_path, monkeypatch):
    trainer, checkpoints = Validated([0.1, 0.2]), Checkpoints(tmp_path, every=10, minutes=10)
    checkpoints.on_validation_end(trainer, None)

    def fill_the_disk(path: Path) -> None:
        path.write_text("hal")
        raise OSError("no space left")

    trainer.count = 1
    monkeypatch.setattr(trainer, "save_checkpoint", fill_the_disk)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.on_validation_end(trainer, None)
    assert [path(tmp_path).read_text() for path in (best_checkpoint, last_checkpoint)] == ["0", "0"]


def test_checkpoints_need_no_room_elsewhere_and_a_full_disk_is_named(toy_config, tmp_path, monkeypatch):
    def fill_the_disk(path: Path, content: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    train(toy_config(tmp_path / "run", *SETTINGS, "training.steps=1"))
    assert load_file(last_checkpoint(tmp_path / "run"))["global_step"] == 1
    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    with pytest.raises(OSError, match="No space") as stopped:
        train(toy_config(tmp_path / "full", *SETTINGS, "training.steps=1"))
    assert stopped.value.filename == str(best_checkpoint(tmp_path / "full"))
    assert not any((tmp_path / "full" / "checkpoints").iterdir())


def test_a_complete_run_is_not_repeated(toy_config, whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".rvtssm.lock"}
    assert train(toy_config(whole, *SETTINGS, "resume=auto")) == best_checkpoint(whole)
    assert {path: path.stat().st_mtime_ns for path in before} == before and {*before} >= {*whole.rglob("*.*")} - {
        whole / ".rvtssm.lock"
    }
    said = capsys.readouterr().out
    assert f"all {NUM_STEPS} steps" in said and "about to" not in said


@pytest.mark.parametrize(
    "change",
    [
        "optim.learning_rate=0.1",
        "sampling.batch_size=4",
        "training.steps=20",
        "model.drop_path=0.1",
        "augment.stream.zoom_prob=0.01",
        "temporal=lstm",
        "seed=1",
    ],
)
def test_other_settings_do_not_resume(toy_config, whole, change):
    lstm = "temporal.name=s5, now lstm; temporal.discretization"
    key = {"temporal=lstm": lstm, "seed=1": "seed"}.get(change, change.split("=")[0])
    with pytest.raises(ValueError, match=rf"settings \({key}=[^;]*, now [^;]*\); resume with the same"):
        train(toy_config(whole, *SETTINGS, change, "resume=auto"))


def test_other_data_do_not_resume_and_leave_the_folder_as_it_is(toy_config, whole, tmp_path):
    config = toy_config(whole, *SETTINGS, "resume=auto")
    shutil.copytree(config.dataset.prepared_dir, tmp_path / "fewer")
    next((tmp_path / "fewer/train").glob("*.h5")).unlink()
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    fewer = replace(config, dataset=replace(config.dataset, prepared_dir=str(tmp_path / "fewer")))
    with pytest.raises(ValueError, match=r"train_recordings=2, now 1; dataset\.train_labels=\d+, now \d+\); resume"):
        train(fewer)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    content = load_file(last_checkpoint(whole))  # a checkpoint of an earlier version has no counts
    counts = {"dataset.train_recordings", "dataset.train_labels", "dataset.val_recordings", "dataset.val_labels"}
    content["decisive"] = {key: value for key, value in content["decisive"].items() if key not in counts}
    torch.save(content, tmp_path / "old.ckpt")
    shutil.copytree(whole, tmp_path / "old")
    os.replace(tmp_path / "old.ckpt", last_checkpoint(tmp_path / "old"))
    train(replace(config, out=str(tmp_path / "old")))


def test_a_run_whose_precision_has_the_word_of_lightning_resumes(toy_config, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    content = load_file(last_checkpoint(tmp_path))
    content["decisive"]["training.precision"] = "32-true"
    torch.save(content, last_checkpoint(tmp_path))
    assert train(toy_config(tmp_path, *SETTINGS, "resume=auto")) == best_checkpoint(tmp_path)


def test_settings_that_decide_no_number_may_change(interrupted, toy_config, whole, tmp_path, logged):
    # one worker has read ahead when the run stops; what it read must not be missing later
    interrupted(tmp_path, 2, lambda: ask_to_stop(signal.SIGINT), "data.workers=1")
    train(toy_config(tmp_path, *SETTINGS, "data.eval_batch_size=1", "data.eval_chunk_length=9", "resume=auto"))
    assert_same_run(tmp_path, whole, logged)


def test_a_run_is_not_overwritten(toy_config, whole, tmp_path):
    with pytest.raises(ValueError, match=rf"{whole} holds a run.*resume=auto, or set another out"):
        train(toy_config(whole, *SETTINGS))
    # nor by one that goes on from elsewhere
    other = tmp_path / "other.ckpt"
    other.write_bytes(last_checkpoint(whole).read_bytes())
    with pytest.raises(ValueError, match="holds a run"):
        train(toy_config(whole, *SETTINGS, f"resume={other}"))
    assert find_resume(str(last_checkpoint(whole)), whole) == last_checkpoint(whole)
    assert find_resume("auto", whole) == last_checkpoint(whole)
    assert find_resume(None, tmp_path) is None and find_resume("auto", tmp_path) is None


def test_the_place_in_the_data_is_two_numbers(whole):
    fit_loop = load_file(last_checkpoint(whole))["loops"]["fit_loop"]
    assert fit_loop["state_dict"]["combined_loader"] == [{"epoch": 1, "batch": NUM_STEPS - 6}]


def test_the_last_checkpoint_is_written_when_it_is_time(interrupted, toy_config, whole, tmp_path, logged, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("rvtssm.training.checkpoints.time.monotonic", lambda: clock[0])

    def wait() -> None:
        clock[0] += 60 * 7

    class Waiting(L.Callback):
        def on_train_batch_start(self, *rest):
            wait()

    # seven minutes a step: every second one, and the validation after the fourth starts the clock anew
    written: list[int] = []
    save = Checkpoints._save

    def noted(self, trainer, path, **options):
        written.append(trainer.global_step)
        save(self, trainer, path, **options)

    monkeypatch.setattr(Checkpoints, "_save", noted)
    build_trainer = fit.build_trainer

    def slow(*arguments):
        trainer = build_trainer(*arguments)
        trainer.callbacks.insert(0, Waiting())
        return trainer

    monkeypatch.setattr("rvtssm.commands.train.build_trainer", slow)
    train(toy_config(tmp_path, *SETTINGS, "training.checkpoint_minutes=10"))
    assert sorted(set(written)) == [2, 4, 6, 8, 9]
    assert_same_run(tmp_path, whole, logged)


def test_resuming_needs_a_checkpoint_of_a_run(toy_config, whole, tmp_path):
    with pytest.raises(ValueError, match="the checkpoint does not exist"):
        train(toy_config(tmp_path, f"resume={tmp_path / 'none.ckpt'}"))
    loaded = read_checkpoint(best_checkpoint(whole))
    write_checkpoint(tmp_path / "weights.ckpt", loaded.detector, loaded)
    with pytest.raises(ValueError, match="holds weights only"):
        train(toy_config(tmp_path, f"resume={tmp_path / 'weights.ckpt'}"))


def test_a_run_can_go_on_in_another_folder(interrupted, toy_config, whole, tmp_path, logged):
    interrupted(tmp_path / "first", 5, lambda: ask_to_stop(signal.SIGINT))
    train(toy_config(tmp_path / "second", *SETTINGS, f"resume={last_checkpoint(tmp_path / 'first')}"))
    last, wanted = (load_file(last_checkpoint(out))["state_dict"] for out in (tmp_path / "second", whole))
    assert all(torch.equal(last[key], wanted[key]) for key in wanted)
    assert best_checkpoint(tmp_path / "second").is_file()
