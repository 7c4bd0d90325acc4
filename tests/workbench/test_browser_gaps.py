"""The pages of documentation gaps in Chromium: from the ranked list to the words, on small screens, axe-core."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from nosology.core import Note
from nosology.serving.coder import Coder
from nosology.workbench.cases import record_decisions
from nosology.workbench.coding import save_codings
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.note_coding import CodedNote
from nosology.workbench.services import register_coder
from nosology.workbench.store_tables import users
from tests.workbench.axe import ALL_RULES, CONTRAST, axe_violations
from tests.workbench.conftest import fill_people
from tests.workbench.test_browser import chromium, nothing_from_outside, running, signed_in  # noqa: F401 (fixtures)

TEXT = "DISCHARGE DIAGNOSES: Pneumonia. Heart failure, continue furosemide. Knee pain."
STAY = {"setting": "inpatient", "sex": "F", "age": 78, "date": "2025-11-03"}
CUT = "[...document.querySelectorAll('.scroll')].map((it) => it.scrollWidth - it.clientWidth)"
FINAL = ("J18.9", "I50.9", "M25.569")


@pytest.fixture(scope="module")
def address(small_bundle, tmp_path_factory):
    """The address of a server with finished encounters of two services."""
    store = str(tmp_path_factory.mktemp("gaps") / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    with write_transaction(engine) as connection:
        services = ("Medicine", "Medicine", "Surgery")
        rows = [Note(f"gap-{number}", TEXT, extra=STAY | {"service": name}) for number, name in enumerate(services)]
        add_notes(connection, rows, None)
    suggestions = tuple(Coder.for_claims("day-one").code(TEXT))
    save_codings(engine, register_coder(engine, "day-one", None), [1, 2, 3], [CodedNote(suggestions, {})] * 3)
    with read_transaction(engine) as connection:
        ann = connection.scalar(select(users.c.id).where(users.c.name == "ann"))
    steps = [*(("add", {"code": f"icd10cm:{code}"}) for code in FINAL), ("finish", {})]
    for note in (1, 2, 3):
        record_decisions(engine, note, steps, user=ann, version=0)
    engine.dispose()
    with running(small_bundle, store) as url:
        yield url


def test_the_ranked_list_leads_to_the_words(chromium, address):  # noqa: F811
    page = signed_in(chromium, address, "adam")
    page.goto(f"{address}/measures")
    page.get_by_role("link", name="documentation gaps").click()
    page.get_by_role("button", name="Search 3 encounters").click()
    rows = page.locator("table.ranked tbody tr:has(a)")
    while not rows.count() or page.get_by_role("status").filter(has_text="running").count():
        page.wait_for_timeout(300)
        page.reload()
    expect(rows.first).to_contain_text("Heart failure is documented without its type")
    seen = [page.url]
    page.get_by_role("link", name="Surgery 1").click()
    expect(rows.first.locator("td", has_text="Surgery")).to_have_count(0)  # the column is not needed
    page.get_by_role("link", name="All").click()
    rows.first.get_by_role("link").click()
    expect(rows).to_have_count(2)
    seen.append(page.url)
    rows.first.get_by_role("link").click()
    expect(page.locator("#main mark, #main .highlighted").first).to_contain_text("Heart failure")
    seen.append(page.url)
    for url in seen:
        page.goto(url)
        assert axe_violations(page, ALL_RULES) == []
    page.emulate_media(color_scheme="dark")
    for url in seen:
        page.goto(url)
        assert axe_violations(page, CONTRAST) == []
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 800})
        for url in seen:
            page.goto(url)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, url)
            hidden = page.evaluate(
                "[...document.querySelectorAll('.scroll')].map((it) => it.scrollWidth - it.clientWidth)"
            )
            assert width == 320 or max(hidden, default=0) <= 0, (width, url)  # nobody has to scroll to the side
