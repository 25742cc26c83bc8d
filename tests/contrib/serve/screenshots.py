"""Makes the pictures of docs/serve.md from a running `rvtssm serve`.

    python tests/contrib/serve/screenshots.py http://127.0.0.1:8000/ docs test_0004_td.dat

Writes serve_desktop.png (dark), serve_phone.png (light) and serve_rate.gif: the slider moves from 20 to 200 Hz and back
while the named recording plays at a twentieth of its speed. Needs Chromium and playwright, as test_browser.py does.
"""

import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
RATES = [*range(20, 201, 6), *[200] * 8, *range(200, 19, -20), *[20] * 4]


def opened(browser: Browser, address: str, recording: str, scheme: Any, **settings: Any) -> Page:
    """A page that plays slowly, with windows that keep their length."""
    page = browser.new_context(color_scheme=scheme, **settings).new_page()
    page.goto(address)
    page.wait_for_selector("#empty[hidden]", state="attached")
    page.select_option("#source", recording)
    page.fill("#speed", "1")
    page.check("[name=window][value=slide]", force=True)
    play(page, 20, 100, 6)
    return page


def play(page: Page, hz: int, place: int | None, seconds: float) -> None:
    """Let it play at a rate, from a place in thousandths of the recording."""
    page.fill("#rate", str(hz))
    if place is not None:
        page.fill("#seek", str(place))
        page.dispatch_event("#seek", "change")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.wait_for_timeout(1000 * seconds)


def shown(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def write(page: Page, path: Path, width: int) -> None:
    picture = shown(page)
    picture = picture.resize((width, round(width * picture.height / picture.width)))
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main(address: str, folder: Path, recording: str) -> None:
    chromium = os.environ.get("RVTSSM_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=FLAGS)
        page = opened(browser, address, recording, "dark", viewport={"width": 1280, "height": 940})
        page.fill("#speed", "0")
        frames = []
        for hz in RATES:
            play(page, hz, None, 0.2)
            frames.append(shown(page).resize((800, 588)))
        palette = frames[len(frames) // 2].quantize(200, dither=Image.Dither.NONE)
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
        frames[0].save(folder / "serve_rate.gif", save_all=True, append_images=frames[1:], duration=140, loop=0)
        page.fill("#speed", "1")
        play(page, 100, 300, 7)
        write(page, folder / "serve_desktop.png", 1280)
        page.context.close()
        phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
        page = opened(browser, address, recording, "light", **phone)
        play(page, 100, 300, 7)
        write(page, folder / "serve_phone.png", 390)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
