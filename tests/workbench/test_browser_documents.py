"""Encounters with several documents in Chromium: tabs and evidence by keys, data of the encounter, accessibility."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from nosology.core import Note
from nosology.workbench.accounts import create_user
from nosology.workbench.database import open_database, write_transaction
from nosology.workbench.document_import import add_notes
from tests.workbench import test_browser
from tests.workbench.axe import axe_violations
from tests.workbench.conftest import NOTE, PASSWORD, fill_people
from tests.workbench.test_browser import SELECT, errors, go, open_note, running, signed_in

chromium, nothing_from_outside = test_browser.chromium, test_browser.nothing_from_outside
ABOUT = {"sex": "F", "age": 70, "admitted": "2025-10-30", "discharged": "2025-11-03", "setting": "inpatient"}
CT = "CT CHEST\n\nImpression:\nPneumonia of the right lower lobe.\n"
DC = "Discharge diagnosis:\nType 2 diabetes.\n\nHospital Course:\nCongestive heart failure, treated.\n"
DOCUMENTS = {"h&p": NOTE, "radiology": CT, "discharge": DC}


def stay(name: str) -> list[Note]:
    return [
        Note(f"{name}-{kind}", text, "p1", extra=ABOUT | {"encounter": name, "document": kind, "document_date": day})
        for (kind, text), day in zip(DOCUMENTS.items(), ("2025-10-30", "2025-10-31", "2025-11-03"))
    ]


@pytest.fixture(scope="module")
def address(small_bundle, tmp_path_factory):
    """The address of a server with encounters of three documents, and one of one document."""
    store = str(tmp_path_factory.mktemp("documents") / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    with write_transaction(engine) as connection:
        create_user(connection, "phil", "physician", PASSWORD)
        stays = [note for number in (1, 2, 3, 4) for note in stay(f"stay-{number}")]
        add_notes(connection, [*stays, Note("single", NOTE, extra=ABOUT)], None)
    engine.dispose()
    with running(small_bundle, store) as url:
        yield url


def selected(page):
    return page.locator('.doc-tabs [aria-selected="true"]')


def test_tabs_and_evidence_by_keys(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "stay-1")
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_count(3)
    expect(selected(page)).to_contain_text("H&P")
    page.keyboard.press(".")
    expect(selected(page)).to_contain_text("Radiology")
    expect(page.get_by_role("tabpanel")).to_contain_text("Pneumonia of the right lower lobe.")
    page.keyboard.press(",")
    page.keyboard.press(",")
    expect(selected(page)).to_contain_text("Discharge summary")
    selected(page).focus()
    page.keyboard.press("ArrowRight")
    expect(tabs.first).to_be_focused()
    page.keyboard.press("End")
    expect(tabs.last).to_be_focused()
    expect(selected(page)).to_contain_text("Discharge summary")
    go(page, "icd10cm:J18.9")  # its only evidence that is not negated is in the report
    page.locator('.card.now .quote:has-text("Radiology")').click()
    expect(selected(page)).to_contain_text("Radiology")
    at = page.locator("#note [data-k].at")
    expect(at).to_be_visible()
    assert "neumonia" in at.inner_text()
    assert page.locator("#note .doc:visible").count() == 1
    page.emulate_media(media="print")
    assert page.locator("#note .doc:visible").count() == 3
    assert page.locator("#note .doc-title:visible").all_inner_texts() == [
        "H&P 2025-10-30",
        "Radiology 2025-10-31",
        "Discharge summary 2025-11-03",
    ]


def test_a_selected_code_shows_the_document_with_its_evidence(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "stay-1")
    page.keyboard.press(".")
    expect(selected(page)).to_contain_text("Radiology")
    go(page, "icd10cm:E11.9")
    expect(page.locator("#note [data-k].at")).to_be_visible()
    assert page.locator("#note [data-k].at").inner_text().lower().startswith("type 2")


def test_text_of_a_later_document_is_marked_to_the_character(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "stay-1")
    go(page, "icd10cm:I50.9")
    page.keyboard.press("a")
    expect(page.locator('.chosen .card[data-key="icd10cm:I50.9"]')).to_be_visible()
    go(page, "icd10cm:I50.9")
    page.get_by_role("tab", name="Discharge").click()
    page.evaluate(test_browser.SELECT, "treated")
    page.keyboard.press("e")
    expect(page.locator('.chosen .card.now .quote:has-text("treated")')).to_contain_text("Discharge summary")


def test_a_single_document_has_no_tabs(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "single")
    expect(page.get_by_role("tab")).to_have_count(0)
    expect(page.locator(".quote .from")).to_have_count(0)
    page.keyboard.press(".")
    expect(page.locator(".toast")).to_contain_text("one document")


def test_data_of_the_encounter_change_the_drg_at_once(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "single")
    page.keyboard.press("/")
    page.keyboard.type("I21.4")
    page.locator(".hit").first.click()
    expect(page.locator(".groups summary")).to_contain_text("Discharged Alive")
    page.keyboard.press("i")
    expect(page.get_by_label("Sex")).to_be_focused()
    page.get_by_label("Disposition").select_option("20")
    page.get_by_label("Birth date").fill("1950-11-02")
    expect(page.get_by_label("Age in years")).to_be_disabled()
    page.keyboard.press("Enter")
    expect(page.locator(".groups summary")).to_contain_text("Expired")
    expect(page.locator("#facts")).to_contain_text("74 years")
    expect(page.locator("#facts")).to_contain_text("died")
    page.keyboard.press("i")
    page.get_by_label("Discharge", exact=True).fill("2025-10-01")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#message")).to_have_text("The discharge is before the admission.")
    expect(page.get_by_label("Discharge", exact=True)).to_have_value("2025-10-01")  # what was typed is kept
    page.keyboard.press("Escape")
    expect(page.locator("#facts")).to_contain_text("2025-10-30 to 2025-11-03")


def test_a_reviewer_withdraws_a_document(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "stay-2")
    expect(page.get_by_role("button", name="Withdraw document")).to_have_count(0)
    page = signed_in(chromium, address, "rita")
    open_note(page, address, "stay-2")
    page.get_by_role("tab", name="Radiology").click()
    page.get_by_role("button", name="Withdraw document").click()
    page.get_by_role("button", name="Withdraw", exact=True).click()
    expect(page.get_by_role("tab")).to_have_count(2)  # after the encounter is coded again
    expect(page.locator(".gone")).to_contain_text("1 document corrected or withdrawn")
    page.get_by_role("link", name="History", exact=True).click()
    page.locator("summary", has_text="stay-2-radiology").click()
    expect(page.locator(".past")).to_contain_text("Pneumonia of the right lower lobe.")


def test_a_query_shows_its_document_and_is_withdrawn(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "stay-3")
    page.keyboard.press(".")
    page.evaluate(SELECT, "CT CHEST")
    page.keyboard.press("w")
    expect(page.locator("#ask .passage q")).to_have_text("CT CHEST")
    page.get_by_role("textbox", name="Question").fill("Which organism?")
    page.get_by_role("button", name="Send the query").click()
    expect(page.locator("#conversation .chip.ask")).to_be_visible()
    page.keyboard.press(",")
    expect(selected(page)).to_contain_text("H&P")
    page.get_by_role("button", name="Passage").click()
    expect(selected(page)).to_contain_text("Radiology")

    phil = signed_in(chromium, address, "phil", at="/queries")
    phil.keyboard.press("g")
    expect(phil.get_by_role("heading", level=2)).to_contain_text(["H&P", "Radiology", "Discharge summary", "Query of"])
    expect(phil.locator(".doc", has_text="CT CHEST").locator(".highlighted")).to_have_text("CT CHEST")
    phil.keyboard.press("?")
    expect(phil.locator("#help")).to_contain_text("next query")
    expect(phil.locator("#help")).not_to_contain_text("accept")
    phil.keyboard.press("Escape")
    assert axe_violations(phil) == []

    rita = signed_in(chromium, address, "rita")
    open_note(rita, address, "stay-3")
    rita.get_by_role("tab", name="Radiology").click()
    rita.get_by_role("button", name="Withdraw document").click()
    rita.locator("#withdraw").get_by_role("button", name="Withdraw").click()
    expect(rita.get_by_role("tab")).to_have_count(2)
    expect(rita.locator("#conversation")).to_contain_text("Its document was corrected or withdrawn")
    phil.reload()
    expect(phil.locator(".panel")).to_contain_text("The passage is in a document that was corrected or withdrawn.")
    expect(phil.locator("blockquote")).to_have_count(0)
    page.reload()
    page.locator("#conversation").get_by_role("button", name="Withdraw").click()
    expect(page.locator(".toast")).to_have_text("The query is withdrawn.")
    expect(page.locator("#conversation .chip")).to_have_text("withdrawn")


def test_a_corrected_text_is_shown_after_a_conflict(chromium, address):
    ann, rita = signed_in(chromium, address, "ann"), signed_in(chromium, address, "rita")
    open_note(ann, address, "stay-4")
    version = ann.locator("#panel").get_attribute("data-version")
    body = {"notes": [{"id": "stay-4-radiology", "encounter": "stay-4", "text": "CT CHEST\nImpression: clear lungs."}]}
    token = rita.locator('meta[name="csrf"]').get_attribute("content")
    assert rita.request.post(f"{address}/api/v1/notes", headers={"x-csrf-token": token}, data=body).status == 202
    open_note(rita, address, "stay-4")
    expect(rita.locator("#panel")).not_to_have_attribute("hx-get", re.compile("coded"))  # it is coded again
    assert ann.locator("#panel").get_attribute("data-version") == version
    ann.keyboard.press("t")
    expect(ann.locator(".doc", has_text="clear lungs")).to_have_count(1)
    expect(ann.locator(".gone")).to_contain_text("1 document corrected or withdrawn")
    expect(ann.locator(".toast.error")).to_contain_text("your decision was not saved")
    errors[:] = [error for error in errors if "409" not in error]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(chromium, address, scheme):
    page = signed_in(chromium, address, "rita", color_scheme=scheme)
    open_note(page, address, "stay-1")
    assert axe_violations(page) == []
    page.keyboard.press("i")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert axe_violations(page) == []
