"""The learning rate follows the recipe of the paper."""

import math
from dataclasses import replace

import pytest
import torch
from test_module import build_module, draw_counts, make_batch
from torch import nn
from user_errors import raises

from rvtssm.cli.main import compose
from rvtssm.datasets import DatasetConfig, build_spec
from rvtssm.models import ModelConfig
from rvtssm.models.checkpoint_meta import CheckpointMeta
from rvtssm.records import WindowSettings
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.training import H2_BAND, OptimConfig
from rvtssm.training.module import DetectionModule
from rvtssm.training.optim import (
    Muon,
    build_optimizer,
    h2_term,
    learning_rate_rule,
    orthogonalized,
    parameter_groups,
    peak_learning_rate,
)
from rvtssm.training.preflight import check


def rates(num_steps: int, config: OptimConfig) -> list[float]:
    optimizer, schedule = build_optimizer(torch.nn.Linear(1, 1), config, num_steps, batch_size=8)
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_warm_up_peak_and_linear_decay():
    found = torch.tensor(rates(2000, OptimConfig(learning_rate=1e-3)))
    assert found[0] == pytest.approx(1e-3 / 20)
    assert found.max() == pytest.approx(1e-3, rel=0.02)
    assert int(found.argmax()) == pytest.approx(10, abs=1)  # 0.5 % of the steps
    assert found[-1] == pytest.approx(1e-3 / 10_000, abs=1e-6)
    decay = found[20:].diff()
    assert torch.allclose(decay, decay.mean().expand_as(decay), rtol=1e-2)


def test_every_number_of_the_recipe_can_be_another():
    config = OptimConfig(learning_rate=1e-3, weight_decay=0.3, warmup_fraction=0.25)
    optimizer, _ = build_optimizer(torch.nn.Linear(1, 1), config, num_steps=400, batch_size=8)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3
    found = torch.tensor(rates(400, config))
    assert found[0] == pytest.approx(1e-3 / 20)
    assert int(found.argmax()) == pytest.approx(100, abs=1)
    assert found[-1] == pytest.approx(1e-3 / 10_000, abs=4e-6)  # the decay goes on for one step


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_short_runs_have_a_schedule(num_steps):
    assert all(0 < rate <= 2e-4 for rate in rates(num_steps, OptimConfig()))


def test_the_rule_for_larger_batches():
    assert peak_learning_rate(OptimConfig(), 32) == 2e-4
    assert peak_learning_rate(OptimConfig(scale_with_batch=True), 32) == pytest.approx(4e-4)
    assert peak_learning_rate(OptimConfig(scale_with_batch=True), 12) == pytest.approx(2.45e-4, rel=1e-2)
    config = OptimConfig(scale_with_batch=True)
    optimizer, _ = build_optimizer(torch.nn.Linear(1, 1), config, num_steps=9, batch_size=32)
    assert optimizer.param_groups[0]["max_lr"] == pytest.approx(4e-4)
    said = learning_rate_rule(config, 32)
    assert said == "learning rate 0.0002 x sqrt(32 / 8) = 0.0004: 32 chunks per step"


# Muon


MUON = OptimConfig(name="muon", learning_rate=1e-2)


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16), (1, 7)])
def test_singular_vectors_stay_and_singular_values_become_one(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).double()
    found = orthogonalized(matrices)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    values = u.mT @ found @ v.mT
    diagonal = values.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(values, torch.diag_embed(diagonal), atol=1e-9, rtol=0)
    assert ((diagonal > 0.65) & (diagonal < 1.25))[s > 0.1 * s.norm(dim=1, keepdim=True)].all()
    for matrix, alone in zip(matrices, found, strict=True):
        torch.testing.assert_close(orthogonalized(matrix[None])[0], alone)


def groups_of(module: nn.Module, config: OptimConfig) -> list[dict]:
    return parameter_groups(module, config, config.learning_rate)


