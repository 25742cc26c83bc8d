"""The stored states follow their slots, with gradients as without; what a detector whose output is its state shows."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from user_errors import raises

from rvtssm.evaluation.detector_run import stream
from rvtssm.models import MODEL_SIZES
from rvtssm.models.detector import build_detector
from rvtssm.models.streams import Streams, map_state
from rvtssm.models.yolox import YoloxHead, YoloxPredictions
from rvtssm.records import SequenceBatch
from rvtssm.ssm import TemporalConfig

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
        with raises("memory.other_state"):
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


# a whole loader


STRIDE_US = 50_000


class Leaky(torch.nn.Module):
    """state = state * decay ** step_scale + sum of the frame; predictions show the state after the step.

    The state is nested, and its leaves have different numbers of rows per stream, as in the real detector.
    """

    head = YoloxHead
    device = torch.device("cpu")
    frame_hw = (3, 3)

    score = "objectness_times_class"

    def __init__(self):
        super().__init__()
        self.decay = torch.nn.Parameter(torch.tensor(0.8))
        self.calls = []

    def init_state(self, num_streams):
        return torch.zeros(num_streams * 3, 2), (torch.zeros(num_streams, 1),)

    def prepare(self, step_scale):
        return step_scale

    def empty(self):
        return YoloxPredictions(torch.zeros(0, 1, 6))

    def forward(self, hist, state=None, step_scale=1.0, frame_index=None, targets=None):
        num_steps, num_streams = hist.shape[:2]
        self.calls.append((num_steps, num_streams, step_scale))
        wide, (narrow,) = self.init_state(num_streams) if state is None else state
        scale = torch.as_tensor(step_scale).expand(num_steps, num_streams)
        shown = []
        for step in range(num_steps):
            total = hist[step].float().sum(dim=(1, 2, 3))[:, None]
            narrow = narrow * self.decay ** scale[step][:, None] + total
            wide = wide * self.decay + total.repeat_interleave(3, dim=0)
            shown.append(narrow + wide.reshape(num_streams, -1).sum(dim=1, keepdim=True))
        shown = torch.stack(shown)[frame_index[:, 0], frame_index[:, 1]]
        rows = torch.cat([shown.expand(-1, 4), shown, shown], dim=1)[:, None]
        return YoloxPredictions(rows), (wide, (narrow,))


def every_frame(num_steps, num_streams):
    steps, streams = torch.meshgrid(torch.arange(num_steps), torch.arange(num_streams), indexing="ij")
    return torch.stack([steps.flatten(), streams.flatten()], dim=1)


def push_all(streams, hist, dt_us, cuts, slots=None):
    """Predictions (L, B, ...) of L steps that are pushed in pieces."""
    slots = slots or list(range(hist.shape[1]))
    edges = [0, *cuts, len(hist)]
    found = []
    for start, stop in pairwise(edges):
        index = every_frame(stop - start, hist.shape[1])
        (out,) = streams.push(hist[start:stop], dt_us[start:stop], index, slots, [start == 0] * len(slots))
        found.append(out.unflatten(0, (stop - start, -1)))
    return torch.cat(found)


@pytest.fixture
def hist():
    return torch.from_numpy(np.random.default_rng(3).integers(0, 10, (12, 2, 2, 3, 3), dtype=np.uint8))


@pytest.fixture
def dt_us():
    return torch.full((12, 2), STRIDE_US)


def test_the_step_scale_is_a_number_where_it_can_be(hist):
    detector = Leaky()
    Streams(detector, STRIDE_US).push(hist, torch.full((12, 2), 5_000), every_frame(12, 2), [0, 1], [True, True])
    assert detector.calls[-1] == (12, 2, 0.1)
    uneven = torch.full((12, 2), 25_000)
    uneven[3, 1] = 100_000
    Streams(detector, STRIDE_US).push(hist, uneven, every_frame(12, 2), [0, 1], [True, True])
    assert detector.calls[-1][2].shape == (12, 2) and detector.calls[-1][2][3].tolist() == [0.5, 2.0]


def make_batches(hist, plan, labelled, num_steps=3):
    """Batches of a plan [[(recording, start, stop) or None per slot]]; `labelled` are the labelled steps."""
    for row in plan:
        frames = [
            (step - start, b, recording, step)
            for b, (recording, start, stop) in enumerate(row)
            for step in range(start, stop)
            if step in labelled
        ]
        frames.sort()
        pieces = torch.full((num_steps, len(row), *hist.shape[2:]), 99, dtype=torch.uint8)  # padding must not matter
        is_pad = torch.ones(num_steps, len(row), dtype=torch.bool)
        for b, (recording, start, stop) in enumerate(row):
            pieces[: stop - start, b] = hist[start:stop, recording]
            is_pad[: stop - start, b] = False
        yield SequenceBatch(
            hist=pieces,
            dt_us=torch.full((num_steps, len(row)), STRIDE_US),
            is_first=torch.tensor([start == 0 for _, start, _ in row]),
            is_pad=is_pad,
            frame_index=torch.tensor([frame[:2] for frame in frames], dtype=torch.int64).reshape(-1, 2),
            targets=torch.zeros(len(frames), 1, 5),
            num_targets=torch.zeros(len(frames), dtype=torch.int64),
            t_us=torch.tensor([frame[3] * STRIDE_US for frame in frames], dtype=torch.int64),
            slot=torch.arange(len(row)),
            recording=torch.tensor([recording for recording, _, _ in row]),
        )


EMPTY = (-1, 0, 0)
# recording 1 has 12 steps, recording 0 has 4; a slot that has ended is padded or leaves
PLAN = [[(1, 0, 3), (0, 0, 3)], [(1, 3, 6), (0, 3, 4)], [(1, 6, 9), EMPTY], [(1, 9, 12)], [EMPTY]]
LABELLED = {1, 3, 6, 11}


@pytest.mark.parametrize("memory_chunk", [None, 1])
def test_stream_gives_every_labelled_frame_of_every_recording(hist, dt_us, memory_chunk):
    detector, done = Leaky().train(), []
    results = stream(
        detector,
        list(make_batches(hist, PLAN, LABELLED)),
        trained_stride_us=STRIDE_US,
        memory_chunk=memory_chunk,
        advance=done.append,
    )
    assert detector.training and done == [1] * len(PLAN)
    assert [*results] == [0, 1]
    assert [frame.t_us // STRIDE_US for frame in results[0]] == [1, 3]
    assert [frame.t_us // STRIDE_US for frame in results[1]] == [1, 3, 6, 11]
    expected = push_all(Streams(Leaky(), STRIDE_US, memory_chunk), hist, dt_us, [])
    for recording, frames in results.items():
        for frame in frames:
            shown = expected[frame.t_us // STRIDE_US, recording, 0, 0].item()
            assert frame.xyxy[0].tolist() == pytest.approx([shown / 2, shown / 2, 1.5 * shown, 1.5 * shown])


def test_resetting_runs_only_the_labelled_frames(hist):
    detector = Leaky()
    stream(detector, make_batches(hist, PLAN, LABELLED), trained_stride_us=STRIDE_US, memory_chunk=1)
    assert [call[:2] for call in detector.calls] == [(1, 2), (1, 2), (1, 1), (1, 1)]


def test_a_recording_without_labels_has_no_result(hist):
    assert stream(Leaky(), make_batches(hist, PLAN, set()), trained_stride_us=STRIDE_US) == {}


@pytest.mark.gpu
def test_streams_run_where_the_detector_is():
    torch.manual_seed(0)
    detector = build_detector(MODEL_SIZES["tiny"], TemporalConfig(), 40, 50, num_classes=2).eval()
    hist = torch.randint(0, 4, (6, 2, 20, 40, 50), dtype=torch.uint8)
    dt_us = torch.full((6, 2), STRIDE_US)
    dt_us[2:] = 20_000
    expected = push_all(Streams(detector, STRIDE_US, 4), hist, dt_us, [3])
    found = push_all(Streams(detector.cuda(), STRIDE_US, 4), hist, dt_us, [3])
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)
