"""Events to EVT3 words, for round trips: rows, single pixels, vectors, and the words that carry no events."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rvtssm.records import Events

ADDR_Y, OTHER_Y, ADDR_X, VECT_BASE_X, VECT_12, VECT_8, TIME_LOW, TIME_HIGH = 0, 1, 2, 3, 4, 5, 6, 8
CONTINUED_4, TRIGGER, IMU, OTHERS, CONTINUED_12 = 0x7, 0xA, 0xD, 0xE, 0xF
HEADER = "% evt 3.0\n% format EVT3;height={height};width={width}\n% geometry {width}x{height}\n% end\n"


def word(kind: int, payload: int) -> int:
    return kind << 12 | payload & 0xFFF


def rows_of(events: Events) -> list[tuple[int, int, int, int]]:
    """(t, x, y, p) of each event."""
    return list(zip(events.t.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist(), strict=True))


def encode(events: Events, use_vectors: bool = True, use_noise: bool = True) -> list[int]:
    """The words of events, in their order. Time goes up through every value of its upper half, as cameras send it."""
    rows = rows_of(events)
    words: list[int] = []
    high = low = row = None
    i = 0
    while i < len(rows):
        t, x, y, p = rows[i]
        if high is None or t >> 12 != high:
            for value in range(t >> 12 if high is None else high + 1, (t >> 12) + 1):
                words.append(word(TIME_HIGH, value))
            high, low = t >> 12, None
        if low != t & 0xFFF:
            low = t & 0xFFF
            words.append(word(TIME_LOW, low))
        if use_noise and i % 3 == 0:
            words += [word(TIME_HIGH, high), word(TRIGGER, 1), word(OTHERS, 5), word(CONTINUED_12, 0xABC)]
            words += [word(CONTINUED_12, 0x123), word(CONTINUED_4, 7), word(IMU, 9)]
        if row != y:
            row = y
            words.append(word(ADDR_Y, y | (i % 2) << 11))
        group = [x]
        while (
            use_vectors
            and (k := i + len(group)) < len(rows)
            and (rows[k][0], *rows[k][2:]) == (t, y, p)
            and group[-1] < rows[k][1] < x + 40
        ):
            group.append(rows[k][1])
        if len(group) == 1:
            words.append(word(ADDR_X, x | p << 11))
        else:
            words.append(word(VECT_BASE_X, x | p << 11))
            base = x
            while base <= group[-1]:
                kind, size = (VECT_12, 12) if group[-1] - base >= 8 else (VECT_8, 8)
                words.append(word(kind, sum(1 << pixel - base for pixel in group if base <= pixel < base + size)))
                base += size
        i += len(group)
    return words


def write_words(path: Path, words: Iterable[int], height: int, width: int, tail: bytes = b"") -> Path:
    header = HEADER.format(height=height, width=width).encode()
    path.write_bytes(header + np.array(list(words), "<u2").tobytes() + tail)
    return path
