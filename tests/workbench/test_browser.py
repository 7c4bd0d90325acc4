"""The pages in Chromium: keyboard, concurrent users, accessibility (axe-core)."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import Engine, func, select

from nosology.core import Note
from nosology.federated.deploy.flower_process import wait_until
from nosology.workbench.app import create_app
from nosology.workbench.database import open_database, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.server_settings import ServerSettings
from nosology.workbench.store_tables import notes
from tests.workbench.axe import ALL_RULES, CONTRAST, axe_violations
from tests.workbench.conftest import NOTE, PASSWORD, fill_people

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
expect.set_options(timeout=30_000)  # of a machine that does other things as well
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def address(small_bundle, tmp_path_factory):
    """The address of a server with a few notes."""
    store = str(tmp_path_factory.mktemp("browser") / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    about = {"sex": "F", "age": 70, "date": "2025-11-03", "kind": "inpatient"}
    with write_transaction(engine) as connection:
        incoming = [Note(f"note-{i}", NOTE, patient=f"p{i}", site="east", extra=about) for i in range(6)]
        harm = "document.title='owned'"
        evil = f'<script>{harm}</script><img src=x onerror="{harm}"> \u202econgestive heart failure'
        incoming += [Note(f"slow-{i}", NOTE, site="south", extra=about) for i in range(5)]
        incoming += [Note(f"outbox-{i}", NOTE, site="west", extra=about) for i in range(6)]
        incoming += [Note(f"filter-{i}", NOTE, site="north", extra=about) for i in range(3)]
        incoming += [
            Note("in 2019", NOTE, extra={**about, "date": "2019-05-05"}),
            Note("W" * 200, "heart failure " * 9),
        ]
        add_notes(connection, [*incoming, Note("evil", evil), Note("long", NOTE * 30, site="long", extra=about)], None)
    engine.dispose()
    with running(small_bundle, store) as url:
        yield url


@contextmanager
def running(bundle: Path, store: str, **options) -> Iterator[str]:
    """The address of a server on a store, once its notes are coded; options: of its settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_app(ServerSettings(bundle=bundle, store=store, port=port, **options))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        app.state.services.sign_in_limit.limit = 1000  # all these people sit at one address
        assert wait_until(lambda: not waiting(app.state.services.engine), 250)  # for the coder
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def waiting(engine: Engine) -> int:
    """The number of notes that are not coded yet."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(notes).where(notes.c.coding == "waiting"))


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium (`make test` installs it), or another installed one."""
    with sync_playwright() as playwright:
        path = next((located for name in NAMES if (located := shutil.which(name))), None)
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def signed_in(chromium: Browser, address: str, name: str, at: str = "/", intercepts: bool = False, **options) -> Page:
    """A browser window of a user; a request to another server fails the test.

    intercepts: for tests that set routes. Chromium may let requests of a loaded page pass for a while after its first
    route was set, so that one is set before the first page.
    """
    page = chromium.new_context(viewport={"width": 1280, "height": 800}, **options).new_page()
    if intercepts:
        page.route("**/no-such-path", lambda route: route.abort())
    page.on("request", lambda request: outside.append(request.url) if not request.url.startswith(address) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/login")
    expect(page.get_by_label("Name")).to_be_focused()  # autofocus comes after the load event: keys before it are lost
    page.keyboard.type(name)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}{at}")
    return page


outside: list[str] = []
errors: list[str] = []


@pytest.fixture(autouse=True)
def nothing_from_outside():
    outside.clear()
    errors.clear()
    yield
    assert outside == []
    assert [error for error in errors if "409" not in error and "422" not in error] == []


def open_note(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}/?status=all")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator(".card.now")).to_be_visible()
    page.wait_for_load_state()  # all scripts have run: the page listens to all keys from then on


