"""Pages of documentation gaps, for reviewers: the ranked list, the encounters of an entry, one gap beside its text."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from nosology.claims.documentation_gaps import Gap
from nosology.claims.gap_ranking import EffectRange
from nosology.codes import describe
from nosology.core import Code
from nosology.workbench.department_gaps import MAX_ENCOUNTERS, find_gap, load_gaps
from nosology.workbench.document_views import show_marked
from nosology.workbench.finished_encounters import load_progress
from nosology.workbench.page_html import ReviewerPage
from nosology.workbench.review import NotFound
from nosology.workbench.security import RowId
from nosology.workbench.store_tables import found_gaps

router = APIRouter(include_in_schema=False)
MAX_ROWS = 300  # of a table
MAX_ANSWERS = 12  # of a gap
TITLES = {
    "specificity": "type, stage or cause",
    "diagnosis": "diagnosis of a finding",
    "procedure": "details of a procedure",
    "unspecified": "unspecified code",
    "side": "side",
}


@router.get("/gaps")
def gaps_page(page: ReviewerPage, specialty: str = "") -> HTMLResponse:
    """The ranked list of one specialty or of all."""
    with page.reading() as connection:
        progress, gaps = load_progress(connection, found_gaps), load_gaps(connection)
    if specialty and specialty not in gaps.records.encounters:
        raise NotFound("there is no such specialty")
    ranked = gaps.ranked(specialty)
    return page.render(
        "gaps.html",
        progress=progress,
        is_running=page.services.gap_job.is_running,
        specialty=specialty,
        specialties=sorted(gaps.records.encounters.items()),
        encounters=gaps.records.encounters[specialty] if specialty else gaps.records.encounters.total(),
        is_cut=progress.done > MAX_ENCOUNTERS,
        titles=TITLES,
        total=len(ranked),
        ranked=ranked[:MAX_ROWS],
        has_drg=any(item.drg_can_change for item in ranked),
        has_weights=any(item.weight.encounters for item in ranked),
        has_risk=any(item.risk.encounters for item in ranked),
        likely=likely_words,
        between=effect_range,
    )


@router.post("/gaps")
def start_gaps(page: ReviewerPage) -> Response:
    """Starts to look for gaps in finished encounters."""
    page.log("documentation gaps")
    page.services.gap_job.request()
    return RedirectResponse("/gaps", status_code=303)


@router.get("/gaps/encounters")
def gap_encounters_page(page: ReviewerPage, specialty: str, kind: str, subject: str) -> HTMLResponse:
    """The encounters of an entry of the ranked list."""
    with page.reading() as connection:
        ranked, places = load_gaps(connection).of_group(specialty, kind, subject)
    return page.render(
        "gap_encounters.html",
        ranked=ranked,
        title=TITLES[kind],
        total=len(places),
        places=[(place, _effects(place.gap)) for place in places[:MAX_ROWS]],
        question=places[0].gap.question,
        likely=likely_words,
        between=effect_range,
    )


@router.get("/gaps/{note_id}/{number}")
def gap_page(page: ReviewerPage, note_id: RowId, number: int) -> HTMLResponse:
    """A gap beside the documents, with its words highlighted."""
    case = page.services.read_case(page.user, note_id, page.address, "gap")
    with page.reading() as connection:
        place = find_gap(connection, note_id, number)
    documents, at = show_marked(case, place.gap.evidence)
    answers = place.gap.answers
    return page.render(
        "gap.html",
        place=place,
        title=TITLES[place.gap.kind],
        answers=[(answer, describe(Code("icd10cm", answer.code))) for answer in answers[:MAX_ANSWERS]],
        has_weights=any(answer.weight is not None for answer in answers),
        has_risk=any(answer.risk is not None for answer in answers),
        change=change_words,
        documents=documents,
        at=at,
    )


def change_words(value: float | None) -> str:
    """A change with its sign; a dash if it is not known."""
    if value is None:
        return "–"
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0"


def likely_words(effect: EffectRange) -> str:
    """The likely change; a dash if it is not known."""
    return change_words(effect.likely if effect.encounters else None)


def range_words(low: float, high: float) -> str:
    """The least and the greatest change, or the only one."""
    words = [change_words(low), change_words(high)]
    return " to ".join(dict.fromkeys(words))


def effect_range(effect: EffectRange) -> str:
    """The least and the greatest change; "" if they are not known or equal."""
    words = range_words(effect.low, effect.high)
    return words if effect.encounters and " to " in words else ""


def _effects(gap: Gap) -> dict[str, str]:
    """What the answers of one gap can change: other DRGs, weight, risk score."""
    drgs = sorted({answer.drg for answer in gap.answers if answer.drg is not None and answer.drg != gap.drg})
    result = {"drgs": ", ".join(map(str, drgs))}
    for name in ("weight", "risk"):
        values = [value for answer in gap.answers if (value := getattr(answer, name)) is not None]
        result[name] = range_words(min(values), max(values)) if values else "–"
    return result
