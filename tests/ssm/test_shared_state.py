"""The blocked system equals its twin made of differentiable pieces: outputs, last state and every gradient."""

from dataclasses import fields

import pytest
import torch
from scan_reference import scan_reference
from torch import Tensor
from torch.nn import functional as F

from rvtssm.ssm import shared_state
from rvtssm.ssm.shared_state import SharedSystem, as_complex, as_pairs, run_shared

DIM, NUM_MODES, GROUPS = 2, 3, 2
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
# What varies: (decay, gain, mask), each None (not at all), "sequence" or "step".
VARIATIONS = [(None, None, None), ("sequence",) * 3, ("step",) * 3, ("step", None, None), ("step", "step", None)]


@pytest.fixture(autouse=True, params=["kept", "computed again"])
def _small_blocks(monkeypatch, request):
    """Several blocks, the last one smaller, also for tiny inputs; with and without states kept for the backward."""
    monkeypatch.setattr(shared_state, "_MIN_BLOCK", 3)
    monkeypatch.setattr(shared_state, "_TILE_ROWS", 3)
    if request.param == "computed again":
        monkeypatch.setattr(shared_state, "_KEPT_BYTES", 0)


def example(
    variation, num_steps: int = 5, num_sequences: int = 14, dtype=torch.float64
) -> tuple[SharedSystem, Tensor, Tensor]:
    torch.manual_seed(num_steps)
    shapes = {None: (1, 1, NUM_MODES), "sequence": (1, GROUPS, NUM_MODES), "step": (num_steps, GROUPS, NUM_MODES)}
    decay, gain, mask = (shapes[how] for how in variation)
    complex_dtype = dtype.to_complex()
    system = SharedSystem(
        decay=torch.polar(torch.rand(decay), 6 * torch.rand(decay)).to(complex_dtype).requires_grad_(),
        gain=None if variation[1] is None else torch.randn(gain, dtype=complex_dtype, requires_grad=True),
        mask=None if variation[2] is None else torch.rand(mask) < 0.7,
        w_in=torch.randn(2 * NUM_MODES, DIM, dtype=dtype, requires_grad=True),
        w_out=torch.randn(DIM, 2 * NUM_MODES, dtype=dtype, requires_grad=True),
        d=torch.randn(DIM, dtype=dtype, requires_grad=True),
    )
    u = torch.randn(num_steps, num_sequences, DIM, dtype=dtype, requires_grad=True)
    return system, u, torch.randn(num_sequences, NUM_MODES, dtype=complex_dtype, requires_grad=True)


def leaves(system: SharedSystem, u: Tensor, state: Tensor) -> list[Tensor]:
    values = [getattr(system, field.name) for field in fields(system)]
    return [u, state, *(v for v in values if v is not None and v.requires_grad)]


def run_slowly(system: SharedSystem, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The twin that reads like the formula: differentiable pieces, with all states in memory."""
    groups = system.decay.shape[1]
    drive = as_complex(F.linear(u, system.w_in), state).unflatten(1, (groups, -1))
    if system.gain is not None:
        drive = drive * system.gain[:, :, None]
    states, last = scan_reference(system.decay[:, :, None], drive, state.unflatten(0, (groups, -1)))
    if system.mask is not None:
        states = states * system.mask[:, :, None]
    return F.linear(as_pairs(states.flatten(1, 2), u), system.w_out) + system.d * u, last.flatten(0, 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("num_steps", [1, 2, 21])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_blocks_change_no_number(variation, num_steps, dtype):
    inputs = example(variation, num_steps, dtype=dtype)
    weights = torch.randn_like(inputs[1]), torch.randn_like(inputs[2])
    results = []
    for run in (run_shared, run_slowly):
        y, last = run(*inputs)
        loss = (y * weights[0]).sum() + (last * weights[1]).real.sum()
        results.append((y, last, *torch.autograd.grad(loss, leaves(*inputs))))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE[dtype] * float(wanted.detach().abs().max()))


@pytest.mark.parametrize("allowance", [0, 1 << 20])
def test_beyond_an_allowance_no_buffer_of_all_states_survives_the_forward(monkeypatch, allowance):
    """Memory is what makes long chunks trainable."""
    monkeypatch.setattr(shared_state, "_KEPT_BYTES", allowance)
    system, u, state = example((None, None, None), num_steps=9)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run_shared(system, u, state)
    all_states = u.shape[0] * state.numel() * 2
    assert max(tensor.numel() for tensor in saved) == (all_states if allowance else u.numel())


def test_layout_of_the_input_and_its_gradient_does_not_matter():
    system, u, state = example((None, None, None))
    shuffled = u.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0).requires_grad_()
    y, last = run_shared(system, u, state)
    other, other_last = run_shared(system, shuffled, state)
    torch.testing.assert_close((other, other_last), (y, last))
    y.sum().backward()
    other.sum().backward()
    torch.testing.assert_close(shuffled.grad, u.grad)
