"""Show numbers: pages from the templates in `templates` by jinja2, tables for the terminal by rich, plots by
matplotlib.
"""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rvtssm.evaluation.protocol import published_rows
from rvtssm.evaluation.report import Row, citation, column, drop_sentences, in_hz, percent, rounded_hz, shift_sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).with_name("templates")
_LEAST_TEXT = 24  # the first column of a terminal shrinks to this many letters before columns are dropped


def render(template: Path | str, **values: Any) -> str:
    """Return a page from a template. All values are escaped, and a missing value is an error.

    Args:
        template: File name of a template in `templates`, or the path of another one.
        values: Values by name.
    """
    template = Path(template)
    return _environment(_TEMPLATES / template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # What templates call by name.
    environment.policies["json.dumps_kwargs"] = {}  # keys keep their order
    environment.filters |= {
        "citation": citation,
        "data_url": _data_url,
        "drop_sentences": drop_sentences,
        "floored": floored,
        "g": "{:g}".format,
        "in_hz": in_hz,
        "percent": percent,
        "shift_sentence": shift_sentence,
    }
    return environment


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def floored(value: float) -> str:
    """Return a number greater than 0 with two digits that is not above it, such as 0.44, 15 or 230."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{float(f'{math.floor(value / step + 1e-9) * step:.2g}'):g}"


@dataclass
class TerminalTable:
    """A table for the terminal: a title, rows of cells starting with the head, and lines of text below.

    Heads are broken between words; cells are not, except for a long first column. If the terminal is too narrow, the
    last columns are dropped, and a line below names them and `elsewhere`, the file that contains them.
    """

    title: str
    rows: Sequence[Sequence[str]]
    lines: Sequence[str] = ()
    elsewhere: str = ""
    num_text: int = 1  # number of columns at the start that hold text and are left-aligned
    sections: Sequence[int] = ()  # rows that are followed by a line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        head, *rows = self.rows
        # No column is narrower than the longest word of its head.
        widths = []
        for cells in zip(*self.rows, strict=True):
            longest_word = Measurement.get(console, options, Text(cells[0])).minimum
            widths.append(max(1, longest_word, *(Text(cell).cell_len for cell in cells[1:])))
        room = options.max_width - 1
        # Columns that do not fit are named below the table.
        num_shown = len(head)
        least = min(widths[0], _LEAST_TEXT)
        while num_shown > 1 and _width([least, *widths[1:num_shown]]) > room:
            num_shown -= 1
        widths[0] = min(widths[0], max(least, room - _width(widths[1:num_shown]) - 3))
        table = Table()
        for i in range(num_shown):
            side = "left" if i < self.num_text else "right"
            table.add_column(Text(head[i]), width=widths[i], justify=side, overflow="fold")  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            table.add_row(*map(Text, row[:num_shown]), end_section=number in self.sections)
        yield Text(self.title, "italic")
        yield table
        if num_shown < len(head):
            yield Text(f"columns that do not fit in this terminal: {', '.join(head[num_shown:])}")
            if self.elsewhere:
                yield Text(f"{self.elsewhere} has all columns")
        yield from map(Text, self.lines)


def _width(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have a border and a space on both sides."""
    return sum(widths) + 3 * len(widths)


# in a legend, the line and the gaps of an entry are as wide as six letters
_LETTERS_PER_INCH = 11
_LINE_LETTERS = 6
_LEGEND_INCHES = 0.22  # height of a row of the legend, which lies below the plot and hides no curve
_AP50_COLOR = "#8fb8de"
_AP_COLOR = "#1f4e8c"


def rates_figure(title: str, dataset: str, rows: Sequence[Row]) -> "Figure":
    """Draw AP and AP50 over the rate, with the published models in grey.

    Args:
        title: Title of the plot.
        dataset: Name of the dataset, which selects the published models.
        rows: One per rate.
    """
    figure, axes = _figure((7.2, 4.4))
    for model, ap_by_hz in published_rows(dataset).items():
        _draw_published(axes, f"{model} AP (published)", ap_by_hz)
    rows = sorted(rows, key=lambda row: row["hz"])
    hz = column(rows, "hz")
    for name, color in (("AP50", _AP50_COLOR), ("AP", _AP_COLOR)):
        percents = 100 * np.array(column(rows, name))
        axes.plot(hz, percents, "o-", color=color, label=name, linewidth=2, markersize=6, zorder=2)
        _draw_band(axes, rows, name, color)
        for x, y in zip(hz, percents, strict=True):
            axes.annotate(f"{y:.1f}", (x, y), (0, 7), textcoords="offset points", fontsize=8, ha="center", color=color)
    label_rates(axes, hz)
    axes.set_title(title, parse_math=False)
    highest = axes.dataLim.ymax * 1.15  # infinite if there is no ground truth at all
    axes.set_ylim(0, max(10.0, highest) if math.isfinite(highest) else 10.0)
    return _finished(figure, axes)


def comparison_figure(
    rows_by_name: Mapping[str, Sequence[Row]], published: Mapping[str, Mapping[float, float]]
) -> "Figure":
    """Draw AP over the rate, one line for each name of weights, with the published models in grey.

    Args:
        rows_by_name: Rows by name of weights.
        published: AP by model and rate.
    """
    figure, axes = _figure((7.2, 4.4))
    for model, ap_by_hz in published.items():
        _draw_published(axes, model, ap_by_hz)
    rates: set[float] = set()
    for name, rows in rows_by_name.items():
        ordered = sorted(rows, key=lambda row: row["hz"])
        hz = column(ordered, "hz")
        (line,) = axes.plot(hz, 100 * np.array(column(ordered, "AP")), "o-", label=name, linewidth=2)
        _draw_band(axes, ordered, "AP", line.get_color())
        rates.update(hz)
    label_rates(axes, sorted(rates))
    axes.set_ylim(bottom=0)
    return _finished(figure, axes)


def shifts_figure(ap_by_shift: Mapping[float, float]) -> "Figure":
    """Draw AP over the time in milliseconds between a label and the output that is scored."""
    figure, axes = _figure((5.4, 4.0))
    axes.plot(list(ap_by_shift), 100 * np.array(list(ap_by_shift.values())), "o-", linewidth=2)
    axes.axvline(0, color="0.7", linewidth=1, zorder=1)
    axes.set(xlabel="time of the output minus time of the label [ms]", ylabel="average precision [%]")
    axes.set_ylim(bottom=0)
    return _finished(figure, axes)


def precision_figure(curves: Mapping[str, np.ndarray]) -> "Figure":
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
    return _finished(figure, axes)


def _draw_band(axes: Any, rows: Sequence[Row], name: str, color: Any) -> None:
    """Draw the confidence intervals of a number over the rate, if there are any."""
    known = [row for row in rows if "intervals" in row]
    hz = column(known, "hz")
    lows, highs = 100 * np.array(column(column(known, "intervals"), name)).reshape(-1, 2).T
    axes.fill_between(hz, lows, highs, color=color, alpha=0.2, linewidth=0, zorder=1)
    if len(hz) == 1:  # a band needs two points
        axes.vlines(hz, lows, highs, color=color, linewidth=2, alpha=0.4)


def label_rates(axes: Any, rates: Sequence[float]) -> None:
    """Make an axis of rates, in Hz, and one of average precision, in percent."""
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rounded_hz(hz):g}" for hz in rates])
    axes.minorticks_off()
    axes.set(xlabel="inference rate [Hz]", ylabel="average precision [%]")


def _draw_published(axes: Any, name: str, ap_by_hz: Mapping[float, float]) -> None:
    """Draw a thin grey line with its name at the end."""
    hz = list(ap_by_hz)
    percents = 100 * np.array(list(ap_by_hz.values()))
    axes.plot(hz, percents, "--", color="0.7", linewidth=1.2, zorder=1)
    end = hz[-1], percents[-1]
    axes.annotate(name, end, (4, 0), textcoords="offset points", fontsize=7, color="0.5", va="center")


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=144, layout="constrained")
    return figure, figure.add_subplot()


def _finished(figure: Any, axes: Any) -> Any:
    """Return a figure with a grid, and with a legend below if there are names."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        letters = figure.get_figwidth() * _LETTERS_PER_INCH
        columns = max(1, int(letters // (max(map(len, names)) + _LINE_LETTERS)))
        figure.set_figheight(figure.get_figheight() + _LEGEND_INCHES * math.ceil(len(names) / columns))
        show_names_as_they_are(figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False))
    return figure


def show_names_as_they_are(legend: Any) -> None:
    """Show the names in a legend without reading mathematics in them."""
    for text in legend.get_texts():
        text.set_parse_math(False)  # a class name may contain a dollar sign
