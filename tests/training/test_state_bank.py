"""The stored states follow their slots, and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rvtssm.training.state_bank import StateBank, map_state

PIXELS = 3  # sequences per stream


def state_of(values: list[float]) -> tuple:
    """A nested state whose every number of stream b is values[b]."""
    rows = torch.tensor(values).repeat_interleave(PIXELS)[:, None]
    return rows.expand(-1, 2).clone(), (rows.clone(), 1j * rows)


def zero(num_streams: int) -> tuple:
    return state_of([0.0] * num_streams)


def per_stream(state: tuple) -> list[float]:
    return state[1][1].imag.reshape(-1, PIXELS)[:, 0].tolist()


def test_a_stream_finds_its_state_wherever_it_stands_in_the_batch():
    bank = StateBank()
    bank.write(torch.tensor([-1, 0, 1]), state_of([9.0, 1.0, 2.0]))
    read = bank.read(zero(3), torch.tensor([1, -1, 0]), torch.tensor([False, True, False]))
    assert per_stream(read) == [2.0, 0.0, 1.0]


def test_random_chunks_and_new_recordings_start_from_zero():
    bank = StateBank()
    bank.write(torch.tensor([-1, 0, 1]), state_of([9.0, 1.0, 2.0]))
    read = bank.read(zero(3), torch.tensor([-1, 0, 1]), torch.tensor([False, True, False]))
    assert per_stream(read) == [0.0, 0.0, 2.0]


def test_the_graph_is_cut_and_the_batch_is_not_kept_alive():
    bank = StateBank()
    leaf = torch.ones(2 * PIXELS, 4, requires_grad=True)
    bank.write(torch.tensor([0, 1]), (leaf * 2,))
    (read,) = bank.read((torch.zeros(2 * PIXELS, 4),), torch.tensor([0, 1]), torch.tensor([False, False]))
    assert not read.requires_grad and torch.equal(read, 2 * torch.ones_like(read))
    assert bank.slots[0][0].untyped_storage().nbytes() == PIXELS * 4 * 4


def test_reading_does_not_change_what_is_stored_or_the_zero_state():
    bank, nothing = StateBank(), zero(1)
    bank.write(torch.tensor([0]), state_of([5.0]))
    read = bank.read(nothing, torch.tensor([0]), torch.tensor([False]))
    read[0].add_(1)
    assert per_stream(bank.read(nothing, torch.tensor([0]), torch.tensor([False]))) == [5.0]
    assert per_stream(nothing) == [0.0]


def test_state_dict_goes_round():
    bank, other = StateBank(), StateBank()
    bank.write(torch.tensor([3]), state_of([5.0]))
    other.load_state_dict(bank.state_dict())
    assert per_stream(other.read(zero(1), torch.tensor([3]), torch.tensor([False]))) == [5.0]


@pytest.mark.gpu
def test_a_state_comes_to_the_device_of_its_batch():
    bank, resumed = StateBank(), StateBank()
    bank.write(torch.tensor([3], device="cuda"), map_state(Tensor.cuda, state_of([5.0])))
    resumed.load_state_dict(bank.state_dict())
    for one in (bank, resumed):
        zeros = map_state(Tensor.cuda, zero(1))
        read = one.read(zeros, torch.tensor([3], device="cuda"), torch.tensor([False], device="cuda"))
        assert read[0].is_cuda and per_stream(read) == [5.0]


batches = st.lists(  # (bank, slot of each stream, whether it starts a recording)
    st.tuples(
        st.sampled_from(["train", "val"]),
        st.permutations([0, 1, 2]),
        st.lists(st.booleans(), min_size=3, max_size=3),
        st.integers(0, 2),  # random chunks, which come first
    ),
    max_size=8,
)


@given(batches)
def test_a_state_is_what_its_own_stream_left_whatever_else_happens(steps):
    """Slots, loaders and stages never mix: each stream counts its chunks since its recording began."""
    banks = {"train": StateBank(), "val": StateBank()}
    counts: dict[tuple[str, int], int] = {}
    for name, slots, firsts, num_random in steps:
        slot = torch.tensor([-1] * num_random + slots)
        is_first = torch.tensor([True] * num_random + firsts)
        read = per_stream(banks[name].read(zero(len(slot)), slot, is_first))
        wanted = [0 if first else counts.get((name, s), 0) for s, first in zip(slots, firsts, strict=True)]
        assert read == [0] * num_random + wanted
        banks[name].write(slot, state_of([count + 1.0 for count in read]))
        counts.update({(name, s): count + 1 for s, count in zip(slots, wanted, strict=True)})
