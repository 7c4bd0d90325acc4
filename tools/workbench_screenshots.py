"""Takes the pictures of docs/workbench.md: every page of the demo, light and dark, as Chromium shows it.

python tools/workbench_screenshots.py                                  # all into docs/images/workbench
python tools/workbench_screenshots.py --out /tmp/wide --size 3840x2160 # to look at

A picture of the dark scheme has the suffix _dark.
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

from nosology.workbench.demo import APPROVED, PASSWORD
from tests.workbench.processes import Server

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "workbench"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAGES = ("batches", "measures", "triage", "users", "audit", "tokens", "sessions", "settings")
DIALOGS = {"encounter": "i", "reject": "r", "book": "d", "help": "?"}  # keys that open a dialog of the note page
ENCOUNTER = "E-1042"


class Camera:
    """Takes pictures of a page in both schemes."""

    def __init__(self, page: Page, out: Path):
        self.page, self.out = page, out

    def take(self, name: str) -> None:
        """Writes two pictures with few colours, which are enough for text."""
        for scheme, suffix in (("dark", "_dark"), ("light", "")):
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self.page.wait_for_timeout(300)
            picture = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
            picture = picture.quantize(colors=96, dither=Image.Dither.NONE)
            picture.save(self.out / f"{name}{suffix}.png", optimize=True)


def open_encounter(page: Page, address: str, ref: str) -> None:
    """Opens the page of an encounter."""
    page.goto(f"{address}/?status=all")
    page.get_by_role("link", name=ref, exact=True).click()
    page.wait_for_selector(".card.now")


def sign_in(page: Page, address: str) -> None:
    """Signs in, and waits until every encounter is coded."""
    page.fill("[name=name]", "admin")
    page.fill("[name=password]", PASSWORD)
    page.click("button.primary")
    page.wait_for_url(f"{address}/")
    while page.get_by_text("being coded").count():
        page.wait_for_timeout(1_000)
        page.reload()


def take_pictures(page: Page, address: str, out: Path) -> None:
    """Takes all pictures."""
    camera = Camera(page, out)
    page.goto(f"{address}/login")
    camera.take("login")
    sign_in(page, address)
    for _ in range(3):  # of the tour, up to the proposed claim
        page.locator("#tour .primary").press("Enter")
        page.wait_for_load_state()
    page.wait_for_selector("#tour h2:text('Proposed claim')")
    camera.take("tour")
    page.keyboard.press("Escape")
    open_encounter(page, address, ENCOUNTER)
    camera.take("note")
    page.keyboard.press("y")
    page.wait_for_selector(".chosen .card")
    page.locator(".chosen .card").first.click()
    camera.take("codes")
    for name, key in DIALOGS.items():
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open] h2")
        camera.take(name)
        page.keyboard.press("Escape")
    open_encounter(page, address, APPROVED)
    page.goto(f"{page.url.partition('?')[0]}/history")
    camera.take("history")
    page.goto(f"{address}/")
    camera.take("queue")
    for name in PAGES:
        page.goto(f"{address}/{name}")
        camera.take(name)


def main() -> None:
    """Starts the demo on a new store and takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--size", default="1280x800")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server("--demo", str(Path(folder) / "demo.db"), log=Path(folder) / "log").start(280)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            take_pictures(page, server.address, options.out)
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
