"""Where a run begins and ends: weights it starts from are validated, patience ends it, and more steps extend it."""

from dataclasses import replace

import pytest
import torch
from user_errors import raises

from rvtssm.cli.config import Config
from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.optim import build_optimizer
from rvtssm.training.training_config import OptimConfig
from tests.training.conftest import die

STILL = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")  # weights that do not change


def same_weights(found, wanted) -> bool:
    first, second = (load_file(last_checkpoint(out))["state_dict"] for out in (found, wanted))
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_weights_that_a_run_starts_from_are_validated_before_the_first_step(
    toy_config, seven_steps, tmp_path, capsys, logged, train_until
):
    """The weights do not change, so the AP stays. A run that is resumed is the same, and not validated again."""
    words = (f"training.init_from='{last_checkpoint(seven_steps)}'", "training.steps=2", "training.checkpoint_every=1")
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
    with raises("resume.other_settings"):
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
    with raises("resume.other_settings"):
        train(resumed("resumed", 10))
    train(resumed("resumed", 9))
    assert same_weights(tmp_path / "resumed", tmp_path / "whole") and not same_weights(tmp_path / "whole", seven_steps)
    state = load_file(last_checkpoint(tmp_path / "resumed"))
    assert (state["global_step"], state["extended_at"], state["decisive"]["training.steps"]) == (9, [7], 9)
