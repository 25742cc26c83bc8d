"""What one recording contains, measured in one pass and drawn: rate, polarity, repairs, hot pixels."""

import hashlib
import itertools
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rvtssm.events.label_rules import Note, size_keys
from rvtssm.readers import Recording
from rvtssm.readers.faults import MANY_EVENTS, noted
from rvtssm.readers.filters import FilterChain, Filters, Refractory
from rvtssm.records import DatasetSpec
from rvtssm.system.jit import jit
from rvtssm.system.user_error import UserError

_NUM_BINS = 2048  # the most bins of the rate over time
_SHORTEST_BIN_US = 1000
_LEAST_SHARE = 0.9  # of the width and of the height of a sensor, which many events reach
_HOT_EVENTS = 100
_HOT_FACTOR = 10.0
REPEATED_WITHIN_US = 5  # no pixel of today's cameras sends its next event so soon
# Margins are fixed. An automatic layout draws everything twice, which took half of the time of a picture.
MARGINS = {"left": 0.07, "right": 0.97, "bottom": 0.08, "top": 0.95, "hspace": 0.3, "wspace": 0.18}
_DARKER = "#4477aa"
_BRIGHTER = "#cc6677"
_HOT = "#00d0d0"

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordingInspection:
    """The numbers of one recording. Times are microseconds, from the first to the last event."""

    recording: Recording  # closed, after one pass
    t_first_us: int
    t_last_us: int
    longest_gap_us: int  # the longest time without events
    longest_gap_at_us: int  # the time of the event before the gap
    bin_us: int  # length of the bins of `rate`
    rate: Counts  # (K, 2) events per bin, darker and brighter
    pixels: npt.NDArray[np.uint32]  # (H, W) events per pixel
    num_repeated: int  # events at most REPEATED_WITHIN_US after another one of their pixel
    sha256: str | None  # digest of all t, then all x, all y and all p; None if not requested

    @property
    def num_events(self) -> int:
        return int(self.rate.sum())

    @property
    def num_on(self) -> int:
        return int(self.rate[:, 1].sum())

    @property
    def duration_us(self) -> int:
        return self.t_last_us - self.t_first_us

    @property
    def mean_rate(self) -> float:
        """The mean number of events per second."""
        return self.num_events / max(self.duration_us, 1) * 1e6

    @property
    def peak_rate(self) -> float:
        """The number of events per second in the bin with the most events."""
        return float(self.rate.sum(1).max()) / self.bin_us * 1e6

    @property
    def hot_pixels(self) -> Counts:
        """The hot pixels as (N, 3): x, y and number of events, most events first.

        A hot pixel has at least 100 events and more than ten times the mean of its eight neighbours.
        """
        counts = self.pixels.astype(np.float32)
        padded = np.pad(counts, 1)
        height, width = counts.shape
        around = np.zeros_like(counts)
        for dy, dx in itertools.product(range(3), range(3)):
            if (dy, dx) != (1, 1):
                around += padded[dy : dy + height, dx : dx + width]
        y, x = np.nonzero((counts >= _HOT_EVENTS) & (counts > _HOT_FACTOR * around / 8))
        pixels = np.stack([x, y, self.pixels[y, x].astype(np.int64)], axis=1)
        return pixels[np.argsort(-pixels[:, 2], kind="stable")]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for json.dumps: first the keys of a manifest of recordings, then all others."""
        hot = self.hot_pixels
        recording = self.recording
        faults = self.recording.faults
        return {
            "num_events": self.num_events,
            "t_first_us": self.t_first_us,
            "t_last_us": self.t_last_us,
            "t_max_us": self.t_last_us,
            "sum_x": int(self.pixels.sum(0, dtype=np.int64) @ np.arange(recording.width)),
            "sum_y": int(self.pixels.sum(1, dtype=np.int64) @ np.arange(recording.height)),
            "num_on": self.num_on,
            "sha256_of_monotone_t_x_y_p": self.sha256,
            "bytes": recording.num_bytes,
            "format": recording.format,
            "height": recording.height,
            "width": recording.width,
            **asdict(faults),
            "longest_gap_us": self.longest_gap_us,
            "longest_gap_at_us": self.longest_gap_at_us,
            "events_per_second": self.mean_rate,
            "peak_events_per_second": self.peak_rate,
            "hot_pixels": len(hot),
            "hot_pixel_events": int(hot[:, 2].sum()),
            "repeated_events": self.num_repeated,
        }


def inspect_recording(recording: Recording, has_checksum: bool = False, filters: Filters = ()) -> RecordingInspection:
    """Inspect a recording in one pass. The memory does not depend on its length.

    Args:
        recording: The recording.
        has_checksum: Whether to compute the digest, which takes four more passes.
        filters: Filters of the events, see `FilterChain`.

    Raises:
        UserError: The recording has no events or is damaged.
    """
    recording.repair = True  # faults are reported, not refused; other commands may refuse them
    rate = np.zeros((_NUM_BINS, 2), np.int64)
    bin_us = _SHORTEST_BIN_US
    pixels = np.zeros((recording.height, recording.width), np.uint32)
    gap = np.zeros(3, np.int64)  # longest gap, time at its start, time of the last event
    repeats = Refractory(within_ms=REPEATED_WITHIN_US / 1000)
    repeats_state = repeats.start(recording.height, recording.width, 0)
    num_repeated = 0
    first_us = None
    with closing(recording):
        chain = FilterChain(filters, recording.height, recording.width)
        for block in chain.blocks(recording.blocks()):
            if first_us is None:
                first_us = int(block.t[0])
                gap[2] = first_us
            # Two bins become one when the recording is longer than all bins.
            while (int(block.t[-1]) - first_us) // bin_us >= _NUM_BINS:
                rate[: _NUM_BINS // 2] = rate[::2] + rate[1::2]
                rate[_NUM_BINS // 2 :] = 0
                bin_us *= 2
            _add(block.t, block.x, block.y, block.p, first_us, bin_us, rate, pixels, gap)
            num_repeated += len(block) - int(np.count_nonzero(repeats.keep(block, repeats_state)))
        if first_us is None and chain.num_events:
            found = f"the filters remove all of its {chain.num_events} events"
            raise UserError("events.none", name=recording.path, found=found, advice="leave some of filters= out")
        if first_us is None:
            raise recording.error_without_events()
        digest = _digest(recording, filters) if has_checksum else None
    last_us = int(gap[2])
    return RecordingInspection(
        recording,
        t_first_us=first_us,
        t_last_us=last_us,
        longest_gap_us=int(gap[0]),
        longest_gap_at_us=int(gap[1]),
        bin_us=bin_us,
        rate=rate[: (last_us - first_us) // bin_us + 1].copy(),
        pixels=pixels,
        num_repeated=num_repeated,
        sha256=digest,
    )


def _digest(recording: Recording, filters: Filters) -> str:
    """Return the sha256 of all t, then all x, all y and all p."""
    digest = hashlib.sha256()
    with noted():  # the pass before these has told the user
        for name in "txyp":
            for block in FilterChain(filters, recording.height, recording.width).blocks(recording.blocks()):
                digest.update(getattr(block, name).data)
    return digest.hexdigest()


@jit
def _add(t, x, y, p, first_us, bin_us, rate, pixels, gap):  # type: ignore[no-untyped-def]
    """Add the events of one block to the counts, in place."""
    previous = gap[2]
    for i in range(len(t)):
        if t[i] - previous > gap[0]:
            gap[0] = t[i] - previous
            gap[1] = previous
        previous = t[i]
        rate[(t[i] - first_us) // bin_us, p[i]] += 1
        pixels[y[i], x[i]] += 1
    gap[2] = previous


def sensor_notes(inspection: RecordingInspection, spec: DatasetSpec) -> list[str]:
    """Return a note if the events leave a large part of the sensor out, as they do if its size is named too large."""
    height, width = inspection.pixels.shape
    y, x = (int(places.max(initial=0)) for places in np.nonzero(inspection.pixels))
    if inspection.num_events < MANY_EVENTS or (x + 1 > _LEAST_SHARE * width and y + 1 > _LEAST_SHARE * height):
        return []
    return [
        Note(
            f"{inspection.recording.path} has no events beyond x={x}, y={y}, but its sensor is said to have "
            f"{width}x{height} (width x height) pixels; if it is smaller, correct {size_keys(spec)}"
        )
    ]


def recording_figure(inspection: RecordingInspection) -> Any:
    """Draw the rate over time by polarity, the events per pixel (hot pixels in circles) and their histogram."""
    figure = blank_figure()
    grid = figure.add_gridspec(2, 2, **MARGINS)
    _draw_rate(figure.add_subplot(grid[0, :]), inspection)
    _draw_pixels(figure.add_subplot(grid[1, 0]), inspection)
    _draw_histogram(figure.add_subplot(grid[1, 1]), inspection)
    return figure


def blank_figure() -> Any:
    """Return a figure of the size of all pictures of `inspect`."""
    from matplotlib.figure import Figure  # imported here because the import takes a second

    return Figure(figsize=(11, 7.5), dpi=110)


def _draw_rate(axes: Any, inspection: RecordingInspection) -> None:
    rate = inspection.rate / inspection.bin_us  # million events per second
    edges_s = np.arange(len(rate) + 1) * inspection.bin_us / 1e6
    whole = rate.sum(1)
    axes.stairs(whole, edges_s, baseline=rate[:, 0], fill=True, color=_BRIGHTER, label="brighter")
    axes.stairs(rate[:, 0], edges_s, fill=True, color=_DARKER, label="darker")
    axes.set(xlabel="seconds from the first event", ylabel="million events per second")
    axes.set(xlim=(0, edges_s[-1]), ylim=(0, 1.05 * max(float(whole.max()), 1e-6)))
    axes.set_title(inspection.recording.name, parse_math=False)
    axes.legend(loc="upper right", ncols=2)


def _draw_pixels(axes: Any, inspection: RecordingInspection) -> None:
    axes.imshow(np.log10(1.0 + inspection.pixels), cmap="magma")
    hot = inspection.hot_pixels
    axes.scatter(hot[:, 0], hot[:, 1], s=60, facecolors="none", edgecolors=_HOT)
    axes.set_title(f"events per pixel (log scale, most {inspection.pixels.max()}), {len(hot)} hot")


def _draw_histogram(axes: Any, inspection: RecordingInspection) -> None:
    busy = inspection.pixels[inspection.pixels > 0]
    axes.hist(busy, np.geomspace(1, float(busy.max()) + 1, 40), color=_DARKER)
    axes.set(xscale="log", yscale="log", xlabel="events", ylabel="pixels", title="pixels by their events")
