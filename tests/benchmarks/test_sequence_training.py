"""The sequence benchmarks train, keep what is finished and print it beside the published numbers; at toy size."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from benchmarks.sequence import fitzhugh_nagumo, pendulum
from benchmarks.sequence.model import SequenceModel
from benchmarks.sequence.study import Data, Recipe, Split, Study, main, mean_squared_error, run_study
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS

LAYERS = list(TEMPORAL_LAYERS)
RECIPE = Recipe(
    epochs=2,
    batch_size=4,
    lr=0.01,
    ssm_lr=0.003,
    weight_decay=0.0,
    dim=4,
    depth=1,
    state_size=4,
    num_blocks=2,
    dt_min=0.01,
    dt_max=0.1,
)


def toy_split(num_sequences: int, seed: int) -> Split:
    """Running sums of noise with uneven gaps."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(7, num_sequences, 1, generator=generator)
    gaps = torch.randint(1, 4, (7, num_sequences), generator=generator).float()
    return Split(inputs, (inputs * gaps[:, :, None]).cumsum(0) / 5, gaps)


def build_toy(layer: str, recipe: Recipe) -> SequenceModel:
    return SequenceModel(nn.Linear(1, recipe.dim), recipe.temporal(layer), recipe.dim, recipe.depth, num_outputs=1)


STUDY = Study(
    name="toy",
    recipe=RECIPE,
    build_data=lambda: Data(*(toy_split(8, seed) for seed in range(3))),
    build_model=build_toy,
    scores={"MSE x 10^-3": lambda mse: 1e3 * mse},
    published={"other": 4.5},
)


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("study", [pendulum.STUDY, fitzhugh_nagumo.STUDY], ids=lambda study: study.name)
def test_a_step_lowers_the_loss(study, layer):
    torch.manual_seed(0)
    recipe = replace(study.recipe, dim=8, depth=2, state_size=8, num_blocks=2)
    model = study.build_model(layer, recipe)
    if study is pendulum.STUDY:
        inputs, targets, gaps = pendulum.build_data((2, 1, 1)).train
        inputs, targets, step_scale = inputs[:9], targets[:9], gaps[:9]
    else:
        inputs, targets, _ = fitzhugh_nagumo.build_data((2, 1, 1)).train
        inputs, targets, step_scale = inputs[:30], targets[:30], 1.0
    optimizer = torch.optim.AdamW(model.parameter_groups(1e-3, 1e-3, 0.0))
    before = model.loss(inputs, targets, step_scale)
    before.backward()
    gates = [p for name, p in model.named_parameters() if "gate" in name]
    assert gates or study is fitzhugh_nagumo.STUDY  # where only the block of S5 has a gate
    assert all(p.grad is not None and p.grad.any() for p in gates)
    optimizer.step()
    with torch.no_grad():
        assert model.loss(inputs, targets, step_scale) < before


def test_the_pendulum_leaves_the_first_time_steps_of_selective_s5_to_the_layer():
    (block, *_) = pendulum.build_model("selective_s5", RECIPE).layers
    dt = F.softplus(block.ssm.to_step.bias)
    assert RECIPE.dt_min <= dt.min() * (1 + 1e-4) and dt.max() <= RECIPE.dt_max * (1 + 1e-4)


def test_the_variance_of_the_pendulum_has_a_gradient_where_its_exponential_overflows():
    model = pendulum.build_model("s5", RECIPE)
    inputs, targets, gaps = pendulum.build_data((1, 1, 1)).train
    model.variance[-1].bias.data.fill_(100.0)
    model.loss(inputs[:5], targets[:5], gaps[:5]).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("layer", LAYERS)
def test_gaps_reach_the_layers_that_know_time(layer):
    model, split = build_toy(layer, RECIPE), toy_split(3, 0)
    with torch.no_grad():
        differs = not torch.equal(model(split.inputs, split.gaps), model(split.inputs, 2 * split.gaps))
    assert differs == (layer != "lstm")


@pytest.mark.parametrize("build", [build_toy, pendulum.build_model])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_parameter_is_in_one_group(layer, build):
    model = build(layer, RECIPE)
    others, of_system = (set(map(id, group["params"])) for group in model.parameter_groups(1e-2, 1e-3, 0.1))
    assert others.isdisjoint(of_system)
    assert others | of_system == {id(p) for p in model.parameters()}
    assert bool(of_system) == (layer != "lstm")
    assert all((id(p) in others) for name, p in model.named_parameters() if name.endswith((".C", ".D")))


def test_the_error_is_the_mean_over_everything():
    model, split = build_toy("s5", RECIPE), toy_split(5, 0)
    with torch.no_grad():
        whole = F.mse_loss(model(split.inputs, split.gaps), split.targets)
    assert mean_squared_error(model, split) == pytest.approx(float(whole), rel=1e-5)


def test_finished_models_are_not_trained_again(tmp_path):
    path = tmp_path / "toy.json"
    first = run_study(STUDY, ["s5", "lstm"], 1, path, quiet())
    assert [(row["layer"], row["seed"]) for row in first] == [("s5", 0), ("lstm", 0)]
    assert json.loads(path.read_text())["rows"] == first
    assert first[0]["MSE x 10^-3"] == pytest.approx(1e3 * first[0]["test_mse"])
    assert run_study(replace(STUDY, build_data=pytest.fail), ["s5", "lstm"], 1, path, quiet()) == first
    more = run_study(STUDY, ["s5"], 2, path, quiet())
    assert more[:2] == first
    assert [(row["layer"], row["seed"]) for row in more[2:]] == [("s5", 1)]


def test_a_seed_gives_the_same_model_whatever_was_trained_before(tmp_path):
    both = run_study(STUDY, ["lstm", "selective_s5"], 1, tmp_path / "both.json", quiet())
    alone = run_study(STUDY, ["selective_s5"], 1, tmp_path / "alone.json", quiet())
    assert both[1]["test_mse"] == alone[0]["test_mse"]


def test_the_command_trains_reports_and_refuses_results_of_another_recipe(tmp_path, capsys):
    path = tmp_path / "toy.json"
    arguments = ["--seeds", "1", "--layers", "s5", "--json", str(path)]
    assert main(STUDY, arguments) == 0
    assert "epoch 2/2" in capsys.readouterr().out
    assert main(STUDY, [*arguments, "--epochs", "1"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "other settings" in message
    assert json.loads(path.read_text())["settings"]["epochs"] == 2
