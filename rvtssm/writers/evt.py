"""Write Prophesee RAW files: a text header, then words of EVT2 (32 bits) or EVT3 (16 bits).

Cameras group pixels of a row into vectors. We write every event by itself, so that their order stays. Source of the
words: OpenEB 0499c95, hal/cpp/include/metavision/hal/decoders.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rvtssm.records import Events

_HEADER = "% evt {version}\n% format {name};height={height};width={width}\n% geometry {width}x{height}\n% end\n"
_EVT2_TIME_HIGH, _EVT2_LOW_BITS = 0x8, 6
_ADDR_Y, _ADDR_X, _TIME_LOW, _TIME_HIGH = 0x0, 0x2, 0x6, 0x8
_EVT3_LOW_BITS, _EVT3_MASK = 12, 0xFFF
_LONGEST_STEP = 1 << 10  # of the upper time; a reader sees that its 12 bits have begun again if a step is shorter

Ints = npt.NDArray[np.int64]


def write_evt2(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as EVT2: a word for the upper 28 bits of a time when they change, and a word per event.

    Args:
        path: The file to write.
        blocks: The events; times below 2^34 us, coordinates below 2^11.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(_HEADER.format(version="2.0", name="EVT2", height=height, width=width).encode())
        latest_high = -1
        for events in blocks:
            high = events.t >> _EVT2_LOW_BITS
            is_new = np.diff(high, prepend=latest_high) != 0
            latest_high = int(high[-1])
            low = events.t & ((1 << _EVT2_LOW_BITS) - 1)
            words = _Words([is_new, np.ones(len(events), bool)])
            words.put(0, _EVT2_TIME_HIGH << 28 | high)
            words.put(1, events.p.astype(np.int64) << 28 | low << 22 | events.x.astype(np.int64) << 11 | events.y)
            file.write(words.values.astype("<u4").tobytes())


def write_evt3(path: Path, blocks: Iterable[Events], height: int, width: int) -> None:
    """Write events as EVT3: words for the upper time, the lower time and the row when they change, and for the pixel.

    The clock of the format has 24 bits. Words for the upper time fill gaps of more than a quarter of its period, also
    before the first event, so that readers can count how often it has begun again.

    Args:
        path: The file to write.
        blocks: The events; times from 0 on, coordinates below 2^11.
        height: Height of the sensor, pixels.
        width: Width of the sensor, pixels.
    """
    with open(path, "wb") as file:
        file.write(_HEADER.format(version="3.0", name="EVT3", height=height, width=width).encode())
        latest_high, latest_low, latest_row = 0, -1, -1
        file.write(np.array([_TIME_HIGH << 12], "<u2").tobytes())
        for events in blocks:
            high, low, row = events.t >> _EVT3_LOW_BITS, events.t & _EVT3_MASK, events.y.astype(np.int64)
            step = np.diff(high, prepend=latest_high)
            num_high = -(-step // _LONGEST_STEP)  # rounded up
            has_low = (num_high > 0) | (np.diff(low, prepend=latest_low) != 0)
            has_row = np.diff(row, prepend=latest_row) != 0
            words = _Words([num_high, has_low, has_row, np.ones(len(events), bool)])
            words.put(0, _TIME_HIGH << 12 | _steps(high, num_high) & _EVT3_MASK)
            words.put(1, _TIME_LOW << 12 | low)
            words.put(2, _ADDR_Y << 12 | row)
            words.put(3, _ADDR_X << 12 | events.p.astype(np.int64) << 11 | events.x)
            file.write(words.values.astype("<u2").tobytes())
            latest_high, latest_low, latest_row = int(high[-1]), int(low[-1]), int(row[-1])


def _steps(high: Ints, num_words: Ints) -> Ints:
    """Return, one after another for each event, upper times in steps of at most _LONGEST_STEP that end at its own."""
    ends = np.repeat(high, num_words)
    following = np.repeat(num_words.cumsum(), num_words) - np.arange(len(ends)) - 1  # words of the event that follow
    return ends - following * _LONGEST_STEP


class _Words:
    """The words of events: for each event, the words of each kind, kind after kind.

    Args:
        counts: For each kind, how many words each of N events has, (N,).
    """

    def __init__(self, counts: list[npt.NDArray[np.generic]]) -> None:
        self._counts = np.stack(counts, axis=1).astype(np.int64)  # (N, kinds)
        ends = self._counts.ravel().cumsum().reshape(self._counts.shape)
        self._starts = ends - self._counts
        self.values = np.zeros(int(ends[-1, -1]), np.int64)

    def put(self, kind: int, words: Ints) -> None:
        """Set the words of a kind, given for every event, or for every word if an event can have several."""
        count = self._counts[:, kind]
        if len(words) == len(count) and count.max(initial=0) <= 1:
            self.values[self._starts[count > 0, kind]] = words[count > 0]
            return
        place = np.repeat(self._starts[:, kind], count)
        within = np.arange(len(place)) - np.repeat(count.cumsum() - count, count)
        self.values[place + within] = words
