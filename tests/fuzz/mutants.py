"""Changes of files: bits, ends, blocks, numbers, headers."""

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

_HEADER_BYTES = 256
_LONGEST_BLOCK = 64
_BYTE_EXTREMES = [
    value.to_bytes(size, order)
    for size in (1, 2, 4, 8)
    for value in (0, 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1, (1 << 8 * size) - 1)
    for order in ("little", "big")
]
_TEXT_EXTREMES = (
    *(b"-1", b"0", b"65536", b"4294967296", b"9223372036854775808", b"99999999999999999999", b"1e309", b"nan"),
    *(b"", b"1.5", b"9" * 5000, b"null", b"[]", b'"', b"[" * 3000),
)
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_FRACTION = st.floats(0, 1, exclude_max=True)

Draw = Callable[[st.SearchStrategy], Any]


@st.composite
def mutants(draw, valid: bytes) -> bytes:
    """The content of a file after one to three changes, mostly one."""
    mutant = bytearray(valid)
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        draw(st.sampled_from(_CHANGES))(mutant, draw)
    return bytes(mutant)


def _place(mutant: bytearray, draw: Draw) -> int:
    """A place in the data; every second one is in the header."""
    most = draw(st.sampled_from([len(mutant), min(len(mutant), _HEADER_BYTES)]))
    return int(draw(_FRACTION) * most)


def _block(mutant: bytearray, draw: Draw) -> slice:
    start = _place(mutant, draw)
    return slice(start, min(len(mutant), start + draw(st.integers(1, _LONGEST_BLOCK))))


def _flip_bits(mutant: bytearray, draw: Draw) -> None:
    for _ in range(draw(st.integers(1, 8)) if mutant else 0):
        mutant[_place(mutant, draw)] ^= 1 << draw(st.integers(0, 7))


def _truncate(mutant: bytearray, draw: Draw) -> None:
    del mutant[_place(mutant, draw) :]


def _remove_block(mutant: bytearray, draw: Draw) -> None:
    del mutant[_block(mutant, draw)]


def _duplicate_block(mutant: bytearray, draw: Draw) -> None:
    block, place = bytes(mutant[_block(mutant, draw)]), _place(mutant, draw)
    mutant[place:place] = block * draw(st.integers(1, 19))


def _swap_blocks(mutant: bytearray, draw: Draw) -> None:
    first, second = sorted((_block(mutant, draw), _block(mutant, draw)), key=lambda block: block.start)
    if first.stop <= second.start:
        parts = mutant[first], mutant[second]
        mutant[second], mutant[first] = parts


def _set_number(mutant: bytearray, draw: Draw) -> None:
    value, place = draw(st.sampled_from(_BYTE_EXTREMES)), _place(mutant, draw)
    is_inserted = draw(st.integers(0, 3)) == 3
    mutant[place : place + (0 if is_inserted else len(value))] = value


def _set_text_number(mutant: bytearray, draw: Draw) -> None:
    """Replace a number written in digits by an extreme one; every second one is among the first."""
    numbers = list(_NUMBER.finditer(bytes(mutant[:100_000])))
    if numbers:
        most = draw(st.sampled_from([len(numbers), min(len(numbers), 40)]))
        number = numbers[int(draw(_FRACTION) * most)]
        mutant[number.start() : number.end()] = draw(st.sampled_from(_TEXT_EXTREMES))


_CHANGES = (
    _flip_bits,
    _truncate,
    _remove_block,
    _duplicate_block,
    _swap_blocks,
    _set_number,
    _set_number,
    _set_text_number,
)
