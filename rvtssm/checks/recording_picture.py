"""The picture of one recording: events over time, over the sensor, and pixels by their number of events."""

import io
from typing import Any

import numpy as np

from rvtssm.checks.inspect_recording import RecordingInspection

# Margins are fixed. An automatic layout draws everything twice, which took half of the time of a picture.
_MARGINS = {"left": 0.07, "right": 0.97, "bottom": 0.08, "top": 0.95, "hspace": 0.3, "wspace": 0.18}
_DARKER, _BRIGHTER, _HOT = "#4477aa", "#cc6677", "#00d0d0"


def recording_png(recording: RecordingInspection) -> bytes:
    """Draw the rate over time by polarity, the events per pixel (hot pixels in circles) and their histogram."""
    figure = _figure()
    grid = figure.add_gridspec(2, 2, **_MARGINS)
    _draw_rate(figure.add_subplot(grid[0, :]), recording)
    _draw_pixels(figure.add_subplot(grid[1, 0]), recording)
    _draw_histogram(figure.add_subplot(grid[1, 1]), recording)
    return _png(figure)


def _draw_rate(axes: Any, recording: RecordingInspection) -> None:
    rate = recording.rate / recording.bin_us  # million events per second
    edges_s = np.arange(len(rate) + 1) * recording.bin_us / 1e6
    whole = rate.sum(1)
    axes.stairs(whole, edges_s, baseline=rate[:, 0], fill=True, color=_BRIGHTER, label="brighter")
    axes.stairs(rate[:, 0], edges_s, fill=True, color=_DARKER, label="darker")
    axes.set(xlabel="seconds from the first event", ylabel="million events per second")
    axes.set(xlim=(0, edges_s[-1]), ylim=(0, 1.05 * max(float(whole.max()), 1e-6)))
    axes.set_title(recording.name, parse_math=False)
    axes.legend(loc="upper right", ncols=2)


def _draw_pixels(axes: Any, recording: RecordingInspection) -> None:
    axes.imshow(np.log10(1.0 + recording.pixels), cmap="magma")
    hot = recording.hot_pixels
    axes.scatter(hot[:, 0], hot[:, 1], s=60, facecolors="none", edgecolors=_HOT)
    axes.set_title(f"events per pixel (log scale, most {recording.pixels.max()}), {len(hot)} hot")


def _draw_histogram(axes: Any, recording: RecordingInspection) -> None:
    busy = recording.pixels[recording.pixels > 0]
    axes.hist(busy, np.geomspace(1, float(busy.max()) + 1, 40), color=_DARKER)
    axes.set(xscale="log", yscale="log", xlabel="events", ylabel="pixels", title="pixels by their events")


def _figure() -> Any:
    from matplotlib.figure import Figure  # imported here because the import takes a second

    return Figure(figsize=(11, 7.5), dpi=110)


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    data = io.BytesIO()
    FigureCanvasAgg(figure).print_png(data)
    return data.getvalue()
