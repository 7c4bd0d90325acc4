"""Pages of the audit of final codes, for reviewers: the findings, and one finding beside the documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from nosology.audit.audit_page import TITLES, effect_words
from nosology.audit.finding import KINDS
from nosology.codes import describe
from nosology.core import Code
from nosology.workbench.bill_audit import find_finding, load_findings
from nosology.workbench.document_views import show_marked
from nosology.workbench.finished_encounters import load_progress
from nosology.workbench.page_html import ReviewerPage
from nosology.workbench.review import NotFound
from nosology.workbench.security import RowId
from nosology.workbench.store_tables import bill_audits

router = APIRouter(include_in_schema=False)
MAX_FINDINGS = 300  # on the page


@router.get("/findings")
def findings_page(page: ReviewerPage, kind: str = "") -> HTMLResponse:
    """The findings in finished encounters, of one kind or of all."""
    if kind and kind not in KINDS:
        raise NotFound("there is no such kind of findings")
    with page.reading() as connection:
        progress, found = load_progress(connection, bill_audits), load_findings(connection)
    counts = {name: sum(item.values["kind"] == name for item in found) for name in KINDS}
    shown = [item for item in found if not kind or item.values["kind"] == kind]
    return page.render(
        "findings.html",
        progress=progress,
        is_running=page.services.bill_audit.is_running,
        kind=kind,
        kinds=[(name, TITLES[name], counts[name]) for name in KINDS],
        total=len(shown),
        findings=[
            (item, TITLES[item.values["kind"]], _description(item.values), effect_words(item.values))
            for item in shown[:MAX_FINDINGS]
        ],
    )


@router.post("/findings")
def start_audit(page: ReviewerPage) -> Response:
    """Starts the audit of finished encounters."""
    page.log("audit of final codes")
    page.services.bill_audit.request()
    return RedirectResponse("/findings", status_code=303)


@router.get("/findings/{note_id}/{number}")
def finding_page(page: ReviewerPage, note_id: RowId, number: int) -> HTMLResponse:
    """A finding beside the documents, with its words highlighted."""
    case = page.services.read_case(page.user, note_id, page.address, "finding")
    with page.reading() as connection:
        item = find_finding(connection, note_id, number)
    documents, at = show_marked(case, item.spans)
    values = item.values
    return page.render(
        "finding.html",
        item=item,
        title=TITLES[values["kind"]],
        description=_description(values),
        effect=effect_words(values),
        documents=documents,
        at=at,
    )


def _description(values: Mapping[str, Any]) -> str:
    """The description of the code of a finding."""
    return describe(Code(values["system"], values["code"]))
