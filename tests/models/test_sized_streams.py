"""Streams of several sizes of frames: the same outputs as one detector per size, each with its own streams."""

import pytest
import torch

from rvtssm.models.detector import build_detector
from rvtssm.models.model_config import ModelConfig
from rvtssm.models.sized_streams import SizedStreams
from rvtssm.models.streams import Streams
from rvtssm.records import SequenceBatch
from rvtssm.ssm.temporal_config import TemporalConfig

SIZES = [(64, 96), (96, 64), (350, 330)]  # of the last, maps are cut into four windows
MODEL = ModelConfig(embed_dim=8, head_dim=8, num_blocks=[1, 0, 0, 0], fpn_blocks=0)


def built(size, **options):
    torch.manual_seed(0)
    return build_detector(ModelConfig(**{**vars(MODEL), **options}), TemporalConfig(), *size, 2, 4).eval()


def batch(size, seed: int, is_first: bool) -> SequenceBatch:
    hist = torch.randint(0, 4, (2, 1, 4, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    nothing = torch.zeros(2, dtype=torch.int64)
    return SequenceBatch(
        hist=hist,
        dt_us=torch.full((2, 1), 50_000),
        is_first=torch.tensor([is_first]),
        is_pad=torch.zeros(2, 1, dtype=torch.bool),
        frame_index=torch.tensor([[0, 0], [1, 0]]),
        targets=torch.zeros(2, 1, 5),
        num_targets=nothing,
        t_us=nothing,
        slot=torch.tensor([0]),
        recording=torch.tensor([0]),
    )


def test_sizes_in_turn_are_as_if_each_were_alone():
    detector = built(SIZES[0])
    streams = SizedStreams(detector, lambda: Streams(detector, 50_000))
    alone = [Streams(built(size), 50_000) for size in SIZES]
    for each in alone:
        each.detector.load_state_dict(detector.state_dict())
    for turn, size in enumerate([0, 1, 2, 1, 0]):
        if turn == 3:  # and also over an interruption
            stored, streams = streams.state_dict(), SizedStreams(detector, lambda: Streams(detector, 50_000))
            streams.load_state_dict(stored)
        pushed = batch(SIZES[size], turn, turn < 3)
        torch.testing.assert_close(streams.push_batch(pushed).rows, alone[size].push_batch(pushed).rows)
    streams.clear()
    assert not streams.states()


def test_states_of_an_earlier_version_are_those_of_the_size_of_the_detector():
    detector = built(SIZES[0])
    streams, old = SizedStreams(detector, lambda: Streams(detector, 50_000)), Streams(detector, 50_000)
    old.push_batch(batch(SIZES[0], 0, True))
    streams.load_state_dict(old.state_dict())
    pushed = batch(SIZES[0], 1, False)
    torch.testing.assert_close(streams.push_batch(pushed).rows, old.push_batch(pushed).rows)


def test_averages_of_weights_do_not_depend_on_the_size():
    detector = built(SIZES[0])
    shapes = [value.shape for value in [*detector.parameters(), *detector.buffers()]]
    detector.take_frames(SIZES[2])
    assert [value.shape for value in [*detector.parameters(), *detector.buffers()]] == shapes


def test_a_part_of_one_size_says_so():
    with pytest.raises(ValueError, match="RtdetrHead takes frames of one size"):
        built(SIZES[0], head="rtdetr").take_frames(SIZES[1])
