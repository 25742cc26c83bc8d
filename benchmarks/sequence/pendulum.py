"""The angle of a pendulum from irregularly sampled, noisy frames (Schirmer et al. 2022, section 4.1).

`python -m benchmarks.sequence.pendulum --seeds 3 --json pendulum.json`

The data are those of Smith et al. (S5, 2023) to the byte: the constants of the generator that Schirmer et al. released
for the regression task, and its random numbers in its order, with the seeds of its version with a validation set.
Model and recipe are those of the branch `pendulum` of the S5 authors' repository.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sequence.model import SequenceModel
from benchmarks.sequence.study import Data, Recipe, Split, Study, main
from rvtssm.ssm.init import initial_c, initial_modes, to_pairs, truncated_normal
from rvtssm.ssm.layer import StepScale, TemporalLayer
from rvtssm.ssm.s5 import S5SSM
from rvtssm.ssm.temporal_config import TemporalConfig
from rvtssm.ssm.temporal_layers import build_temporal_layer

NUM_SEQUENCES = (2000, 1000, 1000)  # train, validation, test
NUM_FRAMES, NUM_SEEN = 100, 50
FRAME_S, SUBSTEP_S = 0.01, 1e-4
GRAVITY_OVER_INERTIA = 3 * 9.81  # per s^2: a rod of 1 m and 1 kg turning about its end
FRICTION = 0.1  # per s
KICK = 0.1  # rad/s, standard deviation of the random change of velocity in each frame
ANGLE_NOISE = 1e-5  # rad, of the angle that is drawn
SIZE, CANVAS, ROD, WIDTH = 24, 128, 55, 8  # pixels of the frame, and of the drawing before it is made smaller
NUM_CLEAN = 5  # first frames without noise
WALK = 0.2  # largest change of the visibility in a frame


def simulate(num_sequences: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the angles (N, NUM_FRAMES) of pendulums from random angles, in rad; 0 is down."""
    from_top = rng.uniform(0, 2 * np.pi, num_sequences)
    velocity = np.zeros(num_sequences)
    angles = [from_top]
    for _ in range(NUM_FRAMES - 1):
        for _ in range(round(FRAME_S / SUBSTEP_S)):
            velocity = velocity + SUBSTEP_S * (GRAVITY_OVER_INERTIA * np.sin(from_top) - FRICTION * velocity)
            from_top = from_top + SUBSTEP_S * velocity
        velocity = velocity + rng.normal(0.0, KICK, num_sequences)
        from_top = from_top % (2 * np.pi)
        angles.append(from_top)
    return np.stack(angles, axis=1) - np.pi


def draw(angle: float) -> np.ndarray:
    """Draw the rod as a frame (SIZE, SIZE) uint8: a line from the centre to (sin, cos) of the angle, y downward."""
    middle = CANVAS / 2
    canvas = Image.new("F", (CANVAS, CANVAS), 0.0)
    end = (middle + ROD * np.sin(angle), middle + ROD * np.cos(angle))
    ImageDraw.Draw(canvas).line([(middle, middle), end], fill=1.0, width=WIDTH)
    small = canvas.resize((SIZE, SIZE), resample=Image.Resampling.LANCZOS)
    return (255 * np.clip(np.asarray(small), 0, 1)).astype(np.uint8)


