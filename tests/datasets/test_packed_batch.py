"""Batches of events counted where they are needed: on any device, with any padding, the same frames."""

import pickle

import numpy as np
import pytest
import torch

from rvtssm.datasets import build_spec
from rvtssm.datasets.augment import Placement, Window
from rvtssm.datasets.packed_batch import count_frames, scatter_frames, stack_events, stack_frames
from rvtssm.datasets.sequence import RawSplit
from rvtssm.records import WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN

CHOICES = [("exact", name) for name in CHANNELS_PER_BIN] + [("rvt", "histogram")]
ZOOM = Placement(Window(0, 0, 64, 48), True, Window(10, 5, 50, 37), Window(0, 0, 64, 48))


def raw_sequences(small_tree, settings):
    return RawSplit(small_tree.raw_dir, "train", build_spec(small_tree)).sequences(settings)


@pytest.mark.parametrize(("convention", "representation"), CHOICES)
@pytest.mark.parametrize(("stride_us", "length_us"), [(50_000, None), (5_000, 50_000), (200_000, 50_000)])
def test_packed_chunks_become_the_frames_that_are_read(small_tree, stride_us, length_us, convention, representation):
    length_us = length_us or (stride_us if convention == "rvt" else None)
    settings = WindowSettings(stride_us, length_us, convention, 3, 2, representation)
    sequences = raw_sequences(small_tree, settings)
    spans = [(0, min(3, len(sequences[0].windows))), (0, 0), (1, len(sequences[2].windows))]
    places = [None, None, ZOOM]
    chunks = [
        sequence.source.frames(*span, placement)
        for sequence, span, placement in zip(sequences, spans, places, strict=True)
    ]
    num_steps = spans[2][1] + 2
    if representation == "surfaces":
        found = stack_frames(chunks, num_steps).numpy()
    else:
        found = count_frames(stack_events(chunks, num_steps)).numpy()
    assert found.shape == (num_steps, 3, *sequences[0].frame_shape) and found.dtype == np.uint8
    for stream, (sequence, (start, stop), placement) in enumerate(zip(sequences, spans, places, strict=True)):
        wanted = sequence.read(start, stop)
        wanted = wanted if placement is None else placement.histograms(wanted)
        np.testing.assert_array_equal(found[: stop - start, stream], wanted)
        assert not found[stop - start :, stream].any()
    assert found.any()


def assert_scattered_alike(small_tree, convention, device):
    settings = WindowSettings(20_000, 50_000, convention, 4, 2)
    chunks = [
        sequence.source.frames(0, n) for sequence, n in zip(raw_sequences(small_tree, settings), (9, 0, 4), strict=True)
    ]
    packed = stack_events(chunks, 11)
    scattered = scatter_frames(packed, torch.device(device))
    assert scattered.device.type == device
    assert torch.equal(scattered.cpu(), count_frames(packed))


@pytest.mark.parametrize("convention", ["exact", "rvt"])
def test_the_scatter_equals_the_count(small_tree, convention):
    assert_scattered_alike(small_tree, convention, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("convention", ["exact", "rvt"])
def test_the_scatter_on_a_gpu_equals_the_count(small_tree, convention):
    assert_scattered_alike(small_tree, convention, "cuda")


def test_events_are_smaller_to_send_than_frames(small_tree):
    sequence = raw_sequences(small_tree, WindowSettings(50_000, None, "exact", 10, 10))[0]
    events = sequence.source.frames(0, 8)
    packed = stack_events([events], 8)
    assert len(events.cells) > 1000
    assert len(pickle.dumps(packed.cells.numpy())) < 4 * len(events.cells) + 500


def test_a_batch_of_nothing_is_zeros(small_tree):
    sequence = raw_sequences(small_tree, WindowSettings(50_000, None, "exact", 10, 10))[0]
    nothing = sequence.source.frames(0, 0)
    frames = count_frames(stack_events([nothing] * 2, 1))
    assert frames.shape == (1, 2, *sequence.frame_shape) and not frames.any()
