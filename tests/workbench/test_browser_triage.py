"""The triage page in a browser: calibration, alarm, acknowledgement."""

import pytest
from playwright.sync_api import expect

from nosology.core import Note
from nosology.workbench.audit_log import read_log
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.store_settings import save_setting
from nosology.workbench.triage import newest_coder
from nosology.workbench.triage_drift import DriftAlarm, raise_alarm
from nosology.workbench.triage_guarantee import Guarantee, newest_coding
from tests.workbench.axe import ALL_RULES, CONTRAST, axe_violations
from tests.workbench.conftest import NOTE, fill_people
from tests.workbench.test_browser import chromium, nothing_from_outside, running, signed_in  # noqa: F401 (fixtures)


@pytest.fixture
def engine(tmp_path):
    """An open store with people and three notes."""
    store = str(tmp_path / "workbench.db")
    fill_people(store)
    engine = open_database(store)
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", NOTE) for i in range(3)], None)
    yield engine
    engine.dispose()


def test_an_alarm_is_shown_until_a_reviewer_acknowledges_it(chromium, engine, small_bundle):  # noqa: F811
    with running(small_bundle, engine.url.database) as address:
        page = signed_in(chromium, address, "rita")
        page.goto(f"{address}/triage")
        expect(page.locator(".verdict")).to_contain_text("nobody has calibrated")
        expect(page.get_by_text("Review next")).to_be_visible()
        page.get_by_label("Kind of error").select_option("not_exact")
        page.get_by_label("At most").fill("5")
        page.get_by_role("button", name="Calibrate").click()
        expect(page.locator(".verdict")).to_contain_text("0 encounters are too few")
        expect(page.get_by_label("Kind of error")).to_have_value("not_exact")
        with write_transaction(engine) as connection:
            coder, coding = newest_coder(connection), newest_coding(connection)
            found = Guarantee("not_exact", 0.05, 0.8, 300, 270, 120, 0.01, 79, 1, coder, coding, 1.0)
            save_setting(connection, "triage_guarantee", found)
        page.reload()
        expect(page.locator(".verdict")).to_contain_text("The rule is off")
        expect(page.get_by_text("at most 5 in 100 encounters whose codes are not exactly right")).to_be_visible()
        with write_transaction(engine) as connection:
            raise_alarm(connection, DriftAlarm("words", 41, 1_700_000_000.0))
        for scheme, rules in (("dark", CONTRAST), ("light", ALL_RULES)):
            page.emulate_media(color_scheme=scheme)
            page.reload()
            assert axe_violations(page, rules) == []
        expect(page.get_by_role("alert")).to_contain_text("Words per note, after 41 encounters")
        for width in (320, 1280):
            page.set_viewport_size({"width": width, "height": 700})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="the change does no harm").click()
        expect(page.get_by_role("alert")).to_have_count(0)
        page.get_by_role("button", name="Start again").click()
        expect(page.locator(".verdict")).to_contain_text("nobody has calibrated")
    with read_transaction(engine) as connection:
        entries = read_log(connection)
    assert {row["object"] for row in entries if row["what"] == "notes to review"} == {"notes 1-3"}
    log = [(row["what"], row["user"]) for row in entries if row["what"].startswith("triage")]
    acknowledged = ("triage alarm acknowledged", "rita")
    assert log == [("triage restart", "rita"), acknowledged, ("triage alarm", None), ("triage calibration", "rita")]
