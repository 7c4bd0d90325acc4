"""The demo: its encounters, its store, and the guided tour in Chromium."""

import re
import time
import tomllib

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import func, select

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.encounter_checks import check_encounter
from nosology.codes import release_on, table
from nosology.workbench import demo
from nosology.workbench.accounts import ROLES
from nosology.workbench.cases import decision_history, load_case
from nosology.workbench.database import open_database, read_transaction
from nosology.workbench.demo_encounters import FOLDER, load_encounters
from nosology.workbench.documents import DOCUMENT_KINDS
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.measures import (
    agreement_by_chapter,
    agreement_by_code,
    agreement_by_day,
    load_reviewed_notes,
    measure_drift,
    total_agreement,
)
from nosology.workbench.store_tables import audit, batches, notes, users
from tests.workbench import test_browser
from tests.workbench.axe import ALL_RULES, CONTRAST, axe_violations
from tests.workbench.processes import Server

chromium = test_browser.chromium
FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("name", FILES)
def test_an_encounter_is_consistent(name):
    value = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    came, left = value["admitted"], value["discharged"]
    assert value["id"] == name and value["born"] <= came <= left
    for part in value["documents"]:
        assert part["kind"] in DOCUMENT_KINDS and came <= part["date"]
        assert part["date"] <= left or part["kind"] == "pathology"  # its report may come later
    days = [part["date"] for part in value["documents"]]
    assert days == sorted(days)
    if value["setting"] == "inpatient":
        assert value["documents"][-1]["kind"] == "discharge" and 2 <= len(days) <= 5
    text = "\n".join(part["text"] for part in value["documents"])
    assert all(day == str(came) for day in re.findall(r"ADMISSION DATE: (\S+)", text))
    assert all(day == str(left) for day in re.findall(r"DISCHARGE DATE: (\S+)", text))
    assert not re.search(r"\b(?:Mr|Mrs|Ms|Dr)\b|@|\d{3}-\d{4}", text)  # nobody is named
    age = came.year - value["born"].year - ((came.month, came.day) < value["born"].timetuple()[1:3])
    assert age == 0 or set(re.findall(r"(\d+) year old", text)) == {str(age)}


@pytest.mark.parametrize("encounter", load_encounters(), ids=FILES)
def test_the_final_codes_can_be_billed(encounter):
    about = complete_encounter(encounter.notes[0].extra)
    assert about["sex"] in ("F", "M") and about["payer"] and about["disposition"]
    for code in encounter.final:
        assert table(code.system, release_on(about["date"], code.system)).billable(code.code), code
    final = AssignedCodes(tuple(AssignedCode(code, "added", poa) for code, poa in encounter.final.items()))
    issues = check_encounter(final, about, "\n".join(note.text for note in encounter.notes))
    assert [issue.message for issue in issues if issue.level == "error"] == []
    assert not any(issue.kind == "poa" for issue in issues)  # complete for inpatients, none for exempt codes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`nosology serve --demo`."""
    folder = tmp_path_factory.mktemp("demo")
    process = Server("--demo", str(folder / "demo.db"), log=folder / "log").start(280)
    yield process
    process.stop()


@pytest.fixture(scope="module")
def filled(server):
    engine = open_database(str(server.log.parent / "demo.db"))
    yield engine
    engine.dispose()


def test_the_demo_has_users_a_queue_and_reviewed_encounters(filled):
    with read_transaction(filled) as connection:
        assert set(connection.scalars(select(users.c.role))) == set(ROLES)
        by_status = dict(connection.execute(select(notes.c.status, func.count()).group_by(notes.c.status)).all())
        cases = {case.note["ref"]: case for number in range(1, 24) if (case := load_case(connection, number))}
    assert by_status == {"done": 8, "second": 1, "new": 14}
    assert cases.keys() == set(FILES)
    assert [part.kind for part in cases["E-1042"].documents] == ["h&p", "radiology", "progress", "discharge"]
    assert cases["E-1042"].note["encounter"]["age"] == 73
    for encounter in load_encounters():
        case = cases[encounter.id]
        if case.review.status == "done":
            assert case.review.codes == tuple(encounter.final) and case.suggestions
            assert {item.code: item.poa for item in case.review.chosen if encounter.final[item.code]} == {
                code: poa for code, poa in encounter.final.items() if poa
            }


