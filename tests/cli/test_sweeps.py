"""Hydra runs a verb once per point of a sweep, each in a folder that is named by its values."""

import sys
from pathlib import Path

import pytest

from rvtssm.cli import main as cli
from rvtssm.cli.composition import compose
from rvtssm.cli.sweeps import objective
from rvtssm.evaluation.coco import Resampled
from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.result import EvaluationReport
from rvtssm.models.checkpoint import save_file
from rvtssm.system.user_error import UserError

# or it would keep the streams of this test; `disabled` would switch off every logger for the tests that follow
QUIET = ("hydra/job_logging=none", "hydra/hydra_logging=none")


@pytest.fixture
def swept(monkeypatch, does, tmp_path):
    """A function: words of a sweep over `train` -> exit code and the configurations that were trained."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    configs = []

    def train(config):
        configs.append((config, sys.argv))
        if config.seed == 13:
            raise UserError("seed.unlucky", "seed=13 brings no luck")
        return 2 if config.seed == 14 else None

    does("train", train)

    def run(*words: str) -> tuple[int, list]:
        data = "dataset=gen1", f"dataset.raw_dir={tmp_path}", f"out={tmp_path / 'a, b'}"
        return cli.main(["train", *words, *data, *QUIET]), configs

    return run


def test_each_point_has_a_folder_and_a_command_of_its_own(swept, tmp_path):
    code, configs = swept("--multirun", "seed=0,1", "temporal=s5,lstm", "steps=7")
    assert code == 0
    found = {Path(config.out).name: (config.seed, config.temporal.name) for config, _ in configs}
    assert found == {f"seed={seed},temporal={name}": (seed, name) for seed in (0, 1) for name in ("s5", "lstm")}
    for config, command in configs:
        assert Path(config.out).parent == tmp_path / "a, b" and config.training.steps == 7
        assert command[:2] == ["rvtssm", "train"]
        words = [word for word in command[2:] if not word.startswith("hydra")]
        again = compose(words)
        assert (again.out, again.seed, again.temporal) == (config.out, config.seed, config.temporal)


def test_an_error_in_a_run_is_one_line(swept, capsys):
    code, _ = swept("-m", "seed=12,13")
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "rvtssm train: seed=13 brings no luck"


def test_a_run_that_could_not_do_all_is_an_error(swept, capsys):
    code, configs = swept("-m", "seed=14,15")
    assert code == 2 and len(configs) == 2
    assert "/seed=14; the lines above say why" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "--config"], "-m does not go with train --config"),
        (["doctor", "--json"], "doctor has no --json"),
        (["inspect", "--json", "a.dat"], "-m does not go with inspect --json"),
    ],
    ids=str,
)
def test_what_a_sweep_would_ignore_is_refused(words, answer, swept, capsys):
    assert cli.main([*words, "-m", "out=a,b"]) == 2
    assert answer in capsys.readouterr().err


def test_a_sweep_searches_for_the_best_average_precision(tmp_path):
    save_file(tmp_path / "best.ckpt", {"callbacks": {"Checkpoints": {"best_ap": 0.25}}})
    assert objective("train", tmp_path / "best.ckpt") == 0.25
    rows = tuple(RateRow(hz, {"AP": hz / 100}, {}, Resampled((), {}, {})) for hz in (40.0, 20.0))
    assert objective("evaluate", [EvaluationReport("", "gen1", rows, {})]) == 0.2
    assert objective("generate", None) is None
    assert objective("evaluate", []) is None  # in all processes of a launcher but the first