def visibility(num_sequences: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the share of signal in each frame (N, NUM_FRAMES) in [0, 1], a random walk that is often at a limit."""
    walk = np.empty((num_sequences, NUM_FRAMES))
    walk[:, 0] = rng.uniform(0, 1, num_sequences)
    for frame in range(1, NUM_FRAMES):
        walk[:, frame] = np.clip(walk[:, frame - 1] + rng.uniform(-WALK, WALK, num_sequences), 0, 1)
    lowest, highest = rng.uniform(0, 0.25, (num_sequences, 1)), rng.uniform(0.75, 1, (num_sequences, 1))
    visible = np.clip((walk - lowest) / (highest - lowest), 0, 1)
    visible[:, :NUM_CLEAN] = 1
    return visible


def sample_frames(num_sequences: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Return frames (N, NUM_FRAMES, 24, 24) uint8, and sin and cos of the true angle (N, NUM_FRAMES, 2)."""
    angles = simulate(num_sequences, rng)
    drawn = angles + rng.normal(0.0, ANGLE_NOISE, (*angles.shape, 2))[..., 0]  # the other column is for the velocity
    frames = np.stack([[draw(angle) for angle in row] for row in drawn])
    visible = visibility(num_sequences, rng)
    for clean, share in zip(frames, visible[..., None, None], strict=True):
        clean[:] = share * clean + (1 - share) * rng.uniform(0, 255, (*clean.shape, 1))[..., 0]
    return frames, np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def seen(frames: np.ndarray, targets: np.ndarray, first_seed: int) -> Split:
    """Return NUM_SEEN frames of each sequence: uint8 (L, N, 1, 24, 24), targets (L, N, 2), gaps in frames (L, N).

    The gap before the first is 1. Sequence k draws its frames with the seed `first_seed` + k.
    """
    rngs = (np.random.default_rng(first_seed + k) for k in range(len(frames)))
    times = np.stack([np.sort(rng.choice(NUM_FRAMES, NUM_SEEN, replace=False)) for rng in rngs])
    rows = np.arange(len(frames))[:, None]
    gaps = np.diff(times, axis=1, prepend=times[:, :1] - 1)
    return Split(
        torch.from_numpy(frames[rows, times]).transpose(0, 1)[:, :, None],
        torch.from_numpy(targets[rows, times]).float().transpose(0, 1),
        torch.from_numpy(gaps).float().transpose(0, 1),
    )


def build_data(num_sequences: tuple[int, int, int] = NUM_SEQUENCES) -> Data:
    """Return the data of the study, which are always the same for the same arguments."""
    num_train, num_validation, num_test = num_sequences
    rng = np.random.RandomState(42)
    train, test = sample_frames(num_train, rng), sample_frames(num_test, rng)
    validation = sample_frames(num_validation, np.random.RandomState(43))
    return Data(seen(*train, num_train), seen(*validation, num_validation), seen(*test, 0))


class FrameEncoder(nn.Module):
    """The convolutions of Schirmer et al. and of S5: (K, 1, 24, 24) uint8 -> (K, dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        net = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(108, 30),
            nn.ReLU(),
            nn.Linear(30, dim),
        )
        self.net = net.to(memory_format=torch.channels_last)

    def forward(self, frames: Tensor) -> Tensor:
        """(K, 1, 24, 24) uint8 -> (K, dim)."""
        # The feature maps of so many frames stay in the cache: half the time of all at once.
        return torch.cat([self.net(part.float() / 255) for part in frames.split(200)])


class PostNormBlock(nn.Module):
    """The block of the S5 paper: layer, y * sigmoid(W gelu(y) + b), residual, norm."""

    def __init__(self, config: TemporalConfig, dim: int) -> None:
        super().__init__()
        layer = build_temporal_layer(config, dim)
        self.ssm: TemporalLayer = getattr(layer, "ssm", layer)  # without its own block
        self.gate = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor, step_scale: StepScale) -> Tensor:
        """(L, N, dim) -> (L, N, dim)."""
        y, _ = self.ssm(x, self.ssm.init_state(x.shape[1]), step_scale)
        normed: Tensor = self.norm(x + y * torch.sigmoid(self.gate(F.gelu(y))))
        return normed


class PendulumModel(SequenceModel):
    """The released model: convolutions, blocks with the norm behind them, and two heads for mean and variance."""

    def __init__(self, config: TemporalConfig, dim: int, depth: int) -> None:
        nn.Module.__init__(self)
        self.encoder = FrameEncoder(dim)
        self.layers = nn.ModuleList([PostNormBlock(config, dim) for _ in range(depth)])
        self.mean, self.variance = (nn.Sequential(nn.Linear(dim, 30), nn.Tanh(), nn.Linear(30, 2)) for _ in range(2))
        inside = {id(module) for layer in self.layers for module in layer.ssm.modules()}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and id(module) not in inside:
                module.weight.data.copy_(truncated_normal(*module.weight.shape, std=module.weight[0].numel() ** -0.5))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            if isinstance(module, S5SSM):
                _draw_as_released(module, config, dim)

    def forward(self, x: Tensor, step_scale: StepScale = 1.0) -> Tensor:
        """(L, N, 1, 24, 24) uint8 -> the mean of sin and cos of the angle (L, N, 2)."""
        mean: Tensor = self.mean(self._features(x, step_scale))
        return mean

    def loss(self, x: Tensor, targets: Tensor, step_scale: StepScale = 1.0) -> Tensor:
        """Return the negative logarithm of a Gaussian likelihood, whose variance is exp(s) for s < 0, else 1 + s."""
        features = self._features(x, step_scale)
        s = self.variance(features)
        return F.gaussian_nll_loss(self.mean(features), targets, torch.where(s < 0, s.clamp(max=0).exp(), 1 + s))

    def _features(self, x: Tensor, step_scale: StepScale) -> Tensor:
        features: Tensor = self.encoder(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        for layer in self.layers:
            features = layer(features, step_scale)
        return features


def _draw_as_released(layer: S5SSM, config: TemporalConfig, dim: int) -> None:
    """Draw B with entries of variance 1 / S, in place of 1 / dim, and C from complex numbers, in place of real ones."""
    size = config.state_size or dim
    _, v = initial_modes(config.init, size, config.num_blocks, config.half_state)
    b = v.mH @ truncated_normal(size, dim, std=size**-0.5).to(v.dtype)
    layer.B.data.copy_(to_pairs(b))
    layer.C.data.copy_(to_pairs(initial_c(v, dim, is_real=False)))


def build_model(layer: str, recipe: Recipe) -> PendulumModel:
    """Return a model over frames with the outputs sin and cos of the angle."""
    return PendulumModel(recipe.temporal(layer), recipe.dim, recipe.depth)


STUDY = Study(
    name="pendulum",
    recipe=Recipe(
        epochs=100,
        batch_size=32,
        lr=0.012,
        ssm_lr=0.003,
        weight_decay=0.0,
        dim=30,
        depth=4,
        state_size=16,
        num_blocks=8,
        dt_min=0.01,
        dt_max=0.1,
        warmup=0.01,
        validate_every=1,
        clip=None,
    ),
    build_data=build_data,
    build_model=build_model,
    scores={"MSE x 10^-3": lambda mse: 1e3 * mse},
    published={"CRU": 4.63, "S5": 3.41, "S7": 2.91},
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