def go(page: Page, key: str) -> None:
    """Moves to a code with j and k."""
    for _ in range(20):
        page.keyboard.press("k")
    for _ in range(20):
        if page.locator(".card.now").get_attribute("data-key") == key:
            return
        page.keyboard.press("j")
    raise AssertionError(f"{key} cannot be reached by keys")


def chosen(page: Page) -> list[str]:
    return page.locator(".chosen .card .code").all_inner_texts()


def test_a_note_is_coded_with_keys_only(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "note-0")
    keys = page.keyboard
    go(page, "icd10cm:I50.9")
    assert page.locator("#note .on").count() >= 1  # its evidence stands out in the note
    keys.press("a")
    expect(page.locator(".chosen .card")).to_have_count(1)
    assert chosen(page) == ["I50.9"]
    go(page, "icd10cm:J18.9")
    expect(page.locator(".card.now .tag", has_text="negated").first).to_be_visible()
    keys.press("r")
    keys.press("2")  # negated or ruled out
    expect(page.locator(".rejected summary")).to_have_text("1 rejected")
    keys.press("/")
    keys.type("essential hypertension")
    keys.press("Enter")  # before the response is there
    expect(page.locator("#hits .hit:focus")).to_contain_text("I10")
    keys.press("Enter")
    expect(page.locator(".chosen .card")).to_have_count(2)
    expect(page.locator('.card.now[data-key="icd10cm:I10"]')).to_be_visible()
    keys.press("p")  # principal
    expect(page.locator(".chosen .card .code").first).to_have_text("I10")
    keys.press("o")  # present on admission: yes
    expect(page.locator(".chosen .card.now [role=radio][aria-checked=true]")).to_have_text("Y")
    keys.press("m")  # mark words
    for _ in range(3):
        keys.press("Shift+ArrowRight")
    keys.press("Escape")
    keys.press("e")
    expect(page.locator(".chosen .card.now .quote")).to_have_count(1)
    keys.press("f")
    expect(page.locator(".panel .chip.done")).to_be_visible()
    page.goto(page.url.partition("?")[0] + "/history")
    words = page.locator(".timeline").inner_text()
    assert all(word in words for word in ("accept", "reject", "add", "order", "poa", "evidence", "finish"))


SELECT = """(word) => {
  const at = [...document.querySelectorAll("#note [data-s]")].find((piece) => piece.textContent.includes(word));
  const start = at.firstChild.data.indexOf(word);
  getSelection().setBaseAndExtent(at.firstChild, start, at.firstChild, start + word.length);
}"""


def test_selected_text_is_stored_to_the_character(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "note-4")
    page.keyboard.press("a")
    expect(page.locator(".chosen .card")).to_have_count(1)
    key = page.locator(".chosen .card").get_attribute("data-key")
    page.locator(".chosen .card").click()
    page.evaluate(SELECT, "Father")
    page.keyboard.press("e")
    expect(page.locator(".chosen .card .quote", has_text="Father")).to_be_visible()
    note = page.locator("#note").get_attribute("data-note")
    history = json.loads(page.evaluate(f"fetch('/api/v1/notes/{note}/decisions').then((r) => r.text())"))
    marked = history[-1]["details"]
    assert NOTE[marked["start"] : marked["end"]] == "Father" and marked["code"] == key


def test_two_users_on_one_note_get_a_conflict(chromium, address):
    ann, rita = signed_in(chromium, address, "ann"), signed_in(chromium, address, "rita")
    for page in (ann, rita):
        open_note(page, address, "note-1")
    ann.keyboard.press("a")
    expect(ann.locator(".chosen .card")).to_have_count(1)
    rita.keyboard.press("a")
    expect(rita.get_by_role("alert")).to_contain_text("ann changed this note")
    expect(rita.locator(".chosen .card")).to_have_count(1)  # ann's, as it is now
    rita.keyboard.press("a")
    expect(rita.locator(".chosen .card")).to_have_count(2)