def test_a_second_review_has_added_the_forgotten_code(filled):
    with read_transaction(filled) as connection:
        number = connection.scalar(select(notes.c.id).where(notes.c.ref == demo.APPROVED))
        history = decision_history(connection, number)
    asked = next(i for i, row in enumerate(history) if row["action"] == "second")
    assert {row["user"] for row in history[: asked + 1]} == {"coder"}
    assert {row["user"] for row in history[asked + 1 :]} == {"reviewer"} and history[-1]["action"] == "approve"
    assert {row["action"] for row in history[asked + 1 :]} & {"claim", "accept", "add"}


def test_agreement_counts_of_the_demo_add_up(filled):
    with read_transaction(filled) as connection:
        reviewed, changes = load_reviewed_notes(connection), measure_drift(connection)
    total = total_agreement(reviewed)
    assert len(reviewed) == 8 and all(item.by_person and item.seconds > 0 for item in reviewed)
    assert total.kept == sum(len(item.suggested & item.final) for item in reviewed)
    assert (
        sum(row.final for row in agreement_by_chapter(reviewed))
        == total.final
        == sum(len(item.final) for item in reviewed)
    )
    assert sum(day[1] for day in agreement_by_day(reviewed)) == 8
    assert any(row.final for row in agreement_by_code(reviewed))
    assert {row.verdict for row in changes} == {"too few notes"}


def test_the_demo_has_the_dates_that_it_tells(filled):
    now = time.time()
    with read_transaction(filled) as connection:
        created = dict(connection.execute(select(batches.c.name, batches.c.created)).all())
        opened = connection.scalars(select(audit.c.at).where(audit.c.address == "demo").order_by(audit.c.id)).all()
    assert now - created[demo.PAST_BATCH] > 8 * 86_400
    assert opened == sorted(opened) and len(opened) == 10


def test_a_second_start_leaves_the_store_as_it_is(filled):
    demo.fill_demo(filled.url.database)
    with read_transaction(filled) as connection:
        assert connection.scalar(select(func.count()).select_from(notes)) == 23


def visitor(chromium, server, name="coder", width=1280, height=800, **options) -> Page:
    """A browser that has never seen the demo, signed in."""
    page = chromium.new_context(viewport={"width": width, "height": height}, **options).new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{server.address}/login")
    page.fill("[name=name]", name)
    page.fill("[name=password]", demo.PASSWORD)
    page.click("button.primary")
    page.wait_for_url(f"{server.address}/")
    return page


# How much of the popover and of what it explains cannot be seen, and whether one covers the other.
COVER = """() => {
  const box = document.querySelector("#tour").getBoundingClientRect();
  const at = document.querySelector(".tour-target").getBoundingClientRect();
  const apart = box.right <= at.left || at.right <= box.left || box.bottom <= at.top || at.bottom <= box.top;
  const inside = (it) => it.top >= 0 && it.left >= 0 && it.bottom <= innerHeight && it.right <= innerWidth;
  return [apart, inside(box), inside(at)];
}"""
AFTER_CODES = ["Checks", "DRG", "Finish", "Next encounter", "That is the way through an encounter"]


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1280, 800, "light"), (1024, 768, "dark"), (640, 400, "light")]
)
def test_the_tour_goes_through_an_encounter_by_enter_alone(chromium, server, width, height, scheme):
    page = visitor(chromium, server, width=width, height=height, color_scheme=scheme)
    for title in ["The work queue", "Open an encounter", "Evidence", "Proposed claim", *AFTER_CODES]:
        expect(page.locator("#tour h2")).to_have_text(title, timeout=60_000)
        expect(page.locator("#tour .primary")).to_be_focused()
        assert page.evaluate(COVER) == [True, True, True], title
        if title == "Proposed claim":
            expect(page.locator(".tour-target")).to_contain_text(title)
        page.keyboard.press("Enter")
    expect(page.locator("#tour")).to_have_count(0)
    page.reload()
    expect(page.locator(".card.now")).to_be_visible()
    expect(page.locator("#tour")).to_have_count(0)  # it is remembered


