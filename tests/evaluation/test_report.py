import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from rvtssm.evaluation.bootstrap import Interval, Resampled
from rvtssm.evaluation.frequency import (
    RateRow,
    is_reached,
    is_same_rate,
    nearest_reference,
    performance_drop,
    published_rows,
    true_rate,
)
from rvtssm.evaluation.plots import precision_figure, rates_figure, to_png
from rvtssm.evaluation.report import REPORT_FILES, console_table, to_html, write_report
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


def printed(report, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(console_table(report))
    return console.export_text()


def test_json_page_and_terminal_hold_the_table_the_drop_and_the_settings(tmp_path):
    report = make_report(still_objects={"carried": 0.31, "reset": 0.04}, without_memory=Interval(0.1, 0.05, math.nan))
    write_report(report, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(REPORT_FILES)
    data = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    assert data == to_json(report)
    assert data["rates"]["200"]["AP"] == 0.25 and data["rates"]["20"]["AP_large"] is None
    assert data["performance_drop"] == pytest.approx(0.1) and data["settings"] == SETTINGS
    assert data["still_objects"] == {"carried": 0.31, "reset": 0.04} and data["without_memory"] == [0.1, 0.05, None]
    page, text = (tmp_path / "new" / "report.html").read_text(), printed(report)
    assert "<td>200</td><td>25.0</td><td>70.0</td>" in page and "10.0 points" in page
    assert "objectness_times_class" in page and "carried 31.0, reset 4.0" in page and "RVT (published)" in page
    assert "AP on objects that stand still, carried: 31.0" in text and "│ drop │ 10.0" in text


def test_rows_of_two_lengths_of_windows_are_named():
    both, *sliding = (replace(row, windows=("slide",)) for row in make_report().rows)
    shrunk = tuple(
        replace(row, windows=("shrink",), metrics={**METRICS, "AP": ap})
        for row, ap in zip(sliding, (0.3, 0.1), strict=True)
    )
    report = make_report(rows=(replace(both, windows=("slide", "shrink")), *sliding), others=shrunk)
    assert {name: part.performance_drop for name, part in report.by_window.items()} == pytest.approx(
        {"slide": 0.1, "shrink": 0.2}
    )
    data = to_json(report)
    assert list(data["by_window"]) == ["slide", "shrink"]
    assert all(list(part["rates"]) == ["20", "40", "200"] for part in data["by_window"].values())
    assert data["performance_drop"] == pytest.approx(0.1) and data["by_window"]["shrink"]["rates"]["200"]["AP"] == 0.1
    cells = [(row[0], row[1], row[2]) for row in report.table()]
    assert cells == [
        ("Hz", "window", "AP"),
        *(("20", "both", "40.0"), ("40", "slide", "35.0"), ("200", "slide", "25.0")),
        *(("40", "shrink", "30.0"), ("200", "shrink", "10.0")),
    ]
    page = to_html(report)
    assert "window=slide (AP at 20 Hz minus the mean of the other rates): 10.0 points" in page
    assert "window=shrink (AP at 20 Hz minus the mean of the other rates): 20.0 points" in page
    assert "<td>this evaluation, window=shrink</td>" in page and page.count("<td>both</td>") == 1
    text = printed(report)
    assert "│ drop │  slide │ 10.0" in text and "│ drop │ shrink │ 20.0" in text
    assert len(report.plot().axes[0].get_lines()) >= 2


def test_a_report_becomes_a_table_of_pandas():
    pytest.importorskip("pandas")
    table = make_report(rows=resampled_rows()).to_pandas()
    assert list(table["hz"]) == [20, 200] and table["AP"].tolist() == pytest.approx([0.4, 0.3])
    assert table["AP_low"].tolist() == pytest.approx([0.305, 0.205]) and math.isnan(table["AP_large_low"][0])


def test_a_single_rate_has_no_drop():
    report = make_report(rows=make_report().rows[:1])
    assert to_json(report)["performance_drop"] is None and "drop" not in printed(report)
    assert "Performance drop" not in to_html(report)


def test_plots_take_names_as_they_stand_and_numbers_that_are_not_there():
    curve = np.linspace(1, 0, 101)
    names = {"$\\frac$": curve, "a$b_$": curve, "5 $": curve}
    assert to_png(precision_figure(names)).startswith(b"\x89PNG")
    nothing = dict.fromkeys(METRICS, math.nan)
    figure = rates_figure("$\\x$", "synthetic", [RateRow(20, nothing), RateRow(40, nothing)])
    assert to_png(figure).startswith(b"\x89PNG")


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


def resampled_rows():
    """Two rates of 25 recordings, the AP of the second 0.1 lower in every replicate."""
    ap = np.linspace(0.3, 0.5, 101)
    rows = []
    for hz, drop in ((20, 0.0), (200, 0.1)):
        metrics = {**METRICS, "AP": 0.4 - drop}
        replicates = {name: np.full(101, value) for name, value in metrics.items()} | {"AP": ap - drop}
        rows.append(RateRow(hz, metrics, {}, Resampled(tuple(map(str, range(25))), metrics, replicates)))
    return tuple(rows)


def test_json_page_and_terminal_hold_the_intervals_and_the_paired_differences():
    report = make_report(rows=resampled_rows())
    data = to_json(report)
    assert data["intervals"]["20"]["AP"] == pytest.approx([0.305, 0.495])
    assert data["intervals"]["20"]["AP_large"] == [None, None]
    assert data["differences"] == {"200": {"AP": pytest.approx([-0.1, -0.1, -0.1])}}
    head, _, row = report.table()
    assert head[:4] == ["Hz", "AP", "95% of AP", "AP50"] and head[-1] == "AP minus 20 Hz"
    assert row[:4] == ["200", "30.0", "20.5 to 39.5", "70.0"] and row[-1] == "-10.0 [-10.0, -10.0]"
    text = printed(report, width=160)
    assert "20.5 to 39.5" in text and "-10.0 [-10.0," in text
    page = to_html(report)
    assert "40.0 [30.5, 49.5]" in page and 'id="intervals"' in page
    plain = [RateRow(row.hz, row.metrics) for row in report.rows]
    for count in (2, 1):  # a band is drawn
        with_band, without = (to_png(rates_figure("a", "synthetic", rows[:count])) for rows in (report.rows, plain))
        assert with_band != without