def codes_of(page: Page, note: str) -> list[str]:
    """The codes of a note as the server has them."""
    answer = json.loads(page.evaluate(f"fetch('/api/v1/notes/{note}').then((r) => r.text())"))
    return [item["code"] for item in answer["codes"]]


def test_decisions_on_their_way_are_saved_before_the_page_is_left(chromium, address):
    page = signed_in(chromium, address, "rita", intercepts=True)
    open_note(page, address, "slow-0")
    note = page.locator("#note").get_attribute("data-note")
    page.route("**/decide", lambda route: (time.sleep(0.3), route.continue_()))
    page.evaluate(PRESS, ["a", "a", "a", "q"])
    expect(page.get_by_role("heading", name="Work queue")).to_be_visible()
    assert len(codes_of(page, note)) == 3


def test_decisions_survive_a_lost_network_and_a_reload(chromium, address):
    page = signed_in(chromium, address, "rita", intercepts=True)
    open_note(page, address, "slow-1")
    note = page.locator("#note").get_attribute("data-note")
    page.on("dialog", lambda dialog: dialog.accept())
    page.route("**/decide", lambda route: route.abort())
    page.keyboard.press("a")
    expect(page.locator("#saving")).to_have_text("Offline: 1 decision to save")
    expect(page.locator(".toast.error")).to_contain_text("will be sent again")
    page.keyboard.press("q")
    expect(page.locator(".toast.error", has_text="Stay on this page")).to_be_visible()
    page.reload()
    expect(page.locator("#saving")).to_have_text("Offline: 1 decision to save")
    assert codes_of(page, note) == []
    page.unroute("**/decide")
    expect(page.locator("#saving")).to_have_text("Saved")
    expect(page.locator(".chosen .card")).to_have_count(1)
    assert len(codes_of(page, note)) == 1
    errors[:] = [error for error in errors if "ERR_FAILED" not in error]


def test_a_busy_server_is_asked_again_and_a_refusal_is_shown(chromium, address):
    page = signed_in(chromium, address, "ben", intercepts=True)
    open_note(page, address, "slow-2")
    note = page.locator("#note").get_attribute("data-note")
    page.route("**/decide", lambda route: route.fulfill(status=503, json={"detail": "busy"}), times=1)
    page.keyboard.press("a")
    expect(page.locator("#saving")).to_have_text("Saved")
    assert len(codes_of(page, note)) == 1
    page.route("**/decide", lambda route: route.fulfill(status=403, json={"detail": "Not allowed."}), times=1)
    page.keyboard.press("a")
    expect(page.locator(".toast.error", has_text="Not allowed.")).to_be_visible()
    assert len(codes_of(page, note)) == 1
    page.keyboard.press("z")
    expect(page.locator(".chosen .card")).to_have_count(0)
    errors[:] = [error for error in errors if "503" not in error and "403" not in error]


def test_a_refused_finish_keeps_the_page_although_next_was_pressed(chromium, address):
    page = signed_in(chromium, address, "ben", intercepts=True)
    open_note(page, address, "outbox-0")
    page.route("**/decide", lambda route: (time.sleep(0.3), route.continue_()))
    page.evaluate(PRESS, ["f", "g"])
    expect(page.get_by_role("alert")).to_contain_text("The note has no code")
    expect(page.locator("#saving")).to_have_text("Not saved")
    page.unroute("**/decide")
    page.keyboard.press("g")  # once the refusal was seen
    page.wait_for_url("**/notes/*")


def lock(page: Page) -> None:
    """Locks the session as if its idle time were over."""
    page.evaluate("""fetch("/lock", {method: "POST", redirect: "manual",
      headers: {"X-CSRF-Token": document.querySelector("meta[name=csrf]").content}})""")


