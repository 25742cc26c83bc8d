"""Events of pixels that fire at random and of lamps, which no detector should take for objects."""

import numpy as np

from rvtssm.records import Events

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # t, x, y, p


def ordered(*parts: Columns) -> Events:
    t, x, y, p = (np.concatenate([part[i] for part in parts]) for i in range(4))
    order = np.argsort(t, kind="stable")
    return Events(*(array[order].astype(kind) for array, kind in ((t, "i8"), (x, "u2"), (y, "u2"), (p, "u1"))))


def noise(rng: np.random.Generator, size_hw: tuple[int, int], rate_hz: float, span_us: int) -> Columns:
    """Every pixel fires at random, at the same rate."""
    height, width = size_hw
    count = rng.poisson(rate_hz * height * width * span_us / 1e6)
    columns = (rng.integers(limit, size=count) for limit in (span_us, width, height, 2))
    t, x, y, p = columns
    return t, x, y, p


def lamps(
    rng: np.random.Generator, size_hw: tuple[int, int], flicker_hz: float, span_us: int, count: int = 4
) -> Columns:
    """Upright ellipses whose pixels fire twice brighter and twice darker in every cycle, with jitter and misses."""
    height, width = size_hw
    rows, columns = np.mgrid[:height, :width]
    period_us, parts = 1e6 / flicker_hz, []
    for _ in range(count):
        centre_x, centre_y = rng.uniform(30, width - 30), rng.uniform(30, height - 30)
        radius_x, radius_y = rng.uniform(6, 14), rng.uniform(12, 35)
        y, x = np.nonzero(((columns - centre_x) / radius_x) ** 2 + ((rows - centre_y) / radius_y) ** 2 < 1)
        for cycle in range(int(span_us / period_us)):
            for phase, polarity in ((0.15, 1), (0.23, 1), (0.65, 0), (0.73, 0)):
                fires = rng.random(len(x)) < 0.9
                t = (cycle + phase) * period_us + rng.normal(0, 0.03 * period_us, len(x))
                parts.append((t[fires].clip(0), x[fires], y[fires], np.full(fires.sum(), polarity)))
    t, x, y, p = (np.concatenate([part[i] for part in parts]) for i in range(4))
    return t, x, y, p
