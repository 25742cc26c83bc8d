"""Nothing reads a value from the device of a model: on a GPU, each such read would wait for all that was asked of it.

Parameters and inputs are said to be on a GPU and have no values, so reading one is an error, as are mixed devices.
"""

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rvtssm.models import ModelConfig, yolox
from rvtssm.models.detector import Detector, build_detector
from rvtssm.models.rvt import SPATIAL_MIXERS
from rvtssm.models.streams import Streams
from rvtssm.models.yolox import yolox_loss
from rvtssm.records import SequenceBatch
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.temporal_layers import TEMPORAL_LAYERS, build_temporal_layer
from rvtssm.system.machine import on_device

DIM, STEPS, STREAMS, HEIGHT, WIDTH = 12, 3, 2, 32, 64
# every mixer, backbone and head
FEW_QUERIES = {"head_options": {"queries": 10, "layers": 1}}
PARTS = [{"mixer": mixer} for mixer in SPATIAL_MIXERS] + [{"backbone": "timm", "head": "rtdetr", **FEW_QUERIES}]
RULES = [(name, "zoh") for name in TEMPORAL_LAYERS] + [("s5", "bilinear"), ("s5", "async")]


@pytest.fixture
def overwritten():
    """Modules take other parameters when they move, because values cannot be exchanged for none in place."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def on_gpu(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    return module._apply(lambda tensor: mode.from_tensor(tensor).to("cuda"))


def scale_of_rows() -> torch.Tensor:
    return torch.rand(STEPS, STREAMS, device="cuda")


def small_detector(**parts: str) -> Detector:
    torch.manual_seed(0)
    model = ModelConfig(embed_dim=32, num_blocks=(1, 0, 0, 0), timm_name="test_resnet", **parts)
    return build_detector(model, TemporalConfig(), HEIGHT, WIDTH, num_classes=2)


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_a_temporal_layer_reads_nothing(overwritten, name, rule):
    """With one step scale for all, and with one for each step and stream."""
    layer = build_temporal_layer(TemporalConfig(name=name, discretization=rule), DIM)
    with FakeTensorMode() as mode:
        on_gpu(layer, mode)
        x = torch.randn(STEPS, 4, DIM, device="cuda")
        y, state = layer(x, None, 0.5)
        y, _ = layer(y, state, layer.prepare(scale_of_rows()))
        assert y.device == layer.forward_without_memory(x, scale_of_rows()).device == x.device


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_a_detector_reads_nothing(overwritten, parts):
    detector = small_detector(**parts)
    num_targets = torch.tensor([1, 2, 0, 1, 1, 2])
    with FakeTensorMode() as mode:
        on_gpu(detector, mode)
        hist = torch.zeros(STEPS, STREAMS, 20, HEIGHT, WIDTH, dtype=torch.uint8, device="cuda")
        targets = torch.rand(6, 2, 5, device="cuda"), mode.from_tensor(num_targets).to("cuda")
        predictions, state = detector(hist, None, scale_of_rows(), targets=targets)
        predictions, _ = detector.eval()(hist, state, scale_of_rows())
    assert predictions[0].device.type == "cuda" and len(predictions[0]) == STEPS * STREAMS


class Sums(NamedTuple):
    """The predictions of `Passing`."""

    counts: torch.Tensor  # (M,)


class Passing(nn.Module):
    """A detector of which streams need states and predictions only, on a device that has no values at all."""

    device = torch.device("meta")
    init_state = staticmethod(lambda num_streams: torch.zeros(2 * num_streams, 3, device="meta"))
    prepare = staticmethod(lambda step_scale: step_scale)

    def forward(self, hist, state, step_scale, frame_index, targets=None):
        rows = on_device(frame_index[:, 0] * hist.shape[1] + frame_index[:, 1], hist.device)
        assert not isinstance(step_scale, torch.Tensor) or step_scale.device == hist.device
        return Sums(hist.flatten(0, 1).float().sum((1, 2, 3))[rows]), state if state is None else state + 1


@pytest.mark.parametrize("chunk", [None, 2, 1])
@pytest.mark.parametrize("trains", [True, False])
def test_streams_read_control_data_only(trains, chunk):
    streams = Streams(Passing().train(trains), 50_000, chunk, with_gradients=trains)
    for is_first in ([True, True], [False, True], [False, False]):
        batch = SequenceBatch(
            hist=torch.zeros(STEPS, STREAMS, 1, 2, 2, dtype=torch.uint8),
            dt_us=torch.tensor([[50_000, 50_000], [40_000, 50_000], [50_000, 50_000]]),
            is_first=torch.tensor(is_first),
            is_pad=torch.zeros(STEPS, STREAMS, dtype=torch.bool),
            frame_index=torch.tensor([[0, 1], [1, 0], [2, 0]]),
            targets=torch.zeros(3, 2, 5),
            num_targets=torch.tensor([1, 2, 1]),
            t_us=torch.arange(3),
            slot=torch.tensor([-1, 0]),
            recording=torch.zeros(2, dtype=torch.int64),
        ).to("meta")
        (counts,) = streams.push_batch(batch)
        assert counts.shape == (3,)
        assert batch.hist.device == batch.targets.device == streams.detector.device
        assert batch.slot.device == batch.num_targets.device == batch.dt_us.device == torch.device("cpu")


def test_the_loss_of_yolox_reads_nothing():
    predictions, targets = torch.zeros(3, 20, 7, device="meta"), torch.zeros(3, 2, 5, device="meta")
    locations, weights = torch.zeros(20, 3, device="meta"), torch.zeros(3, 2, device="meta")
    for num_targets in (torch.tensor([1, 2, 0]), torch.zeros(3, dtype=torch.int64)):
        losses = yolox_loss(predictions, targets, num_targets, locations, weights=weights)
        assert {value.device.type for value in losses.values()} == {"meta"}


def test_matches_that_are_left_over_count_nothing(monkeypatch):
    # on a GPU the number of matches is not known, and there is room for the most that there can be
    generator = torch.Generator().manual_seed(0)
    predictions = torch.rand(2, 30, 7, generator=generator) * 20
    predictions[0, 0, :4] = torch.inf  # of a location without an object, whose box does not matter
    locations = torch.tensor([[x, y, 8.0] for x in range(4, 40, 8) for y in range(4, 52, 8)])
    targets, num_targets = torch.rand(2, 3, 5, generator=generator) * 30 + 8, torch.tensor([3, 1])
    targets[..., 0] = 1
    for weights in (None, torch.tensor([[1.0, 0.5, 0.0], [0.25, 1.0, 1.0]])):
        own, ours = predictions.clone().requires_grad_(), predictions.clone().requires_grad_()
        wanted = yolox_loss(own, targets, num_targets, locations, weights=weights)
        monkeypatch.setattr(yolox, "most_matches", lambda *_: 40)
        found = yolox_loss(ours, targets, num_targets, locations, weights=weights)
        monkeypatch.undo()
        torch.testing.assert_close(found, wanted)
        found["total"].backward(), wanted["total"].backward()
        torch.testing.assert_close(ours.grad, own.grad)
