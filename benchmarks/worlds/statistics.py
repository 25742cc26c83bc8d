"""Numbers that tell the events of one camera and scene from those of another."""

from __future__ import annotations

import cv2
import numpy as np

from rvtssm.checks.inspect_recording import REPEATED_WITHIN_US
from rvtssm.records import Events

WINDOW_US = 50_000
MOMENT_US = 10_000  # an event is isolated if its pixel and the eight around it have no other one in this time
COLUMNS = (
    *("seconds", "events_per_px_s", "on_share", "active_share", "per_active_px", "isolated_per_px_s"),
    *("repeated_share", "merged_per_active_px"),
)


def statistics(events: Events, height: int, width: int) -> dict[str, float]:
    """Return the numbers of a recording.

    - seconds: its length
    - events_per_px_s: events per pixel and second
    - on_share: share of brighter events
    - active_share: share of the pixels with an event in a window of 50 ms, the mean over windows
    - per_active_px: events per pixel that has any in a window of 50 ms
    - isolated_per_px_s: events per pixel and second without a neighbour within 10 ms, which are noise for the most part
    - repeated_share: share of the events that follow another one of their pixel within 5 us, which no pixel can send
    - merged_per_active_px: per_active_px without these

    Args:
        events: The events.
        height: Of the sensor in pixels.
        width: Of the sensor in pixels.

    Raises:
        ValueError: There are no events.
    """
    if not len(events):
        raise ValueError("the recording has no events")
    t = events.t - events.t[0]
    pixel = events.y.astype(np.int64) * width + events.x
    seconds = max(float(t[-1]) * 1e-6, MOMENT_US * 1e-6)
    size = height * width
    active = np.unique((t // WINDOW_US) * size + pixel)
    repeated = _repeated_share(t, pixel)
    num_windows = max(1.0, seconds * 1e6 / WINDOW_US)
    return {
        "seconds": seconds,
        "events_per_px_s": len(t) / size / seconds,
        "on_share": float((events.p > 0).mean()),
        "active_share": len(active) / size / num_windows,
        "per_active_px": len(t) / len(active),
        "isolated_per_px_s": _num_isolated(t, pixel, height, width) / size / seconds,
        "repeated_share": repeated,
        "merged_per_active_px": (1 - repeated) * len(t) / len(active),
    }


def _num_isolated(t: np.ndarray, pixel: np.ndarray, height: int, width: int) -> int:
    """Return the number of events that are alone in 3 x 3 pixels and MOMENT_US."""
    total = 0
    edges = np.searchsorted(t, np.arange(0, int(t[-1]) + MOMENT_US, MOMENT_US))
    for start, end in zip(edges, [*edges[1:], len(t)], strict=True):
        counts = np.bincount(pixel[start:end], minlength=height * width).reshape(height, width).astype(np.float32)
        around = cv2.boxFilter(counts, -1, (3, 3), normalize=False, borderType=cv2.BORDER_CONSTANT)
        total += int(((counts == 1) & (around == 1)).sum())
    return total


def _repeated_share(t: np.ndarray, pixel: np.ndarray) -> float:
    """Return the share of the events that follow one of the same pixel within REPEATED_WITHIN_US."""
    order = np.lexsort((t, pixel))
    is_same = pixel[order][1:] == pixel[order][:-1]
    gaps = t[order][1:] - t[order][:-1]
    return float((is_same & (gaps <= REPEATED_WITHIN_US)).sum() / len(t))
