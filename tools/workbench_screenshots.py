"""Takes the pictures of docs/workbench.md: every page of the demo, as Chromium shows it, into docs/images/workbench.

python tools/workbench_screenshots.py                                       # the pictures of the docs
python tools/workbench_screenshots.py --out /tmp/wide --size 3840x2160 --dark   # to look at
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nosology.workbench.demo import PASSWORD, demo_bundle, fill_demo
from tests.workbench.processes import Server

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "workbench"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAGES = ("batches", "measures", "triage", "users", "audit", "tokens", "sessions", "settings")


def save_screenshot(page: Page, out: Path, name: str) -> None:
    """Writes a screenshot with few colours, which are enough for text."""
    page.wait_for_timeout(300)
    picture = Image.open(BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(colors=96, dither=Image.Dither.NONE).save(out / f"{name}.png", optimize=True)


def press(page: Page, keys: str) -> None:
    """Presses keys, each after the response to the one before."""
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(900)


def confident_note(page: Page) -> str:
    """The URL of a note in the queue with high confidence."""
    return page.evaluate(
        "[...document.querySelectorAll('tbody tr')]"
        ".map((row) => [row.querySelector('meter')?.value ?? 0, row.querySelector('a').href])"
        ".sort((a, b) => b[0] - a[0])[5][1]"
    )


def take_screenshots(page: Page, address: str, out: Path, scheme: str) -> None:
    """Takes all screenshots."""
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{address}/login")
    save_screenshot(page, out, "login")
    page.fill("[name=name]", "admin")
    page.fill("[name=password]", PASSWORD)
    page.click("button.primary")
    page.wait_for_url(f"{address}/")
    page.wait_for_timeout(20_000)  # until the queue is coded
    page.goto(f"{address}/")
    page.goto(confident_note(page))
    press(page, "aaaa")
    press(page, "r")
    save_screenshot(page, out, "reject")
    press(page, "1a")
    press(page, "kkkkkkkk")
    save_screenshot(page, out, "note")
    page.emulate_media(color_scheme="dark")
    save_screenshot(page, out, "note_dark")
    page.emulate_media(color_scheme=scheme)
    press(page, "i")
    save_screenshot(page, out, "encounter")
    press(page, ["Escape"])
    press(page, "jd")
    save_screenshot(page, out, "book")
    press(page, ["Escape"])
    press(page, "?")
    save_screenshot(page, out, "help")
    press(page, ["Escape"])
    page.goto(f"{page.url}/history")
    save_screenshot(page, out, "history")
    page.goto(f"{address}/?order=uncertain")
    save_screenshot(page, out, "queue")
    for name in PAGES:
        page.goto(f"{address}/{name}")
        save_screenshot(page, out, name)


def main() -> None:
    """Starts the demo on a new store and takes the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--size", default="1280x800")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store, bundle = str(Path(folder) / "demo.db"), demo_bundle()
        fill_demo(store, bundle)
        server = Server(bundle, store, log=Path(folder) / "log").start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            take_screenshots(page, server.address, options.out, "dark" if options.dark else "light")
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
