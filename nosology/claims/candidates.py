"""The suggestions that can enter the set: said of this patient, not denied, certain enough for the setting."""

from __future__ import annotations

from nosology.claims.draft import WEAK_EVIDENCE, Draft, Entry, LeftOut, matches
from nosology.claims.mention_status import objection
from nosology.codes.related_codes import is_past_event, personal_history
from nosology.core import Span, Suggestion

_ALTERNATIVE = 0.55  # share of the probability of the first reading


def add_candidates(draft: Draft) -> None:
    """Fills the draft with the accepted suggestions.

    What has no evidence, or what a mention's context forbids, is left out with its reason.
    """
    for suggestion in draft.suggestions:
        if suggestion.accepted and suggestion.system == "icd10cm":
            _add(draft, suggestion)
    _drop_alternatives(draft)


def _drop_alternatives(draft: Draft) -> None:
    """Drops codes that are only the second reading of words that another code of their category has."""
    best: dict[tuple[str, tuple[Span, ...]], Entry] = {}
    for entry in sorted(draft.entries.values(), key=lambda entry: -entry.probability):
        first = best.setdefault((entry.code[:3], entry.evidence), entry)
        if entry.evidence and entry.probability < _ALTERNATIVE * first.probability:
            draft.drop(entry.code, f"the words mean {first.code}", "alternative")
        elif first is not entry and entry.evidence:
            others = [it.code for it in (first, entry) if draft.table.description(it.code).startswith("Other ")]
            if len(others) == 1 and others[0] in draft.entries and others[0][7:] in (first.code[7:], entry.code[7:]):
                draft.drop(others[0], "the words do not specify another kind", "alternative")


def _add(draft: Draft, suggestion: Suggestion) -> None:
    code = draft.of_date(suggestion.code)
    spans = [Span(item.start, item.end) for item in suggestion.evidence]
    if not code:
        reason = "the code set of the encounter's date does not have this code"
        draft.left_out.append(LeftOut(suggestion.code, reason, "release"))
        return
    if not spans:  # such as a code that a coder suggests because it is frequent
        draft.left_out.append(LeftOut(code, "no words of the note are evidence for this code", WEAK_EVIDENCE))
        return
    reasons = [objection(draft, span, code) for span in spans]
    usable = tuple(span for span, reason in zip(spans, reasons) if not reason)
    if len(usable) < len(spans):  # what is left must not be a part of the name of another disease
        usable = tuple(span for span in usable if not _is_inside(draft, span, code))
    first = next(filter(None, reasons), None)
    if not usable and first:
        draft.left_out.append(LeftOut(code, first.reason, first.rule, tuple(spans)))
        personal = personal_history(code) if is_past_event(code) else None
        is_known = any(draft.section_kind(span.start) not in ("findings", "impression") for span in spans)
        is_history = is_known if first.rule == "resolved" else matches("Z85|Z86", personal or "")
        if personal and is_history and first.rule in ("resolved", "copied") and draft.table.billable(personal):
            draft.add(personal, suggestion.probability, spans, "past")
        return
    known = draft.entries.get(code, Entry(code, 0.0))  # two codes of today may have been one at the date
    evidence = tuple(sorted({*known.evidence, *usable}))
    draft.entries[code] = Entry(code, max(known.probability, suggestion.probability), evidence)


def _is_inside(draft: Draft, span: Span, code: str) -> bool:
    """Whether a span is a part of a longer mention of another code."""
    return any(
        item.start <= span.start and span.end <= item.end and item.end - item.start > span.end - span.start
        for suggestion in draft.suggestions
        if suggestion.accepted and suggestion.code != code
        for item in suggestion.evidence
    )
