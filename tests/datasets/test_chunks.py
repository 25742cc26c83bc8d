"""A chunk holds the steps asked for, a batch puts every number in its place."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from user_errors import raises

from rvtssm.datasets import AugmentConfig, build_spec
from rvtssm.datasets.augment import Placement, Window, draw_placement
from rvtssm.datasets.loader import ChunkDataset, Collate, spread_to_the_last
from rvtssm.datasets.packed_batch import count_frames, scatter_frames, stack_events, stack_frames
from rvtssm.datasets.sampling import ChunkRequest
from rvtssm.datasets.sequence import RawSplit
from rvtssm.records import WindowSettings
from rvtssm.records.settings import CHANNELS_PER_BIN


def request(recording: int, start: int, stop: int, slot: int = 0, seed: int = 0) -> ChunkRequest:
    return ChunkRequest(recording, start, stop, start == 0, slot, seed)


@pytest.fixture
def sequences(numbered_sequence: Callable) -> list:
    return [numbered_sequence(0, 12, [3, 3, 7, 11]), numbered_sequence(1, 5, [4]), numbered_sequence(2, 9, [])]


def test_a_chunk_holds_its_steps_and_their_labels(sequences):
    chunk = ChunkDataset(sequences)[request(0, 3, 8)]
    np.testing.assert_array_equal(chunk.frames[:, 1, 0, 0], [3, 4, 5, 6, 7])
    np.testing.assert_array_equal(chunk.labels.window_index, [0, 0, 4])
    np.testing.assert_array_equal(chunk.labels.t_us, [200_000, 200_000, 400_000])
    np.testing.assert_array_equal(chunk.dt_us, [50_000] * 5)
    before_a_label = ChunkDataset(sequences)[request(0, 3, 7)]
    np.testing.assert_array_equal(before_a_label.labels.window_index, [0, 0])


def test_no_more_files_than_allowed_stay_open(sequences):
    dataset = ChunkDataset(sequences, max_open=2)
    for recording in (0, 1, 0, 2):
        dataset[request(recording, 0, 2)]
    assert [sequence.source.is_open for sequence in sequences] == [True, False, True]


@given(st.integers(0, 30), st.integers(1, 12))
def test_thinning_spreads_frames_and_keeps_the_last(count, limit):
    kept = spread_to_the_last(count, limit)
    assert len(kept) == min(count, limit)
    assert set(kept.tolist()) <= set(range(count))
    if count:
        assert kept[-1] == count - 1
        gaps = np.diff(kept)
        assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_a_chunk_gives_the_loss_at_most_so_many_frames(sequences):
    chunk = ChunkDataset(sequences, frames_per_chunk=1)[request(0, 0, 12)]
    np.testing.assert_array_equal(chunk.labels.window_index, [11])
    chunk = ChunkDataset(sequences, frames_per_chunk=2)[request(0, 0, 12)]
    np.testing.assert_array_equal(chunk.labels.window_index, [7, 11])


def test_a_stream_is_augmented_alike_over_its_chunks_and_a_random_chunk_by_its_own_seed(sequences):
    dataset = ChunkDataset(sequences, AugmentConfig(flip_prob=1, zoom_prob=0, stream_zoom_prob=0))
    assert dataset[request(0, 0, 4)].labels.boxes_ltwh[0, 0] == 16 - 1 - 2 - 5
    dataset = ChunkDataset(sequences, AugmentConfig(flip_prob=0, zoom_prob=1, stream_zoom_prob=0))
    assert dataset[request(0, 0, 4)].labels.boxes_ltwh[0, 2] == 5
    widths = {float(dataset[request(0, 0, 4, -1, seed)].labels.boxes_ltwh[0, 2]) for seed in range(5)}
    assert len(widths) > 1
    dataset = ChunkDataset(sequences, AugmentConfig())
    for seed in range(5):
        first = dataset[request(0, 0, 4, seed=seed)].labels.boxes_ltwh[0]
        later = dataset[request(0, 7, 12, seed=seed)].labels.boxes_ltwh
        assert (later == first).all()


def test_a_batch_is_stacked_in_time_and_padded(sequences):
    dataset = ChunkDataset(sequences)
    requests = [request(0, 3, 8, slot=-1), request(1, 0, 5, slot=0), request(2, 6, 9, slot=1), request(-1, 0, 0)]
    batch = Collate(6, 40_000)([dataset[r] for r in requests])
    assert batch.hist.shape == (6, 4, 2, 12, 16) and batch.hist.dtype == torch.uint8
    np.testing.assert_array_equal(
        batch.hist[:, :, 1, 5, 5].T, [[3, 4, 5, 6, 7, 0], [0, 1, 2, 3, 4, 0], [6, 7, 8, 0, 0, 0], [0] * 6]
    )
    np.testing.assert_array_equal(batch.is_pad.sum(0), [1, 1, 3, 6])
    assert (batch.dt_us == torch.where(batch.is_pad, 40_000, 50_000)).all()
    assert batch.is_first.tolist() == [False, True, False, True]
    assert batch.slot.tolist() == [-1, 0, 1, 0]
    assert batch.recording.tolist() == [0, 1, 2, -1]
    assert batch.frame_index.tolist() == [[0, 0], [4, 0], [4, 1]]
    assert batch.num_targets.tolist() == [2, 1, 1]
    assert batch.t_us.tolist() == [200_000, 400_000, 250_000]
    # boxes at (2, 3) of 5 x 4; classes count up along the labels of a recording
    box = [4.5, 5.0, 5.0, 4.0]
    nothing = [0.0] * 5
    assert batch.targets.tolist() == [[[0, *box], [1, *box]], [[0, *box], nothing], [[0, *box], nothing]]


def test_outputs_are_asked_for_by_step(sequences):
    """The frames of a batch are the steps that are asked for, at the ends of their windows, whatever has labels."""
    asked = [replace(sequence, asked=np.array([1, 4, 6])) for sequence in sequences[::2]]
    dataset = ChunkDataset(asked)
    batch = Collate(None, 50_000)([dataset[request(0, 0, 5)], dataset[request(1, 4, 7)]])
    assert batch.frame_index.tolist() == [[0, 1], [1, 0], [2, 1], [4, 0]]
    assert batch.num_targets.tolist() == [0] * 4 and not batch.targets.any()
    steps = [asked[stream].windows.ends_us[step] for stream, step in ((1, 4), (0, 1), (1, 6), (0, 4))]
    assert batch.t_us.tolist() == steps


def test_steps_known_to_have_no_box_are_frames_without_targets(sequences):
    first = sequences[0]
    sequence = replace(first, labels=replace(first.labels, empty_us=first.windows.ends_us[[1, 5]]))
    assert {1, 5} <= set(sequence.label_steps.tolist())
    chunk = ChunkDataset([sequence])[request(0, 0, 8)]
    batch = Collate(None, 50_000)([chunk])
    place = batch.frame_index[:, 0].tolist().index(1)
    assert batch.num_targets[place] == 0 and batch.t_us[place] == sequence.windows.ends_us[1]
    assert batch.num_targets.sum() == len(chunk.labels) > 0
    thinned = ChunkDataset([sequence], frames_per_chunk=1)[request(0, 0, 2)]
    assert thinned.steps.tolist() == [1] and not len(thinned.labels)


def test_a_batch_without_labels_has_no_frames(sequences):
    batch = Collate(None, 50_000)([ChunkDataset(sequences)[request(2, 0, 3)]])
    assert batch.hist.shape[0] == 3
    assert batch.frame_index.shape == (0, 2) and batch.targets.shape[0] == 0 and batch.t_us.shape == (0,)


def test_sequences_that_do_not_fit_together_are_refused(sequences):
    with raises("prepared.other"):
        ChunkDataset([sequences[0], replace(sequences[1], frame_shape=(4, 12, 16))])
    with raises("labels.missing"):
        ChunkDataset([])


def test_a_batch_has_its_types_whatever_a_training_makes_by_default(sequences):
    # a training in float64 changes the default in all threads, also in the one that prepares the next batch
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        batch = Collate(4, 50_000)([ChunkDataset(sequences)[request(0, 0, 4)]])
    finally:
        torch.set_default_dtype(before)
    assert batch.targets.dtype == torch.float32 and batch.hist.dtype == torch.uint8
    assert batch.dt_us.dtype == batch.t_us.dtype == batch.num_targets.dtype == torch.int64


# batches of events


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


# augmentation


HEIGHT, WIDTH = 48, 64
RANDOM, STREAM = AugmentConfig(), AugmentConfig().stream
ZOOM_IN = replace(RANDOM, zoom_prob=1, zoom_in_share=1)
ZOOM_OUT = replace(RANDOM, zoom_prob=1, zoom_in_share=0)
FRAME = Window(0, 0, WIDTH, HEIGHT)


def painted(boxes, num_steps=3):
    """Histograms whose channel k is 1 on the pixels of box k and 0 elsewhere."""
    hist = np.zeros((num_steps, len(boxes), HEIGHT, WIDTH), np.uint8)
    for k, (left, top, width, height) in enumerate(boxes):
        hist[:, k, top : top + height + 1, left : left + width + 1] = 1
    return hist


@st.composite
def box_lists(draw):
    boxes = []
    for _ in range(draw(st.integers(1, 4))):
        left, top = draw(st.integers(0, WIDTH - 6)), draw(st.integers(0, HEIGHT - 6))
        boxes.append([left, top, draw(st.integers(4, WIDTH - 1 - left)), draw(st.integers(4, HEIGHT - 1 - top))])
    return boxes


def labelled(make_labels, boxes, step=2):
    labels = make_labels([step] * len(boxes), boxes)
    return replace(labels, class_id=np.arange(len(boxes)))


@pytest.mark.parametrize("config", [RANDOM, STREAM, ZOOM_IN, ZOOM_OUT], ids=["random", "stream", "in", "out"])
@settings(max_examples=50)
@given(boxes=box_lists(), seed=st.integers(0, 2**63 - 1))
def test_boxes_and_histograms_move_together(make_labels, config, boxes, seed):
    labels = labelled(make_labels, boxes)
    placement = draw_placement(config, HEIGHT, WIDTH, labels, seed)
    hist, moved = placement.histograms(painted(boxes)), placement.labels(labels)
    assert hist.shape == (3, len(boxes), HEIGHT, WIDTH) and hist.dtype == np.uint8
    assert (hist == hist[:1]).all(), "every step moves alike"
    for (left, top, width, height), k in zip(moved.boxes_ltwh.tolist(), moved.class_id.tolist(), strict=True):
        rows, columns = np.nonzero(hist[0, k])
        assert left >= 0 and top >= 0 and left + width <= WIDTH - 1 and top + height <= HEIGHT - 1
        # the edges of the painted patch are those of the box within the rounding of one stretched pixel
        assert abs(columns.min() - left) <= 1.5 and abs(columns.max() - (left + width)) <= 1.5
        assert abs(rows.min() - top) <= 1.5 and abs(rows.max() - (top + height)) <= 1.5
    for k in set(range(len(boxes))) - set(moved.class_id.tolist()):
        rows, columns = np.nonzero(hist[0, k])
        assert not len(rows) or np.ptp(rows) <= 2 or np.ptp(columns) <= 2, "a dropped box has left the frame"


@given(boxes=box_lists(), seed=st.integers(0, 2**32))
def test_a_zoom_in_shows_a_box_of_the_latest_frame(make_labels, boxes, seed):
    earlier = labelled(make_labels, [[0, 0, 4, 4]], step=0)
    latest = labelled(make_labels, boxes)
    both = replace(
        latest,
        **{
            name: np.concatenate([getattr(earlier, name), getattr(latest, name)])
            for name in ("boxes_ltwh", "class_id", "t_us", "window_index", "still_us", "pseudo_score")
        },
    )
    source = draw_placement(replace(ZOOM_IN, flip_prob=0), HEIGHT, WIDTH, both, seed).source
    assert 0 <= source.left <= WIDTH - source.width and 0 <= source.top <= HEIGHT - source.height

    def holds(first, size, start, length):
        return start <= first and first + size <= start + length - 1

    def lies_within(first, size, start, length):
        return first <= start + 1 and start + length - 1 <= first + size + 1

    assert any(
        (holds(x, w, source.left, source.width) or lies_within(x, w, source.left, source.width))
        and (holds(y, h, source.top, source.height) or lies_within(y, h, source.top, source.height))
        for x, y, w, h in boxes
    )


def test_a_zoom_in_on_a_flipped_frame_shows_the_box(make_labels):
    corner = labelled(make_labels, [[2, 2, 4, 4]])
    for seed in range(40):
        placement = draw_placement(replace(ZOOM_IN, flip_prob=1), HEIGHT, WIDTH, corner, seed)
        assert placement.is_flipped and len(placement.labels(corner)) == 1


def test_a_zoomed_out_frame_lies_anywhere(make_labels):
    drawn = [draw_placement(ZOOM_OUT, HEIGHT, WIDTH, make_labels([], []), seed).target for seed in range(100)]
    places = {
        "left": [target.left / max(WIDTH - target.width, 1) for target in drawn],
        "top": [target.top / max(HEIGHT - target.height, 1) for target in drawn],
    }
    for name, shares in places.items():
        assert min(shares) < 0.1 and max(shares) > 0.9 and 0.3 < np.mean(shares) < 0.7, name


def test_flipping_twice_changes_nothing(make_labels):
    flip = Placement(FRAME, True, FRAME, FRAME)
    labels = labelled(make_labels, [[3, 4, 10, 6], [20, 8, 30, 12]])
    hist = np.random.default_rng(0).integers(0, 11, (2, 4, HEIGHT, WIDTH), np.uint8)
    np.testing.assert_array_equal(flip.histograms(hist), hist[..., ::-1])
    np.testing.assert_array_equal(flip.histograms(flip.histograms(hist)), hist)
    np.testing.assert_array_equal(flip.labels(flip.labels(labels)).boxes_ltwh, labels.boxes_ltwh)


def test_a_window_of_half_the_size_doubles_pixels_and_boxes(make_labels):
    quarter = Window(16, 12, WIDTH // 2, HEIGHT // 2)
    labels = labelled(make_labels, [[20, 14, 8, 6], [0, 0, 10, 10], [10, 14, 12, 60]])
    hist = np.random.default_rng(0).integers(0, 11, (1, 2, HEIGHT, WIDTH), np.uint8)
    zoom_in = Placement(FRAME, False, quarter, FRAME)
    inside = hist[:, :, 12:36, 16:48]
    np.testing.assert_array_equal(zoom_in.histograms(hist), inside.repeat(2, 2).repeat(2, 3))
    moved = zoom_in.labels(labels)
    np.testing.assert_array_equal(moved.class_id, [0, 2])
    np.testing.assert_allclose(moved.boxes_ltwh, [[8, 4, 16, 12], [0, 4, 12, 42]])
    zoom_out = Placement(FRAME, False, FRAME, quarter)
    np.testing.assert_array_equal(zoom_out.histograms(hist)[:, :, 12:36, 16:48], hist[:, :, 1::2, 1::2])
    assert zoom_out.histograms(hist).sum() == hist[:, :, 1::2, 1::2].sum()
    np.testing.assert_allclose(zoom_out.labels(labels).boxes_ltwh[0], [26, 19, 4, 3])


def test_chances_are_those_of_the_recipe(make_labels):
    labels = labelled(make_labels, [[10, 10, 20, 20]])
    random = [draw_placement(RANDOM, HEIGHT, WIDTH, labels, seed) for seed in range(2000)]
    stream = [draw_placement(STREAM, HEIGHT, WIDTH, labels, seed) for seed in range(2000)]
    zooms_in = [p for p in random if p.source != FRAME]
    zooms_out = [p for p in random if p.target != FRAME]
    assert abs(np.mean([p.is_flipped for p in random]) - 0.5) < 0.04
    assert abs(len(zooms_in) / 2000 - 0.64) < 0.04
    assert abs(len(zooms_out) / 2000 - 0.16) < 0.04
    assert all(p.source == FRAME for p in stream)
    assert abs(np.mean([p.target != FRAME for p in stream]) - 0.5) < 0.05
    assert min(p.source.width for p in zooms_in) >= int(WIDTH / 1.5)
    assert min(p.target.width for p in zooms_out + stream) >= int(WIDTH / 1.2)


@given(seed=st.integers(0, 2**63 - 1))
def test_a_stream_moves_alike_whatever_its_labels(make_labels, seed):
    few = labelled(make_labels, [[10, 10, 20, 20]])
    assert draw_placement(STREAM, HEIGHT, WIDTH, few, seed) == draw_placement(STREAM, HEIGHT, WIDTH, few[:0], seed)
