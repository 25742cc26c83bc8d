"""Compressed frames: what a slow twin writes token by token, and back; damage is an error, never other numbers."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rvtssm.datasets.compress import FrameCompressor, decompress_into


def tokens_of(cells) -> bytes:
    """The rule of the module's docstring, read aloud."""
    tokens, zeros = bytearray(), 0
    for value in cells.tolist():
        if value == 0:
            zeros += 1
            continue
        tokens.append(min(zeros, 15) << 4 | min(value - 1, 15))
        if zeros >= 15:
            rest = zeros - 15
            tokens += b"\xff" * (rest // 255) + bytes([rest % 255])
        if value > 15:
            tokens.append(value)
        zeros = 0
    return bytes(tokens)


@st.composite
def frames(draw):
    """Bytes with runs of zeros around the lengths where the tokens change."""
    parts = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 14, 15, 16, 63, 64, 65, 269, 270, 271, 524, 525, 526]),
                st.sampled_from([1, 2, 10, 15, 16, 17, 255]),
            ),
            max_size=12,
        )
    )
    cells = [value for zeros, last in parts for value in (*[0] * zeros, last)] + [0] * draw(st.integers(0, 70))
    return np.array(cells, np.uint8)


def compressed(frame) -> bytes:
    return FrameCompressor(frame.nbytes).compress(frame)


@given(frames())
def test_tokens_are_those_of_the_slow_twin_and_come_back(cells):
    data = compressed(cells)
    assert zstandard.ZstdDecompressor().decompress(data) == tokens_of(cells)
    found = np.zeros_like(cells)
    decompress_into(data, found)
    np.testing.assert_array_equal(found, cells)


def test_one_compressor_serves_many_frames():
    rng = np.random.default_rng(0)
    compressor = FrameCompressor(20 * 7 * 9)
    for share in (0.9, 0.0, 0.1, 0.01):
        frame = (rng.random((20, 7, 9)) < share) * rng.integers(1, 11, (20, 7, 9), np.uint8)
        assert compressor.compress(frame) == compressed(frame)


@given(frames(), st.data())
def test_damage_is_an_error(cells, draws):
    data = bytearray(compressed(cells))
    place = draws.draw(st.integers(0, len(data) - 1))
    data[place] ^= draws.draw(st.integers(1, 255))
    found = np.zeros_like(cells)
    try:
        decompress_into(bytes(data), found)
    except ValueError:
        return
    np.testing.assert_array_equal(found, cells)  # a bit that zstd does not use


@pytest.mark.parametrize("tokens", [b"\xf0", b"\xf0\xff", b"\x0f", b"\xf0\x00\x00", b"\x00" * 17, b"\x00" * 200])
def test_tokens_that_do_not_fit_are_an_error(tokens):
    with pytest.raises(ValueError, match=r"tokens|cells"):
        decompress_into(zstandard.ZstdCompressor().compress(tokens), np.zeros(16, np.uint8))
