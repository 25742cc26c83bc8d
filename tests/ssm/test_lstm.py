"""The LSTM against PyTorch's cell, and its depthwise convolution against RVT's equations on whole frames."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rvtssm.datasets import DATASETS
from rvtssm.models.backbones.stage import Stage
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.official import convert_official
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.temporal_config import TemporalConfig

DIM, HEIGHT, WIDTH, STREAMS = 5, 4, 3, 2
N = STREAMS * HEIGHT * WIDTH
GRID = (HEIGHT, WIDTH)
VARIANTS = [(True, 3), (False, 3), (True, 5), (False, 1)]


def with_convolution(only_hidden: bool, size: int) -> LSTM:
    torch.manual_seed(0)
    config = TemporalConfig(name="lstm", dws_conv=True, dws_conv_only_hidden=only_hidden, dws_conv_kernel_size=size)
    return LSTM(DIM, config).double()


def example(num_steps: int = 6) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    draw = [torch.randn(num_steps, N, DIM), torch.randn(N, DIM), torch.randn(N, DIM)]
    x, hidden, cell = (values.double() for values in draw)
    return x, (hidden, cell)


@torch.no_grad()
def test_the_lstm_is_that_of_pytorch():
    torch.manual_seed(0)
    ours, theirs = LSTM(5, TemporalConfig(name="lstm")), torch.nn.LSTMCell(5, 5)
    forget, enter, leave, cell = ours.gates.weight.chunk(4)
    theirs.weight_ih.copy_(torch.cat([enter, forget, cell, leave])[:, :5])
    theirs.weight_hh.copy_(torch.cat([enter, forget, cell, leave])[:, 5:])
    forget, enter, leave, cell = ours.gates.bias.chunk(4)
    theirs.bias_ih.copy_(torch.cat([enter, forget, cell, leave]))
    theirs.bias_hh.zero_()
    x, state = torch.randn(6, 3, 5), (torch.randn(3, 5), torch.randn(3, 5))
    y, end = ours(x, state, 0.3)  # it has no step to rescale
    for x_l, y_l in zip(x, y, strict=True):
        state = theirs(x_l, state)
        torch.testing.assert_close(y_l, state[0])
    torch.testing.assert_close(end, state)


def on_frames(values: Tensor) -> Tensor:
    return values.unflatten(0, (STREAMS, HEIGHT, WIDTH)).movedim(-1, 1)


@torch.no_grad()
@pytest.mark.parametrize(("only_hidden", "size"), VARIANTS)
def test_the_convolution_written_out_on_frames(only_hidden, size):
    layer, (x, state) = with_convolution(only_hidden, size), example()
    y, end = layer(x, state, 0.3, GRID)
    hidden, cell = (on_frames(values) for values in state)
    kernel, bias = layer.conv.weight, layer.conv.bias
    for x_l, y_l in zip(x, y, strict=True):
        seen = [on_frames(x_l), hidden]
        if only_hidden:
            seen[1] = F.conv2d(hidden, kernel, bias, padding="same", groups=DIM)
            both = torch.cat(seen, dim=1)
        else:
            both = F.conv2d(torch.cat(seen, dim=1), kernel, bias, padding="same", groups=2 * DIM)
        forget, enter, leave, new = F.conv2d(both, layer.gates.weight[:, :, None, None], layer.gates.bias).chunk(4, 1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        torch.testing.assert_close(on_frames(y_l), hidden)
    torch.testing.assert_close(tuple(map(on_frames, end)), (hidden, cell))


@torch.no_grad()
@pytest.mark.parametrize(("only_hidden", "size"), VARIANTS)
@pytest.mark.parametrize("num_steps", [1, 2, 10])
def test_cut_anywhere_is_whole_is_step_by_step_with_the_convolution(only_hidden, size, num_steps):
    layer, (x, state) = with_convolution(only_hidden, size), example(num_steps)
    whole, end = layer(x, state, 1.0, GRID)
    for cut in range(1, num_steps, 4):
        head, middle = layer(x[:cut], state, 1.0, GRID)
        tail, last = layer(x[cut:], middle, 1.0, GRID)
        torch.testing.assert_close(torch.cat([head, tail]), whole)
        torch.testing.assert_close(last, end)
    for x_l, y_l in zip(x, whole, strict=True):
        y, state = layer(x_l[None], state, 1.0, GRID)
        torch.testing.assert_close(y[0], y_l)
    torch.testing.assert_close(state, end)


def test_without_the_size_of_the_frames_it_is_refused():
    layer, (x, state) = with_convolution(True, 3), example()
    for grid in (None, (5, 3)):
        with pytest.raises(ValueError, match=r"dws_conv=true got 24 sequences and grid="):
            layer(x, state, 1.0, grid)
    for wrong in ({"dws_conv_kernel_size": 4}, {"dws_conv_kernel_size": 0}):
        with pytest.raises(ValueError, match=r"dws_conv_kernel_size=\d must be (odd|.* at least 1)"):
            TemporalConfig(name="lstm", dws_conv=True, **wrong)
    with pytest.raises(ValueError, match=r"dws_conv=true with temporal\.name=s5; only lstm supports it"):
        TemporalConfig(dws_conv=True)


@torch.no_grad()
def test_a_stage_tells_it_the_size_of_its_frames():
    layer = with_convolution(True, 3)
    stage = Stage(2, DIM, 4, 1, GRID, layer, ModelConfig(head_dim=DIM)).double()
    x = torch.randn(3, STREAMS, 4 * HEIGHT, 4 * WIDTH, 2, dtype=torch.float64)
    y, _ = stage(x, layer.init_state(N), 1.0)
    mixed = stage.blocks(stage.downsample(x.flatten(0, 1))).reshape(3, N, DIM)
    wanted, _ = layer(mixed, layer.init_state(N), 1.0, GRID)
    torch.testing.assert_close(y.reshape(3, N, DIM), wanted)


@pytest.mark.golden
@pytest.mark.parametrize(("only_hidden", "size"), VARIANTS)
def test_weights_of_rvt_with_a_convolution_are_converted(golden_dir: Path, only_hidden, size):
    arrays = dict(np.load(golden_dir / "rvt_small.npz"))
    weights = {key.removeprefix("sd/"): torch.from_numpy(array) for key, array in arrays.items() if "sd/" in key}
    stages = [f"mdl.backbone.stages.{index}." for index in range(4)]
    dims = [len(weights[stage + "downsample_cf2cl.conv.weight"]) for stage in stages]
    for stage, dim in zip(stages, dims, strict=True):
        width = dim if only_hidden else 2 * dim
        weights[stage + "lstm.conv3x3_dws.weight"] = torch.randn(width, 1, size, size)
        weights[stage + "lstm.conv3x3_dws.bias"] = torch.randn(width)
    classes = tuple(f"class {index}" for index in range(len(weights["mdl.yolox_head.cls_preds.0.bias"])))
    spec = replace(DATASETS["gen1"], class_names=classes, height=64, width=96)
    loaded = convert_official(weights, spec, head_dim=dims[0] // 2)
    config = loaded.temporal_config
    assert (config.name, config.dws_conv, config.dws_conv_only_hidden) == ("lstm", True, only_hidden)
    assert config.dws_conv_kernel_size == size
    for stage, layer in zip(stages, loaded.detector.backbone.stages, strict=True):
        assert torch.equal(layer.temporal.conv.weight, weights[stage + "lstm.conv3x3_dws.weight"])
        assert torch.equal(layer.temporal.conv.bias, weights[stage + "lstm.conv3x3_dws.bias"])
    hist = torch.randint(0, 11, (2, 1, weights[stages[0] + "downsample_cf2cl.conv.weight"].shape[1], 64, 96))
    with torch.no_grad():
        assert loaded.detector(hist.to(torch.uint8))[0].rows.isfinite().all()
