"""Exponential sums of events per pixel and polarity: frames that depend on all events before a time, not on a window.

With time constant tau[k], the sum of a pixel and polarity at time t is s[k](t) = sum of exp(-(t - t[i]) / tau[k]) over
its events with t[i] < t. This is leaky integration; the time surfaces of Lagorce et al. (2017) use only the latest
event. A frame stores 16 log2(1 + s) as uint8, interpolated linearly between powers of two: 0 for s below 1/32, and 16
for a single event at its own time.
"""

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from rvtssm.system.jit import jit

LEVELS_PER_OCTAVE = 16
_LONG_AGO_US = -(1 << 62)
_LEAST = 1e-6  # smaller sums are set to 0; a frame shows 0 for all sums below 1/32 anyway
_FINE_BITS = 10  # lower bits of a time within an epoch; a weight is the product of entries of two small tables

Ints = npt.NDArray[np.int64]


class Surfaces:
    """Use this to keep the sums of a stream: `add` its events in order of time, `write` a frame at a later time.

    For each time constant, time is divided into epochs of a fixed length, starting at time 0. A sum is stored with the
    value it would have at the start of the epoch of the latest event. An event then only adds its weight to one number,
    and the stored sums are identical to the last bit no matter when frames are written or how the events are split into
    calls.

    Args:
        time_constants_us: K time constants.
        num_pixels: Number of pixels of a frame.
    """

    def __init__(self, time_constants_us: tuple[int, ...], num_pixels: int) -> None:
        self._weights = _epoch_weights(time_constants_us)
        self._constants_us = np.array(time_constants_us, np.float64)
        self._sums = np.zeros((2 * len(time_constants_us), num_pixels), np.float32)  # channel = polarity * K + k
        self._epochs = np.int64(_LONG_AGO_US) >> self._weights[0]  # before all events
        self.until_us: int = _LONG_AGO_US  # all events before this time have been added

    def add(self, cells: npt.NDArray[np.int32], times_us: Ints, until_us: int) -> None:
        """Add events.

        Args:
            cells: (N,), 2 * pixel + polarity.
            times_us: (N,), in order, none before the `until_us` of the last call.
            until_us: All events before this time have been added after this call.
        """
        _add(cells, times_us, self._constants_us, *self._weights, self._epochs, self._sums)
        self.until_us = until_us

    def write(self, time_us: int, frame: npt.NDArray[np.uint8]) -> None:
        """Write a frame.

        Args:
            time_us: The time of the frame, not before any event added so far.
            frame: (2K, h, w), contiguous output.
        """
        shifts, _, _ = self._weights
        factors = np.exp(((self._epochs << shifts) - time_us) / self._constants_us).astype(np.float32)
        _write_levels(self._sums, factors, frame.reshape(self._sums.shape))

    def state(self) -> tuple[npt.NDArray[np.float32], Ints]:
        """Return copies of the stored sums and of the times: the epochs, followed by `until_us`."""
        return self._sums.copy(), np.append(self._epochs, self.until_us)

    def load_state(self, sums: npt.NDArray[np.float32], times: Ints) -> None:
        """Continue from the `state` of another instance."""
        self._sums[:] = sums
        self._epochs[:] = times[:-1]
        self.until_us = int(times[-1])


def to_sums(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the sums that the levels of a frame represent."""
    octaves = np.arange(256 // LEVELS_PER_OCTAVE + 1)
    sums: npt.NDArray[np.float64] = np.interp(frame, LEVELS_PER_OCTAVE * octaves, 2.0**octaves - 1)
    return sums


@cache
def _epoch_weights(time_constants_us: tuple[int, ...]) -> tuple[Ints, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return log2 of the epoch lengths (K,) and the two tables of weights. An epoch is 4 to 8 time constants long.

    An event `offset` us after the start of its epoch weighs coarse[k, offset >> 10] * fine[k, offset & 1023].
    """
    shifts = np.array([max(_FINE_BITS, int(math.log2(8 * tau))) for tau in time_constants_us])
    tau = np.array(time_constants_us, np.float64)[:, None]
    steps = np.arange(1 << max(shifts) - _FINE_BITS) << _FINE_BITS
    coarse = np.exp(np.minimum(steps, 1 << shifts[:, None]) / tau)
    fine = np.exp(np.arange(1 << _FINE_BITS) / tau)
    return shifts, coarse.astype(np.float32), fine.astype(np.float32)


@jit
def _add(cells, times, constants, shifts, coarse, fine, epochs, sums):  # type: ignore[no-untyped-def]
    num_constants = len(constants)
    for k in range(num_constants):
        first = 0
        while first < len(times):
            epoch = times[first] >> shifts[k]
            if epoch != epochs[k]:
                factor = np.float32(math.exp(-float((epoch - epochs[k]) << shifts[k]) / constants[k]))
                _decay(sums[k], factor)
                _decay(sums[num_constants + k], factor)
                epochs[k] = epoch
            stop = np.searchsorted(times, (epoch + 1) << shifts[k])
            _add_within(cells[first:stop], times[first:stop], epoch << shifts[k], coarse[k], fine[k], k, sums)
            first = stop


@jit
def _add_within(cells, times, start, coarse, fine, k, sums):  # type: ignore[no-untyped-def]
    """Add the events of the epoch that begins at `start` to the sums of time constant k."""
    num_pixels = sums.shape[1]
    flat = sums.reshape(-1)
    here = np.uint64(k * num_pixels)
    jump = np.uint64(sums.shape[0] // 2 * num_pixels)
    for i in range(np.uint64(len(times))):
        offset = np.uint64(times[i] - start)
        cell = np.uint64(cells[i])
        place = here + (cell >> np.uint64(1)) + jump * (cell & np.uint64(1))
        flat[place] += coarse[offset >> np.uint64(_FINE_BITS)] * fine[offset & np.uint64((1 << _FINE_BITS) - 1)]


@jit
def _decay(plane, factor):  # type: ignore[no-untyped-def]
    for i in range(len(plane)):
        value = plane[i] * factor
        plane[i] = value if value > np.float32(_LEAST) else np.float32(0)


@jit
def _write_levels(sums, factors, frame):  # type: ignore[no-untyped-def]
    """Write levels: the exponent and the first 4 bits of the fraction of 1 + s, rounded, read as one integer."""
    for channel in range(len(sums)):
        factor = factors[channel % len(factors)]
        plane = sums[channel]
        levels = frame[channel]
        for i in range(len(plane)):
            bits = np.float32(plane[i] * factor + np.float32(1)).view(np.int32) - np.int32(0x3F800000)  # bits of 1.0
            levels[i] = np.uint8(min((bits + np.int32(1 << 18)) >> np.int32(19), np.int32(255)))
