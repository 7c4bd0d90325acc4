"""Takes the pictures of docs/workbench.md: every page of the demo, light and dark, as Chromium shows it.

python tools/workbench_screenshots.py                                   # all into docs/images/workbench
python tools/workbench_screenshots.py --out /tmp/wide --size 3840x2160  # to look at
python tools/workbench_screenshots.py --out /tmp/zoomed --zoom 2        # as at a zoom of 200 %
python tools/workbench_screenshots.py --only triage                     # the triage page, findings or gaps

A picture of the dark scheme has the suffix _dark. Simulated people code some of the demo's encounters twice and write
queries, for the pages that would be empty. The triage page has simulated encounters with calibrated probabilities, and
later ones that are longer, which raise the alarm.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from random import Random

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import Connection, Engine, insert, select, update

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nosology.core import Note, Suggestion
from nosology.serving.coder import Coder
from nosology.workbench.accounts import create_user
from nosology.workbench.cases import load_case, record_decision, record_decisions, suggestion_to_json
from nosology.workbench.coding import save_codings
from nosology.workbench.conversation import insert_answer, insert_comment, insert_query, load_query
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.demo import APPROVED, PASSWORD
from nosology.workbench.document_import import add_notes
from nosology.workbench.double_coding import choose_note
from nosology.workbench.note_coding import CodedNote
from nosology.workbench.proposals import propose_claim
from nosology.workbench.store_tables import codings, notes, users
from nosology.workbench.triage import expected_f1, newest_coder
from nosology.workbench.uploads import normalize_encounter
from tests.workbench.processes import Server

OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "workbench"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAGES = ("queue", "batches", "measures", "users", "audit", "tokens", "sessions", "settings")
PAGES += ("double", "agreement", "password")
DIALOGS = {"encounter": "i", "reject": "r", "book": "d", "ask": "w", "help": "?"}  # keys that open one on the note page
ENCOUNTER, ASKED, IN_WORK = "E-1042", "E-1057", "E-1063"
TWICE = ("E-1088", "E-1094", "E-1118", "E-1119", "E-1152", "E-1165")
PHYSICIAN = "dr. lindqvist"
SHARE = 0.85  # of the suggestions that a person accepts
QUESTIONS = (  # with the words they are about and the answers to choose from; the last one is answered
    ("Is the fracture of the femur due to the fall alone or to osteoporosis?", "tripped over the edge of a rug",
     ("due to osteoporosis", "due to the fall alone")),
    ("Which diagnosis explains the hemoglobin after the operation?", "Hemoglobin",
     ("acute blood loss anemia", "expected blood loss, no diagnosis")),
)  # fmt: skip
PROCEDURE = "left hip replacement"
DEPARTMENTS = {  # notes of a service that leave something open, and how many there are of each
    "General medicine": (
        ("Community acquired pneumonia. Heart failure, IV furosemide for two days. CKD. Labs: Na 124.", 7),
        ("Acute kidney injury, fluids. Anemia, transfused one unit. Hypertension.", 5),
        ("Acute on chronic systolic heart failure. COPD exacerbation.", 4),
    ),
    "Orthopedics": (
        ("Closed displaced fracture of the neck of the femur after a fall. Knee pain. Anemia.", 6),
        ("Osteoarthritis of the left hip. Asthma, refill albuterol.", 3),
    ),
    "Pulmonology": (("Pneumonia. Asthma, albuterol. SpO2 84% on room air, oxygen 4 l/min.", 5),),
}
STAY = {"setting": "inpatient", "sex": "F", "age": 74, "admitted": "2026-02-01", "discharged": "2026-02-06"}
DISEASES = ("I10", "E11.9", "N18.30", "J44.9", "I48.91")
CALIBRATED, DRIFTED = 500, 60  # simulated encounters before and after the calibration


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
            few = picture.quantize(palette=frequent_colours(picture), dither=Image.Dither.NONE)
            few.save(self.out / f"{name}{suffix}.png", optimize=True)


def frequent_colours(picture: Image.Image, most: int = 128) -> Image.Image:
    """A palette of the most frequent colours, so that the colours of surfaces and lines are exact."""
    counts = picture.getcolors(picture.width * picture.height) or []
    colours = [colour for _, colour in sorted(counts, reverse=True)[:most]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in colours for channel in colour])
    return palette


def note_id(connection: Connection, ref: str) -> int:
    """The id of an encounter in the store."""
    return connection.execute(select(notes.c.id).where(notes.c.ref == ref)).scalar_one()


def find_user(connection: Connection, name: str) -> int:
    """The id of a user."""
    return connection.execute(select(users.c.id).where(users.c.name == name)).scalar_one()


def code(engine: Engine, note: int, user: int, rng: Random) -> None:
    """Records the decisions of a person who accepts most suggestions, and finishes the encounter."""
    with read_transaction(engine) as connection:
        case = load_case(connection, note)
    taken = [item for item in case.suggestions if item.accepted and rng.random() < SHARE]
    steps = [("accept", {"code": f"{item.system}:{item.code}"}) for item in taken]
    for version, (action, details) in enumerate([*steps, ("finish", {})], case.review.version):
        record_decision(engine, note, action, details, user=user, version=version)


def code_twice(engine: Engine) -> None:
    """Lets the coder and the reviewer code some encounters; one more is in work."""
    rng = Random(0)
    with read_transaction(engine) as connection:
        coder, reviewer, admin = (find_user(connection, name) for name in ("coder", "reviewer", "admin"))
        chosen = [note_id(connection, ref) for ref in TWICE]
        in_work = note_id(connection, IN_WORK)
    for note in chosen:
        code(engine, note, coder, rng)
        code(engine, choose_note(engine, admin, note, "tool"), reviewer, rng)
    choose_note(engine, admin, in_work, "tool", reviewer)


def converse(engine: Engine) -> None:
    """Adds a physician, two queries of which one is answered, and a comment."""
    with write_transaction(engine) as connection:
        physician = create_user(connection, PHYSICIAN, "physician", None)
        known = select(users.c.password).where(users.c.name == "admin").scalar_subquery()
        connection.execute(update(users).where(users.c.id == physician).values(password=known))
        coder = find_user(connection, "coder")
        note = note_id(connection, ASKED)
        text = load_case(connection, note).note["text"]
        for question, words, options in QUESTIONS:
            values = {"question": question, "options": options, "physician": physician, **sentence_of(text, words)}
            query, _ = insert_query(connection, note, coder, values, length=len(text))
        insert_answer(connection, load_query(connection, query), physician, PHYSICIAN, QUESTIONS[-1][-1][0])
        insert_comment(connection, note, coder, "The daughter has the name of the home nurse; the ward will ask her.")


def sentence_of(text: str, words: str) -> dict[str, int]:
    """Start and end of the sentence with the last occurrence of some words."""
    at = text.rindex(words)
    return {"start": text.rindex(". ", 0, at) + 2, "end": text.index(".", at) + 1}


def open_encounter(page: Page, address: str, ref: str) -> None:
    """Opens the page of an encounter."""
    page.goto(f"{address}/?status=all")
    page.get_by_role("link", name=ref, exact=True).click()
    page.wait_for_selector(".card")


def sign_in(page: Page, address: str, name: str) -> None:
    """Signs in."""
    page.context.clear_cookies()
    page.goto(f"{address}/login")
    page.fill("[name=name]", name)
    page.fill("[name=password]", PASSWORD)
    page.click("button.primary")
    page.wait_for_selector("nav[aria-label=Main]")


def wait_until_coded(page: Page) -> None:
    """Waits until every encounter has its suggestions."""
    while page.get_by_text("being coded").count():
        page.wait_for_timeout(1_000)
        page.reload()


def take_tour(page: Page, camera: Camera) -> None:
    """Goes on with the guided tour up to the proposed claim."""
    for _ in range(3):
        page.locator("#tour .primary").press("Enter")
        page.wait_for_load_state()
    page.wait_for_selector("#tour h2:text('Proposed claim')")
    camera.take("tour")
    page.keyboard.press("Escape")


def take_encounter(page: Page, address: str, camera: Camera) -> None:
    """The page of an encounter: as it opens, with codes, search, DRG panel and dialogs."""
    open_encounter(page, address, ENCOUNTER)
    camera.take("note")
    page.keyboard.press("/")
    page.fill("#find", PROCEDURE)
    page.wait_for_selector("#hits .hit")
    page.locator("#finding").evaluate("form => form.scrollIntoView()")
    camera.take("search")
    page.fill("#find", "")
    page.locator("#hits .hit").first.wait_for(state="detached")
    page.locator(".card.now").focus()
    page.keyboard.press("y")
    page.wait_for_selector(".chosen .card")
    page.locator(".chosen .card").first.click()
    page.locator(".toast").wait_for(state="detached")
    camera.take("codes")
    page.locator(".groups summary").click()
    page.locator(".groups").evaluate("panel => panel.scrollIntoView()")
    camera.take("drg")
    page.locator(".groups summary").click()
    for name, key in DIALOGS.items():
        page.locator(".card.now").focus()
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open] h2")
        camera.take(name)
        page.keyboard.press("Escape")


def take_pictures(page: Page, address: str, out: Path) -> None:
    """Takes all pictures."""
    camera = Camera(page, out)
    page.goto(f"{address}/login")
    camera.take("login")
    sign_in(page, address, "admin")
    take_tour(page, camera)
    take_encounter(page, address, camera)
    open_encounter(page, address, ASKED)
    page.locator("#conversation").scroll_into_view_if_needed()
    camera.take("conversation")
    open_encounter(page, address, APPROVED)
    page.goto(f"{page.url.partition('?')[0]}/history")
    camera.take("history")
    for name in PAGES:
        page.goto(f"{address}/{'' if name == 'queue' else name}")
        camera.take(name)
    page.goto(f"{address}/double")
    page.get_by_role("link", name=TWICE[1], exact=True).click()
    page.wait_for_selector(".difference.now")
    page.keyboard.press("1")
    camera.take("adjudicate")
    sign_in(page, address, PHYSICIAN)
    camera.take("queries")
    page.locator("#next").click()
    page.wait_for_selector(".question")
    camera.take("query")


def add_coded(engine: Engine, number: int, words: float, rng: Random) -> list[int]:
    """The ids of new simulated encounters with about this many words. Each code is right with its probability."""
    with write_transaction(engine) as connection:
        coder, first = newest_coder(connection), connection.execute(select(notes.c.id)).all()
        add_notes(connection, [Note(f"S-{len(first) + i}", "simulated") for i in range(number)], None)
        ids = list(connection.scalars(select(notes.c.id).where(notes.c.coding == "waiting").order_by(notes.c.id)))
        connection.execute(update(notes).where(notes.c.id.in_(ids)).values(coding="done"))
        for note in ids:
            shape = rng.choice(((60, 1), (60, 1), (6, 2)))  # two in three are easy
            found = [Suggestion("icd10cm", disease, "", rng.betavariate(*shape), True) for disease in DISEASES]
            profile = {"words": rng.gauss(words, 60), "digits": rng.gauss(0.12, 0.03), "accepted": len(found)}
            profile |= {"capitals": rng.gauss(0.18, 0.02), "letters": rng.gauss(5.6, 0.1)}
            profile |= {"supported": rng.betavariate(20, 1), "confidence": expected_f1(found)}
            row = {"note_id": note, "coder_id": coder, "made": time.time(), "profile": profile}
            connection.execute(insert(codings).values(**row, suggestions=[suggestion_to_json(item) for item in found]))
    return ids


def review_coded(engine: Engine, ids: list[int], rng: Random) -> None:
    """Lets the reviewer accept the right codes of simulated encounters and finish them."""
    with read_transaction(engine) as connection:
        reviewer = find_user(connection, "reviewer")
    for note in ids:
        with read_transaction(engine) as connection:
            case = load_case(connection, note)
        right = [item for item in case.suggestions if rng.random() < item.probability] or case.suggestions[:1]
        steps = [("accept", {"code": f"{item.system}:{item.code}"}) for item in right]
        record_decisions(engine, note, [*steps, ("finish", {})], user=reviewer, version=0, case=case)


def take_findings(page: Page, address: str, camera: Camera) -> None:
    """The audit of the final codes of all finished encounters, and one of its findings."""
    page.goto(f"{address}/findings")
    page.get_by_role("button", name="Audit").click()
    while page.get_by_role("status").filter(has_text="running").count():
        page.wait_for_timeout(500)
        page.reload()
    camera.take("findings")
    page.locator("table.list tbody a").first.click()
    page.wait_for_load_state()
    camera.take("finding")


def add_departments(engine: Engine) -> None:
    """Adds finished encounters of some services; their final codes are those of the proposed claim."""
    texts = [(name, text) for name, rows in DEPARTMENTS.items() for text, number in rows for _ in range(number)]
    rows = [
        Note(f"D-{2001 + number}", f"DISCHARGE DIAGNOSES: {text}", extra=STAY | {"service": name})
        for number, (name, text) in enumerate(texts)
    ]
    with write_transaction(engine) as connection:
        coder, reviewer = newest_coder(connection), find_user(connection, "reviewer")
        add_notes(connection, [normalize_encounter(row) for row in rows], None)
        ids = [note_id(connection, row.id) for row in rows]
    model = Coder.for_claims("day-one")
    save_codings(engine, coder, ids, [CodedNote(tuple(model.code(row.text)), {}) for row in rows])
    for note in ids:
        with read_transaction(engine) as connection:
            case = load_case(connection, note)
        steps = [("add", {"code": f"icd10cm:{item.code}"}) for item in propose_claim(case).codes]
        record_decisions(engine, note, [*steps, ("finish", {})], user=reviewer, version=case.review.version, case=case)


def take_gaps(page: Page, address: str, engine: Engine, camera: Camera) -> None:
    """The ranked list of documentation gaps, the encounters of its first entry, and one of them."""
    add_departments(engine)
    page.goto(f"{address}/gaps")
    page.get_by_role("button", name="Search").click()
    page.wait_for_load_state("networkidle")
    while page.get_by_role("status").filter(has_text="running").count():
        page.wait_for_timeout(500)
        page.reload()
    camera.take("gaps")
    for name in ("gap_encounters", "gap"):
        page.locator("table.list tbody a").first.click()
        page.wait_for_load_state()
        camera.take(name)


def take_triage(page: Page, address: str, engine: Engine, camera: Camera) -> None:
    """The triage page after a calibration, and with an alarm."""
    rng = Random(1)
    page.goto(f"{address}/triage")
    page.get_by_role("button", name="Start again").click()
    review_coded(engine, add_coded(engine, CALIBRATED, 420, rng), rng)
    page.goto(f"{address}/triage")
    page.get_by_label("At most").fill("0.5")
    page.get_by_role("button", name="Calibrate").click()
    page.get_by_label("Pre-accept").check()
    page.get_by_role("button", name="Save").click()
    width = page.evaluate("innerWidth")
    for name, words in (("triage", 420), ("triage_alarm", 560)):
        add_coded(engine, DRIFTED, words, rng)
        page.goto(f"{address}/triage")
        page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
        camera.take(name)


def main() -> None:
    """Starts the demo on a new store and takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--size", default="1280x800")
    parser.add_argument("--zoom", type=int, default=1)
    parser.add_argument("--only", choices=["all", "findings", "gaps", "triage"], default="all")
    options = parser.parse_args()
    width, height = (int(side) // options.zoom for side in options.size.split("x"))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = str(Path(folder) / "demo.db")
        server = Server("--demo", store, log=Path(folder) / "log").start(280)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=options.zoom)
            sign_in(page, server.address, "admin")
            wait_until_coded(page)
            engine = open_database(store)
            if options.only == "all":
                code_twice(engine)
                converse(engine)
                page.context.clear_cookies()
                take_pictures(page, server.address, options.out)
            camera = Camera(page, options.out)
            sign_in(page, server.address, "admin")
            if options.only in ("all", "findings"):
                take_findings(page, server.address, camera)
            if options.only in ("all", "gaps"):
                take_gaps(page, server.address, engine, camera)
            if options.only in ("all", "triage"):
                take_triage(page, server.address, engine, camera)
            engine.dispose()
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