def sign_in_here(page: Page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")


def test_a_decision_of_a_session_that_ended_is_saved_after_sign_in(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "outbox-1")
    place = page.url
    lock(page)
    page.keyboard.press("a")
    page.wait_for_url("**/login?next=*")
    page.wait_for_load_state("networkidle")
    sign_in_here(page, "ben")
    page.wait_for_url(place)
    expect(page.locator(".chosen .card")).to_have_count(1)
    expect(page.locator("#saving")).to_have_text("Saved")
    errors[:] = [error for error in errors if "401" not in error]


def test_nobody_sends_the_decisions_of_another_person(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "outbox-2")
    note = page.locator("#note").get_attribute("data-note")
    lock(page)
    page.keyboard.press("a")
    page.wait_for_url("**/login?next=*")
    sign_in_here(page, "ann")
    expect(page.locator(".toast.error", has_text="Decisions of ben are not saved")).to_be_visible()
    assert codes_of(page, note) == []
    errors[:] = [error for error in errors if "401" not in error]


def test_keys_pressed_without_a_network_are_decisions_that_survive_a_reload(chromium, address):
    page = signed_in(chromium, address, "ben", intercepts=True)
    open_note(page, address, "outbox-3")
    note = page.locator("#note").get_attribute("data-note")
    expected = [card.get_attribute("data-key") for card in page.locator(".open .card").all()[:3]]
    page.on("dialog", lambda dialog: dialog.accept())
    page.route("**/decide", lambda route: route.abort())
    page.evaluate(PRESS, ["a", "a"])
    expect(page.locator("#saving")).to_have_text("Offline: 2 decisions to save")
    page.keyboard.press("a")
    expect(page.locator("#saving")).to_have_text("Offline: 3 decisions to save")
    page.unroute("**/decide")
    page.reload()
    expect(page.locator("#saving")).to_have_text("Saved")
    expect(page.locator(".chosen .card")).to_have_count(3)
    expect(page.locator(".toast.error")).to_have_count(0)
    assert codes_of(page, note) == expected
    errors[:] = [error for error in errors if "ERR_FAILED" not in error]


def test_a_refusal_is_shown_on_any_page_and_a_foreign_answer_is_no_success(chromium, address):
    page = signed_in(chromium, address, "ben", intercepts=True)
    open_note(page, address, "outbox-4")
    page.on("dialog", lambda dialog: dialog.accept())
    page.route("**/decide", lambda route: route.fulfill(status=200, body="<h1>Sign in to the Wi-Fi</h1>"))
    page.keyboard.press("a")
    expect(page.locator("#saving")).to_have_text("Not saved yet: 1 decision to save")
    page.unroute("**/decide")
    page.route("**/decide", lambda route: route.fulfill(status=409, body=CONFLICT))
    page.goto(f"{address}/")
    expect(
        page.locator(".toast.error", has_text="A decision was not saved: Conflict. ann changed this note")
    ).to_be_visible()
    expect(page.locator("#saving")).to_have_text("Not saved")


CONFLICT = (
    '<p id="panel" data-version="1"><span id="message"><strong>Conflict.</strong> ann changed this note.</span></p>'
)


def test_finish_asks_for_a_reason_if_the_codes_have_errors(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "slow-3")
    page.keyboard.press("f")
    expect(page.get_by_role("alert")).to_contain_text("The note has no code")
    page.keyboard.press("f")
    expect(page.get_by_label("Reason to finish all the same")).to_be_focused()
    page.keyboard.type("Nothing was treated.")
    page.keyboard.press("Enter")
    expect(page.locator(".panel .chip.done")).to_be_visible()
    assert "status=all" in page.locator("#next").get_attribute("href")  # the filter of the queue
    page.get_by_role("link", name="History", exact=True).click()
    expect(page.locator(".timeline")).to_contain_text("because: Nothing was treated.")


def test_evidence_is_removed_by_a_key_and_rejected_codes_are_reached(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "slow-4")
    page.keyboard.press("a")
    expect(page.locator(".chosen .card")).to_have_count(1)
    key = page.locator(".chosen .card").get_attribute("data-key")
    go(page, key)
    count = page.locator(".chosen .card .quote").count()
    page.keyboard.press("x")
    expect(page.locator(".chosen .card .quote")).to_have_count(count - 1)
    page.keyboard.press("r")
    page.keyboard.press("1")
    expect(page.locator(".rejected summary")).to_have_text("1 rejected")
    go(page, key)
    expect(page.locator(f'.rejected .card.now[data-key="{key}"]')).to_be_visible()
    page.keyboard.press("u")
    expect(page.locator(".rejected")).to_have_count(0)


def test_the_card_in_focus_stays_in_view_at_200_percent_zoom(chromium, address):
    page = signed_in(chromium, address, "ben")
    page.set_viewport_size({"width": 640, "height": 400})  # 1280 x 800 at 200%
    open_note(page, address, "filter-0")
    for _ in range(3):
        page.keyboard.press("j")
        expect(page.locator(".card.now")).to_be_in_viewport()


def test_next_goes_through_the_filtered_queue_and_ends(chromium, address):
    page = signed_in(chromium, address, "ben")
    page.goto(f"{address}/?site=north")
    page.keyboard.press("j")
    expect(page.locator("tbody tr a").first).to_be_focused()
    page.keyboard.press("Enter")
    for number in (1, 2, 3):
        expect(page.locator(".place-of")).to_have_text(f"{number} of 3")
        expect(page.locator(".card.now")).to_be_visible()
        page.wait_for_load_state()  # its keys work from then on
        page.keyboard.press("g")
    expect(page.get_by_role("heading", name="End of the queue")).to_be_visible()
    page.keyboard.press("g")
    expect(page.locator(".place-of")).to_have_text("1 of 3")


PRESS = """(keys) => {
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  keys.forEach(press);
}"""


def test_keys_pressed_during_a_request_are_applied_after_it(chromium, address):
    page = signed_in(chromium, address, "ann", intercepts=True)
    open_note(page, address, "note-5")
    second = page.locator(".open .card").nth(1).get_attribute("data-key")
    page.route("**/decide", lambda route: (time.sleep(0.5), route.continue_()))
    page.evaluate(PRESS, ["a", "a", "/"])
    page.keyboard.type("asthma")
    expect(page.locator(".chosen .card")).to_have_count(2)
    assert page.locator(".chosen .card").nth(1).get_attribute("data-key") == second
    expect(page.locator("#find")).to_be_focused()
    expect(page.locator("#find")).to_have_value("asthma")
    expect(page.locator("#hits .hit").first).to_contain_text("J45")


def test_a_procedure_is_added_by_narrowing_with_keys(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "note-4")
    keys, first = page.keyboard, page.locator("#hits .hit:focus")
    keys.press("/")
    keys.type("l total hip replacment")
    keys.press("Enter")
    expect(first).to_contain_text("0SRB0JZ")  # the usual code
    expect(page.locator("#hits h3").first).to_contain_text("ICD-10-PCS 2026 · on 2025-11-03")
    keys.press("ArrowDown")
    expect(first).to_contain_text("Synthetic Substitute, Metal")
    keys.press("Enter")
    expect(page.locator("#find")).to_have_value("0SRB01")
    expect(first).to_contain_text("0SRB01Z")
    expect(page.locator("#hits .hit")).to_have_count(3)
    assert axe_violations(page, root="'#panel'") == []
    keys.press("Backspace")
    expect(page.locator("#find")).to_have_value("l total hip replacment")
    expect(first).to_contain_text("0SRB0JZ")
    page.reload()
    expect(page.locator("#find")).to_have_value("l total hip replacment")
    expect(page.locator("#hits .hit").first).to_contain_text("0SRB0JZ")
    keys.press("/")
    keys.press("Enter")
    expect(first).to_be_visible()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        keys.press(key)
    expect(first).to_contain_text("0SRB02Z")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator('.chosen .card[data-key="icd10pcs:0SRB029"]')).to_be_visible()
    expect(page.locator("#find")).to_have_value("")


