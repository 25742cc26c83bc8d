"""The next value of a fast and slow oscillator (Rusch et al. 2022, Long Expressive Memory).

`python -m benchmarks.sequence.fitzhugh_nagumo --seeds 3 --json fitzhugh_nagumo.json`

Data and protocol are those of their release: its equations, its solver at its default tolerance, its numbers of
sequences. The random initial values are our own.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import nn

from benchmarks.sequence.model import SequenceModel
from benchmarks.sequence.study import Data, Recipe, Split, Study, main

NUM_SEQUENCES = (128, 128, 1024)  # train, validation, test
NUM_STEPS, DURATION = 1000, 400.0
CURRENT, A, B, EPSILON = 0.5, 0.7, 0.8, 0.02
INCREMENT = 0.0787  # root mean square of the change in one step, so that the targets are of size 1


def change(v: Any, w: Any) -> tuple[Any, Any]:
    """Return (v', w') of the FitzHugh-Nagumo equations, for numbers or arrays."""
    return v - v**3 / 3 - w + CURRENT, EPSILON * (v + A - B * w)


def trajectory(v: float) -> np.ndarray:
    """Return v and w (2, NUM_STEPS + 1) at even times in [0, DURATION], starting at v and w = 0.

    The tolerance is that of the published data, solve_ivp's own, so the samples carry its error: see `solver_error`.
    """
    times = np.linspace(0, DURATION, NUM_STEPS + 1)
    return solve_ivp(lambda _, state: change(*state.tolist()), (0, DURATION), (v, 0.0), t_eval=times).y


def solver_error(num_sequences: int = 20) -> float:
    """Return the root mean square error of the next v against the equations at the current (v, w)."""
    squares = []
    for v in np.linspace(-1, 1, num_sequences):
        states = trajectory(v)
        step = (0, DURATION / NUM_STEPS)
        exact = solve_ivp(
            lambda _, state: np.concatenate(change(*state.reshape(2, -1))),
            step,
            states[:, :-1].ravel(),
            t_eval=step[1:],
            rtol=1e-9,
            atol=1e-9,
        )
        squares.append(np.mean((exact.y[:NUM_STEPS, 0] - states[0, 1:]) ** 2))
    return math.sqrt(np.mean(squares))


def sample_split(num_sequences: int, rng: np.random.Generator) -> Split:
    """Return v (L, N, 1) and its change until the next step in units of INCREMENT, (L, N, 1)."""
    values = np.stack([trajectory(v)[0] for v in rng.uniform(-1, 1, num_sequences)], axis=1)[:, :, None]
    to_tensor = torch.from_numpy
    return Split(to_tensor(values[:-1]).float(), to_tensor(np.diff(values, axis=0) / INCREMENT).float(), None)


def build_data(num_sequences: tuple[int, int, int] = NUM_SEQUENCES) -> Data:
    """Return the data of the study, which are always the same for the same arguments."""
    rngs = np.random.default_rng(0).spawn(3)
    return Data(*(sample_split(n, rng) for n, rng in zip(num_sequences, rngs, strict=True)))


def build_model(layer: str, recipe: Recipe) -> SequenceModel:
    """Return a model with one input and one output per step."""
    return SequenceModel(nn.Linear(1, recipe.dim), recipe.temporal(layer), recipe.dim, recipe.depth, num_outputs=1)


STUDY = Study(
    name="fitzhugh_nagumo",
    recipe=Recipe(
        epochs=200,
        batch_size=16,
        lr=0.004,
        ssm_lr=0.001,
        weight_decay=0.0,
        dim=16,
        depth=2,
        state_size=32,
        num_blocks=4,
        dt_min=0.01,
        dt_max=1.0,
        validate_every=10,
    ),
    build_data=build_data,
    build_model=build_model,
    scores={
        "L2 (root of MSE) x 10^-2": lambda mse: 1e2 * INCREMENT * math.sqrt(mse),
        "MSE x 10^-2": lambda mse: 1e2 * INCREMENT**2 * mse,
    },
    published={"LEM": 0.2, "S5": 0.0024, "S7": 0.0013},
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
