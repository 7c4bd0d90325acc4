"""Whether a note says that a procedure was performed in this encounter: not planned, declined, past or an option."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

from nosology.claims.draft import Draft
from nosology.claims.procedure_names import NamedProcedure
from nosology.core import Span

# Sections that never say what was done in this encounter.
_BACKGROUND = frozenset(
    ("surgical_history", "past_medical_history", "family_history", "social_history", "allergies", "medications",
     "discharge_medications", "review_of_systems", "physical_exam", "admission_diagnosis")
)  # fmt: skip
_DONE_SECTIONS = frozenset(("procedures", "hospital_course"))  # a procedure that is named there was done
_FINAL_SECTIONS = frozenset(("assessment", "discharge_diagnosis"))  # "s/p appendectomy" there is of this stay
_PLAN_SECTIONS = frozenset(("indication", "instructions", "code_status"))  # what may be done, and why
_REPORT_SECTIONS = frozenset(("start", "other", "technique", "findings", "service", "results", "impression"))
_OTHER_TIME = re.compile(  # titles of sections
    r"\b(?:past|prior|previous|history|hx|planned|proposed|scheduled|pending)\b|^\W*(?:plan|follow[- ]?up)\b", re.I
)
_REPORT = re.compile(
    r"\b(?:operative|procedure|op|delivery|endoscopy|colonoscopy|bronchoscopy|catheterization|cath|ERCP|EGD|TAVR|IR)"
    r"[ \t]+(?:\w+[ \t]+)?(?:report|note|summary)\b",
    re.IGNORECASE,
)
_AROUND = re.compile(r"(?:pre|post)-? ?op", re.IGNORECASE)  # preoperative diagnosis
_SUMMARY = re.compile(r"\b(?:discharge|d/c|dc|hospital) (?:summary|course)\b|\bprogress note\b", re.IGNORECASE)
_TITLE = 300  # characters at the start in which a note says what it is
_LISTED = re.compile(
    r"\b(?:underwent|undergone|taken (?:for|to)|(?:was|were) (?:performed|done|completed))\b", re.IGNORECASE
)
# "2019" or "3/2019", but not 3/14/2019, which may be of this stay
_YEAR_AFTER = re.compile(r"^[^.;\n]{0,30}?(?<![\d/-])(?:\d{1,2}/)?(?P<year>(?:19|20)\d\d)(?![\d/-])")
_NOW = re.compile(r"\bthis (?:admission|hospitali[sz]ation|stay)\b|\bPOD ?#?\d|\btoday\b|\byesterday\b", re.IGNORECASE)
_DATED = re.compile(r"^[^.;\n]{0,20}?(?<![\d/])\d{1,2}/\d{1,2}(?![\d/])")
_CLAUSE = re.compile(
    r"[.;\n]|\bbut\b|\bhowever\b|\balthough\b|, (?:and|who|which|she|he|patient|pt|then)\b", re.IGNORECASE
)
_AFTER_END = re.compile(  # what follows is about something else
    r"(?:,| and|,? then)\s+(?:will|she|he|they|pt|the patient|patient|plan\w*|(?:was |were )?discharged?|follow)\b"
    r"|\bwith (?:plans?|follow)\b",
    re.IGNORECASE,
)
_REACH = 60  # characters after a name within which a cue counts


@cache
def _cues() -> dict[str, dict[str, list[str]]]:
    text = files("nosology.claims").joinpath("data", "procedure_cues.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _before() -> re.Pattern[str]:
    """The cues before a name; the group is their kind: not, done or status."""
    kinds = (f"(?P<{kind}_>{'|'.join(cues)})" for kind, cues in _cues()["before"].items())
    return re.compile(rf"(?<!\w)(?:{'|'.join(kinds)})(?!\w)", re.IGNORECASE)


@cache
def _after(kind: str) -> re.Pattern[str]:
    """The cues of a kind after a name: done, not and past within reach, next directly after it."""
    reach = r"\W{0,2}" if kind == "next" else rf"[^.;\n]{{0,{_REACH}}}?"
    return re.compile(rf"{reach}(?<!\w)(?P<cue>{'|'.join(_cues()['after'][kind])})(?!\w)", re.IGNORECASE)


def is_report(draft: Draft) -> bool:
    """Whether a note reports a procedure: an operative note, a delivery note, a procedure note."""
    kinds = {part.kind for part in draft.sections}
    if _SUMMARY.search(draft.text, 0, _TITLE) or "hospital_course" in kinds:
        return False
    if _REPORT.search(draft.text, 0, _TITLE) or any(_AROUND.match(part.title) for part in draft.sections):
        return True
    return "procedures" in kinds and kinds.isdisjoint(_BACKGROUND | _FINAL_SECTIONS | {"hpi"})


def is_performed(draft: Draft, named: NamedProcedure, next_start: int) -> bool:
    """Whether the note says that a procedure was performed in this encounter; next_start: of the next name."""
    span, kind = named.span, draft.section_kind(named.span.start)
    if kind in _BACKGROUND or _OTHER_TIME.search(draft.section_title(span.start)):
        return False
    sentence = draft.sentence(span.start)
    is_listed = kind == "procedures" or _LISTED.search(draft.text, sentence.start, sentence.end)
    if named.procedure.kind == "operation" and (kind == "technique" or not is_listed):
        return False
    after = _AFTER_END.split(draft.text[span.end : min(sentence.end, max(next_start, span.end))], maxsplit=1)[0]
    context = draft.context(span)
    if context.family or _is_denied(after) or _is_past(draft, after):
        return False
    cue = _cue(draft.text[_clause_start(draft.text, sentence, span.start) : span.start])
    is_now = _NOW.search(draft.text, sentence.start, sentence.end) is not None or _DATED.search(after) is not None
    if cue == "not":  # a denial too; the negation of the context would read a result: "LP was negative"
        return False
    if cue == "status":
        return is_now or kind in _DONE_SECTIONS | _FINAL_SECTIONS
    if cue == "done" or (_after("done").match(after) and kind != "assessment"):
        return True
    if context.hypothetical or (context.historical and not is_now):
        return False
    if named.procedure.done or is_now:
        return True
    return kind in _DONE_SECTIONS or (is_report(draft) and kind in _REPORT_SECTIONS)


def _clause_start(text: str, sentence: Span, position: int) -> int:
    start = sentence.start
    for match in _CLAUSE.finditer(text, sentence.start, position):
        start = match.end()
    return start


def _cue(text: str) -> str:
    """The kind of the last cue of a text; "" if it has none."""
    kind = ""
    for match in _before().finditer(text):
        kind = (match.lastgroup or "").rstrip("_")
    return kind


def _is_denied(after: str) -> bool:
    """Whether words after the name say that it was not done: "was discussed", but not "was placed, to be removed"."""
    found, done = _after("not").match(after), _after("done").match(after)
    is_done_first = found and done and done.start("cue") < found.start("cue")
    return bool(_after("next").match(after)) or bool(found and not is_done_first)


def _is_past(draft: Draft, after: str) -> bool:
    """Whether a time after the name says that the procedure was before this encounter."""
    year = _YEAR_AFTER.search(after)
    return bool(_after("past").match(after)) or bool(year and year["year"] != draft.encounter.date[:4])


def body_sentences(draft: Draft) -> list[Span]:
    """The sentences of a report that describe what was done: not history, indication or plan."""
    excluded = _BACKGROUND | _PLAN_SECTIONS | {"hpi"}
    return [it for it in draft.sentences if draft.section_kind(it.start) not in excluded]
