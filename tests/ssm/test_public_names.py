"""A layer used alone: names and defaults in `rvtssm.ssm`, the impulse response, errors that say what to do."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from layer_examples import CASES, DIM, assert_near, build
from user_errors import raises

import rvtssm.ssm
from rvtssm.ssm import LSTM, S4, S4D, S5, S7, SelectiveS5, TemporalConfig
from rvtssm.ssm.spectrum import Spectrum
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.user_error import UserError

LAYERS = {label: build(label) for label in CASES}
every_layer = pytest.mark.parametrize("layer", TEMPORAL_LAYERS.values())
LINEAR = {label: config for label, config in CASES.items() if config.name in ("s4", "s4d", "s5")}


def test_the_promised_layers_are_those_of_the_table():
    promised = [getattr(rvtssm.ssm, name) for name in dir(rvtssm.ssm) if name != "TemporalConfig"]
    assert {S4, S4D, S5, S7, SelectiveS5, LSTM} <= set(promised) <= set(TEMPORAL_LAYERS.values())


@pytest.mark.parametrize("name", TEMPORAL_LAYERS)
def test_a_layer_alone_has_the_defaults_of_its_name(name):
    torch.manual_seed(0)
    own = TEMPORAL_LAYERS[name](4)
    torch.manual_seed(0)
    wanted = build_temporal_layer(TemporalConfig(name=name), 4)
    assert all(torch.equal(one, other) for one, other in zip(own.parameters(), wanted.parameters(), strict=True))


@pytest.mark.parametrize("layer", [S4, S4D, S7, SelectiveS5, LSTM])
def test_settings_without_the_name_of_the_layer_and_numbers_of_modes_are_refused(layer):
    with raises("setting.conflict"):
        layer(8, TemporalConfig(state_size=4))
    with raises("setting.form"):
        layer(8, 24)


def test_the_settings_need_no_torch():
    program = "import sys; from rvtssm.ssm import TemporalConfig; TemporalConfig(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_layers_need_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "rvtssm.ssm.scan_triton", raising=False)
    S5(4)(torch.randn(3, 2, 4))[0].sum().backward()
    assert "rvtssm.ssm.scan_triton" not in sys.modules
    modules = [module for name, module in sys.modules.items() if name.startswith("rvtssm.ssm")]
    assert len(modules) > 10 and not any(hasattr(module, "triton") for module in modules)


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


def test_a_single_stride_needs_no_list():
    assert list(TemporalConfig(strides=4).strides) == list(TemporalConfig(strides=np.int64(4)).strides) == [4]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: S7(8).kernel(3),
        lambda: S5(8, TemporalConfig(bidirectional=True)).kernel(3),
        lambda: S5(8).kernel(0),
        lambda: S4D(8).kernel(2.5),
        lambda: S5("8"),
        lambda: build_temporal_layer(32, TemporalConfig()),
        lambda: LSTM(0),
        lambda: S5(8, TemporalConfig(name="s6")),
        lambda: S4(8)(torch.zeros(2, 3, 8), (1, 2)),
        lambda: TemporalConfig(strides=0),
        lambda: S7(8, TemporalConfig(name="s7", state_size=0)),
        lambda: S5(8, TemporalConfig(state_size=4.0)),
        lambda: S5(8, TemporalConfig(num_blocks="2")),
    ],
)
def test_a_mistake_is_told(mistake):
    with pytest.raises(UserError, match=r"\w+ \w+ \w+"):
        mistake()


def test_sizes_of_numpy_are_taken():
    config = TemporalConfig(num_blocks=np.int64(2))
    assert S5(np.int64(8), config)(torch.zeros(2, 6, 8))[0].shape == (2, 6, 8)


@every_layer
def test_a_layer_follows_the_default_precision(layer):
    torch.set_default_dtype(torch.float64)
    try:
        built = layer(8)
        y, state = built(torch.zeros(2, 3, 8))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {p.dtype for p in [y, *built.parameters(), *built.buffers()]} == {torch.float64}
    assert state[0].real.dtype == torch.float64


@pytest.mark.gpu
@every_layer
def test_a_layer_follows_the_default_device(layer):
    with torch.device("cuda"):
        built = layer(8)
        y, _ = built(torch.zeros(2, 3, 8), None, torch.ones(1, 3))
        built(torch.zeros(2, 3, 8), None, torch.tensor([[0.5], [1.0]], device="cpu"))
    assert {p.device.type for p in [y, *built.parameters(), *built.buffers()]} == {"cuda"}


@every_layer
def test_a_step_scale_in_double_precision_is_taken(layer):
    layer, x = layer(8), torch.randn(4, 6, 8)
    for scale in (torch.tensor([[0.1], [0.5], [1.0], [2.0]]), torch.tensor([[0.1, 0.5]])):
        for run in (lambda *call: layer(*call)[0], lambda x, _, scale: layer.forward_without_memory(x, scale)):
            assert torch.equal(run(x, None, scale.double()), run(x, None, scale))


@pytest.mark.parametrize("layer", [S5, S7, SelectiveS5])
def test_a_second_derivative_that_a_layer_lacks_is_refused(layer):
    x = torch.randn(3, 2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(4)(x)[0].square().sum(), x, create_graph=True)
    with raises("layer.lacks"):
        torch.autograd.grad(grad.sum(), x)


@pytest.mark.parametrize("case", LAYERS)
def test_step_scales_that_are_no_positive_numbers_are_refused(case):
    layer, x = LAYERS[case], torch.zeros(2, 1, DIM)
    for scale in (0, -1, float("nan"), float("inf"), "0.1", None, True):
        with raises("layer.step_scale"):
            layer(x, step_scale=scale)
    for wrong in (-1.0, float("nan"), float("inf")):
        with raises("layer.step_scale"):
            layer(x, step_scale=torch.tensor([[1.0], [wrong]]))


@every_layer
def test_another_precision_is_refused_with_a_remedy(layer):
    x = torch.zeros(2, 3, 8)
    for given in (x.double(), x.half(), x.bfloat16()):
        with raises("layer.input"):
            layer(8)(given)
    with raises("layer.input"):
        layer(8).double()(x)
    if isinstance(layer(8).spectrum(), Spectrum):  # its modes need more digits
        for low in (torch.half, torch.bfloat16):
            with raises("layer.weights"):
                layer(8).to(low)(x.to(low))


@every_layer
def test_a_step_scale_of_a_wrong_shape_is_refused_even_if_its_values_are_equal(layer):
    layer, x = layer(8), torch.zeros(4, 3, 8)
    with raises("layer.step_scale"):
        layer(torch.zeros(4, 8, 8), step_scale=torch.full((4,), 0.1))  # per step or per group?
    layer(torch.zeros(1, 8, 8), step_scale=torch.full((4,), 0.1))
    for run in (layer, layer.forward_without_memory):
        for shape in ((7,), (4, 5), (3, 1), (4,), (4, 1, 1)):
            with raises("layer.step_scale"):
                run(x, step_scale=torch.full(shape, 0.1))
        run(x, step_scale=torch.full((4, 1), 0.1))
