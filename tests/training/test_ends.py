"""Where a run begins and ends: weights it starts from are validated, patience ends it, and more steps extend it."""

import pytest
import torch
from user_errors import raises

from rvtssm.cli.train import train
from rvtssm.models.checkpoint import load_file
from rvtssm.training.checkpoints import best_checkpoint, last_checkpoint
from rvtssm.training.optim import learning_rate_at
from rvtssm.training.training_config import OptimConfig
from tests.training.conftest import die

STILL = ("optim.learning_rate=1e-12", "training.freeze_batchnorm=true")  # weights that do not change


@pytest.fixture(scope="module")
def finished(toy_config, tmp_path_factory):
    """The folder of a run of four steps."""
    out = tmp_path_factory.mktemp("finished")
    train(toy_config(out, "training.steps=4", "model.drop_path=0.2"))
    return out


def same_weights(found, wanted) -> bool:
    first, second = (load_file(last_checkpoint(out))["state_dict"] for out in (found, wanted))
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_weights_that_a_run_starts_from_are_validated_before_the_first_step(
    toy_config, finished, tmp_path, capsys, logged, train_until
):
    """The weights do not change, so the AP stays. A run that is resumed is the same, and not validated again."""
    words = (f"training.init_from='{last_checkpoint(finished)}'", "training.steps=3", "training.validate_every=3")
    train(toy_config(tmp_path / "whole", *words, *STILL))
    said = " ".join(capsys.readouterr().out.split())
    assert "step 0: validation AP" in said and "at the start, " in said
    assert f"tensorboard --logdir {tmp_path / 'whole'}" in said
    log = logged(tmp_path / "whole")
    assert {"val/AP", "train/total"} <= log[0].keys() and "val/AP" in log[2]
    assert float(log[0]["val/AP"]) == pytest.approx(float(log[2]["val/AP"]), abs=1e-6)
    words = (*words, *STILL, "training.checkpoint_every=1")
    train_until(toy_config(tmp_path / "resumed", *words), 2, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 1
    train(toy_config(tmp_path / "resumed", *words, "resume=auto"))
    assert capsys.readouterr().out.count("step 0: validation AP") == 1
    assert same_weights(tmp_path / "resumed", tmp_path / "whole")
    assert logged(tmp_path / "resumed") == log


def test_a_run_from_nothing_is_not_validated_at_its_start(finished, logged):
    assert "val/AP" not in logged(finished)[0]
    assert load_file(last_checkpoint(finished))["callbacks"]["Checkpoints"]["start_ap"] is None


def test_patience_ends_a_run(toy_config, tmp_path, capsys, train_until):
    """The weights do not change, so no validation after the first one has a higher AP, also after an interruption."""
    words = ("training.steps=50", "training.validate_every=2", "training.patience=2", *STILL)
    train_until(toy_config(tmp_path, *words), 5, die, MemoryError)
    train(toy_config(tmp_path, *words, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 6
    told = "ended before step 50: 2 validations in a row had no higher AP (training.patience=2)"
    assert told in " ".join(capsys.readouterr().out.split())
    assert train(toy_config(tmp_path, *words, "resume=auto")) == best_checkpoint(tmp_path)
    assert "6 steps, after which training.patience=2 ended the run" in " ".join(capsys.readouterr().out.split())
    train(toy_config(tmp_path, *words[:2], "training.patience=3", *STILL, "resume=auto"))
    assert load_file(last_checkpoint(tmp_path))["global_step"] == 8


def test_a_finished_run_is_extended_with_the_schedule_of_the_longer_run(
    toy_config, finished, tmp_path, capsys, logged, train_until
):
    words = ("training.steps=8", "model.drop_path=0.2", "training.checkpoint_every=2")
    for name in ("whole", "resumed"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        for path in (last_checkpoint, best_checkpoint):
            path(tmp_path / name).write_bytes(path(finished).read_bytes())
    train(toy_config(tmp_path / "whole", *words, "resume=auto"))
    said = " ".join(capsys.readouterr().out.split())
    assert "has all its 4 steps and goes on to 8: from now on its learning rate is that of a run of 8 steps" in said
    log = logged(tmp_path / "whole")
    optim = OptimConfig()
    for step in range(4, 8):
        rates = [float(value) for name, value in log[step].items() if name.startswith("lr-")]
        assert rates and rates == pytest.approx([learning_rate_at(step, optim, 8, 3)] * len(rates), rel=1e-6)
    train_until(toy_config(tmp_path / "resumed", *words, "resume=auto"), 7, die, MemoryError)
    assert load_file(last_checkpoint(tmp_path / "resumed"))["global_step"] == 6
    train(toy_config(tmp_path / "resumed", *words, "resume=auto"))
    assert same_weights(tmp_path / "resumed", tmp_path / "whole") and not same_weights(tmp_path / "whole", finished)
    state = load_file(last_checkpoint(tmp_path / "resumed"))
    assert (state["global_step"], state["extended_at"], state["decisive"]["training.steps"]) == (8, [4], 8)


def test_only_a_finished_run_takes_more_steps(toy_config, tmp_path, finished, train_until):
    train_until(toy_config(tmp_path, "training.steps=4", "training.checkpoint_every=1"), 3, die, MemoryError)
    for steps in (3, 8):
        with raises("resume.other_settings"):
            train(toy_config(tmp_path, f"training.steps={steps}", "resume=auto"))
    with raises("resume.other_settings"):
        train(toy_config(finished, "training.steps=3", "model.drop_path=0.2", "resume=auto"))
