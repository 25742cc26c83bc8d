"""The H2 term: what it is a sum of, what it takes away and what it leaves, where it is refused."""

import math
from dataclasses import replace

import pytest
import torch
from test_module import build_module, draw_counts, make_batch
from user_errors import raises

from rvtssm.cli.main import compose
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.training.checks import check
from rvtssm.training.module import DetectionModule
from rvtssm.training.optim import h2_term
from rvtssm.training.training_config import H2_BAND, OptimConfig

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
        ValueError, match=rf"optim.h2_weight=0.1: temporal.name={name} has no H2 norm.*; or set it to 0"
    ):
        check(compose(["experiment=demo", f"temporal={name}", "optim.h2_weight=0.1"]))


def test_a_run_without_a_remembering_stage_is_refused_with_the_configuration():
    with raises("training.no_norm", "optim.h2_weight=0.1"):
        check(compose(["experiment=demo", "temporal.strides=[]", "optim.h2_weight=0.1"]))
