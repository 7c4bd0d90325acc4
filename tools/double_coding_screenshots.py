"""Takes the pictures of double coding in docs/workbench.md, of the notes in examples/ that two simulated people code.

python tools/double_coding_screenshots.py                          # the pictures of the docs
python tools/double_coding_screenshots.py --out /tmp/dark --dark   # to look at
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from playwright.sync_api import sync_playwright
from sqlalchemy import Engine, select

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nosology.core import Note, Suggestion
from nosology.federated.deploy.flower_process import wait_until
from nosology.workbench.cases import load_case, record_decision
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.double_coding import choose_note
from nosology.workbench.store_tables import notes
from tests.workbench.conftest import PASSWORD, fill_people
from tests.workbench.processes import Server
from tools.workbench_screenshots import FLAGS, OUT, save_screenshot

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "notes"
NOTES, SHARE = 12, 0.85  # notes, and the share of the suggestions that a person accepts
ANN, BEN, RITA = 1, 2, 3  # the users of fill_people, in order


def fill(engine: Engine) -> None:
    """Adds the example notes several times, as those of different patients."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.txt"))]
    about = {"sex": "F", "age": 70, "date": "2025-11-03", "kind": "inpatient"}
    with write_transaction(engine) as connection:
        incoming = [Note(f"encounter-{row + 1}", texts[row % len(texts)], extra=about) for row in range(NOTES)]
        add_notes(connection, incoming, None)


def is_coded(engine: Engine) -> bool:
    """Whether all notes have suggestions."""
    with read_transaction(engine) as connection:
        return connection.scalar(select(notes.c.id).where(notes.c.coding == "waiting").limit(1)) is None


def code(engine: Engine, note_id: int, user: int, suggestions: list[Suggestion], rng: Random) -> None:
    """Records the decisions of a person who accepts most suggestions, and finishes the note."""
    taken = [f"{item.system}:{item.code}" for item in suggestions if item.accepted and rng.random() < SHARE]
    for version, value in enumerate(taken):
        record_decision(engine, note_id, "accept", {"code": value}, user=user, version=version)
    record_decision(engine, note_id, "finish", {}, user=user, version=len(taken))


def code_twice(engine: Engine) -> None:
    """Lets two people code every note."""
    rng = Random(0)
    with read_transaction(engine) as connection:
        ids = list(connection.scalars(select(notes.c.id).order_by(notes.c.id)))
        found = {note_id: list(load_case(connection, note_id).suggestions) for note_id in ids}
    for note_id in ids:
        code(engine, note_id, ANN, found[note_id], rng)
        code(engine, choose_note(engine, RITA, note_id, "tool"), BEN, found[note_id], rng)


def main() -> None:
    """Starts a server with the built-in coder and takes the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = str(Path(folder) / "workbench.db")
        fill_people(store)
        engine = open_database(store)
        fill(engine)
        server = Server("day-one", store, log=Path(folder) / "log").start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            assert wait_until(lambda: is_coded(engine), 300)
            code_twice(engine)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.emulate_media(color_scheme="dark" if options.dark else "light")
            page.goto(f"{server.address}/login")
            page.fill("[name=name]", "rita")
            page.fill("[name=password]", PASSWORD)
            page.click("button.primary")
            page.wait_for_url(f"{server.address}/")
            page.goto(f"{server.address}/double/1")
            page.keyboard.press("1")
            page.keyboard.press("2")
            save_screenshot(page, options.out, "adjudicate")
            for name in ("agreement", "double"):
                page.goto(f"{server.address}/{name}")
                save_screenshot(page, options.out, name)
        finally:
            browser.close()
            server.stop()
            engine.dispose()


if __name__ == "__main__":
    main()
