"""The fast scan is the reference loop: same states, same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rvtssm.ssm.scan import scan, scan_reference

NUM_GROUPS, GROUP_SIZE, NUM_MODES = 2, 3, 5
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-13}


def example(num_steps: int, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(num_steps)
    middle = {"constant": (), "per_sequence": (1, NUM_GROUPS, 1), "per_step": (num_steps, NUM_GROUPS, 1)}[kind]
    sequences = (NUM_GROUPS * GROUP_SIZE,) if kind == "constant" else (NUM_GROUPS, GROUP_SIZE)
    decay = torch.polar(torch.rand(*middle, NUM_MODES), 6 * torch.rand(*middle, NUM_MODES)).to(dtype)
    drive = torch.randn(num_steps, *sequences, NUM_MODES, dtype=dtype)
    state = torch.randn(*sequences, NUM_MODES, dtype=dtype)
    return decay.requires_grad_(), drive.requires_grad_(), state.requires_grad_()


def gradients(function, inputs: tuple[Tensor, Tensor, Tensor], weights: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    states, last = function(*inputs)
    loss = (states * weights[0]).sum() + (last * weights[1]).sum()
    return torch.autograd.grad(torch.view_as_real(loss).sum(), inputs)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["constant", "per_sequence", "per_step"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 21, 43])
def test_scan_equals_the_loop_forward_and_backward(num_steps, kind, dtype):
    inputs = example(num_steps, kind, dtype)
    near = {"rtol": 0, "atol": TOLERANCE[dtype]}
    for found, wanted in zip(scan(*inputs), scan_reference(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, **near)
    weights = torch.randn_like(inputs[1]), torch.randn_like(inputs[2])
    found, wanted = gradients(scan, inputs, weights), gradients(scan_reference, inputs, weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * num_steps)


@pytest.mark.parametrize("kind", ["constant", "per_sequence", "per_step"])
def test_gradients_are_those_of_finite_differences(kind):
    assert torch.autograd.gradcheck(scan, example(3, kind, torch.complex128))


def test_memory_layout_does_not_matter():
    decay, drive, state = example(5, "constant", torch.complex64)
    shuffled = drive.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not shuffled.is_contiguous()
    torch.testing.assert_close(scan(decay, shuffled, state), scan(decay, drive, state))


def test_the_last_state_does_not_hold_all_states():
    states, last = scan(*example(9, "constant", torch.complex64))
    assert last.untyped_storage().nbytes() == last.numel() * last.element_size()
    torch.testing.assert_close(last, states[-1])
