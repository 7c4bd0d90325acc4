"""The conversation in Chromium: from question to answer by keys, drafts, failures, sending back, accessibility."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from nosology.core import Note
from nosology.workbench.accounts import create_user
from nosology.workbench.database import open_database, write_transaction
from nosology.workbench.document_import import add_notes
from tests.workbench import test_browser
from tests.workbench.axe import ALL_RULES, CONTRAST, axe_violations
from tests.workbench.conftest import NOTE, PASSWORD, fill_people
from tests.workbench.test_browser import SELECT, errors, go, open_note, running, signed_in

chromium, nothing_from_outside = test_browser.chromium, test_browser.nothing_from_outside
ABOUT = {"sex": "F", "age": 70, "date": "2025-11-03", "kind": "inpatient"}
ASKING = "Assessment and Plan:\n1. Sepsis due to pneumonia.\n2. Heart failure, on diuretics.\n"  # it asks


@pytest.fixture(scope="module")
def address(small_bundle, tmp_path_factory):
    """The address of a server with four notes and a physician."""
    store = str(tmp_path_factory.mktemp("conversation") / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    with write_transaction(engine) as connection:
        create_user(connection, "phil", "physician", PASSWORD)
        add_notes(connection, [Note(f"note-{i}", NOTE, extra=ABOUT) for i in range(3)], None)
        add_notes(connection, [Note("asking", ASKING, extra=ABOUT)], None)
    engine.dispose()
    with running(small_bundle, store) as url:
        yield url


def test_a_query_is_asked_answered_and_back_to_work_by_keys(chromium, address):
    ann = signed_in(chromium, address, "ann")
    open_note(ann, address, "note-0")
    ann.evaluate(SELECT, "dyspnea")
    ann.keyboard.press("w")
    expect(ann.get_by_role("textbox", name="Question")).to_be_focused()
    expect(ann.locator("#ask .passage q")).to_have_text("dyspnea")
    ann.keyboard.type("Which type of heart failure?")
    ann.keyboard.press("Tab")
    ann.keyboard.type("systolic\ndiastolic")
    ann.reload()  # what was typed is still there
    expect(ann.locator(".card.now")).to_be_visible()
    ann.keyboard.press("w")
    expect(ann.get_by_role("textbox", name="Question")).to_have_value("Which type of heart failure?")
    expect(ann.locator("#ask .passage q")).to_have_text("dyspnea")
    ann.get_by_role("button", name="Send the query").focus()
    ann.keyboard.press("Enter")
    expect(ann.locator(".panel .chip.held")).to_be_visible()
    expect(ann.locator(".toast")).to_have_text("The query is sent.")
    expect(ann.locator("#conversation .talk li")).to_contain_text("Which type of heart failure?")
    ann.goto(f"{address}/?talk=query_open")
    expect(ann.locator("tbody tr")).to_have_count(1)
    expect(ann.locator("tbody tr")).to_contain_text("query open")

    phil = signed_in(chromium, address, "phil", at="/queries")
    expect(phil.locator("nav a")).to_have_text(["Queries"])
    phil.keyboard.press("g")
    expect(phil.locator(".text .highlighted")).to_have_text("dyspnea")
    expect(phil.locator(".text .highlighted")).to_be_in_viewport()
    phil.wait_for_load_state()  # what is typed is kept from then on
    phil.get_by_label("In your words").fill("EF 25 percent")
    phil.reload()
    expect(phil.get_by_label("In your words")).to_have_value("EF 25 percent")
    phil.get_by_label("systolic", exact=True).check()
    phil.get_by_role("button", name="Send the answer").press("Enter")
    phil.wait_for_url(f"{address}/queries")
    expect(phil.get_by_role("heading", name="Answered by you")).to_be_visible()

    ann.goto(f"{address}/?talk=query_answered")
    ann.keyboard.press("g")  # it is offered as the next note
    expect(ann.locator("#conversation .chip.answer")).to_have_text("answered")
    expect(ann.locator("#conversation .typed.answer")).to_have_text("systolic: EF 25 percent")
    expect(ann.locator(".panel .chip.open").first).to_have_text("in work")
    ann.keyboard.press("a")  # the version of the panel is the newest
    expect(ann.locator(".chosen .card")).to_have_count(1)


def test_a_failed_post_keeps_the_text_and_is_stored_once(chromium, address):
    page = signed_in(chromium, address, "ann", intercepts=True)
    open_note(page, address, "note-1")
    page.route("**/comments", lambda route: route.abort())
    page.keyboard.press("l")
    page.keyboard.type("Echo is missing")
    page.get_by_role("button", name="Comment", exact=True).last.click()
    expect(page.locator("#comment [role=alert]")).to_contain_text("your text is still here")
    expect(page.locator("#comment textarea")).to_have_value("Echo is missing")
    page.unroute("**/comments")
    page.route("**/comments", lambda route: (route.fetch(), route.fulfill(status=503, json={"detail": "busy"})))
    page.get_by_role("button", name="Comment", exact=True).last.click()  # it is stored, but the answer is lost
    expect(page.locator("#comment [role=alert]")).to_have_text("Busy")
    page.unroute("**/comments")
    page.get_by_role("button", name="Comment", exact=True).last.click()
    expect(page.locator("#comment")).to_be_hidden()
    expect(page.locator("#conversation .talk li")).to_have_count(1)
    expect(page.locator("#conversation .talk li")).to_contain_text("Echo is missing")
    page.keyboard.press("l")
    expect(page.locator("#comment textarea")).to_have_value("")
    page.keyboard.type("nobody else reads this")
    page.keyboard.press("Escape")
    page.locator("details.menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Name")).to_be_visible()
    assert not [key for key in page.evaluate("Object.keys(sessionStorage)") if key.startswith("draft")]
    errors[:] = [error for error in errors if "ERR_FAILED" not in error and "503" not in error]


def test_a_reviewer_withdraws_a_query_and_not_the_document(chromium, address):
    page = signed_in(chromium, address, "rita")
    open_note(page, address, "note-1")
    page.keyboard.press("w")
    page.get_by_role("textbox", name="Question").fill("Is it acute?")
    page.get_by_label("on hold").uncheck()
    page.get_by_role("button", name="Send the query").click()
    query = page.locator("#conversation .talk li", has_text="Is it acute?")
    page.locator(".bar").get_by_role("link", name="query open").click()
    expect(query).to_be_in_viewport()
    query.get_by_role("button", name="Withdraw").click()
    expect(query).to_contain_text("withdrawn by rita")
    expect(page.locator("#withdraw")).to_be_hidden()


def test_a_second_review_is_sent_back_and_shows_what_it_changed(chromium, address):
    ann, rita = signed_in(chromium, address, "ann"), signed_in(chromium, address, "rita")
    open_note(ann, address, "note-2")
    go(ann, "icd10cm:I50.9")
    ann.keyboard.press("a")
    expect(ann.locator(".chosen .card")).to_have_count(1)
    ann.keyboard.press("s")
    expect(ann.locator(".panel .chip.second")).to_be_visible()
    open_note(rita, address, "note-2")
    ann.keyboard.press("v")
    expect(ann.locator(".toast")).to_have_text("Reviewers send second reviews back, nothing else.")
    rita.keyboard.press("v")
    expect(rita.get_by_label("Reason")).to_be_focused()
    expect(rita.locator(".toast")).to_have_count(0)
    rita.keyboard.type("The diabetes is missing.")
    rita.keyboard.press("Tab")
    rita.keyboard.press("Enter")
    expect(rita.locator(".sent-back")).to_contain_text("Sent back by rita. The diabetes is missing.")
    ann.reload()
    expect(ann.locator(".card.now")).to_be_visible()
    expect(ann.locator(".sent-back")).to_contain_text("The diabetes is missing.")
    expect(ann.locator(".sent-back")).to_be_in_viewport()  # also beside a code further down
    go(ann, "icd10cm:E11.9")
    ann.keyboard.press("a")
    expect(ann.locator(".chosen .card")).to_have_count(2)
    ann.keyboard.press("f")
    expect(ann.locator(".panel .chip.second")).to_be_visible()
    expect(ann.locator(".sent-back")).to_have_count(0)
    rita.reload()
    expect(rita.locator(".card.now")).to_be_visible()
    rita.keyboard.press("f")
    expect(rita.locator(".panel .chip.done")).to_be_visible()
    ann.reload()
    expect(ann.locator(".second-review .changes li")).to_have_count(1)
    expect(ann.locator(".second-review .changes li")).to_contain_text("code added")


def test_a_question_of_the_claim_fills_the_query_and_a_coder_records_the_answer(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "asking")
    question = page.locator('.claim [data-act="ask"]').first.get_attribute("data-question")
    page.keyboard.press("w")
    page.keyboard.press("1")
    expect(page.get_by_role("textbox", name="Question")).to_have_value(question)
    expect(page.locator("#ask .passage")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#ask")).to_be_hidden()
    page.locator('.claim [data-act="ask"]').first.click()
    page.get_by_role("button", name="Send the query").click()
    page.get_by_role("button", name="Record the answer").first.click()
    page.get_by_role("radio", name="unable to determine").check()
    page.get_by_label("Physician", exact=True).fill("Dr. Weiss")
    page.locator("#answer button.primary").click()
    expect(page.locator("#conversation .typed.answer")).to_have_text("unable to determine")
    expect(page.locator("#conversation")).to_contain_text("recorded by ben")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_the_conversation(chromium, address, scheme):
    """After the tests above: notes with queries, comments and second reviews."""
    rules = ALL_RULES if scheme == "light" else CONTRAST
    ann = signed_in(chromium, address, "ann", color_scheme=scheme)
    phil = signed_in(chromium, address, "phil", at="/queries", color_scheme=scheme)
    violations = {}

    def check(page, name):
        if found := axe_violations(page, rules):
            violations[name] = found

    open_note(ann, address, "note-2")
    check(ann, "note")
    ann.keyboard.press("w")
    check(ann, "query")
    ann.get_by_role("textbox", name="Question").fill("Is the sepsis severe?")
    ann.get_by_role("button", name="Send the query").click()
    expect(ann.locator("#conversation .chip.ask").first).to_be_visible()
    ann.get_by_role("button", name="Record the answer").first.click()
    check(ann, "answer")
    ann.keyboard.press("Escape")
    ann.keyboard.press("l")
    check(ann, "comment")
    for path in ("/?status=all", "/measures", "/notes/3/history", "/users"):
        ann.goto(address + path)
        check(ann, path)
    phil.goto(f"{address}/queries")
    check(phil, "queries")
    phil.keyboard.press("g")
    expect(phil.get_by_role("button", name="Send the answer")).to_be_visible()
    check(phil, "answer of a physician")
    assert violations == {}
    errors[:] = [error for error in errors if "403" not in error]
