"""The page stands alone: well-formed, nothing to load, its numbers those of the JSON beside it."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from test_report import make_report

from rvtssm.evaluation.breakdown import break_down
from rvtssm.evaluation.matching import ScoredRecording
from rvtssm.evaluation.report import to_html, write_report
from rvtssm.evaluation.result import Picture, percent, to_json
from tests.evaluation.test_coco import SPEC, random_recording

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
