"""The plots of an evaluation as PNG: average precision over rates, precision over recall."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rvtssm.evaluation.frequency import RateRow, published_rows

_LETTERS_PER_INCH, _LINE_LETTERS = 11, 6  # in a legend, the line and the gaps of an entry are as wide as six letters
_LEGEND_INCHES = 0.22  # height of a row of the legend, which lies below the plot and hides no curve


def rates_png(title: str, dataset: str, rows: Sequence[RateRow]) -> bytes:
    """Draw AP and AP50 over the rate, with the published models in grey.

    Args:
        title: Title of the plot.
        dataset: Name of the dataset, which selects the published models.
        rows: One per rate.
    """
    figure, axes = _figure((7.2, 4.4))
    _draw_published(axes, {f"{model} AP (published)": ap for model, ap in published_rows(dataset).items()})
    rows = sorted(rows, key=lambda row: row.hz)
    hz = [row.hz for row in rows]
    for name, color in (("AP50", "#8fb8de"), ("AP", "#1f4e8c")):
        values = [100 * row.metrics[name] for row in rows]
        axes.plot(hz, values, "o-", color=color, label=name, linewidth=2, markersize=6, zorder=2)
        _draw_band(axes, rows, name, color)
        for x, y in zip(hz, values, strict=True):
            axes.annotate(f"{y:.1f}", (x, y), (0, 7), textcoords="offset points", fontsize=8, ha="center", color=color)
    _label_rates(axes, hz)
    axes.set_title(title, parse_math=False)
    highest = axes.dataLim.ymax * 1.15  # infinite if there is no ground truth at all
    axes.set_ylim(0, max(10.0, highest) if math.isfinite(highest) else 10.0)
    return _png_of(figure, axes)


def comparison_png(
    rows_by_name: Mapping[str, Sequence[RateRow]], published: Mapping[str, Mapping[float, float]]
) -> bytes:
    """Draw AP over the rate, one line for each name of weights, with the published models in grey.

    Args:
        rows_by_name: Rows by name of weights.
        published: AP by model and rate.
    """
    drawing, axes = _figure((7.2, 4.4))
    _draw_published(axes, published)
    for name, rows in rows_by_name.items():
        ordered = sorted(rows, key=lambda row: row.hz)
        hz, values = [row.hz for row in ordered], [100 * row.metrics["AP"] for row in ordered]
        (line,) = axes.plot(hz, values, "o-", label=name, linewidth=2)
        _draw_band(axes, ordered, "AP", line.get_color())
    _label_rates(axes, sorted({row.hz for rows in rows_by_name.values() for row in rows}))
    axes.set_ylim(bottom=0)
    return _png_of(drawing, axes)


def study_png(points: Mapping[str, Mapping[str, Mapping[float, tuple[float, float]]]]) -> bytes:
    """Draw AP over the rate, with one panel per condition and one line per row.

    Args:
        points: Mean and standard deviation in percent, by condition, row and rate.
    """
    from matplotlib.figure import Figure  # imported here because it takes seconds

    columns = min(2, max(1, len(points)))
    rows = max(1, math.ceil(len(points) / columns))
    figure = Figure(figsize=(5.5 * columns + 1.5, 3.5 * rows + 0.4), dpi=120, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    rates = sorted({hz for by_row in points.values() for by_hz in by_row.values() for hz in by_hz})
    names = list(dict.fromkeys(name for by_row in points.values() for name in by_row))
    lines: dict[str, Any] = {}
    for axes, (condition, by_row) in zip(panels.flat, points.items(), strict=False):
        for name, by_hz in by_row.items():
            values, deviations = zip(*by_hz.values(), strict=True)
            color = f"C{names.index(name)}"  # the same in every panel
            lines[name] = axes.errorbar(list(by_hz), values, deviations, marker="o", capsize=3, color=color)
        axes.set_title(condition, parse_math=False)
        _label_rates(axes, rates)
        axes.label_outer()
        axes.grid(alpha=0.25)
    for axes in list(panels.flat)[len(points) :]:
        axes.set_axis_off()
    legend = figure.legend([lines[name] for name in names], names, loc="outside right center", frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure_png(figure)


def shifts_png(ap_by_shift: Mapping[float, float]) -> bytes:
    """Draw AP over the time in milliseconds between a label and the output that is scored."""
    figure, axes = _figure((5.4, 4.0))
    axes.plot(list(ap_by_shift), [100 * ap for ap in ap_by_shift.values()], "o-", linewidth=2)
    axes.axvline(0, color="0.7", linewidth=1, zorder=1)
    axes.set(xlabel="time of the output minus time of the label [ms]", ylabel="average precision [%]")
    axes.set_ylim(bottom=0)
    return _png_of(figure, axes)


def precision_png(curves: Mapping[str, np.ndarray]) -> bytes:
    """Draw precision over recall, one line per class with ground truth.

    Args:
        curves: Precision (101,) by class.
    """
    figure, axes = _figure((5.4, 4.0))
    recall = np.linspace(0, 100, 101)
    for name, curve in curves.items():
        if not np.isnan(curve).any():
            axes.plot(recall, 100 * curve, label=name, linewidth=2)
    axes.set(xlabel="recall [%]", ylabel="precision [%]", title="overlap of 0.5", xlim=(0, 100), ylim=(0, 105))
    return _png_of(figure, axes)


def _draw_band(axes: Any, rows: Sequence[RateRow], name: str, color: Any) -> None:
    """Draw the confidence intervals of a number over the rate, if there are any."""
    found = {row.hz: row.intervals[name] for row in rows if row.intervals}
    lows, highs = ([100 * getattr(each, end) for each in found.values()] for end in ("low", "high"))
    axes.fill_between(list(found), lows, highs, color=color, alpha=0.2, linewidth=0, zorder=1)
    if len(found) == 1:  # a band needs two points
        axes.vlines(list(found), lows, highs, color=color, linewidth=2, alpha=0.4)


def _label_rates(axes: Any, rates: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{hz:g}" for hz in rates])
    axes.minorticks_off()
    axes.set(xlabel="inference rate [Hz]", ylabel="average precision [%]")


def _draw_published(axes: Any, ap_by_name: Mapping[str, Mapping[float, float]]) -> None:
    """Draw thin grey lines with the names at their ends."""
    at: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": "0.5", "va": "center"}
    for name, ap_by_hz in ap_by_name.items():
        hz, ap = list(ap_by_hz), [100 * value for value in ap_by_hz.values()]
        axes.plot(hz, ap, "--", color="0.7", linewidth=1.2, zorder=1)
        axes.annotate(name, (hz[-1], ap[-1]), (4, 0), **at)


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # imported here because it takes seconds

    figure = Figure(figsize=size, dpi=144, layout="constrained")
    return figure, figure.add_subplot()


def _png_of(figure: Any, axes: Any) -> bytes:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        letters = figure.get_figwidth() * _LETTERS_PER_INCH
        columns = max(1, int(letters // (max(map(len, labels)) + _LINE_LETTERS)))
        figure.set_figheight(figure.get_figheight() + _LEGEND_INCHES * math.ceil(len(labels) / columns))
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a class name may contain a dollar sign
    return figure_png(figure)


def figure_png(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
