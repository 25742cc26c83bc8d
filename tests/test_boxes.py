import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rvtssm import boxes
from rvtssm.boxes import pairwise_iou


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random_xyxy(rng, n, kind):
    left_top = rng.uniform(-20, 200, (n, 2))
    array = np.concatenate([left_top, left_top + rng.uniform(0.5, 80, (n, 2))], axis=1).astype(np.float32)
    return torch.from_numpy(array) if kind == "torch" else array


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_formats_agree(rng, kind):
    xyxy = random_xyxy(rng, 12, kind).reshape(3, 4, 4)
    ltwh = boxes.xyxy_to_ltwh(xyxy)
    cxcywh = ltwh + 0  # a copy
    cxcywh[..., :2] += ltwh[..., 2:] / 2
    for other, back in ((ltwh, boxes.ltwh_to_xyxy), (cxcywh, boxes.cxcywh_to_xyxy)):
        found = back(other)
        assert type(found) is type(xyxy) and found.dtype == xyxy.dtype and found.shape == xyxy.shape
        np.testing.assert_allclose(found, xyxy, atol=1e-4)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_iou_is_symmetric_bounded_and_one_with_itself(rng, kind):
    a, b = random_xyxy(rng, 9, kind), random_xyxy(rng, 7, kind)
    iou = pairwise_iou(a, b)
    assert tuple(iou.shape) == (9, 7)
    assert float(iou.min()) >= 0 and float(iou.max()) <= 1
    np.testing.assert_allclose(iou, pairwise_iou(b, a).T, rtol=1e-6)
    np.testing.assert_allclose(np.diag(np.asarray(pairwise_iou(a, a))), 1, rtol=1e-5)


@given(shift=st.floats(0, 10))
def test_iou_of_a_shifted_square(shift):
    iou = pairwise_iou(np.array([[0.0, 0, 10, 10]]), np.array([[shift, 0, 10 + shift, 10]]))
    assert iou[0, 0] == pytest.approx((10 - shift) / (10 + shift))


def test_iou_of_empty_and_inverted_boxes_is_zero():
    odd = np.array([[5.0, 5, 5, 5], [9.0, 9, 2, 2]])
    assert (pairwise_iou(odd, odd) == 0).all()
    assert pairwise_iou(odd, np.zeros((0, 4))).shape == (2, 0)


def test_iou_takes_leading_axes(rng):
    a, b = random_xyxy(rng, 10, "torch"), random_xyxy(rng, 6, "torch")
    batched = pairwise_iou(a.reshape(2, 5, 4), b.reshape(2, 3, 4))
    torch.testing.assert_close(batched[1], pairwise_iou(a[5:], b[3:]))
