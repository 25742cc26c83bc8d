"""The result of an evaluation as one HTML page that contains its tables, plots and pictures."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.breakdown import MIN_IOU, Breakdown
from rvtssm.evaluation.frequency import published_rows
from rvtssm.evaluation.plots import precision_png, rates_png, shifts_png
from rvtssm.evaluation.result import (
    EvaluationReport,
    citation,
    percent,
    percent_interval,
    percents,
    rate_table,
    shift_sentence,
    to_json,
)
from rvtssm.inference.inference_config import SHOWN_SCORE

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2330 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse } .wide { overflow-x: auto; margin-bottom: 1.2rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #dde2ea }
th { font-weight: 600 } tr > :first-child { text-align: left }
td:first-child { overflow-wrap: anywhere; min-width: 6rem }
img { max-width: 100% } figure { margin: 1rem 0 } figcaption, p { color: #3c4656; margin: .4rem 0 }
dt { font-weight: 600 } dd { margin: 0 0 .4rem 1.2rem; overflow-wrap: anywhere } h1 { overflow-wrap: anywhere }
"""


class Picture(NamedTuple):
    """A PNG with a caption."""

    caption: str
    png: bytes


def to_html(report: EvaluationReport, pictures: Sequence[Picture] = ()) -> str:
    """Return the page of a report; `pictures` show the worst frames. The page has the numbers as JSON, too."""
    parts = [
        *_rates(report),
        *(_breakdown(report.breakdown, report.breakdown_hz) if report.breakdown else []),
        *([f"<h2>Worst frames</h2><p>{_rule()}</p>"] if pictures else []),
        *(figure(picture.png, picture.caption) for picture in pictures),
        "<h2>Conditions</h2><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.settings.items()),
        "</dl>",
    ]
    return document(report.title, parts, to_json(report))


def document(title: str, parts: Iterable[str], numbers: Any) -> str:
    """Return a page of HTML parts under a title, with `numbers` as JSON in the element `metrics`."""
    metrics = json.dumps(numbers).replace("<", "\\u003c")  # a name must not end or hide the end of the script
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + f'\n<script type="application/json" id="metrics">{metrics}</script>\n</body>\n</html>\n'
    )


def _rates(report: EvaluationReport) -> list[str]:
    head, *rows = rate_table(report)
    parts = ["<h2>Average precision by inference rate</h2>", table("rates", head, rows, "percent"), *_intervals(report)]
    if not math.isnan(report.performance_drop):
        parts.append(
            f"<p>Performance drop (AP at {report.reference_hz:g} Hz minus the mean of the other rates): "
            f"{100 * report.performance_drop:.1f} points.</p>"
        )
    if report.still_objects:
        values = ", ".join(f"{escape(name)} {percent(ap)}" for name, ap in report.still_objects.items())
        parts.append(f"<p>AP in percent on objects that stand still, with the state: {values}.</p>")
    parts += _published(report)
    parts.append(f"<p>To cite: {escape(citation(report))}.</p>")
    if report.time_shifts:
        parts += [
            f"<p>{escape(shift_sentence(report))}</p>",
            figure(shifts_png(report.time_shifts), "AP over the shift."),
        ]
    return [*parts, figure(rates_png(report.title, report.dataset, report.rows), "Average precision over the rate.")]


def _intervals(report: EvaluationReport) -> list[str]:
    """Return the intervals of all numbers in one table, or nothing if there are none."""
    names = report.metric_names
    rows = [
        [f"{row.hz:g}", *(percent_interval(row.intervals[name]) for name in names)]
        for row in report.rows
        if row.intervals
    ]
    head = ["Hz", *(name.removeprefix("AP/") for name in names)]
    return [table("intervals", head, rows, f"percent, with {LEVEL:.0%} intervals")] if rows else []


def _published(report: EvaluationReport) -> list[str]:
    """Return this evaluation and the published rows in one table, or nothing if none are published."""
    published = published_rows(report.dataset)
    if not published:
        return []
    rows = {"this evaluation": {row.hz: row.metrics["AP"] for row in report.rows}}
    rows |= {f"{model} (published)": ap_by_hz for model, ap_by_hz in published.items()}
    rates = sorted({hz for ap_by_hz in rows.values() for hz in ap_by_hz})
    cells = [[name, *percents(ap_by_hz, rates)] for name, ap_by_hz in rows.items()]
    caption = f"AP in percent; published rows are for the test recordings of {report.dataset}; a dash means no number"
    return [table("published", ["", *(f"{hz:g} Hz" for hz in rates)], cells, caption)]


def _breakdown(breakdown: Breakdown, hz: float) -> list[str]:
    parts = [
        "<h2>Precision over recall</h2>",
        figure(precision_png(breakdown.curves), f"At {hz:g} Hz, like all below."),
    ]
    parts += [
        "<h2>Average precision by kind of object</h2>",
        "<p>Objects of one kind are scored while all others are ignored. A detection without an object is an error for "
        "every kind; in the table of sizes, only for its own size.</p>",
    ]
    for group in breakdown.groups:
        rows = [[part, str(group.num_boxes[part]), percent(ap)] for part, ap in group.ap.items()]
        parts.append(table(group.name.replace(" ", "-"), [group.name, "boxes", "AP [%]"], rows, group.meaning))
    names = [*breakdown.class_names, "nothing"]
    rows = [[name, *map(str, row)] for name, row in zip(names, breakdown.confusion.tolist(), strict=True)]
    parts += [
        "<h2>Confusion by class</h2>",
        table("confusion", ["is \\ found as", *names], rows, f"In boxes. {_rule()}"),
    ]
    return parts


def _rule() -> str:
    return (
        f"Detections with a score of at least {SHOWN_SCORE:g}. In the order of scores, each takes the free object of "
        f"any class that it overlaps most, by at least {MIN_IOU:g}."
    )


def table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table of plain text with the id `name`; a wide table can be scrolled."""
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = ("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return (
        f'<p>{escape(caption)}</p><div class="wide"><table id="{escape(name)}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def figure(png: bytes, caption: str) -> str:
    """Return a picture that is embedded in the page."""
    data: Any = base64.b64encode(png).decode()
    text = escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
