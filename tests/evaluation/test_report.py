import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from jinja2 import UndefinedError
from rich.console import Console
from user_errors import raises

from rvtssm.evaluation.bootstrap import Resampled
from rvtssm.evaluation.frequency import (
    RateRow,
    is_reached,
    is_same_rate,
    nearest_rates,
    nearest_reference,
    performance_drop,
    published_rows,
    true_rate,
)
from rvtssm.evaluation.plots import precision_png, rates_png
from rvtssm.evaluation.render import render
from rvtssm.evaluation.report import console_table, to_csv, to_markdown, write_report
from rvtssm.evaluation.result import EvaluationReport, citation, to_json

METRICS = {
    "AP": 0.4,
    "AP50": 0.7,
    "AP75": 0.35,
    "AP_small": 0.2,
    "AP_medium": 0.45,
    "AP_large": math.nan,
    "AP/car": 0.4,
}
SETTINGS = {"score": "objectness_times_class, from 0.001", "windows": "labels grid, length = stride"}


def make_report(**changes):
    rows = tuple(
        RateRow(hz, {**METRICS, "AP": ap}, {"seconds": 1.5}) for hz, ap in [(20, 0.4), (40, 0.35), (200, 0.25)]
    )
    return EvaluationReport(
        **{"title": "demo.ckpt on gen1 test", "dataset": "gen1", "rows": rows, "settings": SETTINGS, **changes}
    )


def test_the_drop_is_the_reference_minus_the_mean_of_the_others():
    assert performance_drop({20: 0.5, 40: 0.4, 80: 0.2}) == pytest.approx(0.2)
    assert performance_drop({20: 0.5, 40: 0.4}, reference_hz=40) == pytest.approx(-0.1)
    assert math.isnan(performance_drop({20: 0.5})) and math.isnan(performance_drop({40: 0.5, 80: 0.4}))
    assert make_report().performance_drop == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("dataset", "model", "drop"),
    [
        ("gen1", "RVT", 26.14),
        ("gen1", "S5-ViT-B", 4.25),
        ("gen1", "GET", 29.25),
        ("onempx", "RVT", 16.36),
        ("onempx", "S5-ViT-B", 3.27),
        ("onempx", "GET", 19.81),
    ],
)
def test_the_published_rows_give_the_published_drops(dataset, model, drop):
    assert 100 * performance_drop(published_rows(dataset)[model]) == pytest.approx(drop, abs=0.011)


def test_a_number_at_another_rate_is_cited_with_its_windows_and_the_rate_of_training():
    assert citation(make_report()) == "AP 40.0 at 20 Hz on demo.ckpt on gen1 test"
    alone = make_report(rows=(RateRow(100, METRICS, windows=("slide",)),))
    assert citation(alone) == "AP 40.0 at 100 Hz (window=slide, trained at 20 Hz) on demo.ckpt on gen1 test"


def test_every_form_holds_the_table_the_drop_and_the_settings(tmp_path):
    report = make_report(still_objects={"carried": 0.31, "reset": 0.04})
    paths = write_report(report, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        *(f"evaluation.{k}" for k in ("csv", "json", "md", "png")),
        "report.html",
    ]
    data = json.loads(paths["json"].read_text())
    assert data == to_json(report)
    assert data["rates"]["200"]["AP"] == 0.25 and data["rates"]["20"]["AP_large"] is None
    assert data["performance_drop"] == pytest.approx(0.1) and data["settings"] == SETTINGS
    assert data["still_objects"] == {"carried": 0.31, "reset": 0.04}
    rows = list(csv.DictReader(paths["csv"].read_text().splitlines()))
    assert (
        [row["hz"] for row in rows] == ["20", "40", "200"] and rows[2]["AP"] == "0.250000" and rows[0]["AP_large"] == ""
    )
    assert rows[0]["AP/car"] == "0.400000" and rows[0]["seconds"] == "1.500000"
    markdown = paths["md"].read_text()
    assert "| 200 | 25.0 | 70.0 |" in markdown and "10.0 points" in markdown and "Published, RVT" in markdown
    assert "objectness_times_class" in markdown and "carried 31.0, reset 4.0" in markdown
    assert paths["png"].read_bytes().startswith(b"\x89PNG") and paths["png"].stat().st_size > 10_000


def test_rows_of_two_lengths_of_windows_are_named(tmp_path):
    both, *sliding = (replace(row, windows=("slide",)) for row in make_report().rows)
    shrunk = tuple(
        replace(row, windows=("shrink",), metrics={**METRICS, "AP": ap})
        for row, ap in zip(sliding, (0.3, 0.1), strict=True)
    )
    report = make_report(rows=(replace(both, windows=("slide", "shrink")), *sliding), others=shrunk)
    assert {name: each.performance_drop for name, each in report.by_window.items()} == pytest.approx(
        {"slide": 0.1, "shrink": 0.2}
    )
    data = to_json(report)
    assert list(data["by_window"]) == ["slide", "shrink"]
    assert all(list(each["rates"]) == ["20", "40", "200"] for each in data["by_window"].values())
    assert data["performance_drop"] == pytest.approx(0.1) and data["by_window"]["shrink"]["rates"]["200"]["AP"] == 0.1
    rows = [(row["hz"], row["window"], row["AP"]) for row in csv.DictReader(to_csv(report).splitlines())]
    assert rows == [
        *(("20", "both", "0.400000"), ("40", "slide", "0.350000"), ("200", "slide", "0.250000")),
        *(("40", "shrink", "0.300000"), ("200", "shrink", "0.100000")),
    ]
    markdown = to_markdown(report)
    assert "| 20 | both | 40.0 |" in markdown and "| 200 | shrink | 10.0 |" in markdown
    assert "window=slide (AP at 20 Hz minus the mean of the other rates): 10.0 points" in markdown
    assert "window=shrink (AP at 20 Hz minus the mean of the other rates): 20.0 points" in markdown
    page = write_report(report, tmp_path)["html"].read_text()
    assert "<td>this evaluation, window=shrink</td>" in page and page.count("<td>both</td>") == 1


