"""What a run folder says of its run is enough to repeat it, and replaces nothing of others."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from user_errors import raises

from rvtssm import __version__
from rvtssm.cli import main as cli
from rvtssm.cli.composition import full_words
from rvtssm.cli.inputs import default_out, weights_label
from rvtssm.cli.main import compose, main
from rvtssm.cli.sweeps import _split, objective
from rvtssm.cli.words import RUN_FILES, overrides, run_files, unlike_others
from rvtssm.evaluation.report import EvaluationReport
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint import WRITTEN_BY, load_file, read_checkpoint, save_file, weights_digest, write_checkpoint
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.system import files
from rvtssm.system.user_error import UserError
from tests.evaluation.test_evaluate import SPEC

WORDS = ["model=small", "training.steps=7", "augment.window_ms=[50,10]", "seed=3"]
PATH = "a, b={c}, é\\${d}"  # letters that have a meaning in JSON or for Hydra
WORDS += [f"dataset.raw_dir={PATH}", "dataset.columns={t: 3, x: 'x [px]', y: events/y, p: 0}"]


def write_run_files(folder, verb, config):
    with run_files(folder, verb, config):
        pass


def test_the_overrides_make_the_same_configuration_again(tmp_path):
    config = compose(WORDS)
    write_run_files(tmp_path, "train", compose([*WORDS, "evaluation.hz=[20,40]"]))  # which a training does not read
    words = yaml.safe_load((tmp_path / "overrides.yaml").read_text())
    assert full_words("train", words) == words
    assert "training.steps=7" in words and "seed=3" in words and not any("data.workers" in word for word in words)
    assert compose(words) == config and set(words) <= set(overrides(compose(words)))
    assert overrides(compose([])) == overrides(compose(["model=base"]))
    whole = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert whole["training"]["steps"] == 7 and whole["dataset"]["raw_dir"] == PATH


def test_a_run_that_is_resumed_needs_no_other_words(tmp_path, does):
    seen = []
    does("train", seen.append)
    (tmp_path / "environment.json").write_text('{"verb": "demo"}')  # so that those of the training are below
    config = compose([*WORDS, "dataset=gen1", "training.precision=bf16", f"out={tmp_path}"])
    write_run_files(tmp_path, "train", config)
    assert main(["train", f"out={tmp_path}", "resume=auto"]) == 0
    assert seen == [replace(config, resume="auto")]
    assert main(["train", f"out={tmp_path}", "resume=auto", "seed=4"]) == 0  # `train` compares it with that of the run
    assert seen[-1] == replace(config, resume="auto", seed=4)


def test_the_environment_names_the_program_and_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rvtssm", "train", "out=a b"])
    write_run_files(tmp_path, "train", compose([]))
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["command"] == "rvtssm train 'out=a b'" and found["rvtssm"] == __version__
    assert found["torch"] == torch.__version__ and found["processor"] and "gpu" in found
    assert found["commit"] == files.commit()


def test_files_of_another_verb_or_of_someone_else_are_not_replaced(tmp_path):
    write_run_files(tmp_path / "run", "train", compose(["seed=1"]))
    before = {name: (tmp_path / "run" / name).read_bytes() for name in RUN_FILES}
    write_run_files(tmp_path / "run", "evaluate", compose(["seed=2"]))
    assert before == {name: (tmp_path / "run" / name).read_bytes() for name in RUN_FILES}
    assert "seed=2" in (tmp_path / "run/evaluate/overrides.yaml").read_text()
    write_run_files(tmp_path / "run", "train", compose(["seed=4"]))  # the same verb again, as after an interruption
    assert "seed=4" in (tmp_path / "run/overrides.yaml").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text("mine")
    write_run_files(tmp_path / "mine", "train", compose([]))
    assert (tmp_path / "mine/config.yaml").read_text() == "mine" and (tmp_path / "mine/train/config.yaml").is_file()


def test_outside_of_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    assert files.commit.__wrapped__() == ""
    monkeypatch.setattr(files.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError("git")))
    assert files.commit.__wrapped__() == ""


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_checkpoint_says_by_what_it_was_written(tmp_path, suffix):
    model = ModelConfig(size="custom", embed_dim=8, head_dim=8, fpn_blocks=1)
    meta = CheckpointMeta(SPEC, model, TemporalConfig(), WindowSettings())
    detector = meta.build()
    path = tmp_path / f"model{suffix}"
    write_checkpoint(path, detector, meta)
    again = read_checkpoint(path).detector.state_dict()
    assert weights_digest(again) == weights_digest(detector.state_dict())
    if suffix == ".ckpt":
        found = load_file(path)[WRITTEN_BY]
        assert found["rvtssm"] == __version__ and found["weights_sha256"] == weights_digest(again)
    with torch.no_grad():
        next(detector.parameters()).flatten()[0] += 1e-3
    assert weights_digest(detector.state_dict()) != weights_digest(again)


# folders that are given no name


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("runs/gen1/checkpoints/best.ckpt", "gen1_best"),
        ("runs/gen1/checkpoints/last.ckpt", "gen1_last"),
        ("runs/onempx/checkpoints/best.ckpt", "onempx_best"),
        ("street-tiny", "street-tiny"),
        ("hf://lab/street", "street"),
        ("model.onnx", "model"),
    ],
)
def test_weights_have_a_name_for_folders(path, label):
    assert weights_label(path) == label
    assert default_out("evaluate", label) == Path("outputs/evaluate", label)


def test_a_report_with_other_settings_keeps_its_folder(tmp_path):
    def evaluated(*words: str) -> str:
        config = compose(list(words))
        out = unlike_others(tmp_path / "best", "evaluate", config)
        with run_files(out, "evaluate", config):
            pass
        return out.name

    assert [evaluated(), evaluated("evaluation.hz=[20]"), evaluated("evaluation.split=val")] == [
        "best",
        "best_2",
        "best_3",
    ]
    assert [evaluated(), evaluated("evaluation.hz=[20]")] == ["best", "best_2"]  # the same command again


def test_inspect_says_that_a_checkpoint_is_one(tmp_path, refused):
    (tmp_path / "model.onnx").touch()
    assert "is a checkpoint; `rvtssm info" in refused("inspect", str(tmp_path / "model.onnx"))


# sweeps


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


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["seed=1", "seed=0,1"], "setting.conflict"),
        (["seed=0,0"], "setting.conflict"),
        (["temporal=lstm", "temporal.name=s5,s4"], "setting.conflict"),
        (["training.init_from=a.ckpt,./b/../a.ckpt"], "setting.conflict"),
    ],
    ids=str,
)
def test_two_runs_never_share_a_folder(words, kind, swept):
    with raises(kind):
        cli.run("train", words, ["--multirun"])


@pytest.mark.parametrize("named", [["out=of/me"], []])
def test_each_evaluation_of_a_sweep_has_a_folder_below_that_of_the_sweep(does, monkeypatch, tmp_path, named):
    """Whatever the paths are that name it, and also if no folder is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    found = []
    does("evaluate", lambda config: found.append((config.out, config.checkpoint, config.evaluation.split)))
    weights = "checkpoint=../a.ckpt,b/../../../c.ckpt,hf://x/y"
    assert cli.main(["evaluate", "-m", weights, "split=val,test", *named, *QUIET]) == 0
    assert len(found) == 6 and len({checkpoint for _, checkpoint, _ in found}) == 3
    sweep = tmp_path / ("of/me" if named else "outputs/evaluate")
    folders = {(tmp_path / out).resolve() for out, *_ in found}
    assert len(folders) == 6 and all(sweep in folder.parents for folder in folders)
    assert not any(folder in other.parents for folder in folders for other in folders)


