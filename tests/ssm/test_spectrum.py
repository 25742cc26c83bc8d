"""Frequencies, time constants and the bandlimit."""

from __future__ import annotations

import math

import torch

from rvtssm.ssm.spectrum import bandlimit_mask, frequencies, timescales

LAMBDA = torch.tensor([-0.5 + 0j, -0.5 + 2j, -0.25 - 8j, 0 + 1j])
DT = torch.tensor([1.0, math.pi / 4, math.pi / 16, 2.0])


def test_a_mode_repeats_after_one_over_its_frequency():
    steps = 1 / frequencies(LAMBDA, DT)[1:]
    angle = (LAMBDA[1:].imag.abs() * DT[1:]) * steps
    torch.testing.assert_close(angle, torch.full((3,), 2 * math.pi))


def test_a_mode_decays_to_one_over_e_in_its_timescale():
    steps = timescales(LAMBDA, DT)
    torch.testing.assert_close(torch.exp(LAMBDA * DT).abs()[:3] ** steps[:3], torch.full((3,), math.exp(-1)))
    assert steps[3].isinf()


def test_the_mask_keeps_what_lies_below_a_part_of_the_nyquist_rate():
    """Frequencies here are 0, 1 / 4, 1 / 4 and 1 / pi cycles per step."""
    assert bandlimit_mask(LAMBDA, DT, 0) is None
    assert bandlimit_mask(LAMBDA, DT, 0.45).tolist() == [True, False, False, False]
    assert bandlimit_mask(LAMBDA, DT, 0.55).tolist() == [True, True, True, False]
    assert bandlimit_mask(LAMBDA, DT, 1.0).all()
    # At a step ten times shorter, nothing is near the Nyquist rate of the step in use; the training step decides.
    assert bandlimit_mask(LAMBDA, DT, 0.45, "train_step", 0.1).tolist() == [True, False, False, False]
    assert bandlimit_mask(LAMBDA, DT, 0.45, "current_step", 0.1).all()
    assert bandlimit_mask(LAMBDA, DT, 0.45, "current_step", torch.ones(3, 2, 1)).shape == (3, 2, 4)
