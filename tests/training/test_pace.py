"""The progress line tells the truth: steps per second, share of waiting, time left."""

import re
import time
from types import SimpleNamespace

import pytest

from rvtssm.cli.train import train
from rvtssm.datasets.loader import ResumableLoader
from rvtssm.models.checkpoint import load_file
from rvtssm.training import progress as pace_module
from rvtssm.training.checkpoints import last_checkpoint
from rvtssm.training.progress import Pace, left_text


class Run:
    """A trainer and a module as `Pace` sees them, and a clock that goes only when it is told to."""

    def __init__(self, pace: Pace, monkeypatch) -> None:
        self.pace, self.now, self.global_step = pace, 100.0, 0
        self.logged: list[float] = []
        monkeypatch.setattr(pace_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        pace.on_train_start(self, self)

    def log(self, name: str, value: float, **options) -> None:
        assert name == "train/data_wait"
        self.logged.append(value)

    def batch(self, waiting: float, working: float, steps: int = 1) -> None:
        self.now += waiting
        self.pace.on_train_batch_start(self, self, None, 0)
        self.now += working
        self.global_step += steps
        self.pace.on_train_batch_end(self, self, None, None, 0)

    def validation(self, seconds: float) -> None:
        self.pace.on_validation_start(self, self)
        self.now += seconds
        self.pace.on_validation_end(self, self)


def test_waiting_is_what_lies_between_batches_and_no_validation(monkeypatch):
    run = Run(Pace(validate_every=100, window=4), monkeypatch)
    run.batch(waiting=7, working=50)  # workers start, code is compiled
    assert run.pace.data_wait is None and run.logged == []
    run.batch(waiting=1, working=3)
    assert run.pace.data_wait == run.logged[-1] == pytest.approx(0.25)
    run.validation(1000)
    run.batch(waiting=3, working=1)
    assert run.pace.data_wait == pytest.approx(0.5)
    assert run.pace.batches_per_second == pytest.approx(2 / 8)
    for _ in range(4):  # older ones leave the speed, and stay in the share
        run.batch(waiting=0, working=2)
    assert run.pace.batches_per_second == 0.5 and run.pace.data_wait == pytest.approx(4 / 16)


def test_the_mean_is_over_all_parts_of_a_run(monkeypatch):
    run = Run(Pace(100, 4), monkeypatch)
    for _ in range(2):
        run.batch(waiting=1, working=1)
    later = Pace(100, 4)
    later.load_state_dict(run.pace.state_dict())
    again = Run(later, monkeypatch)
    again.batch(waiting=60, working=60)  # workers start again
    again.batch(waiting=0, working=2)
    assert later.data_wait == pytest.approx(0.25)


def test_the_time_left_is_that_of_the_steps_and_of_the_validations(monkeypatch):
    run = Run(Pace(validate_every=10, window=50), monkeypatch)
    run.batch(1, 500)
    assert run.pace.seconds_left(1, 35) is None
    for _ in range(9):
        run.batch(1, 3)
    assert run.pace.seconds_left(10, 35) == (pytest.approx(25 * 4), False)
    assert left_text(run.pace, 10, 35) == "over 0:01:40 left"
    run.validation(60)
    run.now += 9  # something else, such as a checkpoint, counts as well
    # validations after the steps 20 and 30, and the last one
    assert run.pace.seconds_left(10, 35) == (pytest.approx(25 * 5 + 3 * 60), True)
    assert left_text(run.pace, 10, 35) == "0:05:05 left"


def test_a_run_says_that_its_loader_is_slow(toy_config, tmp_path, monkeypatch, capsys, logged):
    iterate = ResumableLoader.__iter__

    def slowly(loader):
        for batch in iterate(loader):
            time.sleep(0.2)
            yield batch

    monkeypatch.setattr(ResumableLoader, "__iter__", slowly)
    monkeypatch.setattr(pace_module, "LINE_EVERY_S", 0)
    train(toy_config(tmp_path, "training.steps=3"))
    told = capsys.readouterr().out
    (share,) = re.findall(r"([\d.]+)% data wait; weights", told)
    (first,) = re.findall("first step after .*", told)  # once
    assert re.fullmatch(r"first step after \d+ s; 2 to go, with a validation every \d+", first)
    assert re.search(r"step 3/3  \S+ it/s  \d+% data wait  .*left  total \S+  iou", told)  # no bar moves here
    saved = load_file(last_checkpoint(tmp_path))["callbacks"]["Pace"]
    assert saved["waiting_s"] > 0.35  # the first batch does not count
    assert float(share) == pytest.approx(100 * saved["waiting_s"] / (saved["waiting_s"] + saved["working_s"]), abs=0.1)
    text = next(tmp_path.glob("csv/version_0/metrics.csv")).read_text()
    assert "train/data_wait" in text.splitlines()[0]
