"""The page in a real browser: playing, the rate slider, uploads, two tabs, a phone, the keyboard, dark and light.

Needs Chromium (of Debian: `apt-get install chromium`, or its path in RVTSSM_CHROMIUM) and the package playwright.
"""

import os
import shutil
import time

import pytest

from rvtssm.contrib.serve import session, uploads
from rvtssm.detection.engine import StreamDetector
from rvtssm.system.files import cache_folder

CHROMIUM = os.environ.get("RVTSSM_CHROMIUM") or shutil.which("chromium") or ""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium; install it, or name it by RVTSSM_CHROMIUM")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(address, browser):
    """A function: settings of the browser -> a page that plays. No page may meet an error, or ask another host."""
    contexts, problems = [], []

    def make(**settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # ms; checking an upload on a busy machine takes long
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(address) or problems.append(request.url))
        page.goto(address)
        until(page, "document.getElementById('step').textContent !== '–'")
        return page

    yield make
    for context in contexts:
        context.close()
    assert [problem for problem in problems if not problem.startswith(("ws:", "data:"))] == []


def until(page, condition, seconds=600):
    """Wait until an expression is true; the page itself may not evaluate text."""
    until_s = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < until_s, condition
        page.wait_for_timeout(50)


def number(page, name):
    return float(page.inner_text(f"#{name}").split()[0])


def colours(page):
    """How many colours the picture has, and the colour of its corner."""
    return page.evaluate(
        """() => {
          const canvas = document.getElementById("canvas");
          const words = new Uint32Array(
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
          const ground = [...words].sort()[words.length >> 1];
          return [new Set(words).size, ground & 255];
        }"""
    )


def test_events_and_boxes_play_and_the_slider_changes_the_rate(open_page):
    page = open_page()
    assert page.inner_text("#weights") == "small s5"
    assert page.inner_text("#rate-value") == "20 Hz" and page.is_hidden("#empty")
    assert colours(page)[0] > 4
    first_s = number(page, "time")
    until(
        page, f"parseFloat(document.getElementById('time').textContent) !== {first_s}"
    )  # from its end it begins again
    page.fill("#rate", "200")
    until(page, "document.getElementById('caption').textContent.endsWith('200 Hz')")
    assert "every 5 ms" in page.inner_text("#rate-note") and "×\u00a00.1" in page.inner_text("#rate-note")
    until(page, "document.getElementById('done').textContent !== '–'")
    assert number(page, "step") > 0 and number(page, "lag") >= 0 and 0 < number(page, "done") <= 100
    before = number(page, "count")
    page.fill("#threshold", "0.95")
    assert number(page, "count") <= before
    page.check("[name=window][value=slide]", force=True)
    assert page.inner_text("#window-note").startswith("at every rate as long as in training")
    page.select_option("#source", "two_td.dat")
    until(page, "parseFloat(document.getElementById('time').textContent) < 1")
    assert page.inner_text("#rate-value") == "200 Hz"


def test_the_keyboard_does_everything(open_page):
    page = open_page()
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Play"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    assert page.inner_text("#rate-value") == "31 Hz"
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#rate", "aria-valuetext") == "30 hertz"
    page.keyboard.press("Space")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.focus("#rate")
    page.keyboard.press("End")
    assert page.inner_text("#rate-value") == "200 Hz"
    seen = []
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"threshold", "speed", "window", "precision"} <= set(seen)


def slow(function, seconds):
    def later(*arguments):
        time.sleep(seconds)
        return function(*arguments)

    return later


def test_what_the_page_waits_for_is_said_and_numbers_of_before_are_gone(open_page, recordings, monkeypatch):
    page = open_page()
    monkeypatch.setattr(session, "opened_source", slow(session.opened_source, 1))
    page.select_option("#source", "two_td.dat")
    assert page.inner_text("#busy") == "opening two_td.dat …"
    for name in ("step", "lag", "done", "count"):
        assert page.inner_text(f"#{name}") == "–"
    assert page.inner_text("#time") == "0.00 s" and colours(page)[0] == 1
    until(page, "document.getElementById('busy').hidden && document.getElementById('step').textContent !== '–'")

    async def check(*_):
        await uploads.asyncio.sleep(2)

    monkeypatch.setattr(uploads, "_check", check)
    content = recordings["one_td.dat"].read_bytes()
    page.set_input_files("#file", {"name": "own_td.dat", "mimeType": "", "buffer": content})
    until(page, r"/^checking own_td.dat … \d s$/.test(document.getElementById('busy').innerText.trim())")
    until(page, "document.getElementById('source').value == 'uploaded' && document.getElementById('busy').hidden")


