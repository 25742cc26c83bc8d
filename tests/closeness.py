"""Tensors that may differ by rounding, measured against the largest value."""

from torch import Tensor


def assert_near(found: Tensor, wanted: Tensor, tolerance: float = 1e-5, what: str = "") -> None:
    """Fail unless tensors are equal up to `tolerance` of the largest value."""
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max().clamp(min=1e-6), what
