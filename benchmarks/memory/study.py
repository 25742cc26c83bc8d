"""One small network and a variant of its temporal layer: train it, then score it by how long a square stood still."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.memory.sprites import HZ, NUM_CELLS, Sprites, simulate
from rvtssm.ssm.block import GatedBlock, SSMBlock
from rvtssm.ssm.layer import TemporalLayer
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

DIM = 24  # features
NUM_STREAMS = 16  # side by side in a batch
_TRAIN_STEPS = 2_400  # of each stream; the training goes around
_TEST_STEPS = 1_000
_TEST_SEED = 1 << 20
_TEST_CHUNK = 50  # steps
_PEAK_LR = 3e-3
GROUPS_S = {"moving": (-1.0, 0.0), "0.2 to 1 s": (0.2, 1.0), "1 to 2 s": (1.0, 2.0), "2 to 5 s": (2.0, 5.0)}
_MODES = ("Lambda", "log_step", "log_real", "imag", "B", "to_step.weight", "to_step.bias", "log_dt")

_USUAL = {"discretization": "bilinear", "block": "gated", "dt_min": 0.03, "dt_max": 0.4}


@dataclass(frozen=True)
class Variant:
    """A temporal layer and how it is trained; everything that is not given is as in the demo."""

    layer: str
    temporal: dict[str, Any] = field(default_factory=dict)  # other values of TemporalConfig
    is_gated: bool = False  # S5 in the gated block
    gates_input: bool = False  # S5 whose input is multiplied by a gate that follows it
    normalises_drive: bool = False  # modes: the rows of B start divided by the square root of their step, see `build`
    start: dict[str, float] = field(default_factory=dict)  # factor of parameters of the layer at the start, by name
    ssm_lr: float = 1.0  # learning rate of modes, steps and B, relative to the others
    chunk_length: int = 6  # steps of a training chunk, as in the demo
    num_frames: int = 4_800  # steps of each stream over the whole training

    def build(self) -> TemporalLayer:
        """Return the layer with its values at the start.

        An input that is drawn anew at every step gives a mode of step dt a state of variance dt, so that the slow modes
        start as a small part of the output. With `normalises_drive` all modes start alike.
        """
        is_modal = self.layer in ("s5", "selective_s5")
        config = TemporalConfig(
            name=self.layer,
            **{**_USUAL, "num_blocks": 8 if is_modal else 1, **self.temporal},
        )
        if self.is_gated:
            layer: TemporalLayer = GatedBlock(S5SSM(DIM, config), DIM)
        elif self.gates_input:
            layer = SSMBlock(InputGatedS5(DIM, config), DIM)
        else:
            layer = build_temporal_layer(config, DIM)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.mul_(self.start.get(name.removeprefix("ssm."), 1.0))
            if self.normalises_drive:
                ssm: Any = layer.ssm
                dt = F.softplus(ssm.to_step.bias) if self.layer == "selective_s5" else ssm.log_step.exp()
                ssm.B.mul_(dt[:, None, None] ** -0.5)
        return layer

    @property
    def changes(self) -> dict[str, Any]:
        """What is not as in the demo."""
        usual = asdict(Variant(self.layer))
        return {name: value for name, value in asdict(self).items() if name == "layer" or value != usual[name]}


class InputGatedS5(S5SSM):
    """S5 that can keep an input out, but cannot forget faster when something arrives."""

    def __init__(self, dim: int, config: TemporalConfig) -> None:
        super().__init__(dim, config)
        self.input_gate = nn.Linear(dim, dim)

    def forward(self, x: Tensor, state: Any, step_scale: Any = 1.0) -> tuple[Tensor, Tensor]:
        return super().forward(x * torch.sigmoid(self.input_gate(x)), state, step_scale)


VARIANTS = {
    "lstm": Variant("lstm"),
    "s5": Variant("s5"),
    "selective_s5": Variant("selective_s5"),
    "selective_s5, zoh": Variant("selective_s5", {"discretization": "zoh"}),
    "s4d": Variant("s4d", {"state_size": 4}),
    # what S5 could lack
    "s5, gated block": Variant("s5", is_gated=True),
    "s5, gated input": Variant("s5", gates_input=True),
    "s5, chunks of 24, a quarter of the updates": Variant("s5", chunk_length=24),
    "s5, chunks of 24, as many updates": Variant("s5", chunk_length=24, num_frames=19_200),
    "s5, three times as many updates": Variant("s5", num_frames=14_400),
    "s5, normalised drive": Variant("s5", normalises_drive=True),
    "s5, A, B, dt at a tenth of the rate": Variant("s5", ssm_lr=0.1),
    "s5, C times 4 at the start": Variant("s5", start={"C": 4.0}),
    "s5, D = 0 at the start": Variant("s5", start={"D": 0.0}),
    "s5, dt 0.005 to 0.4": Variant("s5", {"dt_min": 0.005}),
    "s5, dt 0.03 to 2": Variant("s5", {"dt_max": 2.0}),
    "s5, zoh": Variant("s5", {"discretization": "zoh"}),
    "s5, no bandlimit": Variant("s5", {"bandlimit": 0.0}),
    "s5, one HiPPO block": Variant("s5", {"num_blocks": 1}),
    "s5, 96 modes": Variant("s5", {"state_size": 96, "num_blocks": 32}),
    "s5, Re not clipped": Variant("s5", {"clip_real": False}),
    # what selective S5 and the LSTM could gain
    "selective_s5, zoh, dt 0.005 to 0.4": Variant("selective_s5", {"discretization": "zoh", "dt_min": 0.005}),
    "selective_s5, zoh, no oscillation at the start": Variant(
        "selective_s5", {"discretization": "zoh"}, start={"imag": 0.0}
    ),
    "selective_s5, no oscillation at the start": Variant("selective_s5", start={"imag": 0.0}),
    "selective_s5, feed-forward block": Variant("selective_s5", {"block": "feed_forward"}),
    "selective_s5, zoh, feed-forward block": Variant(
        "selective_s5", {"discretization": "zoh", "block": "feed_forward"}
    ),
    "selective_s5, zoh, selectivity 0.1": Variant(
        "selective_s5", {"discretization": "zoh"}, start={"to_step.weight": 0.1}
    ),
    "selective_s5, normalised drive": Variant("selective_s5", normalises_drive=True),
    "selective_s5, D = 0 at the start": Variant("selective_s5", start={"D": 0.0}),
    "selective_s5, half state": Variant("selective_s5", {"half_state": True, "num_blocks": 6}),
    "selective_s5, A, B, dt at a tenth of the rate": Variant("selective_s5", ssm_lr=0.1),
    "selective_s5, dt 0.005 to 0.4": Variant("selective_s5", {"dt_min": 0.005}),
    "selective_s5, dt 0.005 to 0.1": Variant("selective_s5", {"dt_min": 0.005, "dt_max": 0.1}),
}


class SpriteNet(nn.Module):
    """Two convolutions to cells of two pixels, the temporal layer on every cell, two convolutions to a logit."""

    def __init__(self, temporal: TemporalLayer) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, DIM, 5, stride=2, padding=2)
        self.mix = nn.Conv2d(DIM, DIM, 3, padding=1)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM), nn.LayerNorm(DIM)])
        self.temporal = temporal
        self.hidden = nn.Conv2d(DIM, DIM, 3, padding=1)
        self.out = nn.Conv2d(DIM, 1, 1)

    def forward(self, frames: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Run L steps: frames (L, B, 2, H, W), state of B * cells sequences -> logits (L, B, h, w), the state."""
        x = F.gelu(self.norms[0](self.stem(frames.flatten(0, 1).float()).movedim(1, -1))).movedim(-1, 1)
        x = self.norms[1](self.mix(x).movedim(1, -1))  # (L B) h w D
        cells = x.reshape(len(frames), -1, DIM)
        y, state = self.temporal(cells, state)
        logits = self.out(F.gelu(self.hidden(y.reshape(x.shape).movedim(-1, 1))))
        return logits.reshape(*frames.shape[:2], NUM_CELLS, NUM_CELLS), state