def with_gradients(module: nn.Module, step: int) -> nn.Module:
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return module


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 24), nn.LayerNorm(24), nn.Linear(24, 24))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_matrices_step_as_in_torch_and_the_rest_as_in_adamw(decay):
    config = replace(MUON, weight_decay=decay)
    mine, theirs = layers(), layers()
    optimizer = Muon(groups_of(mine, config), lr=config.learning_rate)
    matrices = [theirs[1].weight, theirs[3].weight]
    rest = [p for p in theirs.parameters() if all(p is not matrix for matrix in matrices)]
    oracles = (
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": rest[:1], "weight_decay": decay}, {"params": rest[1:]}], 1e-2, weight_decay=0),
    )
    for step in range(4):
        with_gradients(mine, step)
        optimizer.step()
        with_gradients(theirs, step)
        for oracle in oracles:
            oracle.step()
    for (name, found), wanted in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        is_matrix = any(wanted is matrix for matrix in matrices)  # which torch orthogonalises in bf16
        torch.testing.assert_close(found, wanted, atol=2e-3 if is_matrix else 1e-7, rtol=0, msg=name)


def test_a_convolution_is_the_matrix_of_its_output_channels():
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(4, 8, 3), nn.Linear(36, 8)
    linear.weight.data = conv.weight.data.flatten(1).clone()
    for module in (conv, linear):
        optimizer = Muon([{"params": [module.weight], "is_matrix": True}], lr=1e-2)
        for step in range(3):
            module.weight.grad = torch.randn(8, 36, generator=torch.Generator().manual_seed(step)).view_as(
                module.weight
            )
            optimizer.step()
    torch.testing.assert_close(conv.weight.flatten(1), linear.weight)


def test_a_closure_computes_the_gradients():
    module = layers()
    optimizer = Muon(groups_of(module, MUON), lr=1e-2)

    def closure():
        loss = module(torch.ones(2, 6)).square().sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(lambda: (optimizer.zero_grad(), closure())[1])) for _ in range(20)]
    assert losses[-1] < losses[0] / 2


def detector(temporal: str, head: str = "yolox") -> nn.Module:
    spec = build_spec(DatasetConfig(name="gen1"))
    model = ModelConfig(size="tiny", head=head)
    return CheckpointMeta(spec, model, TemporalConfig(name=temporal), WindowSettings()).build()


def names_of(module: nn.Module, groups: list[dict], **options) -> set[str]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    chosen = [group for group in groups if all(group[key] == value for key, value in options.items())]
    return {names[id(parameter)] for group in chosen for parameter in group["params"]}


@pytest.mark.parametrize(("temporal", "head"), [("s5", "yolox"), ("selective_s5", "rtdetr"), ("s4d", "yolox")])
def test_which_parameters_are_matrices_which_decay_and_which_learn_at_another_rate(temporal, head):
    module = detector(temporal, head)
    groups = groups_of(module, replace(MUON, weight_decay=0.1, ssm_factor=0.5))
    matrices = names_of(module, groups, is_matrix=True)
    assert matrices == names_of(module, groups, is_matrix=True, weight_decay=0.1, lr=1e-2)
    assert {name.rpartition(".")[2] for name in matrices} == {"weight"}
    assert any("attention.qkv" in name for name in matrices)
    assert not any(".ssm." in name or "norm" in name for name in matrices)
    assert not any(part.endswith("_out") for name in matrices for part in name.split("."))
    assert "backbone.stages.0.downsample.conv.weight" not in matrices, "it embeds the frames"
    slow = names_of(module, groups, lr=0.5e-2)
    assert slow == {name for name, _ in module.named_parameters() if ".ssm." in name} != set()
    decayed = names_of(module, groups, weight_decay=0.1)
    kept = ("bias", "norm", "log_real", "imag", "log_step", "gamma", ".D", ".B", ".C")
    assert not any(name.endswith(kept[1:]) or name.endswith("bias") for name in decayed)
    assert sum(len(group["params"]) for group in groups) == len(list(module.parameters()))


