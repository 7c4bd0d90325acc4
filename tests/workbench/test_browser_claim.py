"""The proposed claim, present on admission and the group panel in Chromium: keys, chips, folded parts, axe-core."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from nosology.core import Note
from nosology.workbench.database import open_database, write_transaction
from nosology.workbench.document_import import add_notes
from tests.claims.test_drg_weights import TEXT
from tests.workbench.axe import axe_violations
from tests.workbench.conftest import NOTE, fill_people
from tests.workbench.test_browser import (  # noqa: F401 (fixtures)
    chosen,
    chromium,
    go,
    nothing_from_outside,
    open_note,
    running,
    signed_in,
)


@pytest.fixture(scope="module")
def address(small_bundle, tmp_path_factory):
    """The address of a server with a few notes and the weights of two DRGs."""
    folder = tmp_path_factory.mktemp("claim_browser")
    (folder / "table5.txt").write_bytes(TEXT.encode("cp1252"))
    store = str(folder / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    about = {"sex": "F", "age": 70, "date": "2025-11-03", "kind": "inpatient"}
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"claim-{i}", NOTE, extra=about) for i in range(4)], None)
    engine.dispose()
    with running(small_bundle, store, drg_weights=(folder / "table5.txt",)) as url:
        yield url


def saved(page: Page) -> None:
    expect(page.locator("#saving")).to_have_text("Saved")


def test_a_key_accepts_what_is_above_the_threshold_and_z_undoes_it(chromium, address):  # noqa: F811
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "claim-0")
    field, button = page.locator("#accept-from"), page.locator("[data-act=acceptAll]")
    chances = [int(chance) for chance in button.get_attribute("data-chances").split()]
    assert len(chances) >= 2
    expect(field).to_have_value("80")
    expect(button).to_contain_text(f"Accept {sum(chance >= 80 for chance in chances)}")
    lowest = min(chances)
    field.fill(str(max(1, lowest)))
    expect(button).to_contain_text(f"Accept {len(chances)}")
    page.keyboard.press("Enter")  # back to the codes
    expect(page.locator(".card.now")).to_be_focused()
    page.reload()
    expect(field).to_have_value(str(max(1, lowest)))  # the browser remembers it
    page.keyboard.press("A")
    expect(page.locator(".chosen .card")).to_have_count(len(chances))
    expect(page.locator("#toasts")).to_contain_text("accepted")
    saved(page)
    page.keyboard.press("A")
    expect(page.locator("#toasts")).to_contain_text("No open code has a probability of")
    page.keyboard.press("z")
    expect(page.locator(".chosen .card")).to_have_count(0)


def test_chips_set_present_on_admission(chromium, address):  # noqa: F811
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "claim-1")
    go(page, "icd10cm:I50.9")
    page.keyboard.press("a")
    expect(page.locator(".chosen .card")).to_have_count(1)
    go(page, "icd10cm:I50.9")
    card = page.locator('.card[data-key="icd10cm:I50.9"]')
    group, on = (
        card.get_by_role("radiogroup", name="Present on admission of I50.9"),
        card.locator("[aria-checked=true]"),
    )
    expect(on).to_have_count(0)
    for value in ("Y", "N", "U", "W"):
        page.keyboard.press("o")
        expect(on).to_have_text(value)
    page.keyboard.press("o")
    expect(on).to_have_count(0)
    expect(card).to_be_focused()
    for _ in range(12):  # by Tab, past the evidence
        if page.evaluate("document.activeElement.getAttribute('role')") == "radio":
            break
        page.keyboard.press("Tab")
    expect(group.get_by_role("radio", name="Y, yes")).to_be_focused()
    page.keyboard.press("Space")
    expect(on).to_have_text("Y")
    expect(group.get_by_role("radio", name="Y, yes")).to_be_focused()  # also after the panel was replaced
    page.keyboard.press("ArrowRight")
    expect(on).to_have_text("N")
    expect(group.get_by_role("radio", name="N, no")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(on).to_have_text("Y")
    on.click()  # again: not set
    expect(on).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("Z79.4")
    page.keyboard.press("Enter")
    expect(page.locator("#hits .hit:focus")).to_contain_text("Z79.4")
    page.keyboard.press("Enter")
    exempt = page.locator('.card[data-key="icd10cm:Z79.4"]')
    expect(exempt).to_contain_text("POA exempt")
    expect(exempt.get_by_role("radio")).to_have_count(0)
    saved(page)
    page.keyboard.press("O")  # yes for all that have none and are not exempt
    expect(on).to_have_text("Y")
    expect(page.locator("[data-act=poaAll]")).to_have_count(0)
    page.keyboard.press("z")
    expect(on).to_have_count(0)


def test_the_unsure_tail_is_folded_and_reached_by_keys_and_evidence(chromium, address):  # noqa: F811
    page = signed_in(chromium, address, "ann")
    open_note(page, address, "claim-2")
    tail, cards = page.locator("details.unsure"), page.locator("details.unsure .card")
    count = cards.count()
    assert count >= 1
    expect(tail.locator("summary")).to_have_text(f"{count} unsure")
    expect(cards.first).to_be_hidden()
    go(page, cards.first.get_attribute("data-key"))
    expect(cards.first).to_be_visible()
    page.reload()
    expect(page.locator(".card.now")).to_be_visible()
    expect(cards.first).to_be_hidden()
    key = page.evaluate(
        """() => [...document.querySelectorAll("details.unsure .card")].map((card) => card.dataset.key)
          .find((key) => document.querySelector(`#note [data-k~="${key}"]`))"""
    )
    assert key, "the note has evidence of an unsure code"
    piece = page.locator(f'#note [data-k~="{key}"]').first
    for _ in range(len(piece.get_attribute("data-k").split())):
        piece.click()
        if page.locator(".card.now").get_attribute("data-key") == key:
            break
    expect(page.locator(f'.card.now[data-key="{key}"]')).to_be_visible()


def test_the_group_panel_stays_open_and_has_no_violation(chromium, address):  # noqa: F811
    for scheme in ("light", "dark"):
        page = signed_in(chromium, address, "ann", color_scheme=scheme)
        open_note(page, address, "claim-3")
        if scheme == "light":
            page.keyboard.press("y")
            expect(page.locator(".chosen .card").first).to_be_visible()
        groups = page.locator("details.groups")
        groups.locator("summary").press("Enter")
        expect(groups.get_by_text("It depends on")).to_be_visible()
        go(page, f"icd10cm:{chosen(page)[0]}")
        page.keyboard.press("o")
        saved(page)
        expect(groups.get_by_text("It depends on")).to_be_visible()  # a decision does not fold it
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert axe_violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.reload()
    expect(groups.get_by_text("It depends on")).to_be_visible()
