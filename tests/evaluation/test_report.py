"""A report: its numbers in JSON, on one page and in the terminal, of one evaluation and of several."""

import base64
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from rich.console import Console

from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import Interval, Resampled
from rvtssm.evaluation.frequency import (
    RateRow,
    is_reached,
    is_same_rate,
    nearest_reference,
    performance_drop,
    published_rows,
    true_rate,
)
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.plots import precision_figure, rates_figure, to_png
from rvtssm.evaluation.render import TerminalTable
from rvtssm.evaluation.report import (
    COMPARISON_FILES,
    REPORT_FILES,
    comparison_html,
    comparison_table,
    console_table,
    difference_table,
    rates_table,
    to_html,
    write_comparison,
    write_report,
)
from rvtssm.evaluation.result import EvaluationReport, Picture, citation, percent, to_json
from tests.evaluation.test_coco import SPEC, random_recording

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


# the page


PNG = base64.b64decode(  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def report():
    rng = np.random.default_rng(1)
    recordings = [ScoredRecording(name, *random_recording(rng)) for name in "ab"]
    speeds = {"a": np.linspace(0, 1, len(recordings[0].labels))}
    return make_report(
        title="</script> <b>&", breakdown=break_down(recordings, SPEC, speeds), still_objects={"carried": 0.31}
    )


@pytest.fixture(scope="module")
def text(report):
    return to_html(report)


def test_nothing_is_loaded(report, text):
    with_picture = to_html(replace(report, worst=[Picture("a at 1 s: 3 missed", PNG)]))
    page = Page(with_picture)
    assert len(page.loaded) == 3 and all(source.startswith("data:image/png;base64,") for source in page.loaded)
    for source in page.loaded:
        assert base64.b64decode(source.partition(",")[2]).startswith(b"\x89PNG")
    assert not re.search(r"https?:|@import|url\(|<link|<iframe", with_picture)
    assert "a at 1 s: 3 missed" in with_picture and "Worst frames" in with_picture
    assert "Worst frames" not in text


def test_the_numbers_are_those_of_the_json(report, tmp_path):
    write_report(replace(report, worst=[Picture("x", PNG)]), tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert json.loads(page.script) == numbers == to_json(report)

    def shown(value):
        return percent(float("nan") if value is None else value)

    head, *rows = page.tables["rates"]
    assert [row[0] for row in rows] == list(numbers["rates"])
    assert head[1:] == [name.removeprefix("AP/") for name in report.metric_names]
    for row in rows:
        assert row[1:] == [shown(numbers["rates"][row[0]][name]) for name in report.metric_names]
    broken = numbers["breakdown"]
    _, *rows = page.tables["confusion"]
    assert [row[0] for row in rows] == ["car", "pedestrian", "nothing"]
    assert [[int(cell) for cell in row[1:]] for row in rows] == broken["confusion"]
    for name in ("size", "speed", "time since last motion"):
        _, *rows = page.tables[name.replace(" ", "-")]
        parts = broken["groups"][name]["parts"]
        assert rows == [[part, str(found["boxes"]), shown(found["AP"])] for part, found in parts.items()]


def test_no_name_hides_the_end_of_the_script():
    """`<!--` and `<script` in a script make a browser read on after its end."""
    script = Page(to_html(make_report(title="<!--<script>"))).script
    assert "<!--<script>" not in script and json.loads(script)["title"] == "<!--<script>"


# tables for the terminal


HEAD = ["temporal layer", "AP at 20 Hz", "AP at 200 Hz", "drop", "AP on small objects"]
ROWS = [["selective_s5", "43.7 ± 2.5", "43.6 ± 2.8", "0.1", "20.0"], ["lstm", "43.6", "29.5 ± 1.9", "9.1", "–"]]


def printed_table(table: TerminalTable, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_no_word_is_cut_and_columns_that_do_not_fit_are_named(width):
    text = printed_table(TerminalTable("AP", [HEAD, *ROWS], elsewhere="study.html"), width)
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
    text = printed_table(TerminalTable("AP", [HEAD[:3], ["runs/" + "long" * 40, "43.7 ± 2.5", "43.6 ± 2.8"]]), 80)
    assert "43.7 ± 2.5" in text and "43.6 ± 2.8" in text and text.replace(" ", "").count("long") > 30


def test_brackets_are_no_markup_and_lines_stand_below():
    text = printed_table(TerminalTable("a [bold] title", [["[red]x"], ["[/]"]], ["a line [1]"], sections=[0]), 80)
    assert "a [bold] title" in text and "[red]x" in text and "[/]" in text and text.rstrip().endswith("a line [1]")


# several weights


def report_of(aps, dataset="gen1", **settings):
    rows = tuple(RateRow(hz, {name: ap for name in ("AP", "AP50", "AP75")}) for hz, ap in aps.items())
    return EvaluationReport("base s5", dataset, rows, {"windows": "shrink", **settings})


@pytest.fixture
def reports():
    return {
        "a.ckpt": report_of({20: 0.5, 200: 0.4}, memory="carried"),
        "b.ckpt": report_of({20: 0.45, 40: 0.3}, memory="chunk"),
    }


def test_every_rate_has_a_column_and_every_weight_a_row(reports):
    head, a, b, *_ = rates_table(reports)
    assert head == ["weights", "20 Hz", "40 Hz", "200 Hz", "drop"]
    assert a == ["a.ckpt (base s5)", "50.0", "–", "40.0", "10.0"]
    assert b == ["b.ckpt (base s5)", "45.0", "30.0", "–", "15.0"]


def test_published_rows_are_marked_and_absent_where_nothing_is_published(reports):
    name = "S5-ViT-B on gen1, published"
    assert [name, "47.7", "46.4", "39.8", "4.6"] in rates_table(reports)  # 47.71 - (46.44 + 39.84) / 2
    paper = rates_table({"c": report_of(dict.fromkeys((20, 40, 80, 100, 200), 0.5))})
    assert [name, "47.7", "46.4", "45.1", "42.5", "39.8", "4.2"] in paper  # the drop of the paper: all of its rates
    assert [name, "–", "–"] in rates_table({"d": report_of({30: 0.5})})
    assert len(rates_table({"c": report_of({20: 0.1}, "synthetic")})) == 2


def test_the_page_holds_every_report_and_loads_nothing(reports):
    page = Page(comparison_html({"<b>": reports["a.ckpt"], **reports}))
    assert json.loads(page.script)["b.ckpt"] == to_json(reports["b.ckpt"])
    assert all(source.startswith("data:image/png;base64,") for source in page.loaded) and len(page.loaded) == 1
    assert page.tables["rates"][0] == ["weights", "20 Hz", "40 Hz", "200 Hz", "drop"]
    assert ["b.ckpt (base s5)", "45.0", "30.0", "–", "15.0"] in page.tables["rates"]
    assert ["S5-ViT-B on gen1, published", "47.7", "46.4", "39.8", "4.6"] in page.tables["rates"]
    assert page.tables["one-rate"][1][:5] == ["<b>", "20", "50.0", "50.0", "50.0"]


def test_files_hold_every_report(reports, tmp_path):
    write_comparison(reports, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(COMPARISON_FILES)
    found = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert found["a.ckpt"]["rates"]["200"]["AP"] == 0.4


def test_weights_that_saw_the_same_recordings_are_compared_in_pairs(tmp_path):
    first, second = resampled_rows()
    second = replace(second, hz=20)
    reports = {"a.ckpt": report_of({20: 0.4}), "b.ckpt": report_of({20: 0.3})}
    reports = {name: replace(reports[name], rows=(row,)) for name, row in zip(reports, (first, second), strict=True)}
    assert ["b.ckpt (base s5)", "30.0 [20.5, 39.5]", "–"] in rates_table(reports)
    assert "b.ckpt minus a.ckpt, in points, paired: 20 Hz -10.0 [-10.0, -10.0]" in comparison_table(reports).lines
    page = Page(comparison_html(reports))
    assert page.tables["differences"] == [["weights", "20 Hz"], ["b.ckpt", "-10.0 [-10.0, -10.0]"]]
    assert json.loads(page.script)["b.ckpt"]["minus_the_first"]["20"]["AP"] == pytest.approx([-0.1] * 3)
    others = replace(second, resampled=replace(second.resampled, recordings=("other",) * 25))
    assert difference_table({**reports, "b.ckpt": replace(reports["b.ckpt"], rows=(others,))}) == []


def test_the_numbers_of_both_kinds_of_windows_are_compared_in_every_file():
    """The first weights were made for windows that slide, the others for windows that shrink."""
    resampled = resampled_rows()[0].resampled

    def rows(first: str, other: str):
        return {
            "rows": (RateRow(20, {"AP": 0.4}, {}, resampled, (first, other)), *rates(first)),
            "others": rates(other),
        }

    def rates(window: str):
        return (RateRow(40, {"AP": 0.4}, {}, resampled, (window,)),)

    reports = {"a.ckpt": report_of({20: 0.4}), "b.ckpt": report_of({20: 0.4})}
    reports["a.ckpt"] = replace(reports["a.ckpt"], **rows("slide", "shrink"))
    reports["b.ckpt"] = replace(reports["b.ckpt"], **rows("shrink", "slide"))
    assert [row[1:] for row in difference_table(reports)[1:]] == [["0.0 [0.0, 0.0]"] * 2] * 2
    found = json.loads(Page(comparison_html(reports)).script)["b.ckpt"]
    assert set(found["minus_the_first"]) == {"20", "40"} and list(found["by_window"]) == ["shrink", "slide"]
    assert all(set(each["minus_the_first"]) == {"20", "40"} for each in found["by_window"].values())
