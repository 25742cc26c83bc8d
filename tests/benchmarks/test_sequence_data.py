"""What the sequence benchmarks simulate obeys the equations it is said to obey."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from benchmarks.sequence import fitzhugh_nagumo, pendulum


def test_a_pendulum_split_holds_what_it_says():
    frames, targets, gaps = pendulum.seen(*pendulum.sample_frames(6, np.random.RandomState(3)), first_seed=6)
    assert frames.shape == (50, 6, 1, 24, 24)
    assert frames.dtype == torch.uint8
    torch.testing.assert_close(targets.square().sum(-1), torch.ones(50, 6))
    assert (gaps == gaps.round()).all()
    assert gaps.min() == 1
    assert gaps.max() > 2
    assert gaps.sum(0).max() <= pendulum.NUM_FRAMES


def test_the_frames_are_those_of_the_released_generator():
    """Digests of what `Pendulum` in andrewwarrington/Continuous-Recurrent-Units gives for 3, then 2 sequences."""
    rng, released = np.random.RandomState(42), {3: "f97b6c3c0739be69", 2: "4e0a1bd522dfb984"}
    last = {3: (0.41221341633380015, 0.9110873171076507), 2: (-0.6285250627772173, 0.7777893323136382)}
    for count, digest in released.items():
        frames, targets = pendulum.sample_frames(count, rng)
        assert hashlib.sha256(frames.tobytes()).hexdigest().startswith(digest)
        np.testing.assert_allclose(targets[-1, -1], last[count], rtol=1e-12)


def test_the_parts_of_the_data_differ():
    train, validation, test = pendulum.build_data((2, 2, 2))
    assert not torch.equal(train.targets, validation.targets)
    assert not torch.equal(validation.targets, test.targets)


def test_the_oscillator_solves_its_equations_as_well_as_the_solver_was_asked_to():
    values = fitzhugh_nagumo.trajectory(0.3)[0]
    exact = solve_ivp(
        lambda _, s: (s[0] - s[0] ** 3 / 3 - s[1] + 0.5, (s[0] + 0.7 - 0.8 * s[1]) / 50),
        (0, 400),
        (0.3, 0.0),
        t_eval=np.linspace(0, 400, 1001),
        rtol=1e-8,
        atol=1e-8,
    ).y[0]
    assert values[0] == 0.3
    assert np.sqrt(np.mean((values - exact) ** 2)) < 0.1  # of 1.5: small errors shift the jumps in time
    np.testing.assert_allclose(values[:50], exact[:50], atol=0.01)


def test_the_targets_of_the_oscillator_are_its_next_values():
    values, changes, gaps = fitzhugh_nagumo.sample_split(4, np.random.default_rng(4))
    assert gaps is None
    assert values.shape == changes.shape == (1000, 4, 1)
    torch.testing.assert_close(values[:-1] + fitzhugh_nagumo.INCREMENT * changes[:-1], values[1:])
    assert float(changes.square().mean().sqrt()) == pytest.approx(1, rel=0.1)


def test_the_error_of_the_solver_is_small_beside_the_changes():
    assert 1e-4 < fitzhugh_nagumo.solver_error(3) < fitzhugh_nagumo.INCREMENT / 20
