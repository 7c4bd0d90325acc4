"""Double coding in Chromium: choose, code twice, adjudicate by keyboard; accessibility of its pages (axe-core)."""

from __future__ import annotations

import json

from playwright.sync_api import Page, expect

from tests.workbench import test_browser as shared
from tests.workbench.axe import axe_violations
from tests.workbench.test_browser import chosen, errors, go, open_note, signed_in

address, chromium, nothing_from_outside = shared.address, shared.chromium, shared.nothing_from_outside


def accept(page: Page, *keys: str) -> None:
    for number, key in enumerate(keys, 1):
        go(page, key)
        page.keyboard.press("a")
        expect(page.locator(".chosen .card")).to_have_count(number)


def test_a_note_is_coded_twice_and_adjudicated_by_keyboard(chromium, address):
    ann, ben, rita = (signed_in(chromium, address, name) for name in ("ann", "ben", "rita"))
    open_note(rita, address, "note-2")
    note = rita.locator("#note").get_attribute("data-note")
    rita.get_by_role("button", name="Have it coded twice").focus()
    rita.keyboard.press("Enter")
    expect(rita.get_by_role("status").filter(has_text="is chosen")).to_be_visible()
    assert axe_violations(rita) == []

    open_note(ann, address, "note-2")
    accept(ann, "icd10cm:I50.9", "icd10cm:E11.9")
    expect(ann.locator(".panel .chip.second")).to_have_text("double coding")
    assert axe_violations(ann) == []
    ann.keyboard.press("f")
    expect(ann.locator(".panel .chip.done")).to_be_visible()

    open_note(ben, address, "note-2 (second coding)")
    accept(ben, "icd10cm:E11.9")
    copy = ben.locator("#note").get_attribute("data-note")
    go(ben, "icd10cm:E11.9")
    ben.keyboard.press("o")
    expect(ben.locator('.chosen .card.now .poa [aria-checked="true"]')).to_have_text("Y")
    ben.goto(f"{address}/notes/{note}")
    expect(ben.locator("main")).to_contain_text("You know the other coding of this note")
    ben.goto(f"{address}/notes/{copy}")
    expect(ben.locator(".card.now")).to_be_visible()
    ben.keyboard.press("f")
    expect(ben.locator(".panel .chip.done")).to_be_visible()

    rita.goto(address)
    expect(rita.get_by_role("link", name="Double coding 1")).to_be_visible()
    rita.goto(f"{address}/double")
    rita.get_by_role("link", name="note-2", exact=True).focus()
    rita.keyboard.press("Enter")
    decided = rita.locator("#decided")
    expect(decided).to_have_text("0 of 3 decided")
    expect(rita.locator(".difference.now legend")).to_contain_text("E11.9")
    assert rita.locator("#text .on").count() >= 1  # the evidence of the code in the note
    rita.keyboard.press("2")  # E11.9 was present on admission
    rita.keyboard.press("1")  # I50.9 is right
    expect(decided).to_have_text("2 of 3 decided")
    rita.reload()
    expect(decided).to_have_text("2 of 3 decided")  # the draft is kept
    expect(rita.locator(".difference.now legend")).to_have_text("Principal diagnosis")
    assert axe_violations(rita) == []
    rita.keyboard.press("f")
    expect(rita.get_by_role("alert")).to_contain_text("1 difference is still to be decided")
    rita.keyboard.press("1")
    expect(decided).to_have_text("3 of 3 decided")
    rita.keyboard.press("k")
    expect(rita.locator(".difference.now legend")).to_contain_text("I50.9")
    rita.keyboard.press("f")
    expect(rita.locator(".panel .chip.done")).to_be_visible()
    assert chosen(rita) == ["I50.9", "E11.9"]
    detail = json.loads(rita.evaluate(f"fetch('/api/v1/notes/{note}').then((r) => r.text())"))
    assert [item["poa"] for item in detail["codes"]] == ["", "Y"]

    rita.goto(f"{address}/measures")
    rita.get_by_role("link", name="Agreement of people").click()
    expect(rita.get_by_role("rowheader", name="ann and ben")).to_be_visible()
    assert axe_violations(rita) == []
    errors[:] = [error for error in errors if "403" not in error]


def test_the_pages_have_enough_contrast_in_the_dark_and_fit_small_screens(chromium, address):
    page = signed_in(chromium, address, "adam", color_scheme="dark")
    for path in ("/double", "/agreement", "/settings"):
        page.goto(address + path)
        assert axe_violations(page) == []
        page.set_viewport_size({"width": 640, "height": 400})
        assert page.evaluate("document.documentElement.scrollWidth") <= 640