def test_a_header_in_the_results_is_not_added_but_opened(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "note-4")
    page.keyboard.press("/")
    page.keyboard.type("heart failure")
    header = page.locator("#hits .hit", has_text="not billable")
    expect(header).to_contain_text("I50")
    header.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#find")).to_have_value("I50")
    expect(page.locator("#hits .hit:focus")).to_contain_text("I50.1")
    expect(page.locator("#hits li").first.locator("p")).to_contain_text("not billable")  # the header itself


def test_a_typed_search_survives_a_reload_and_a_double_click_is_one_decision(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "outbox-5")
    page.keyboard.press("/")
    page.keyboard.type("asthma")
    expect(page.locator("#hits .hit").first).to_contain_text("J45")
    page.reload()
    expect(page.locator("#find")).to_have_value("asthma")
    expect(page.locator("#hits .hit").first).to_contain_text("J45")
    page.locator(".open .card").first.click()
    page.locator('.open .card.now [data-act="accept"]').evaluate("(button) => { button.click(); button.click(); }")
    expect(page.locator(".chosen .card")).to_have_count(1)
    expect(page.locator("#saving")).to_have_text("Saved")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_change_order_by_dragging_and_export(chromium, address):
    page = signed_in(chromium, address, "rita")
    open_note(page, address, "note-2")
    for count in (1, 2):
        page.keyboard.press("a")
        expect(page.locator(".chosen .card")).to_have_count(count)
    before = chosen(page)
    page.locator(".chosen .card").first.scroll_into_view_if_needed()  # else the panel scrolls under the mouse
    page.locator(".chosen .card").nth(1).drag_to(page.locator(".chosen .card").nth(0))
    expect(page.locator(".chosen .card .code").first).to_have_text(before[1])
    page.locator(".chosen .card").nth(0).click()
    page.keyboard.press("c")
    page.locator("#book").get_by_role("button", name="change to it").first.click()
    expect(page.locator(".chosen .card").nth(0)).to_contain_text(f"instead of {before[1]}")
    with page.expect_download() as download:
        page.get_by_role("link", name="FHIR").click()
    assert json.loads(Path(download.value.path()).read_text())["resourceType"] == "Bundle"