def test_names_cannot_break_a_table_in_markdown():
    rows = [replace(row, metrics={**row.metrics, "AP/a|b": 0.1}) for row in make_report().rows]
    head = to_markdown(make_report(rows=tuple(rows))).splitlines()[2]
    assert head.endswith(r"| car | a\|b |")


def test_a_template_without_its_values_is_an_error():
    with pytest.raises(UndefinedError, match="report"):
        render("report.md")


def test_a_single_rate_has_no_drop_and_no_rate_is_an_error(tmp_path):
    report = make_report(rows=make_report().rows[:1])
    assert to_json(report)["performance_drop"] is None and "drop" not in to_markdown(report)
    assert to_csv(report).count("\n") == 2
    with raises("evaluation.no_rate"):
        make_report(rows=())
    write_report(report, tmp_path)


def test_plots_take_names_as_they_stand_and_numbers_that_are_not_there():
    curve = np.linspace(1, 0, 101)
    names = {"$\\frac$": curve, "a$b_$": curve, "5 $": curve}
    assert precision_png(names).startswith(b"\x89PNG")
    nothing = dict.fromkeys(METRICS, math.nan)
    assert rates_png("$\\x$", "synthetic", [RateRow(20, nothing), RateRow(40, nothing)]).startswith(b"\x89PNG")


def test_a_rate_may_be_stored_as_a_stride_of_whole_microseconds():
    for reference_hz in (1e6 / (1e6 / 30), 1e6 / 33_333):
        assert reference_hz != 30
        assert performance_drop({30: 0.5, 60: 0.4}, reference_hz) == pytest.approx(0.1)
        assert nearest_reference([60.0, 30.0], reference_hz) == 30.0
    assert not is_same_rate(20, 20.1) and nearest_reference([60.0, 80.0], 30.0) == 60.0


def test_the_rate_of_a_row_is_that_of_its_steps():
    assert true_rate(60, 16_667) == 60 and true_rate(30, 25_000) == 40 and true_rate(41, 23_810) == 42
    assert true_rate(33, 1e6 / 33.33333) == 33.33
    assert is_reached(40, 41.9) and is_reached(40, 38.1) and not is_reached(40, 42.1) and not is_reached(30, 40)


@pytest.mark.parametrize(
    ("intervals_us", "asked_hz", "nearest"),
    [
        ([50_000] * 9, 30, [20, 40]),
        ([50_000] * 9, 5, [20]),
        ([250_000] * 9, 30, [28, 32]),
        ([250_000, 250_000, 1_000_000], 30, [28, 32]),  # as on Gen1, where some labels are missing
        ([125_000], 20, [16, 24]),
        ([33_333, 33_334], 45, [30, 60]),
        ([100_000, 39_000, 39_000, 39_000], 26, [51.28]),  # at 25.64 Hz, half of the steps would be 33 ms
    ],
)
def test_the_nearest_rates_fit_a_whole_number_of_steps_between_labels(intervals_us, asked_hz, nearest):
    assert nearest_rates(np.array(intervals_us), asked_hz) == nearest


def resampled_rows():
    """Two rates of 25 recordings, the AP of the second 0.1 lower in every replicate."""
    ap = np.linspace(0.3, 0.5, 101)
    rows = []
    for hz, drop in ((20, 0.0), (200, 0.1)):
        metrics = {**METRICS, "AP": 0.4 - drop}
        replicates = {name: np.full(101, value) for name, value in metrics.items()} | {"AP": ap - drop}
        rows.append(RateRow(hz, metrics, {}, Resampled(tuple(map(str, range(25))), metrics, replicates)))
    return tuple(rows)


def test_every_form_holds_the_intervals_and_the_paired_differences(tmp_path):
    report = make_report(rows=resampled_rows())
    paths = write_report(report, tmp_path)
    data = json.loads(paths["json"].read_text())
    assert data["intervals"]["20"]["AP"] == pytest.approx([0.305, 0.495])
    assert data["intervals"]["20"]["AP_large"] == [None, None]
    assert data["differences"] == {"200": {"AP": pytest.approx([-0.1, -0.1, -0.1])}}
    markdown = paths["md"].read_text()
    assert "| Hz | AP | 95% of AP | AP50 |" in markdown and "| AP minus 20 Hz |" in markdown
    assert "| 200 | 30.0 | 20.5 to 39.5 | 70.0 |" in markdown and "| -10.0 [-10.0, -10.0] |" in markdown
    (first, second) = csv.DictReader(paths["csv"].read_text().splitlines())
    assert (first["AP_low"], first["AP_high"], second["AP_low"]) == ("0.305000", "0.495000", "0.205000")
    assert first["AP_large_low"] == ""
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(console_table(report))
    text = console.export_text()
    assert "20.5 to 39.5" in text and "-10.0 [-10.0," in text
    page = paths["html"].read_text()
    assert "40.0 [30.5, 49.5]" in page and 'id="intervals"' in page
    plain = [RateRow(row.hz, row.metrics) for row in report.rows]
    assert rates_png("a", "synthetic", report.rows) != rates_png("a", "synthetic", plain)  # a band is drawn
    assert rates_png("a", "synthetic", report.rows[:1]) != rates_png("a", "synthetic", plain[:1])
