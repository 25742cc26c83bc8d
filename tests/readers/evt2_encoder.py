"""Events to EVT2 and EVT2.1 words, for round trips, with words between them that carry no events."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rvtssm.records import Events
from tests.readers.evt3_encoder import rows_of

TIME_HIGH, TRIGGER, OTHERS, CONTINUED = 0x8, 0xA, 0xE, 0xF
HEADER = "% evt {version}\n% format {name};height={height};width={width}{more}\n% geometry {width}x{height}\n% end\n"


def time_high(t: int) -> int:
    return TIME_HIGH << 28 | (t >> 6) & 0xFFFFFFF


def encode_evt2(events: Events, use_noise: bool = True) -> list[int]:
    """The 32-bit words of events, in their order."""
    words: list[int] = []
    high = None
    for i, (t, x, y, p) in enumerate(rows_of(events)):
        if high != t >> 6:
            high = t >> 6
            words.append(time_high(t))
        if use_noise and i % 3 == 0:
            words += [time_high(t), TRIGGER << 28 | 1, OTHERS << 28 | 0xABC, CONTINUED << 28 | 5]
        words.append(p << 28 | (t & 0x3F) << 22 | x << 11 | y)
    return words


def encode_evt21(events: Events, use_vectors: bool = True, use_noise: bool = True) -> list[int]:
    """The 64-bit words of events, in their order; events of one row that follow each other share a word."""
    rows = rows_of(events)
    words: list[int] = []
    high = None
    i = 0
    while i < len(rows):
        t, x, y, p = rows[i]
        if high != t >> 6:
            high = t >> 6
            words.append(time_high(t) << 32)
        if use_noise and i % 3 == 0:
            words += [time_high(t) << 32, TRIGGER << 60 | 1 << 32, OTHERS << 60 | 7]
        first = x - x % 32 if use_vectors else x
        mask, last = 1 << x - first, x
        i += 1
        while (
            use_vectors and i < len(rows) and (rows[i][0], *rows[i][2:]) == (t, y, p) and last < rows[i][1] < first + 32
        ):
            last = rows[i][1]
            mask |= 1 << last - first
            i += 1
        words.append((p << 28 | (t & 0x3F) << 22 | first << 11 | y) << 32 | mask)
    return words


def write_evt2(path: Path, words: Iterable[int], height: int, width: int, tail: bytes = b"") -> Path:
    header = HEADER.format(version="2.0", name="EVT2", height=height, width=width, more="")
    path.write_bytes(header.encode() + np.array(list(words), "<u4").tobytes() + tail)
    return path


def write_evt21(
    path: Path, words: Iterable[int], height: int, width: int, tail: bytes = b"", is_legacy: bool = False
) -> Path:
    more = ";endianness=legacy" if is_legacy else ""
    header = HEADER.format(version="2.1", name="EVT21", height=height, width=width, more=more)
    content = np.array(list(words), "<u8")
    if is_legacy:
        content = content << np.uint64(32) | content >> np.uint64(32)
    path.write_bytes(header.encode() + content.tobytes() + tail)
    return path
