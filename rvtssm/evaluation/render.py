"""Show numbers: pages from the templates in `templates` by jinja2, and tables for the terminal by rich."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rvtssm.evaluation.report import citation, drop_sentences, percent, shift_sentence

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