def test_a_sweep_takes_several_paths_and_elements_of_lists(swept):
    code, configs = swept("-m", "training.init_from=null,street-tiny", "augment.window_ms=50,10", "augment.draws=all")
    assert code == 0
    found = {(config.training.init_from, *config.augment.window_ms) for config, _ in configs}
    assert found == {(start, length) for start in (None, "street-tiny") for length in (50, 10)}
    assert len({config.out for config, _ in configs}) == 4


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
def test_what_a_sweep_would_ignore_is_refused(words, answer, swept, refused):
    assert answer in refused(*words, "-m", "out=a,b")


def test_a_sweep_searches_for_the_best_average_precision(tmp_path):
    save_file(tmp_path / "best.ckpt", {"callbacks": {"Checkpoints": {"best_ap": 0.25}}})
    assert objective("train", tmp_path / "best.ckpt") == 0.25
    rows = [{"hz": hz, "window": "slide", "AP": hz / 100} for hz in (40.0, 20.0)]
    assert objective("evaluate", [EvaluationReport("", "gen1", rows, {})]) == 0.2
    assert objective("generate", None) is None
    assert objective("evaluate", []) is None  # in all processes of a launcher but the first


@pytest.mark.parametrize("path", ["data, a=1 [b]", "a b", "plain"])
@pytest.mark.parametrize("mark", ["'", '"'])
@pytest.mark.parametrize("key", ["dataset.raw_dir", "out"])
def test_a_path_may_stand_between_quotation_marks_in_a_sweep(key, mark, path):
    fixed, swept = _split("train", [f"{key}={mark}{path}{mark}", "seed=0,1"])
    assert f"{key}={path}" in fixed
    assert swept == ["seed=0,1"]