# the H2 term


BAND = H2_BAND


def build_layer(name: str) -> TemporalLayer:
    torch.manual_seed(0)
    config = TemporalConfig(name=name, state_size=16, dt_min=0.05, dt_max=0.8)
    return build_temporal_layer(config, 8)


def test_by_default_it_is_off_and_its_band_is_that_of_the_layers():
    assert OptimConfig().h2_weight == 0
    layers = [build_layer("s5"), build_layer("s4d")]
    torch.testing.assert_close(h2_term(layers, BAND), layers[0].h2_norm() + layers[1].h2_norm())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("s4", {"log_real", "imag", "P", "B", "C", "log_step"}),
        ("s4d", {"log_real", "imag", "C", "log_step"}),
        ("s5", {"Lambda", "B", "C", "log_step"}),
    ],
)
def test_alone_it_takes_what_lies_beyond_and_leaves_what_lies_below(name, parameters):
    layer = build_layer(name)

    def heard_below() -> float:
        with torch.no_grad():
            return float(layer.h2_norm(0.01 * math.pi, 0.1 * math.pi))

    before, below, beyond = h2_term([layer], BAND).item(), heard_below(), math.inf
    optimizer = torch.optim.SGD(layer.ssm.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        loss = h2_term([layer], BAND)
        beyond = loss.item()
        if beyond < before / 2:
            break
        loss.backward()
        found = {n for n, p in layer.ssm.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        assert found == parameters, "all but D, which passes all frequencies alike"
        optimizer.step()
    assert beyond < before / 2
    assert 0.9 * below < heard_below() < 1.15 * below


@pytest.mark.parametrize("name", ["s4", "s4d", "s5"])
def test_it_is_part_of_the_loss_with_its_weight(name):
    plain, batch = build_module(name), make_batch(draw_counts(2, 2), [0, 1], [True, True])
    optim = OptimConfig(h2_weight=0.25)
    module = DetectionModule(plain.detector, replace(plain.settings, optim=optim), {}, {}, [])
    module.log_dict = lambda values, **options: logged.update(values)
    logged: dict[str, torch.Tensor] = {}
    loss = module.training_step(batch, 0)
    detection = plain.training_step(batch, 0)
    wanted = sum(stage.temporal.h2_norm() for stage in module.detector.backbone.stages)
    torch.testing.assert_close(logged["train/h2"], wanted.detach())
    torch.testing.assert_close(loss, detection + 0.25 * wanted)
    torch.testing.assert_close(logged["train/total"], loss.detach())
    assert "train/h2" not in plain.logged


def test_stages_that_forget_have_no_part_in_it():
    plain = build_module("s5", strides=(16, 32))
    settings = replace(plain.settings, optim=OptimConfig(h2_weight=0.25))
    module = DetectionModule(plain.detector, settings, {}, {}, [])
    logged: dict[str, torch.Tensor] = {}
    module.log_dict = lambda values, **options: logged.update(values)
    module.training_step(make_batch(draw_counts(2, 2), [0, 1], [True, True]), 0)
    norms = [stage.temporal.h2_norm().detach() for stage in module.detector.backbone.stages]
    torch.testing.assert_close(logged["train/h2"], norms[2] + norms[3])


@pytest.mark.parametrize("name", ["lstm", "selective_s5", "s7"])
def test_a_layer_without_the_norm_is_refused_before_training(name):
    with pytest.raises(
        ValueError, match=rf"optim.h2_weight=0.1: temporal.name={name}: it has no H2 norm.*; or set it to 0"
    ):
        check(compose(["experiment=demo", f"temporal={name}", "optim.h2_weight=0.1"]))


def test_a_run_without_a_remembering_stage_is_refused_with_the_configuration():
    with raises("setting.conflict", "optim.h2_weight=0.1"):
        check(compose(["experiment=demo", "temporal.strides=[]", "optim.h2_weight=0.1"]))
