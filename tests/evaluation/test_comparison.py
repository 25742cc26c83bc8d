import json
from dataclasses import replace

import pytest
from html_page import Page
from test_report import resampled_rows

from rvtssm.evaluation.frequency import RateRow
from rvtssm.evaluation.report import (
    COMPARISON_FILES,
    comparison_html,
    comparison_table,
    difference_table,
    rates_table,
    write_comparison,
)
from rvtssm.evaluation.result import EvaluationReport, to_json


def make_report(aps, dataset="gen1", **settings):
    rows = tuple(RateRow(hz, {name: ap for name in ("AP", "AP50", "AP75")}) for hz, ap in aps.items())
    return EvaluationReport("base s5", dataset, rows, {"windows": "shrink", **settings})


@pytest.fixture
def reports():
    return {
        "a.ckpt": make_report({20: 0.5, 200: 0.4}, memory="carried"),
        "b.ckpt": make_report({20: 0.45, 40: 0.3}, memory="chunk"),
    }


def test_every_rate_has_a_column_and_every_weight_a_row(reports):
    head, a, b, *_ = rates_table(reports)
    assert head == ["weights", "20 Hz", "40 Hz", "200 Hz", "drop"]
    assert a == ["a.ckpt (base s5)", "50.0", "–", "40.0", "10.0"]
    assert b == ["b.ckpt (base s5)", "45.0", "30.0", "–", "15.0"]


def test_published_rows_are_marked_and_absent_where_nothing_is_published(reports):
    name = "S5-ViT-B on gen1, published"
    assert [name, "47.7", "46.4", "39.8", "4.6"] in rates_table(reports)  # 47.71 - (46.44 + 39.84) / 2
    paper = rates_table({"c": make_report(dict.fromkeys((20, 40, 80, 100, 200), 0.5))})
    assert [name, "47.7", "46.4", "45.1", "42.5", "39.8", "4.2"] in paper  # the drop of the paper: all of its rates
    assert [name, "–", "–"] in rates_table({"d": make_report({30: 0.5})})
    assert len(rates_table({"c": make_report({20: 0.1}, "synthetic")})) == 2


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
    reports = {"a.ckpt": make_report({20: 0.4}), "b.ckpt": make_report({20: 0.3})}
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

    reports = {"a.ckpt": make_report({20: 0.4}), "b.ckpt": make_report({20: 0.4})}
    reports["a.ckpt"] = replace(reports["a.ckpt"], **rows("slide", "shrink"))
    reports["b.ckpt"] = replace(reports["b.ckpt"], **rows("shrink", "slide"))
    assert [row[1:] for row in difference_table(reports)[1:]] == [["0.0 [0.0, 0.0]"] * 2] * 2
    found = json.loads(Page(comparison_html(reports)).script)["b.ckpt"]
    assert set(found["minus_the_first"]) == {"20", "40"} and list(found["by_window"]) == ["shrink", "slide"]
    assert all(set(each["minus_the_first"]) == {"20", "40"} for each in found["by_window"].values())
