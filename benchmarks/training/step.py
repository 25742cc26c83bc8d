"""Training steps that take turns: the same spatial part, neck, head and batch, one temporal layer or option each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import measuring
from benchmarks.textbook import TextbookS5
from rvtssm.models import MODEL_SIZES, ModelConfig
from rvtssm.models.detector import Detector, build_detector, parameters_by_room
from rvtssm.records import SequenceBatch
from rvtssm.ssm import TemporalConfig
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.lstm import LSTM
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_layers import build_temporal_layer
from rvtssm.training.trainer import speed_up

LABEL_EVERY = 5  # steps: Gen1 is labelled at 4 Hz and trained at 20 Hz
LAYERS = {
    "s5": TemporalConfig(),
    "s5-half": TemporalConfig(half_state=True),
    "s4d": TemporalConfig(name="s4d"),
    "s4": TemporalConfig(name="s4"),
    "selective_s5": TemporalConfig(name="selective_s5"),
    "selective_s5-gated": TemporalConfig(name="selective_s5", discretization="bilinear", block="gated"),
    "s7": TemporalConfig(name="s7"),
    "lstm": TemporalConfig(name="lstm"),
}
LSTM_LOOP, BACKBONE_LOOP = "rvt-lstm-loop", "rvt-backbone-loop"
BASELINES = (LSTM_LOOP, BACKBONE_LOOP)
OPTIONS = ("bf16", "recompute")  # and compile


@dataclass(frozen=True)
class Shape:
    """What is trained on: chunks of `length` steps, `batch` of them."""

    batch: int
    length: int
    device: str
    height: int = 240
    width: int = 304
    model: ModelConfig = field(default_factory=lambda: MODEL_SIZES["base"])


class SteppedLSTM(LSTM):
    """As RVT runs it: at each step one product with input and hidden state together, gates by gates."""

    def forward(self, x: Tensor, state: Any, step_scale: Any = 1.0, grid: Any = None) -> tuple[Tensor, Any]:
        """Compute the same numbers as `LSTM.forward`, which multiplies the inputs of all steps at once."""
        hidden, cell = state
        outputs = []
        for x_l in x.unbind(0):
            mixed = self.gates(torch.cat([x_l, hidden], dim=1))
            forget, enter, leave = torch.sigmoid(mixed[:, : 3 * self.dim]).chunk(3, dim=1)
            cell = forget * cell + enter * torch.tanh(mixed[:, 3 * self.dim :])
            hidden = leave * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)


class TextbookLayer(nn.Module):
    """The textbook form of a layer in the place of the layer: time first, its own step."""

    def __init__(self, layer: S5SSM) -> None:
        super().__init__()
        self.textbook = TextbookS5(layer)
        self.init_state = layer.init_state

    def forward(self, x: Tensor, state: Tensor, step_scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """x (L, N, H), state (N, P) complex -> y (L, N, H), the state after step L."""
        y, last = self.textbook(x.transpose(0, 1), state, step_scale)
        return y.transpose(0, 1), last


def looped_predictions(detector: Detector, hist: Tensor, frame_index: Tensor) -> Any:
    """Predictions for the frames (M, 2), the backbone run step by step as in RVT, which collects the features of
    labelled frames on the way and gives them to neck and head at once."""
    state, kept = detector.init_state(hist.shape[1]), []
    (height, width), (padded_height, padded_width) = detector.frame_hw, detector.backbone.padded_hw
    padding = (0, padded_width - width, 0, padded_height - height)
    for step, frames in enumerate(hist.unbind(0)):
        inputs = F.pad(frames, padding).float().permute(0, 2, 3, 1).contiguous()
        maps, state = detector.backbone(inputs[None], state, (1.0,) * len(state))
        streams = frame_index[frame_index[:, 0] == step, 1]
        if len(streams):
            kept.append([maps[stride][0, streams].permute(0, 3, 1, 2) for stride in detector.neck.strides])
    joined = [torch.cat(scale) for scale in zip(*kept, strict=True)]
    return detector.head(detector.neck(dict(zip(detector.neck.strides, joined, strict=True))))


class Training:
    """Forward, loss, backward, clipping and optimiser of one detector, whose temporal layers may take turns."""

    def __init__(
        self,
        detector: Detector,
        layers: Sequence[TemporalLayer],
        optimizers: Sequence[torch.optim.Optimizer],
        device: str,
        is_looped: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.detector, self.layers, self.optimizers = detector, layers, optimizers
        self.device, self.is_looped, self.dtype = device, is_looped, dtype

    def predict(self, batch: SequenceBatch) -> Any:
        """Return the predictions for the labelled frames, from the zero state."""
        for stage, layer in zip(self.detector.backbone.stages, self.layers, strict=True):
            stage.temporal = layer
        if self.is_looped:
            return looped_predictions(self.detector, batch.hist, batch.frame_index)
        return self.detector(batch.hist, None, 1.0, batch.frame_index)[0]

    def step(self, batch: SequenceBatch) -> float:
        """Do one training step from the zero state and return the loss."""
        with torch.autocast(self.device, self.dtype) if self.dtype else nullcontext():
            predictions = self.predict(batch)
            losses = self.detector.head.loss(predictions, batch.targets, batch.num_targets)
        losses["total"].backward()
        nn.utils.clip_grad_value_(self.detector.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(losses["total"].detach())


def build_training(name: str, shape: Shape) -> Training:
    """Return one of LAYERS or BASELINES, or a layer with one of OPTIONS, `compile` or none: "s5+bf16", "s5+"."""
    layer, plus, option = name.partition("+")
    if not plus:
        return build_trainings([layer], shape)[layer]
    detector = _detector(shape, LAYERS[layer])
    speed_up(
        detector,
        shape.device,
        recompute_strides=tuple(detector.backbone.channels) if option == "recompute" else (),
        compile_parts=option == "compile",
    )
    layers = [stage.temporal for stage in detector.backbone.stages]
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-5, fused=True)
    dtype = torch.bfloat16 if option == "bf16" else None
    return Training(detector, layers, [optimizer], shape.device, dtype=dtype)


def build_trainings(names: Sequence[str], shape: Shape) -> dict[str, Training]:
    """Return trainings of LAYERS and BASELINES, which share all weights except those of their temporal layers."""
    detector = _detector(shape, LAYERS["lstm"])
    rooms = parameters_by_room(detector)
    shared = torch.optim.AdamW([*rooms["spatial"], *rooms["neck"], *rooms["head"]], lr=1e-5, fused=True)
    trainings = {}
    for name in names:
        layers: list[TemporalLayer]
        if name in BASELINES:
            layers = [SteppedLSTM(dim, LAYERS["lstm"]) for dim in detector.backbone.channels.values()]
        else:
            layers = [build_temporal_layer(LAYERS[name], dim) for dim in detector.backbone.channels.values()]
        own = nn.ModuleList(layers).to(shape.device)
        optimizers = [shared, torch.optim.AdamW(own.parameters(), lr=1e-5, fused=True)]
        trainings[name] = Training(detector, layers, optimizers, shape.device, is_looped=name == BACKBONE_LOOP)
    return trainings


def _detector(shape: Shape, temporal: TemporalConfig) -> Detector:
    torch.manual_seed(0)
    return build_detector(shape.model, temporal, shape.height, shape.width, 2).to(shape.device).train()


def make_batch(shape: Shape) -> SequenceBatch:
    """Return random counts, as sparse as events, and two boxes in every fifth frame, including the last."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.length, shape.batch, 20, shape.height, shape.width)
    counts = torch.randint(1, 11, size, generator=generator, dtype=torch.uint8)
    hist = counts * (torch.rand(size, generator=generator) < 0.05)
    steps = range((shape.length - 1) % LABEL_EVERY, shape.length, LABEL_EVERY)
    frames = torch.tensor([(step, stream) for step in steps for stream in range(shape.batch)])
    box = torch.tensor([[0.0, 0.3, 0.4, 0.2, 0.3], [1.0, 0.7, 0.6, 0.1, 0.3]])
    box = box * torch.tensor([1, shape.width, shape.height, shape.width, shape.height])
    batch = SequenceBatch(
        hist=hist,
        dt_us=torch.full(size[:2], 50_000),
        is_first=torch.ones(shape.batch, dtype=torch.bool),
        is_pad=torch.zeros(size[:2], dtype=torch.bool),
        frame_index=frames,
        targets=box.repeat(len(frames), 1, 1),
        num_targets=torch.full((len(frames),), 2),
        t_us=(frames[:, 0] + 1) * 50_000,
        slot=torch.arange(shape.batch),
        recording=torch.arange(shape.batch),
    )
    return batch.to(shape.device)


def take_turns(trainings: Mapping[str, Training], shape: Shape, num_rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each in each round, after one warm-up round."""
    batch = make_batch(shape)
    runs = {name: partial(training.step, batch) for name, training in trainings.items()}
    return measuring.take_turns(runs, num_rounds, shape.device)


def peak_bytes(name: str, shape: Shape, num_threads: int) -> int:
    """Return the peak memory of a step above weights, optimiser and batch; see `peak_of_run`."""
    torch.set_num_threads(num_threads)
    training = build_training(name, shape)
    return measuring.peak_of_run(partial(training.step, make_batch(shape)), shape.device)


Say = Callable[[str], None]