def test_a_recording_that_cannot_be_opened_leaves_no_black_picture(open_page, recordings):
    page = open_page()
    hidden = recordings["two_td.dat"].rename(recordings["two_td.dat"].with_suffix(".hidden"))
    try:
        page.select_option("#source", "two_td.dat")
        page.wait_for_selector("#message:not([hidden])")
    finally:
        hidden.rename(recordings["two_td.dat"])
    assert page.inner_text("#message").startswith("two_td.dat does not exist; ")
    assert page.is_visible("#empty") and page.is_hidden("#busy") and page.is_disabled("#play")
    page.select_option("#source", "one_td.dat")
    until(page, "document.getElementById('empty').hidden && document.getElementById('step').textContent !== '–'")


def test_a_broken_file_is_one_line_and_a_good_one_plays(open_page, recordings):
    page = open_page()
    page.set_input_files("#file", {"name": "broken.raw", "mimeType": "", "buffer": b"% evt 3.0\n% end\nno events"})
    page.wait_for_selector("#message:not([hidden])")
    assert page.inner_text("#message").startswith("broken.raw") and "/" not in page.inner_text("#message")
    first_s = number(page, "time")
    until(page, f"parseFloat(document.getElementById('time').textContent) != {first_s}")  # it plays on
    page.set_input_files(
        "#file", {"name": "own_td.dat", "mimeType": "", "buffer": recordings["two_td.dat"].read_bytes()}
    )
    until(page, "document.getElementById('source').value == 'uploaded'")
    assert page.is_hidden("#message")
    page.close()
    until_s = time.monotonic() + 300
    while any((cache_folder() / "uploads").rglob("upload*")) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not any((cache_folder() / "uploads").rglob("upload*"))


def test_a_slow_detector_is_not_said_to_be_done_before_it_is_known(open_page, monkeypatch):
    monkeypatch.setattr(StreamDetector, "_compute", slow(StreamDetector._compute, 2))
    page = open_page()
    assert page.inner_text("#done") == "–"
    until(page, "document.getElementById('done').textContent !== '–'")
    assert number(page, "done") < 10


def test_a_second_upload_replaces_the_first(open_page, recordings, monkeypatch):
    async def check(*_):
        pass

    monkeypatch.setattr(uploads, "_check", check)
    page = open_page()
    for name in ("first_td.dat", "second_td.dat"):
        content = recordings["two_td.dat"].read_bytes()
        page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": content})
        until(page, f"document.getElementById('source').selectedOptions[0].text == '{name} (uploaded)'")
    options = page.eval_on_selector_all("#source option", "options => options.map((option) => option.text)")
    assert options == ["choose …", *recordings, "second_td.dat (uploaded)"]
    page.select_option("#source", "one_td.dat")
    until(page, "document.getElementById('source').options.length == 3")  # the upload cannot be chosen again


def test_two_tabs_do_not_disturb_each_other(open_page):
    first, second = open_page(), open_page()
    second.fill("#rate", "80")
    second.keyboard.press("Escape")
    second.evaluate("document.activeElement.blur()")
    second.keyboard.press("Space")
    until(second, "document.getElementById('caption').textContent.endsWith('80 Hz')")
    assert first.inner_text("#rate-value") == "20 Hz" and first.inner_text("#caption").endswith(" 20 Hz")
    before_s = number(first, "time")
    until(first, f"parseFloat(document.getElementById('time').textContent) != {before_s}")


@pytest.mark.parametrize(("scheme", "ground"), [("dark", 16), ("light", 255)])
def test_a_phone_shows_everything_in_the_dark_and_in_the_light(open_page, scheme, ground):
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.inner_text("#note") == "trained on simulation only"
    assert page.evaluate(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.getElementById('note'))"
    )
    too_small = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input[type=range], summary, .file")]
          .filter((one) => one.offsetParent && one.getBoundingClientRect().height < 24).map((one) => one.id)"""
    )
    assert too_small == []
    assert colours(page)[1] == ground
    page.click("#theme")
    page.wait_for_timeout(200)
    assert colours(page)[1] != ground
