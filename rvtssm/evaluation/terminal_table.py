"""A table for the terminal that drops its last columns if they do not fit, instead of breaking words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_LEAST_TEXT = 24  # the first column shrinks to this many letters before columns are dropped


@dataclass
class TerminalTable:
    """A title, rows of cells starting with the head, and lines of text below.

    Heads are broken between words; cells are not, except for a long first column. If the terminal is too narrow, the
    last columns are dropped, and a line below names them and `elsewhere`, the file that contains them.
    """

    title: str
    rows: Sequence[Sequence[str]]
    lines: Sequence[str] = ()
    elsewhere: str = ""
    num_text: int = 1  # number of columns at the start that hold text and are left-aligned
    sections: Sequence[int] = field(default_factory=list)  # rows that are followed by a line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        head, *rows = self.rows
        widths = [
            max(Measurement.get(console, options, Text(head[i])).minimum, *(Text(row[i]).cell_len for row in rows), 1)
            for i in range(len(head))
        ]
        room = options.max_width - 1
        num_shown, least = len(head), min(widths[0], _LEAST_TEXT)
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
            left = ", ".join(head[num_shown:])
            yield Text(
                f"columns that do not fit in this terminal: {left}"
                + (f"; {self.elsewhere} has all columns" if self.elsewhere else "")
            )
        yield from map(Text, self.lines)


def _width(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have a border and a space on both sides."""
    return sum(widths) + 3 * len(widths)
