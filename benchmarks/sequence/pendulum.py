"""The angle of a pendulum from irregularly sampled, noisy frames (Schirmer et al. 2022, section 4.1).

`python -m benchmarks.sequence.pendulum --seeds 3 --json pendulum.json`

The constants are those of the generator that Schirmer et al. released for the regression task and that Smith et al.
(S5, 2023) used with a validation set; the random numbers are our own.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from benchmarks.sequence.model import SequenceModel
from benchmarks.sequence.study import Data, Recipe, Split, Study, main

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


def simulate(num_sequences: int, rng: np.random.Generator, kick: float = KICK) -> tuple[np.ndarray, np.ndarray]:
    """Return angle (0 = down) and velocity (N, NUM_FRAMES) of pendulums from random angles, in rad and rad/s."""
    from_top = rng.uniform(0, 2 * np.pi, num_sequences)
    velocity = np.zeros(num_sequences)
    states = [(from_top, velocity)]
    for _ in range(NUM_FRAMES - 1):
        for _ in range(round(FRAME_S / SUBSTEP_S)):
            velocity = velocity + SUBSTEP_S * (GRAVITY_OVER_INERTIA * np.sin(from_top) - FRICTION * velocity)
            from_top = from_top + SUBSTEP_S * velocity
        velocity = velocity + kick * rng.standard_normal(num_sequences)
        states.append((from_top, velocity))
    angles, velocities = (np.stack(values, axis=1) for values in zip(*states, strict=True))
    return angles - np.pi, velocities


def draw(angle: float) -> np.ndarray:
    """Draw the rod as a frame (SIZE, SIZE) uint8: a line from the centre to (sin, cos) of the angle, y downward."""
    middle = CANVAS / 2
    canvas = Image.new("F", (CANVAS, CANVAS), 0.0)
    end = (middle + ROD * np.sin(angle), middle + ROD * np.cos(angle))
    ImageDraw.Draw(canvas).line([(middle, middle), end], fill=1.0, width=WIDTH)
    small = canvas.resize((SIZE, SIZE), resample=Image.Resampling.LANCZOS)
    return (255 * np.clip(np.asarray(small), 0, 1)).astype(np.uint8)


def visibility(num_sequences: int, rng: np.random.Generator) -> np.ndarray:
    """Return the share of signal in each frame (N, NUM_FRAMES) in [0, 1], a random walk that is often at a limit."""
    walk = np.empty((num_sequences, NUM_FRAMES))
    walk[:, 0] = rng.uniform(0, 1, num_sequences)
    for frame in range(1, NUM_FRAMES):
        walk[:, frame] = np.clip(walk[:, frame - 1] + rng.uniform(-WALK, WALK, num_sequences), 0, 1)
    lowest, highest = rng.uniform(0, 0.25, (num_sequences, 1)), rng.uniform(0.75, 1, (num_sequences, 1))
    visible = np.clip((walk - lowest) / (highest - lowest), 0, 1)
    visible[:, :NUM_CLEAN] = 1
    return visible


def sample_split(num_sequences: int, rng: np.random.Generator) -> Split:
    """NUM_SEEN of the frames of each sequence: uint8 (L, N, 1, 24, 24), sin and cos of the true angle (L, N, 2), gaps
    in frames (L, N), 1 before the first.
    """
    angles, _ = simulate(num_sequences, rng)
    visible = visibility(num_sequences, rng)
    times = np.sort(rng.permuted(np.tile(np.arange(NUM_FRAMES), (num_sequences, 1)), axis=1)[:, :NUM_SEEN], axis=1)
    angles, visible = np.take_along_axis(angles, times, 1), np.take_along_axis(visible, times, 1)
    drawn = angles + ANGLE_NOISE * rng.standard_normal(angles.shape)
    frames = np.empty((*angles.shape, SIZE, SIZE), np.uint8)
    for n in range(num_sequences):
        clean = np.stack([draw(angle) for angle in drawn[n]])
        share = visible[n, :, None, None]
        frames[n] = share * clean + (1 - share) * rng.uniform(0, 255, clean.shape)
    targets = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    gaps = np.diff(times, axis=1, prepend=times[:, :1] - 1)
    return Split(
        torch.from_numpy(frames).transpose(0, 1)[:, :, None],
        torch.from_numpy(targets).float().transpose(0, 1),
        torch.from_numpy(gaps).float().transpose(0, 1),
    )


def build_data(num_sequences: tuple[int, int, int] = NUM_SEQUENCES, seed: int = 0) -> Data:
    """Return the data of the study, which are always the same for the same arguments."""
    rngs = np.random.default_rng(seed).spawn(3)
    return Data(*(sample_split(n, rng) for n, rng in zip(num_sequences, rngs, strict=True)))


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


def build_model(layer: str, recipe: Recipe) -> SequenceModel:
    """Return a model over frames with the outputs sin and cos of the angle."""
    return SequenceModel(FrameEncoder(recipe.dim), recipe.temporal(layer), recipe.dim, recipe.depth, num_outputs=2)


STUDY = Study(
    name="pendulum",
    recipe=Recipe(
        epochs=60,
        batch_size=32,
        lr=0.012,
        ssm_lr=0.003,
        weight_decay=0.1,
        dim=30,
        depth=4,
        state_size=16,
        num_blocks=8,
        dt_min=0.01,
        dt_max=0.5,
    ),
    build_data=build_data,
    build_model=build_model,
    scores={"MSE x 10^-3": lambda mse: 1e3 * mse},
    published={"CRU": 4.63, "S5": 3.41, "S7": 2.91},
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
