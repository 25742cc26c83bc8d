"""The page stands alone: well-formed, nothing to load, its numbers those of the JSON beside it."""

import base64
import json
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from test_report import make_report

from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.coco import ScoredRecording
from rvtssm.evaluation.report import to_html, write_report
from rvtssm.evaluation.result import Picture, percent, to_json
from tests.evaluation.test_coco import SPEC, random_recording

VOID = {"meta", "img", "br", "hr", "link", "input"}
PNG = base64.b64decode(  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Page(HTMLParser):
    """Tables by id, attributes that load something, the script, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.script = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert values.get("id") not in self.ids, f"two elements have the id {values['id']}"
        self.ids |= {values["id"]} if "id" in values else set()
        self.loaded += [values[name] for name in ("src", "href", "action", "data", "srcset") if name in values]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = self.tables[values["id"]] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self._rows[-1][-1] += data
        elif self.open and self.open[-1] == "script":
            self.script += data


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


def test_a_page_says_that_no_score_reaches_the_threshold(report, text):
    low = to_html(replace(report, breakdown=replace(report.breakdown, highest_score=0.2996)))
    assert "the highest score is 0.29." in low and "min_score=0.1</code> draws more" in low
    assert "the highest score" not in text


def test_the_numbers_are_those_of_the_json(report, tmp_path):
    paths = write_report(replace(report, worst=[Picture("x", PNG)]), tmp_path)
    page, numbers = Page(paths["html"].read_text()), json.loads(paths["json"].read_text())
    assert paths["html"].name == "report.html"
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


def test_the_breakdown_says_of_which_rate_it_is(report, text):
    assert "At 20 Hz, like all below." in text
    others = replace(report, rows=report.rows[1:])
    assert "At 40 Hz, like all below." in to_html(others)


def test_published_rows_stand_beside_ours_and_are_marked():
    page = Page(to_html(make_report(rows=[*make_report().rows, replace(make_report().rows[0], hz=30)])))
    head, ours, *published = page.tables["published"]
    assert head == ["", "20 Hz", "30 Hz", "40 Hz", "80 Hz", "100 Hz", "200 Hz"]
    assert ours == ["this evaluation", "40.0", "40.0", "35.0", "–", "–", "25.0"]
    assert ["S5-ViT-B (published)", "47.7", "–", "46.4", "45.1", "42.5", "39.8"] in published and len(published) == 3
    text = to_html(make_report(dataset="synthetic"))
    assert "published" not in Page(text).tables and "(published)" not in text


def test_a_narrow_screen_scrolls_tables_not_the_page(text):
    """Chromium, 390 pixels wide: a table of nine columns reached beyond the page, captions were as narrow as tables."""
    assert text.count("<table") == text.count('<div class="wide"><table') == 6 and ".wide { overflow-x: auto" in text
    assert "<caption" not in text


def test_the_windows_of_an_evaluation_stand_beside_its_table(report):
    text = to_html(replace(report, settings={"windows": "slide, convention exact"}))
    before, _, _ = text.partition('<table id="rates">')
    assert "percent; windows: slide, convention exact" in before[-200:]


def test_a_cell_of_numbers_is_one_line(text):
    """In Chromium, "43.7 [42.1, 44.9]" broke into three lines."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    chromium = os.environ.get("RVTSSM_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.skip("needs Chromium; install it, or name it by RVTSSM_CHROMIUM")
    text = re.sub(r"<td>(\d+\.\d)</td>", r"<td>\1 [42.1, 44.9]</td>", text)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 800, "height": 600})
        page.set_content(text)
        heights = page.evaluate("[...document.querySelectorAll('#rates td')].map((cell) => cell.offsetHeight)")
        assert len(set(heights)) == 1 and heights[0] < 45
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()


def test_without_a_breakdown_there_is_a_page_as_well(tmp_path):
    page = Page(to_html(make_report(dataset="synthetic")))
    assert list(page.tables) == ["rates"] and json.loads(page.script)["breakdown"] is None
