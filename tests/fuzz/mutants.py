"""Changes files at random: bits, ends, blocks, numbers, headers. The same generator makes the same mutants."""

import re
from collections.abc import Callable

import numpy as np

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

Change = Callable[[bytearray, np.random.Generator], None]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the data after one to three changes, mostly one."""
    mutant = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        CHANGES[rng.integers(len(CHANGES))](mutant, rng)
    return bytes(mutant)


def _place(mutant: bytearray, rng: np.random.Generator) -> int:
    """Return a place in the data; every second one is in the header."""
    most = len(mutant) if rng.integers(2) else min(len(mutant), _HEADER_BYTES)
    return int(rng.integers(most)) if most else 0


def _block(mutant: bytearray, rng: np.random.Generator) -> slice:
    start = _place(mutant, rng)
    return slice(start, min(len(mutant), start + int(rng.integers(1, _LONGEST_BLOCK))))


def _flip_bits(mutant: bytearray, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 9)):
        if mutant:
            mutant[_place(mutant, rng)] ^= 1 << int(rng.integers(8))


def _truncate(mutant: bytearray, rng: np.random.Generator) -> None:
    del mutant[_place(mutant, rng) :]


def _remove_block(mutant: bytearray, rng: np.random.Generator) -> None:
    del mutant[_block(mutant, rng)]


def _duplicate_block(mutant: bytearray, rng: np.random.Generator) -> None:
    block = bytes(mutant[_block(mutant, rng)])
    place = _place(mutant, rng)
    mutant[place:place] = block * int(rng.integers(1, 20))


def _swap_blocks(mutant: bytearray, rng: np.random.Generator) -> None:
    first, second = sorted((_block(mutant, rng), _block(mutant, rng)), key=lambda block: block.start)
    if first.stop <= second.start:
        parts = mutant[first], mutant[second]
        mutant[second], mutant[first] = parts


def _set_number(mutant: bytearray, rng: np.random.Generator) -> None:
    value = _BYTE_EXTREMES[rng.integers(len(_BYTE_EXTREMES))]
    place = _place(mutant, rng)
    if rng.integers(4):
        mutant[place : place + len(value)] = value
    else:
        mutant[place:place] = value


def _set_text_number(mutant: bytearray, rng: np.random.Generator) -> None:
    """Replace a number written in digits by an extreme one."""
    found = list(_NUMBER.finditer(bytes(mutant[:100_000])))
    if found:
        number = found[rng.integers(min(len(found), 40) if rng.integers(2) else len(found))]
        mutant[number.start() : number.end()] = _TEXT_EXTREMES[rng.integers(len(_TEXT_EXTREMES))]


CHANGES: tuple[Change, ...] = (
    _flip_bits,
    _truncate,
    _remove_block,
    _duplicate_block,
    _swap_blocks,
    _set_number,
    _set_number,
    _set_text_number,
)
