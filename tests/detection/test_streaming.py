"""Laws of streaming, on a detector whose output is its state, and on the real one."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from rvtssm.evaluation.detector_run import stream
from rvtssm.models.detector import build_detector
from rvtssm.models.heads.yolox import YoloxHead, YoloxPredictions
from rvtssm.models.model_config import MODEL_SIZES
from rvtssm.models.streams import Streams
from rvtssm.records import SequenceBatch
from rvtssm.ssm.temporal_config import TemporalConfig

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
