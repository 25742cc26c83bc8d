"""The statistics of events are what their definitions say."""

import numpy as np
import pytest

from benchmarks.camera_statistics import of_real, statistics, table
from rvtssm.readers.dat import write_dat
from rvtssm.records import Events


def test_the_numbers_of_pixels_that_fire_evenly(tmp_path):
    t = np.tile(np.arange(0, 2_000_000, 10_000), 50)
    pixel = np.repeat(np.arange(50), 200)
    order = np.argsort(t, kind="stable")
    p = (np.arange(len(t)) % 4 > 0).astype(np.uint8)
    x, y = (pixel % 10).astype(np.uint16), (pixel // 10).astype(np.uint16)
    events = Events(t[order], x[order], y[order], p)
    found = statistics("even", events, 5, 10)
    assert found.rate_hz == pytest.approx(100, rel=0.01) and found.brighter_share == pytest.approx(0.75)
    assert found.interval_ms == pytest.approx((10, 10, 10)) and found.quiet_hz == pytest.approx(100, rel=0.01)
    assert "| even | 50 | 1.99 | 100" in table([found])
    write_dat(tmp_path / "even_td.dat", events, 5, 10)
    (read,) = of_real(tmp_path)
    assert read.rate_hz == pytest.approx(found.rate_hz)
