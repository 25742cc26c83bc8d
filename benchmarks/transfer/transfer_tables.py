"""The rows of benchmarks.transfer as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rvtssm.contrib.studies.cells_page import markdown_table
from rvtssm.evaluation.report import percent

Row = Mapping[str, Any]


def tables(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of scores, one of recordings without labels, and one of trainings. A table without
    rows is left out. A star marks the reduction that `rvtssm predict` takes by itself."""
    scored = [row for row in rows if "class" in row and row["part"] != "finetune"]
    seen = [row for row in rows if "confident" in row]
    trained = [row for row in rows if row["part"] == "finetune"]
    lines: list[str] = []
    for found, table in ((scored, _scores), (seen, _confident), (trained, _trainings)):
        if found:
            lines += [*table(found), ""]
    return lines[:-1]


def _scores(rows: Sequence[Row]) -> list[str]:
    head = ["source", "class", "labels", "reduction", "frame", "AP50", "AP", "AP without offset", "switches per s"]
    scores = ("AP50", "AP", "AP_without_offset")
    lines = [
        [_source(row), row["class"], str(row["labels"]), *_size(row), *_scored(row, scores), _switches(row)]
        for row in rows
    ]
    return markdown_table([head, *lines])


def _confident(rows: Sequence[Row]) -> list[str]:
    head = ["recording", "seconds", "reduction", "frame", "boxes with a score from 0.5", "per second"]
    lines = [
        [row["source"], f"{row['seconds']:.2f}", *_size(row), str(row["confident"]), f"{row['confident_per_s']:.1f}"]
        for row in rows
    ]
    return markdown_table([head, *lines])


def _trainings(rows: Sequence[Row]) -> list[str]:
    head = ["source", "class", "labelled windows", "start", "steps", "scored labels", "AP50", "AP"]
    lines = [
        [
            *(row["source"], row["class"], str(row["windows"]), row["start"]),
            *(str(row["steps"] if row["windows"] else 0), str(row["labels"]), *_scored(row)),
        ]
        for row in rows
    ]
    return markdown_table([head, *lines])


def _switches(row: Row) -> str:
    return "" if row.get("switches_per_s") is None else f"{row['switches_per_s']:.1f}"


def _source(row: Row) -> str:
    return f"{row['source']} (held apart)" if row["part"] == "apart" else row["source"]


def _size(row: Row) -> list[str]:
    width, height = row["frame"]
    return [f"{row['reduction']}{'*' if row['is_usual'] else ''}", f"{width} x {height}"]


def _scored(row: Row, names: Sequence[str] = ("AP50", "AP")) -> list[str]:
    return [percent(math.nan if row[name] is None else row[name]) for name in names]
