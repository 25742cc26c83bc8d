"""The result of an evaluation as one HTML page that contains its tables, plots and pictures."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rvtssm.evaluation.bootstrap import LEVEL
from rvtssm.evaluation.breakdown import MIN_IOU, Breakdown
from rvtssm.evaluation.frequency import published_rows
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
from rvtssm.prediction.inference_config import SHOWN_SCORE
from rvtssm.reports.plots import precision_png, rates_png, shifts_png

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2330; --soft: #46536a; --line: #dde2ea; --panel: #f3f5f9;
  --accent: #1f4e8c }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161d; --text: #e3e8f0; --soft: #a5b0c2; --line: #2c3442; --panel: #1b212b; --accent: #8fb8de }
  .plot { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen }
}
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--text);
  background: var(--page) }
h1 { font-size: 1.7rem; line-height: 1.2; overflow-wrap: anywhere } h2 { font-size: 1.2rem; margin-top: 2.4rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto; margin-bottom: 1.2rem }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line) }
th { font-weight: 600 } tr > :first-child { text-align: left; padding-left: 0 }
td:first-child { overflow-wrap: anywhere; min-width: 4rem }
img, video { max-width: 100%; height: auto } figure { margin: 1rem 0 }
figcaption, p { color: var(--soft); margin: .4rem 0 }
img:not(.plot), video { border-radius: 6px }
dt { font-weight: 600 } dd { margin: 0 0 .4rem 1.2rem; overflow-wrap: anywhere }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; margin: 1.2rem 0 }
.tiles div { background: var(--panel); border-radius: 8px; padding: .8rem 1rem }
.tiles dt { font-weight: 400; color: var(--soft) } .tiles dd { font-size: 1.7rem; margin: 0; color: var(--accent) }
pre { background: var(--panel); border-radius: 6px; padding: .6rem .8rem; margin: .3rem 0 1rem; white-space: pre-wrap;
  overflow-wrap: anywhere }
.plot { max-width: min(100%, 46rem) }
.frames { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1rem }
"""


def to_html(report: EvaluationReport) -> str:
    """Return the page of a report. The page has the numbers as JSON, too."""
    return document(report.title, [*_rates(report), *details(report)], to_json(report))


def details(report: EvaluationReport) -> list[str]:
    """Return what a page says after the rates: kinds of objects, the worst frames, the conditions."""
    return [
        *(_breakdown(report.breakdown, report.breakdown_hz) if report.breakdown else []),
        *([f"<h2>Worst frames</h2><p>{_rule()}</p>"] if report.worst else []),
        '<div class="frames">',
        *(figure(picture.png, picture.caption) for picture in report.worst),
        "</div>",
        "<h2>Conditions</h2><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.settings.items()),
        "</dl>",
    ]


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
            plot(shifts_png(report.time_shifts), "AP over the shift."),
        ]
    return [*parts, plot(rates_png(report.title, report.dataset, report.rows), "Average precision over the rate.")]


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
        plot(precision_png(breakdown.curves), f"At {hz:g} Hz, like all below."),
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
    return _figure(f'<img alt="{escape(caption)}" src="{_embedded(png, "image/png")}">', caption)


def plot(png: bytes, caption: str) -> str:
    """Return a plot that is embedded in the page; a dark page shows its light background dark."""
    return _figure(f'<img class="plot" alt="{escape(caption)}" src="{_embedded(png, "image/png")}">', caption)


def video(mp4: bytes, poster: bytes | None, caption: str) -> str:
    """Return a video in H.264 that is embedded in the page; the PNG `poster` is shown where it cannot be played."""
    shown = f'src="{_embedded(mp4, "video/mp4")}"'
    if poster is not None:
        shown += f' poster="{_embedded(poster, "image/png")}"'
    return _figure(f"<video {shown} controls autoplay loop muted playsinline></video>", caption)


def _figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def _embedded(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