def _detached(state: Any) -> Any:
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()


def train_and_score(variant: Variant, seed: int) -> dict[str, Any]:
    """Train one network and return its average precision in percent by group, and what it cost."""
    began = time.process_time()
    data = simulate(NUM_STREAMS, _TRAIN_STEPS, seed)
    torch.manual_seed(seed)
    net = SpriteNet(variant.build())
    optimizer = torch.optim.AdamW(parameter_groups(net, _PEAK_LR, variant.ssm_lr), weight_decay=0.0)
    num_steps = variant.num_frames // variant.chunk_length
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rates, num_steps, pct_start=0.05, anneal_strategy="linear", cycle_momentum=False
    )
    state, losses = net.temporal.init_state(NUM_STREAMS * NUM_CELLS**2), []
    for step in range(num_steps):
        first = step * variant.chunk_length % (_TRAIN_STEPS - variant.chunk_length)
        frames, is_covered = _chunk(data, first, first + variant.chunk_length)
        logits, state = net(frames, _detached(state))
        loss = F.binary_cross_entropy_with_logits(logits, is_covered.float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    test = simulate(NUM_STREAMS, _TEST_STEPS, _TEST_SEED)
    return {
        "AP": by_group(predict(net, test), test),
        "loss": float(np.mean(losses[-100:])),
        "parameters": sum(p.numel() for p in net.temporal.parameters()),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _chunk(data: Sprites, start: int, stop: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.frames[start:stop]), torch.from_numpy(data.is_covered[start:stop])


def parameter_groups(net: SpriteNet, lr: float, ssm_lr: float) -> list[dict[str, Any]]:
    """Return two groups for the optimiser: modes, steps and B of the temporal layer, and everything else."""
    of_modes = [p for name, p in net.temporal.named_parameters() if name.removeprefix("ssm.") in _MODES]
    ids = set(map(id, of_modes))
    others = [p for p in net.parameters() if id(p) not in ids]
    groups = [{"params": others, "lr": lr}, {"params": of_modes, "lr": ssm_lr * lr}]
    return [group for group in groups if group["params"]]


@torch.no_grad()
def predict(net: SpriteNet, data: Sprites) -> npt.NDArray[np.float32]:
    """Return the logits (T, B, h, w) of all steps, with the state carried from the first to the last."""
    state, parts = net.temporal.init_state(data.frames.shape[1] * NUM_CELLS**2), []
    for start in range(0, len(data.frames), _TEST_CHUNK):
        logits, state = net(_chunk(data, start, start + _TEST_CHUNK)[0], state)
        parts.append(logits.numpy())
    return np.concatenate(parts)


def by_group(scores: npt.NDArray[np.float32], data: Sprites) -> dict[str, float]:
    """Return the average precision of cells in percent, for squares that move and for those that stand still.

    A step at the edge of two groups (1 s and 2 s after the stop) counts in both.
    """
    result = {}
    for name, (above, until) in GROUPS_S.items():
        chosen = (data.still_s > above - 0.5 / HZ) & (data.still_s <= until)
        result[name] = round(100 * average_precision(scores[chosen].ravel(), data.is_covered[chosen].ravel()), 2)
    return result


def average_precision(scores: npt.NDArray[np.float32], is_true: npt.NDArray[np.bool_]) -> float:
    """Return the area under precision over recall."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(is_true[order])
    precision = hits / np.arange(1, len(hits) + 1)
    return float(precision[is_true[order]].mean())