def test_an_encounter_opens_with_its_first_suggestion_and_its_actions_in_view(chromium, server):
    page = visitor(chromium, server, name="reviewer")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="E-1183", exact=True).click()
    expect(page.locator(".card.now")).to_be_in_viewport(ratio=1, timeout=60_000)
    expect(page.get_by_role("button", name="Finish")).to_be_in_viewport(ratio=1)
    expect(page.locator(".proposed")).to_be_hidden()
    page.locator(".claim summary").first.press("Enter")
    expect(page.locator(".proposed")).to_be_visible()
    page.reload()
    expect(page.locator(".proposed")).to_be_visible()  # the browser remembers it


def test_pages_of_the_demo_fit_a_phone(chromium, server):
    page = visitor(chromium, server, name="reviewer", width=390, height=850)
    page.keyboard.press("Escape")
    for path in ("/", "/measures", "/triage", "/gaps", "/findings", "/agreement", "/double"):
        page.goto(server.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(f"{server.address}/?status=done")
    page.locator("table.list tbody a").first.click()
    expect(page.locator(".card.now")).to_have_count(1)
    assert page.evaluate("scrollY") == 0  # the text is first, the codes are below it
    assert page.locator(".card.now").evaluate("card => card.closest('.chosen') !== null")  # it is finished


def test_escape_ends_the_tour_and_help_starts_it_again(chromium, server):
    page = visitor(chromium, server, "reviewer")
    expect(page.get_by_role("dialog", name="The work queue")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tour")).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()
    page.goto(f"{server.address}/measures")
    page.keyboard.press("?")
    page.get_by_role("button", name="Show the tour").click()
    page.wait_for_url(f"{server.address}/")
    expect(page.get_by_role("dialog", name="The work queue")).to_be_visible()


def test_the_tour_follows_a_person_who_uses_the_keys_of_the_page(chromium, server):
    page = visitor(chromium, server)
    expect(page.locator("#tour h2")).to_have_text("The work queue")
    page.locator("tr", has_text="E-1171").get_by_role("link").click()
    expect(page.locator("#tour h2")).to_have_text("Evidence")
    page.keyboard.press("y")  # before the tour comes to it
    expect(page.locator(".chosen .card").first).to_be_visible()
    expect(page.locator("#tour h2")).to_have_text("Evidence")
    page.locator("#tour .primary").press("Enter")
    expect(page.locator("#tour h2")).to_have_text("Proposed claim")
    page.keyboard.press("Enter")  # is done already
    expect(page.locator("#tour h2")).not_to_have_text("Proposed claim")
    expect(page.locator("#tour h2")).not_to_have_text("DRG")  # an outpatient has none
    page.keyboard.press("/")  # a field takes the keys
    page.keyboard.press("Escape")
    expect(page.locator("#tour")).to_be_visible()


def test_the_tour_waits_until_the_encounter_is_coded(chromium, server):
    page = visitor(chromium, server)
    expect(page.locator("#tour h2")).to_have_text("The work queue")
    coded = '<section class="panel" id="panel"'

    def as_while_it_is_coded(route):
        answer, poll = route.fetch(), f'hx-get="{route.request.url}/coded" hx-trigger="load, every 2s" hx-swap="none"'
        route.fulfill(response=answer, body=answer.text().replace(coded, f"{coded} {poll.replace(server.address, '')}"))

    page.route(re.compile(r"/notes/\d+$"), as_while_it_is_coded, times=1)
    page.route("**/coded", lambda route: route.fulfill(status=204))
    page.locator("tr", has_text="E-1176").get_by_role("link").click()
    expect(page.locator("#panel[hx-get]")).to_be_visible()
    page.wait_for_load_state()
    expect(page.locator("#tour")).to_have_count(0)
    page.unroute("**/coded")
    expect(page.locator("#tour h2")).to_have_text("Evidence", timeout=60_000)  # the page was loaded again


@pytest.mark.parametrize(
    ("scheme", "rules"),
    [("light", ALL_RULES), ("dark", CONTRAST)],
)
def test_axe_finds_no_violation_with_the_tour_open(chromium, server, scheme, rules):
    page = visitor(chromium, server, color_scheme=scheme)
    for title, keys in (("The work queue", 2), ("Evidence", 1)):
        expect(page.locator("#tour h2")).to_have_text(title)
        assert axe_violations(page, rules) == []
        for _ in range(keys):
            expect(page.locator("#tour .primary")).to_be_focused()
            page.keyboard.press("Enter")
