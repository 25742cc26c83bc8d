"""What is in a box stays in it, and every step of a chunk moves alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvtssm.datasets.augment import Placement, Window, draw_placement
from rvtssm.datasets.data_config import AugmentConfig, FlipZoom

HEIGHT, WIDTH = 48, 64
RANDOM, STREAM = AugmentConfig().random, AugmentConfig().stream
ZOOM_IN = FlipZoom(flip_prob=0.5, zoom_prob=1, zoom_in_share=1)
ZOOM_OUT = FlipZoom(flip_prob=0.5, zoom_prob=1, zoom_in_share=0)
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


def test_impossible_choices_are_refused():
    for name in ("flip_prob", "zoom_prob", "stream_zoom_prob"):
        with pytest.raises(ValueError, match=rf"augment\.{name}=1\.5"):
            AugmentConfig(**{name: 1.5})
