"""The audit of one encounter: billed codes without support, supported codes not billed, order, POA, conflicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nosology.audit.correction import Weights, assigned_codes, with_effects
from nosology.audit.finding import KINDS, BilledCode, EncounterAudit, Finding
from nosology.audit.mentioned_codes import CodeMention, MentionedCodes, merged_spans, names_of
from nosology.audit.sibling_search import SiblingSearch
from nosology.audit.support_features import shared_start
from nosology.audit.support_model import Judgement
from nosology.claims.claim import Claim, ClaimCode, build_claim
from nosology.claims.draft import Draft
from nosology.claims.encounter_checks import check_encounter
from nosology.claims.sibling_choice import RULE as SIBLINGS
from nosology.codes import describe
from nosology.core import Code, ConfigError, Span, Suggestion
from nosology.models.siblings.sibling_chooser import SiblingChooser

REFERENCES = ("claim", "coder")
"""Against what a bill is audited: the claim by the guidelines, or the codes that a coder accepts."""
# Hand-set: how sure a finding is whose confidence no coder gives.
_CONTRADICTED, _NOT_FOUND, _UNSURE = 0.9, 0.75, 0.6
_SUGGESTED = 0.02  # against a coder, a billed code with this probability or more has support
MIN_CONFIDENCE = 0.5
_LEVELS = {"error": 0.95, "warning": 0.7}
_UNSPECIFIED = re.compile(r"\bunspecified\b|\bnot otherwise specified\b", re.IGNORECASE)


def audit_encounter(
    note_id: str,
    text: str,
    billed: Sequence[BilledCode],
    suggestions: Sequence[Suggestion],
    stated: Mapping[str, Any] | None = None,
    *,
    reference: str = "claim",
    weights: Weights | None = None,
    min_confidence: float | None = None,
    judgement: Judgement | None = None,
    chooser: SiblingChooser | None = None,
) -> EncounterAudit:
    """The findings of an encounter; text: its note, or its documents joined by `join_documents`.

    suggestions: of a coder loaded for claims. stated: fields of the encounter; what is missing is read from the text.
    reference: see REFERENCES. weights: of the DRGs. min_confidence: of a finding; None: 0.5, and for the codes of a
    judgement its own thresholds. judgement: of a support model; then it decides about codes, and the most confident
    findings come first. chooser: of the coder, for the claim; it also names the code of the category that the text
    supports in place of a billed one that it does not name. Billed procedures count for checks and groups; their
    support is not audited.
    """
    if reference not in REFERENCES:
        raise ConfigError(f"reference must be one of {', '.join(REFERENCES)}; got {reference!r}")
    claim = build_claim(note_id, text, suggestions, stated, chooser=chooser)
    bill = _EncounterBill(claim, billed, suggestions, reference, chooser)
    fields = bill.fields
    about_codes = list(bill.code_findings() if judgement is None else bill.judged_findings(judgement))
    least = MIN_CONFIDENCE if min_confidence is None else min_confidence
    if judgement is None or min_confidence is not None:
        about_codes = [item for item in about_codes if item.confidence >= least]
    others = [item for item in (*bill.order_findings(), *bill.conflicts()) if item.confidence >= least]
    findings = with_effects([bill.with_words(it) for it in (*about_codes, *others)], billed, fields, weights or {})
    findings.sort(key=lambda item: KINDS.index(item.kind) if judgement is None else -item.confidence)
    supported = {code: merged_spans(spans) for code, spans in bill.supported.items()}
    return EncounterAudit(note_id, text, bill.claim.encounter, tuple(billed), tuple(findings), supported)


@dataclass(frozen=True, slots=True)
class _Expected:
    """A code that the reference supports."""

    code: str
    probability: float
    evidence: tuple[Span, ...]
    rule: str = ""


class _EncounterBill:
    """The bill of an encounter beside what its text supports."""

    def __init__(
        self,
        claim: Claim,
        billed: Sequence[BilledCode],
        suggestions: Sequence[Suggestion],
        reference: str,
        chooser: SiblingChooser | None,
    ):
        self.claim, self._reference = claim, reference
        self._all = billed
        self._billed = [item for item in billed if item.code.system == "icd10cm"]
        self._names = {item.code.code for item in self._billed}
        self._draft = Draft(claim.text, claim.encounter, suggestions)
        self._mentions = MentionedCodes(self._draft)
        self._siblings = SiblingSearch(chooser, self._draft, self._mentions) if chooser else None
        self._suggested = {it.code: it for it in suggestions if it.system == "icd10cm"}
        self.expected = {it.code: it for it in (_of_claim(claim) if reference == "claim" else _accepted(suggestions))}
        self.supported: dict[Code, tuple[Span, ...]] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the encounter that checks and groupers read."""
        encounter = self.claim.encounter
        kind = "inpatient" if encounter.is_inpatient else "outpatient"
        fields = {"date": encounter.date, "sex": encounter.sex, "age": encounter.age, "kind": kind}
        return fields | ({"disposition": encounter.disposition} if encounter.disposition else {})

    def code_findings(self) -> Iterator[Finding]:
        """Billed codes that the text does not support as they are, and supported codes that are not billed."""
        explained: set[str] = set()
        for item in self._billed:
            found = self._judge(item.code, explained)
            if found is not None:
                explained.add(found.instead)
                yield found
        for expected in self.expected.values():
            if expected.code not in self._names | explained and expected.evidence:
                yield Finding(
                    "not_billed",
                    Code("icd10cm", expected.code),
                    "the text supports it and it is not billed",
                    expected.probability,
                    rule=expected.rule,
                    evidence=expected.evidence,
                )

    def judged_findings(self, judgement: Judgement) -> Iterator[Finding]:
        """The findings about codes of a support model."""
        explained: set[str] = set()
        for item in self._billed:
            code, named = item.code, self._mentions.of(item.code.code)
            if judgement.is_found("other_code", code.code) and (
                other := self._alternative(code, judgement, explained) or self._of_category(code, explained)
            ):
                explained.add(other.instead)
                yield replace(other, confidence=judgement.other_code[code.code])
                continue
            usable = tuple(dict.fromkeys(it.span for it in named if it.objection is None))
            if judgement.is_found("unsupported", code.code):
                doubted = Finding(
                    "unsupported", code, "a term names it, but note and bill are unlike it", 0, "", "", usable
                )
                finding = doubted if usable else self._unsupported(code, named, explained)
                explained.add(finding.instead)
                yield replace(finding, confidence=judgement.unsupported[code.code])
            elif denied := judgement.denied_counts and self._mentions.denied_or_over(
                code.code, _spans(self._suggested.get(code.code))
            ):
                yield _contradicted(code, denied)
            elif spans := usable or _spans(self._suggested.get(code.code)):
                self.supported[code] = spans
        for name, confidence in judgement.not_billed.items():
            if judgement.is_found("not_billed", name) and name not in explained:
                spans = _spans(self._suggested[name])
                reason = "the text supports it and it is not billed"
                yield Finding("not_billed", Code("icd10cm", name), reason, confidence, evidence=spans)

    def _alternative(self, code: Code, judgement: Judgement, explained: set[str]) -> Finding | None:
        """That the most probable code of the same category that may be missing stands for a billed one."""
        names = [name for name in judgement.not_billed if name[:3] == code.code[:3] and name not in explained]
        better = max((self._suggested[name] for name in names), key=lambda it: it.probability, default=None)
        if better is None:
            return None
        kind, reason = self._compare(code.code, better.code)
        return Finding(kind, code, reason, better.probability, "", better.code, _spans(better))

    def _judge(self, code: Code, explained: set[str]) -> Finding | None:
        """What is wrong with a billed code; None, and an entry in supported, if the text supports it."""
        if (same := self.expected.get(code.code)) is not None:
            self.supported[code] = same.evidence
            return None
        named = self._mentions.of(code.code)
        usable = [it for it in named if it.objection is None]
        suggested = self._suggested_spans(code.code, named)
        better = self._related(code.code, usable, explained)
        if better is not None:
            kind, reason = self._compare(code.code, better.code)
            # Without any support the billed code is wrong, whichever the right one is.
            confidence = max(better.probability, 0.0 if usable or suggested else _UNSURE)
            return Finding(kind, code, reason, confidence, better.rule, better.code, better.evidence)
        if usable or suggested:
            self.supported[code] = tuple(dict.fromkeys(it.span for it in usable)) or suggested
            return None
        return self._unsupported(code, named, explained)

    def _of_category(self, code: Code, explained: set[str]) -> Finding | None:
        """That the text supports another code of the category, where it does not name the billed one."""
        found = self._siblings.find(code, self._names | explained) if self._siblings else None
        if found is None:
            return None
        kind, reason = self._compare(code.code, found.code)
        confidence = max(found.probability, _UNSURE)  # the billed code is wrong, whichever the right one is
        return Finding(kind, code, reason, confidence, SIBLINGS, found.code, found.evidence)

    def _unsupported(self, code: Code, named: Sequence[CodeMention], explained: set[str]) -> Finding:
        """That the text does not support a code: with mentions that do not count, the code that it supports, or names.

        The names are those that were looked for.
        """
        if any(it.objection for it in named):
            return _contradicted(code, named)
        for left in self.claim.left_out:
            if left.code == code.code and left.evidence:
                return Finding("unsupported", code, left.reason, _UNSURE, left.rule, evidence=left.evidence)
        looked_for = names_of(self._draft, code)
        others = self._mentions.of_category(code.code)
        objections = [it.objection for mentions in others.values() for it in mentions]
        if (objection := next(iter(objections), None)) and all(objections):
            reason = f"the text names only {', '.join(others)} of its category: {objection.reason}"
            spans = tuple(it.span for mentions in others.values() for it in mentions)
            return Finding("unsupported", code, reason, _NOT_FOUND, objection.rule, "", spans, looked_for)
        missing = Finding("unsupported", code, "the text does not name it", _NOT_FOUND, looked_for=looked_for)
        return self._of_category(code, explained) or missing

    def with_words(self, finding: Finding) -> Finding:
        """The finding with its words of the text, none twice; without any, with the names that were looked for."""
        code = finding.code
        spans = finding.evidence or self.supported.get(code) or self._spans_of(code)
        looked_for = finding.looked_for if spans or finding.looked_for else names_of(self._draft, code)
        return replace(finding, evidence=merged_spans(spans), looked_for=looked_for)

    def _spans_of(self, code: Code) -> tuple[Span, ...]:
        """Where the text names a code, also where that does not count; of a procedure, the evidence of the claim."""
        if code.system == "icd10cm":
            return tuple(it.span for it in self._mentions.of(code.code))
        return next((it.evidence for it in self.claim.procedures if it.code == code.code), ())

    def _related(self, code: str, usable: Sequence[CodeMention], explained: set[str]) -> _Expected | None:
        """The expected code of the same category that is not billed and stands where the billed one is named."""
        siblings = [it for it in self.expected.values() if it.code[:3] == code[:3] and it.evidence]
        siblings = [it for it in siblings if it.code not in self._names | explained]
        own = [it.span for it in usable if it.is_first]
        siblings = [it for it in siblings if all(any(_overlap(a, b) for b in it.evidence) for a in own)]
        return max(siblings, key=lambda it: (shared_start(it.code, code), it.probability), default=None)

    def _compare(self, billed: str, right: str) -> tuple[str, str]:
        """Kind and reason of a finding about a code of the same category."""
        is_vague, is_right_vague = (bool(_UNSPECIFIED.search(describe(Code("icd10cm", it)))) for it in (billed, right))
        if right.startswith(billed) or (is_vague and not is_right_vague):
            return "less_specific", f"the text supports the more specific {right}"
        if billed.startswith(right) or (is_right_vague and not is_vague):
            return "more_specific", f"the text supports only {right}"
        return "other_code", f"the text supports {right} of the same category"

    def _suggested_spans(self, code: str, named: Sequence[CodeMention]) -> tuple[Span, ...]:
        """The evidence of a coder for the code; empty if it does not count, or the text or the claim objects."""
        suggestion = self._suggested.get(code)
        if suggestion is None:
            return ()
        if self._reference == "coder":
            counts = suggestion.probability >= _SUGGESTED
        else:
            counts = suggestion.accepted and not named and all(left.code != code for left in self.claim.left_out)
        return _spans(suggestion) if counts else ()

    def order_findings(self) -> Iterator[Finding]:
        """A principal diagnosis that the claim lists later, and indicators that differ from those of the claim."""
        if self._reference != "claim" or not self._billed:
            return
        proposed = {item.code: item for item in self.claim.codes}
        first, principal = next(iter(self.claim.codes), None), self._billed[0].code
        if (
            first is not None
            and first.code != principal.code
            and first.code in self._names
            and principal.code in proposed
        ):
            reason = f"by the claim {first.code} is the first-listed diagnosis"
            yield Finding("sequencing", principal, reason, _UNSURE, first.rule, first.code, first.evidence)
        for item in self._billed:
            right = proposed.get(item.code.code)
            if right is not None and {item.poa, right.poa} == {"Y", "N"}:
                reason = "the text says that it was " + ("present" if right.poa == "Y" else "not present")
                yield Finding("poa", item.code, f"{reason} on admission", _UNSURE, "", right.poa, right.evidence)

    def conflicts(self) -> Iterator[Finding]:
        """Errors and warnings of the checks of the billed codes: Excludes1, code editor, patient, date, POA."""
        evidence = {code: list(spans) for code, spans in self.supported.items()}
        for issue in check_encounter(assigned_codes(self._all), self.fields, self.claim.text, evidence):
            if issue.level in _LEVELS:
                kind = "poa" if issue.kind == "poa" else "conflict"
                spans = self.supported.get(issue.code, ())
                yield Finding(kind, issue.code, issue.message, _LEVELS[issue.level], issue.kind, "", spans)


def _of_claim(claim: Claim) -> Iterator[_Expected]:
    return (_expected(item) for item in claim.codes)


def _expected(item: ClaimCode) -> _Expected:
    return _Expected(item.code, item.probability, item.evidence, item.rule)


def _accepted(suggestions: Sequence[Suggestion]) -> Iterator[_Expected]:
    for it in suggestions:
        if it.accepted and it.system == "icd10cm":
            yield _Expected(it.code, it.probability, _spans(it))


def _spans(suggestion: Suggestion | None) -> tuple[Span, ...]:
    return tuple(Span(item.start, item.end) for item in suggestion.evidence) if suggestion else ()


def _contradicted(code: Code, named: Sequence[CodeMention]) -> Finding:
    """That mentions of a code do not count, by the first objection."""
    first = next(it.objection for it in named if it.objection)
    spans = tuple(dict.fromkeys(it.span for it in named))
    return Finding("unsupported", code, first.reason, _CONTRADICTED, first.rule, evidence=spans)


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end
