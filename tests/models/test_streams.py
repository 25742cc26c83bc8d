"""The stored states follow their slots, and nothing else; with gradients as without."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from user_errors import raises

from rvtssm.models.streams import Streams, map_state

PIXELS = 3  # sequences per stream


class Shown(NamedTuple):
    """The predictions of `Counter`."""

    count: Tensor  # (M,)


class Counter(torch.nn.Module):
    """Each step adds 1, times a weight, to every number of a nested state; predictions show the state afterwards."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def init_state(self, num_streams):
        rows = torch.zeros(num_streams * PIXELS, 1)
        return rows.expand(-1, 2).clone(), (rows.clone(), 1j * rows)

    def prepare(self, step_scale):
        return step_scale

    def empty(self):
        return Shown(torch.zeros(0))

    def forward(self, hist, state, step_scale, frame_index, targets=None):
        num_steps, num_streams = hist.shape[:2]
        shown = []
        for _ in range(num_steps):
            state = map_state(lambda leaf: leaf + self.weight * (1j if leaf.is_complex() else 1), state)
            shown.append(state[1][1].imag.reshape(num_streams, PIXELS).mean(1))
        shown = torch.stack(shown)[frame_index[:, 0], frame_index[:, 1]]
        return Shown(shown), state


def push(streams: Streams, slots, is_first, num_steps: int = 1) -> list[float]:
    """How many steps each stream has counted at the end."""
    hist, dt_us = torch.zeros(num_steps, len(slots), 1, 1, 1), torch.ones(num_steps, len(slots))
    last = torch.tensor([(num_steps - 1, b) for b in range(len(slots))])
    return streams.push(hist, dt_us, last, slots, is_first).count.tolist()


def every_kind(memory_chunk: int | None = None) -> list[Streams]:
    return [Streams(Counter(), 1, memory_chunk, with_gradients=gradients) for gradients in (False, True)]


def test_the_graph_is_cut_and_the_batch_is_not_kept_alive():
    streams = Streams(Counter(), 1, with_gradients=True)
    hist, index = torch.zeros(4, 3, 1, 1, 1), torch.tensor([(3, 1)])
    streams.push(hist, torch.ones(4, 3), index, [-1, 0, 1], [True] * 3).count.sum().backward()
    assert streams.detector.weight.grad == 4
    for leaf in (streams.states()["state"][0], *streams.states()["state"][1]):
        assert not leaf.requires_grad
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()
    push(streams, [0, 1], [False, False])  # without the graph of the chunk before


def test_without_gradients_no_graph_is_made():
    hist, index = torch.zeros(1, 1, 1, 1, 1), torch.zeros(1, 2, dtype=torch.int64)
    (found,) = Streams(Counter(), 1).push(hist, torch.ones(1, 1), index, [0], [True])
    assert found == 1 and not found.requires_grad


def test_what_is_read_is_not_written_into_later():
    for streams in every_kind():
        push(streams, [0, 1], [True, True])
        before = streams.states()
        kept = map_state(Tensor.clone, before["state"])
        push(streams, [1, 0], [False, False])
        assert all(torch.equal(a, b) for a, b in zip(before["state"][1], kept[1], strict=True))
        assert before["steps"] == {0: 1, 1: 1}


def test_state_dict_goes_round_and_fits_its_detector_only():
    for streams in every_kind():
        push(streams, [3, 5], [True, True], 2)
        other = Streams(Counter(), 1)
        other.load_state_dict(streams.state_dict())
        assert push(other, [5, 3], [False, True]) == [3, 1]
        stored = streams.state_dict()
        with raises("streams.stored_states"):
            other.load_state_dict({**stored, "steps": {3: 1}})


def test_what_is_cleared_starts_anew():
    for streams in every_kind():
        push(streams, [0], [True])
        streams.clear()
        assert streams.state_dict() == {"steps": {}, "state": None}
        assert push(streams, [0], [False]) == [1]


def test_a_prepared_step_is_kept_until_the_streams_are_cleared():
    streams, asked = Streams(Counter(), 1), []
    streams.detector.prepare = lambda scale: asked.append(scale) or scale
    for _ in range(2):
        push(streams, [0], [True])
    assert asked == [1.0]
    streams.clear()
    push(streams, [0], [True])
    assert asked == [1.0, 1.0]


@pytest.mark.gpu
def test_a_state_comes_to_the_device_of_its_detector():
    streams = Streams(Counter(), 1)
    push(streams, [3], [True])
    detector = Counter().cuda()
    detector.device = torch.device("cuda")
    detector.init_state = lambda n: map_state(Tensor.cuda, Counter().init_state(n))
    resumed = Streams(detector, 1)
    resumed.load_state_dict(streams.state_dict())
    assert push(resumed, [3], [False]) == [2]
    assert resumed.states()["state"][0].is_cuda


batches = st.lists(  # (kind of streams, slot of each stream, whether it starts a recording)
    st.tuples(
        st.booleans(),
        st.permutations([0, 1, 2]),
        st.lists(st.booleans(), min_size=3, max_size=3),
        st.integers(0, 2),  # random chunks, which come first
        st.integers(1, 4),  # steps
    ),
    max_size=8,
)


@given(batches, st.sampled_from([None, 2, 3]))
def test_a_state_is_what_its_own_stream_left_whatever_else_happens(pushes, memory_chunk):
    """Slots and loaders never mix: each stream counts its steps since its recording began, or since it forgot."""
    kinds, counts = every_kind(memory_chunk), {}
    for kind, slots, firsts, num_random, num_steps in pushes:
        found = push(kinds[kind], [-1] * num_random + slots, [True] * num_random + firsts, num_steps)
        before = [0] * num_random + [
            0 if first else counts.get((kind, slot), 0) for slot, first in zip(slots, firsts, strict=True)
        ]
        after = [count + num_steps for count in before]
        assert found == [count if memory_chunk is None else (count - 1) % memory_chunk + 1 for count in after]
        counts.update({(kind, slot): count for slot, count in zip(slots, after[num_random:], strict=True)})


@pytest.mark.parametrize("trained_us", [1e6 / 60, 16_667, 16_666])
def test_windows_at_60_hz_take_the_step_of_training_alone_and_together(trained_us):
    seen = []

    class Noting(Counter):
        def forward(self, hist, state, step_scale, *others):
            seen.append(step_scale)
            return super().forward(hist, state, step_scale, *others)

    streams = Streams(Noting(), trained_us)
    dt_us = torch.tensor([[16_666], [16_667], [16_667]])
    frames = torch.zeros(0, 2, dtype=torch.int64)
    streams.push(torch.zeros(3, 1, 1, 1, 1), dt_us, frames, [0], [True])
    for step in range(3):
        streams.push(torch.zeros(1, 1, 1, 1, 1), dt_us[step : step + 1], frames, [0], [False])
    streams.push(torch.zeros(1, 1, 1, 1, 1), torch.full((1, 1), 1e6 / 60), frames, [0], [False])
    assert seen == [1.0] * 5 and all(isinstance(scale, float) for scale in seen)
