"""Tables for the terminal: at any width every word that is shown is whole, and what is left out is named."""

import io
import re

import pytest
from rich.console import Console

from rvtssm.evaluation.render import TerminalTable

HEAD = ["temporal layer", "AP at 20 Hz", "AP at 200 Hz", "drop", "AP on small objects"]
ROWS = [["selective_s5", "43.7 ± 2.5", "43.6 ± 2.8", "0.1", "20.0"], ["lstm", "43.6", "29.5 ± 1.9", "9.1", "–"]]


def printed(table: TerminalTable, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_no_word_is_cut_and_columns_that_do_not_fit_are_named(width):
    text = printed(TerminalTable("AP", [HEAD, *ROWS], elsewhere="study.html"), width)
    assert "…" not in text and all(len(line) <= width for line in text.splitlines())
    table, _, below = text.partition("└")
    named = " ".join(below.split("do not fit in this terminal:")[-1].split())
    shown = [i for i in range(len(HEAD)) if HEAD[i] not in named]
    assert shown == list(range(len(shown))) and (width < 200 or len(shown) == len(HEAD))
    for number, row in enumerate([HEAD, *ROWS]):
        for i in shown:  # heads are broken between words, cells are one line
            assert all(
                re.search(rf"(?<!\S){re.escape(part)}(?!\S)", table)
                for part in (row[i].split() if number == 0 else [row[i]])
            )
    assert (len(shown) < len(HEAD)) == ("study.html has all columns" in " ".join(below.split()))


def test_a_long_first_column_leaves_room_for_the_numbers():
    text = printed(TerminalTable("AP", [HEAD[:3], ["runs/" + "long" * 40, "43.7 ± 2.5", "43.6 ± 2.8"]]), 80)
    assert "43.7 ± 2.5" in text and "43.6 ± 2.8" in text and text.replace(" ", "").count("long") > 30


def test_brackets_are_no_markup_and_lines_stand_below():
    text = printed(TerminalTable("a [bold] title", [["[red]x"], ["[/]"]], ["a line [1]"], sections=[0]), 80)
    assert "a [bold] title" in text and "[red]x" in text and "[/]" in text and text.rstrip().endswith("a line [1]")