def test_help_and_switching_keys_off(chromium, address):
    page = signed_in(chromium, address, "ben")
    open_note(page, address, "note-3")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.get_by_label("Single-key shortcuts are on").uncheck()
    page.keyboard.press("Escape")
    decisions: list[str] = []
    page.on("request", lambda request: decisions.append(request.url) if "/decide" in request.url else None)
    page.keyboard.press("a")
    page.reload()
    expect(page.locator(".card.now")).to_be_visible()
    assert chosen(page) == [] and decisions == []


PRINTED = """() => {
  const boxes = (selector) => [...document.querySelectorAll(selector)].map((it) => it.getBoundingClientRect());
  const height = document.documentElement.scrollHeight;
  const clipped = [...document.querySelectorAll("body, main, .desk, .paper, .text, .panel")].filter((it) => {
    const style = getComputedStyle(it);
    return style.overflowY !== "visible" && it.scrollHeight > it.clientHeight + 1;
  });
  const shown = (box) => box.height > 0 && box.width > 0 && box.bottom + scrollY <= height + 1;
  return {
    clipped: clipped.map((it) => it.className),
    parts: boxes("#note .part").every(shown),
    codes: boxes(".chosen .card").every(shown),
    hints: boxes(".findings li").every(shown),
    number: boxes("#note .part").length,
    buttons: boxes(".chosen .acts button, .top").filter(shown).length,
  };
}"""


