"""The triage page: the goal that reviewers state, its guarantee, the rule, the alarm."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from nosology.claims.grouping import msdrg_tool
from nosology.core import NosologyError
from nosology.workbench import triage, triage_drift, triage_guarantee
from nosology.workbench.audit_log import shown_notes
from nosology.workbench.page_html import AdminPage, PageContext, ReviewerPage
from nosology.workbench.store_settings import changes
from nosology.workbench.triage_drift import DriftAlarm
from nosology.workbench.triage_guarantee import Guarantee, TriageGoal, TriageLoss

router = APIRouter(include_in_schema=False)
NAMED = 5  # notes that wait for review and are linked


@router.get("/triage")
def triage_page(page: ReviewerPage) -> HTMLResponse:
    """The triage rule, what it guarantees, which encounters count, and drift."""
    return _render(page)


def _render(page: PageContext, error: str = "") -> HTMLResponse:
    with page.reading() as connection:
        rule, guarantee = triage.load_triage_rule(connection), triage_guarantee.load_guarantee(connection)
        counted, period = triage.count_notes(connection), triage.load_period(connection)
        watch = triage_drift.watch_drift(page.services.engine, connection, guarantee)
        alarm = triage_drift.load_alarm(connection)
    if alarm is None and watch is not None and (alarm := watch.alarm):
        with page.writing() as connection:
            triage_drift.raise_alarm(connection, alarm)
    waiting = dict(list(counted.waiting.items())[:NAMED])
    if waiting:
        page.log("notes to review", object=shown_notes(waiting))
    return page.render(
        "triage.html",
        error=error,
        rule=rule,
        period=period,
        counted=counted,
        waiting=waiting,
        guarantee=guarantee,
        goal=guarantee.goal if guarantee else TriageGoal(),
        verdict=describe_rule(rule, guarantee, counted.coder_id, alarm),
        alarm=alarm,
        watch=watch,
        features=triage_drift.DRIFT_FEATURES,
        limit=triage_drift.LIMIT,
        groupers=msdrg_tool("MsdrgGrouper") is not None,
        max_errors=triage_guarantee.MAX_ERRORS,
    )


def describe_rule(
    rule: triage.TriageRule, guarantee: Guarantee | None, coder_id: int | None, alarm: DriftAlarm | None
) -> str:
    """What passes now, and if nothing does, why."""
    if guarantee is None:
        return "Nothing may pass: nobody has calibrated yet."
    if guarantee.coder_id != coder_id:
        return "Nothing may pass: another coder is in use since the calibration. Calibrate again."
    if guarantee.threshold is None and guarantee.notes < guarantee.fewest:
        return (
            f"Nothing may pass: {guarantee.notes:,} encounters are too few. Without a single error, "
            f"{guarantee.fewest:,} would be needed."
        )
    if guarantee.threshold is None:
        return "Nothing may pass: these encounters do not show that any threshold is good enough."
    if alarm is not None:
        return "Nothing passes until a reviewer acknowledges the alarm."
    reach = f"encounters with a confidence of at least {guarantee.threshold:.2f}"
    return f"What passes: {reach}." if rule.on else f"The rule is off. If an admin switches it on, {reach} pass."


@router.post("/triage")
def set_triage(
    page: AdminPage, sample: Annotated[float, Form()] = 0.1, on: Annotated[str, Form(max_length=5)] = ""
) -> Response:
    """Switches the rule on or off for notes that are coded from now on."""
    try:
        rule = triage.TriageRule(on == "yes", sample)
    except NosologyError as error:
        return _render(page, f"{error}.")
    with page.writing() as connection:
        before = triage.load_triage_rule(connection)
        triage.save_triage_rule(connection, rule)
        page.log("triage", connection, object=changes(before, rule))
    return _back()


@router.post("/triage/calibration")
def calibrate(
    page: ReviewerPage, loss: Annotated[TriageLoss, Form()], tolerated: Annotated[float, Form(allow_inf_nan=False)]
) -> Response:
    """Finds what may pass for a tolerated error. Shares of encounters are given in percent."""
    try:
        goal = TriageGoal(loss, tolerated if loss == "errors" else tolerated / 100)
    except NosologyError as error:
        return _render(page, f"{error}.")
    with page.writing() as connection:
        found = triage_guarantee.calibrate(connection, goal)
        result = "nothing may pass" if found.threshold is None else f"threshold {found.threshold:.2f}"
        page.log("triage calibration", connection, object=f"{goal.words}: {result}, {found.notes} encounters")
    return _back()


@router.post("/triage/alarm")
def acknowledge_alarm(page: ReviewerPage) -> Response:
    """Ends the alarm; the guarantee stays."""
    with page.writing() as connection:
        if alarm := triage_drift.load_alarm(connection):
            triage_drift.end_alarm(connection)
            page.log("triage alarm acknowledged", connection, object=alarm.title)
    return _back()


@router.post("/triage/restart")
def restart(page: ReviewerPage) -> Response:
    """Withdraws the guarantee and ends the alarm; only encounters that are coded from now on count."""
    with page.writing() as connection:
        alarm = triage_drift.load_alarm(connection)
        triage_guarantee.restart(connection)
        triage_drift.end_alarm(connection)
        if alarm is not None:
            page.log("triage alarm acknowledged", connection, object=alarm.title)
        page.log("triage restart", connection, object="encounters coded from now on count")
    return _back()


def _back() -> Response:
    return RedirectResponse("/triage", status_code=303)
