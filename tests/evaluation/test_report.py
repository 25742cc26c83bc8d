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

from rvtssm.drawing import figure_png
from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import Interval, Resampled
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.pages import (
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
from rvtssm.evaluation.protocol import performance_drop, published_rows
from rvtssm.evaluation.rates import is_reached, true_rate
from rvtssm.evaluation.render import TerminalTable, precision_figure, rates_figure
from rvtssm.evaluation.report import EvaluationReport, Picture, citation, in_hz, percent, to_row, with_differences
from rvtssm.records.settings import is_same_rate
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
CONDITIONS = {"score": "objectness_times_class, from 0.001", "windows": "labels grid, length = stride"}


def make_row(hz, ap=METRICS["AP"], window="slide", **more):
    return {"hz": hz, "window": window, **METRICS, "AP": ap, **more}


def make_report(**changes):
    rows = [make_row(20), make_row(40, 0.35), make_row(200, 0.25)]
    usual = {"title": "demo.ckpt on gen1 test", "dataset": "gen1", "rows": rows, "conditions": CONDITIONS}
    return EvaluationReport(**{**usual, **changes})


def test_the_drop_is_the_reference_minus_the_mean_of_the_others():
    assert performance_drop({20: 0.5, 40: 0.4, 80: 0.2}) == pytest.approx(0.2)
    assert performance_drop({20: 0.5, 40: 0.4}, reference_hz=40) == pytest.approx(-0.1)
    assert math.isnan(performance_drop({20: 0.5})) and math.isnan(performance_drop({40: 0.5, 80: 0.4}))
    assert make_report().drop() == pytest.approx(0.1)


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
    alone = make_report(rows=[make_row(100)])
    assert citation(alone) == "AP 40.0 at 100 Hz (window=slide, trained at 20 Hz) on demo.ckpt on gen1 test"


def printed_table(table: TerminalTable, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def printed(report, width=140):
    return printed_table(console_table(report), width)


def test_json_page_and_terminal_hold_the_table_the_drop_and_the_settings(tmp_path):
    report = make_report(still_objects={"carried": 0.31, "reset": 0.04}, without_memory=Interval(0.1, 0.05, math.nan))
    write_report(report, tmp_path / "new", {})
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(REPORT_FILES)
    data = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    assert data == report.to_json()
    assert data["rows"][2]["AP"] == 0.25 and data["rows"][0]["AP_large"] is None
    assert data["drop"] == {"slide": pytest.approx(0.1)} and data["conditions"] == CONDITIONS
    assert data["still_objects"] == {"carried": 0.31, "reset": 0.04} and data["without_memory"] == [0.1, 0.05, None]
    page, text = (tmp_path / "new" / "report.html").read_text(), printed(report)
    assert "<td>200</td><td>25.0</td><td>70.0</td>" in page and "10.0 points" in page
    assert "objectness_times_class" in page and "carried 31.0, reset 4.0" in page and "RVT (published)" in page
    assert "AP on objects that stand still, carried: 31.0" in text and "│ drop │ 10.0" in text


def test_rows_of_two_lengths_of_windows_are_named():
    shrunk = [make_row(hz, ap, "shrink") for hz, ap in ((20, 0.4), (40, 0.3), (200, 0.1))]
    report = make_report(rows=[*make_report().rows, *shrunk])
    data = report.to_json()
    assert data["drop"] == pytest.approx({"slide": 0.1, "shrink": 0.2})
    head, *rows = report.table()
    assert head[:3] == ["Hz", "window", "AP"]
    expected = [[f"{row['hz']:g}", row["window"], percent(row["AP"])] for row in report.rows]
    assert [row[:3] for row in rows] == expected
    page = to_html(report)
    assert "window=slide (AP at 20 Hz minus the mean of the other rates): 10.0 points" in page
    assert "window=shrink (AP at 20 Hz minus the mean of the other rates): 20.0 points" in page
    assert "<td>this evaluation, window=shrink</td>" in page
    text = printed(report)
    assert "│ drop │  slide │ 10.0" in text and "│ drop │ shrink │ 20.0" in text
    assert len(report.plot().axes[0].get_lines()) >= 2


def test_a_single_rate_has_no_drop():
    report = make_report(rows=make_report().rows[:1])
    assert report.to_json()["drop"] == {"slide": None} and "drop" not in printed(report)
    assert "Performance drop" not in to_html(report)


def test_plots_take_names_as_they_stand_and_numbers_that_are_not_there():
    curve = np.linspace(1, 0, 101)
    names = {"$\\frac$": curve, "a$b_$": curve, "5 $": curve}
    assert figure_png(precision_figure(names)).startswith(b"\x89PNG")
    nothing = dict.fromkeys(METRICS, math.nan)
    figure = rates_figure("$\\x$", "synthetic", [make_row(hz) | nothing for hz in (20, 40)])
    assert figure_png(figure).startswith(b"\x89PNG")


def test_a_rate_may_be_stored_as_a_stride_of_whole_microseconds():
    for reference_hz in (1e6 / (1e6 / 30), 1e6 / 33_333):
        assert reference_hz != 30
        assert performance_drop({30: 0.5, 60: 0.4}, reference_hz) == pytest.approx(0.1)
        report = make_report(rows=[make_row(60), make_row(30)], reference_hz=reference_hz)
        assert report.reference()["hz"] == 30
    assert not is_same_rate(20, 20.1)
    assert make_report(rows=[make_row(60), make_row(80)], reference_hz=30).reference()["hz"] == 60


def test_the_rate_of_a_row_is_that_of_its_steps():
    assert true_rate(60, 16_667) == 60 and true_rate(30, 25_000) == 40 and true_rate(41, 23_810) == 42
    assert true_rate(33, 1e6 / 33.33333) == 33.33
    assert is_reached(40, 41.9) and is_reached(40, 38.1) and not is_reached(40, 42.1) and not is_reached(30, 40)


NAMES = tuple(map(str, range(25)))


def resampled_ap(ap, names=NAMES):
    """The numbers of recordings, and replicates of AP around its value."""
    metrics = {**METRICS, "AP": ap}
    replicates = {name: np.full(101, value) for name, value in metrics.items()}
    return Resampled(names, metrics, replicates | {"AP": np.linspace(ap - 0.1, ap + 0.1, 101)})


def resampled_report(ap_by_place, **changes):
    """A report of rates and kinds of windows with intervals."""
    resampled = {place: resampled_ap(ap) for place, ap in ap_by_place.items()}
    rows = [to_row(*place, numbers, {}) for place, numbers in resampled.items()]
    return make_report(rows=with_differences(rows, resampled, 20), resampled=resampled, **changes)


def test_json_page_and_terminal_hold_the_intervals_and_the_paired_differences():
    report = resampled_report({(20, "slide"): 0.4, (200, "slide"): 0.3})
    first, second = report.to_json()["rows"]
    assert [first["low"], first["high"]] == first["intervals"]["AP"] == pytest.approx([0.305, 0.495])
    assert first["intervals"]["AP_large"] == [None, None] and "difference" not in first
    assert second["difference"] == pytest.approx([-0.1, -0.1, -0.1])
    head, _, row = report.table()
    assert head[:4] == ["Hz", "AP", "95% of AP", "AP50"] and head[-1] == "AP minus 20 Hz"
    assert row[:4] == ["200", "30.0", "20.5 to 39.5", "70.0"] and row[-1] == "-10.0 [-10.0, -10.0]"
    text = printed(report, width=160)
    assert "20.5 to 39.5" in text and "-10.0 [-10.0," in text
    page = to_html(report)
    assert "40.0 [30.5, 49.5]" in page and 'id="intervals"' in page
    for count in (2, 1):  # a band is drawn
        rows = report.rows[:count]
        plain = [make_row(row["hz"], row["AP"]) for row in rows]
        assert figure_png(rates_figure("a", "synthetic", rows)) != figure_png(rates_figure("a", "synthetic", plain))


@pytest.mark.parametrize(("number", "is_few"), [(25, False), (19, True)])
def test_every_table_page_and_sentence_warns_of_what_an_interval_does_not_say(number, is_few):
    numbers = resampled_ap(0.4, NAMES[:number])
    report = make_report(rows=[to_row(20, "slide", numbers, {})], resampled={(20, "slide"): numbers})
    pages = [to_html(report), printed(report), citation(report), comparison_html({"a": report, "b": report})]
    pages.append(" ".join(comparison_table({"a": report, "b": report}).lines))
    for page in (" ".join(page.split()) for page in pages):
        assert "one training, so the interval" in page
        assert ("only 19 recordings" in page) == is_few


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
    write_report(replace(report, worst=[Picture("x", PNG)]), tmp_path, {})
    page = Page((tmp_path / "report.html").read_text())
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert json.loads(page.script) == numbers == report.to_json()

    def shown(value):
        return percent(float("nan") if value is None else value)

    head, *rows = page.tables["rates"]
    assert head[1:] == [name.removeprefix("AP/") for name in report.metric_names]
    for cells, row in zip(rows, numbers["rows"], strict=True):
        assert cells == [f"{row['hz']:g}", *(shown(row[name]) for name in report.metric_names)]
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


@pytest.mark.parametrize("hz", [0.125, 20.0, 1e6 / 24_400, 1000 / 3, 12_345.6])
def test_a_rate_is_written_with_four_digits(hz):
    number, unit = in_hz(hz).split()
    assert unit == "Hz" and is_same_rate(float(number), hz)
    assert len(number.replace(".", "").strip("0")) <= 4


HEAD = ["temporal layer", "AP at 20 Hz", "AP at 200 Hz", "drop", "AP on small objects"]
ROWS = [["selective_s5", "43.7 ± 2.5", "43.6 ± 2.8", "0.1", "20.0"], ["lstm", "43.6", "29.5 ± 1.9", "9.1", "–"]]


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


def report_of(aps, dataset="gen1", **conditions):
    rows = [{"hz": hz, "window": "slide", "AP": ap, "AP50": ap, "AP75": ap} for hz, ap in aps.items()]
    return EvaluationReport("base s5", dataset, rows, {"windows": "shrink", **conditions})


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
    assert json.loads(page.script)["b.ckpt"] == reports["b.ckpt"].to_json()
    assert all(source.startswith("data:image/png;base64,") for source in page.loaded) and len(page.loaded) == 1
    assert page.tables["rates"][0] == ["weights", "20 Hz", "40 Hz", "200 Hz", "drop"]
    assert ["b.ckpt (base s5)", "45.0", "30.0", "–", "15.0"] in page.tables["rates"]
    assert ["S5-ViT-B on gen1, published", "47.7", "46.4", "39.8", "4.6"] in page.tables["rates"]
    assert page.tables["one-rate"][1][:5] == ["<b>", "20", "50.0", "50.0", "50.0"]


def test_files_hold_every_report(reports, tmp_path):
    write_comparison(reports, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(COMPARISON_FILES)
    found = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert found["a.ckpt"]["rows"][1]["AP"] == 0.4


def test_weights_that_saw_the_same_recordings_are_compared_in_pairs():
    place = 20, "slide"
    reports = {"a.ckpt": resampled_report({place: 0.4}, title="s5"), "b.ckpt": resampled_report({place: 0.3})}
    assert ["b.ckpt (demo.ckpt on gen1 test)", "30.0 [20.5, 39.5]", "–"] in rates_table(reports)
    lines = comparison_table(reports).lines
    assert "b.ckpt minus a.ckpt, in points, paired: 20 Hz -10.0 [-10.0, -10.0]" in lines
    page = Page(comparison_html(reports))
    assert page.tables["differences"] == [["weights", "20 Hz"], ["b.ckpt", "-10.0 [-10.0, -10.0]"]]
    (row,) = json.loads(page.script)["b.ckpt"]["rows"]
    assert row["minus_the_first"] == pytest.approx([-0.1] * 3)
    others = {place: resampled_ap(0.3, ("other",) * 25)}
    assert difference_table({**reports, "b.ckpt": replace(reports["b.ckpt"], resampled=others)}) == []


def test_the_numbers_of_both_kinds_of_windows_are_compared_in_every_file():
    """The first weights were made for windows that slide, the others for windows that shrink."""
    kinds = ["slide", "shrink"]

    def report(kinds):
        return resampled_report({(hz, window): 0.4 for window in kinds for hz in (20, 40)})

    reports = {"a.ckpt": report(kinds), "b.ckpt": report(kinds[::-1])}
    assert [row[1:] for row in difference_table(reports)[1:]] == [["0.0 [0.0, 0.0]"] * 2] * 2
    found = json.loads(Page(comparison_html(reports)).script)["b.ckpt"]
    assert list(found["drop"]) == kinds[::-1] and all("minus_the_first" in row for row in found["rows"])