def test_print_has_the_whole_note_its_codes_and_its_issues(chromium, address):
    page = signed_in(chromium, address, "rita")
    open_note(page, address, "long")
    page.keyboard.press("a")
    expect(page.locator(".chosen .card")).to_have_count(1)
    expect(page.locator(".findings li").first).to_be_attached()  # a hint, which is folded on the screen
    page.emulate_media(media="print")
    seen = page.evaluate(PRINTED)
    assert seen.pop("number") >= 60
    assert seen == {"clipped": [], "parts": True, "codes": True, "hints": True, "buttons": 0}
    assert page.pdf(format="A4").count(b"/Type /Page\n") >= 5  # of the note and its codes


def test_scripts_in_a_note_do_not_run(chromium, address):
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "evil")
    page.wait_for_load_state("networkidle")  # an image that fails to load would have run its handler by then
    assert page.title() != "owned" and page.locator("#note script, #note img").count() == 0


PAGES = (
    "/",
    "/batches",
    "/measures",
    "/findings",
    "/gaps",
    "/triage",
    "/users",
    "/audit",
    "/tokens",
    "/sessions",
    "/settings",
    "/password",
    "/notes/1",
    "/notes/1/history",
)


@pytest.mark.parametrize(
    ("scheme", "rules", "paths"),
    [
        ("light", ALL_RULES, PAGES),
        ("dark", CONTRAST, ("/", "/notes/1", "/triage", "/login")),  # these pages have all colours
    ],
)
def test_axe_finds_no_violation(chromium, address, scheme, rules, paths):
    page = signed_in(chromium, address, "adam", color_scheme=scheme)
    violations = {}
    for path in paths:
        page.goto(address + path)
        violations[path] = axe_violations(page, rules)
    assert {path: found for path, found in violations.items() if found} == {}


def test_pages_fit_small_and_large_screens(chromium, address):
    page = signed_in(chromium, address, "ann")
    long = page.evaluate("fetch('/api/v1/notes?order=newest').then((r) => r.json()).then((it) => it.notes[0].id)")
    # 640 and 320 pixels: 1280 at 200% and 400% zoom
    for width, height in ((320, 256), (640, 400), (1024, 768), (1280, 720), (3840, 2160)):
        page.set_viewport_size({"width": width, "height": height})
        for path in ("/", "/notes/1", f"/notes/{long}", "/measures", "/batches", "/tokens", "/sessions"):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, path)
            assert page.evaluate(CUT) == [], (width, path)


CUT = """() => [...document.querySelectorAll("button, select, input, summary")].filter((control) => {
  const { left, right, width } = control.getBoundingClientRect();
  return control.offsetParent && width && !control.closest(".scroll, #batch-rows") && (left < 0 || right > innerWidth);
}).map((control) => control.outerHTML.slice(0, 80))"""


def test_the_change_dialog_offers_codes_of_the_date(chromium, address):
    page = signed_in(chromium, address, "ann", intercepts=True)
    open_note(page, address, "in 2019")
    headers = {"x-csrf-token": page.locator("meta[name=csrf]").get_attribute("content")}
    added = {"action": "add", "code": "icd10cm:N18.30", "version": "0"}  # the search does not offer it for 2019
    page.request.post(f"{page.url.partition('?')[0]}/decide", form=added, headers=headers)
    page.reload()
    go(page, "icd10cm:N18.30")
    page.keyboard.press("c")
    expect(page.locator("#book .offer:focus")).to_have_attribute("data-to", "icd10cm:N18.3")
    expect(page.locator("#book")).to_contain_text("not in the code set of the encounter's date")
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .card")).to_contain_text("instead of N18.30")
    expect(page.locator("#book")).not_to_be_visible()
    go(page, "icd10cm:N18.3")
    missing = {"detail": "The code book has no such line."}
    page.route("**/codes/icd10cm/*", lambda route: route.fulfill(status=404, json=missing))
    page.keyboard.press("d")
    expect(page.locator(".toast.error")).to_contain_text("code book has no such line")
    expect(page.locator("#book")).not_to_be_visible()
    errors[:] = [error for error in errors if "404" not in error]
