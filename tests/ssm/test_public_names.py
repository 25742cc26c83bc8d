"""A layer used alone: names and defaults in `rvtssm.ssm`, the impulse response, errors that say what to do."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from layer_examples import CASES, DIM, assert_near, build

import rvtssm.ssm
from rvtssm.ssm import LSTM, S4, S4D, S5, S7, SelectiveS5, TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.user_error import UserError

LAYERS = {label: build(label) for label in CASES}
LINEAR = {label: config for label, config in CASES.items() if config.name in ("s4", "s4d", "s5")}


def test_every_layer_has_a_name_and_defaults():
    named = {"s4": S4, "s4d": S4D, "s5": S5, "s7": S7, "selective_s5": SelectiveS5, "lstm": LSTM}
    assert named == TEMPORAL_LAYERS
    assert set(dir(rvtssm.ssm)) == {layer.__name__ for layer in named.values()} | {"TemporalConfig"}
    for name, build_layer in named.items():
        torch.manual_seed(0)
        own = build_layer(4)
        torch.manual_seed(0)
        wanted = build_temporal_layer(TemporalConfig(name=name), 4)
        assert all(torch.equal(one, other) for one, other in zip(own.parameters(), wanted.parameters(), strict=True))


@pytest.mark.parametrize("layer", [S4, S4D, S7, SelectiveS5, LSTM])
@pytest.mark.parametrize("given", [{}, {"discretization": "bilinear"}, {"bandlimit": 0.5}, {"state_size": 4}])
def test_settings_without_the_name_of_the_layer_are_refused(layer, given):
    with pytest.raises(UserError, match=r"got the settings of s5 \(the default name\).*TemporalConfig\(name='\w+', "):
        layer(8, TemporalConfig(**given))


def test_the_help_of_the_settings_explains_each_one():
    explained = re.findall(r"^        (\w+): \w", TemporalConfig.__doc__, re.M)
    assert explained == [field.name for field in fields(TemporalConfig)]


def test_the_settings_need_no_torch():
    program = "import rvtssm.ssm, sys; rvtssm.ssm.TemporalConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@torch.no_grad()
@pytest.mark.parametrize("case", LINEAR)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_an_output_is_the_input_convolved_with_the_kernel(case, scale):
    ssm, num_steps = build(case).double().ssm, 9
    x = torch.randn(num_steps, 2, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, _ = ssm(x, None, scale)
    kernel = build(case).double().kernel(num_steps, scale)
    assert kernel.shape == ((num_steps, DIM, DIM) if LINEAR[case].name == "s5" else (num_steps, DIM))
    terms = "koi,kni->no" if kernel.ndim == 3 else "ko,kno->no"
    wanted = [torch.einsum(terms, kernel[:stop], x[:stop].flip(0)) for stop in range(1, num_steps + 1)]
    assert_near(torch.stack(wanted), y, 1e-12)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: S7(8).kernel(3),
        lambda: LSTM(8).kernel(3),
        lambda: SelectiveS5(8).kernel(3),
        lambda: S5(8, TemporalConfig(bidirectional=True)).kernel(3),
        lambda: S5(8).kernel(0),
        lambda: S4D(8).kernel(-1),
        lambda: S4(8).kernel(2.5),
        lambda: S5(8).kernel(2.5),
        lambda: S5("8"),
        lambda: LSTM(0),
        lambda: S5(8, TemporalConfig(name="s7")),
        lambda: S5(8, TemporalConfig(name="s6")),
        lambda: S7(8, TemporalConfig(state_size=4)),
        lambda: S4(8)(torch.zeros(2, 3, 8), (1, 2)),
        lambda: TemporalConfig(strides=4),
    ],
)
def test_a_mistake_is_told(mistake):
    with pytest.raises(UserError, match=r"\w+ \w+ \w+"):
        mistake()


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "0.1", None, True])
def test_a_step_scale_that_is_no_positive_number_is_refused(case, scale):
    with pytest.raises(UserError, match=r"step_scale=.*rate of training divided by the wanted rate"):
        LAYERS[case](torch.zeros(2, 1, DIM), step_scale=scale)


@pytest.mark.parametrize("layer", [S4, S4D, S5, SelectiveS5])
def test_a_layer_used_alone_refuses_unknown_rules(layer):
    name = next(name for name, build_layer in TEMPORAL_LAYERS.items() if build_layer is layer)
    with pytest.raises(UserError, match=r"temporal\.discretization='exp'; choose from zoh, bilinear"):
        layer(8, TemporalConfig(name=name, discretization="exp"))


@pytest.mark.parametrize("layer", [S4, S4D, S5, S7, SelectiveS5, LSTM])
def test_a_number_of_modes_belongs_into_the_settings(layer):
    with pytest.raises(UserError, match=r"TemporalConfig\(name='\w+', state_size=24\)"):
        layer(8, 24)


@pytest.mark.parametrize("layer", [S4, S4D, S5, S7, SelectiveS5, LSTM])
def test_another_precision_is_refused_with_a_remedy(layer):
    x = torch.zeros(2, 3, 8)
    for given in (x.double(), x.half(), x.bfloat16()):
        with pytest.raises(UserError, match=r"pass x\.to\(torch\.float32\)"):
            layer(8)(given)
    with pytest.raises(UserError, match=r"pass x\.to\(torch\.float64\)"):
        layer(8).double()(x)
    if layer is not LSTM:  # its state is real
        for low in (torch.half, torch.bfloat16):
            with pytest.raises(UserError, match=r"layer\.float\(\), and compute inside torch\.autocast"):
                layer(8).to(low)(x.to(low))


@pytest.mark.parametrize("layer", [S4, S4D, S5, S7, SelectiveS5, LSTM])
@pytest.mark.parametrize("shape", [(7,), (4, 5), (3, 1), (4,), (4, 1, 1)])
def test_a_step_scale_of_a_wrong_shape_is_refused_even_if_its_values_are_equal(layer, shape):
    layer, x = layer(8), torch.zeros(4, 3, 8)
    with pytest.raises(UserError, match=r"shape \(4,\), and the input has 4 steps; pass step_scale\[:, None\] for one"):
        layer(torch.zeros(4, 8, 8), step_scale=torch.full((4,), 0.1))  # per step or per group?
    layer(torch.zeros(1, 8, 8), step_scale=torch.full((4,), 0.1))
    for run in (layer, layer.forward_without_memory):
        with pytest.raises(UserError, match=r"step_scale\[:, None\] for one value per step|\(1, G\) or \(L, G\)"):
            run(x, step_scale=torch.full(shape, 0.1))
        run(x, step_scale=torch.full((4, 1), 0.1))


def test_the_error_of_a_wrong_number_of_features_does_not_suggest_a_transpose():
    with pytest.raises(UserError, match=r"features\. Time comes first and features come last$"):
        S5(8)(torch.zeros(5, 2, 6))


@pytest.mark.parametrize(
    ("layer", "name", "sizes"),
    [
        (S4(8), "s4", "features=8, modes=32 per feature, discretization=bilinear"),
        (S4D(8), "s4d", "features=8, modes=32 per feature, discretization=bilinear, bandlimit=0"),
        (S5(8, TemporalConfig(bandlimit=0.5)), "s5", "features=8, modes=8, discretization=bilinear, bandlimit=0.5"),
        (SelectiveS5(8), "selective_s5", "features=8, modes=8, discretization=zoh"),
        (S7(8, TemporalConfig(name="s7", state_size=4)), "s7", "features=8, modes=4"),
        (LSTM(8), "LSTM", "features=8"),
    ],
)
def test_a_printed_layer_tells_its_name_and_its_sizes(layer, name, sizes):
    head = "".join(repr(layer).splitlines()[:2])
    assert name in head
    assert sizes in repr(layer)
