"""Documentation gaps: where the note of an encounter stops short of a code, and what an answer could change.

A gap is a question of the claim to the physician, or a code of the claim that leaves its type or side open. Each answer
is one code; its effect is the change of DRG weight and risk score if this code replaces the open one, or is added as a
secondary diagnosis where the note has a finding without a diagnosis. Other codes of the claim stay as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from nosology.claims.checks import AssignedCode, AssignedCodes, specific_siblings
from nosology.claims.claim import Claim
from nosology.claims.draft import Query, matches
from nosology.claims.drg_weights import DrgWeight
from nosology.claims.grouping import DrgGroup, HccScore, group_drg, score_hcc
from nosology.claims.laterality import side_variants
from nosology.claims.rules import rules_by_id
from nosology.codes import table
from nosology.codes.table import CodeTable
from nosology.core import Code, Span

Weights = Mapping[int, Mapping[int, DrgWeight]]  # by fiscal year and DRG
KINDS = {
    "specificity": "a query for the type, stage or cause of a diagnosis",
    "diagnosis": "a query for the diagnosis of a finding",
    "procedure": "a query for details of a procedure",
    "unspecified": "an unspecified code with more specific ones beside it",
    "side": "a code that leaves the side open",
}
_PROCEDURE = "procedure-"
_NOT_ASKED = "V00-Z99"  # external causes, and reasons for encounters
_PLAIN = ("kind", "subject", "title", "code", "question", "drg")  # members of a gap that JSON has
_ALSO_UNSPECIFIED = "or unspecified"  # such codes are right for what is stated, too


@dataclass(frozen=True, slots=True)
class Answer:
    """A possible code, the DRG with it, and its changes of DRG weight and risk score; None: not known."""

    code: str
    drg: int | None = None
    weight: float | None = None
    risk: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """What a note leaves open.

    subject: the rule of a query, or the code. title: what is missing, without words of the note. code: the code of the
    claim that an answer replaces, "" if it adds one. drg: that of the claim.
    """

    kind: str
    subject: str
    title: str
    code: str
    question: str
    evidence: tuple[Span, ...]
    answers: tuple[Answer, ...] = ()
    drg: int | None = None

    @property
    def can_change_drg(self) -> bool:
        """Whether an answer gives another DRG."""
        return any(map(self.changes_drg, self.answers))

    def changes_drg(self, answer: Answer) -> bool:
        """Whether this answer gives another DRG; one whose codes have no DRG gives none."""
        return answer.drg is not None and answer.drg != self.drg

    def to_json(self) -> dict[str, Any]:
        """The gap as one JSON object, evidence as offsets."""
        answers = [[answer.code, answer.drg, answer.weight, answer.risk] for answer in self.answers]
        spans = [[span.start, span.end] for span in self.evidence]
        return {**{name: getattr(self, name) for name in _PLAIN}, "evidence": spans, "answers": answers}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Gap:
        """The gap of such an object; other members are ignored."""
        evidence = tuple(Span(start, end) for start, end in value["evidence"])
        answers = tuple(Answer(*parts) for parts in value["answers"])
        return cls(**{name: value[name] for name in _PLAIN}, evidence=evidence, answers=answers)


def find_gaps(claim: Claim, weights: Weights | None = None) -> list[Gap]:
    """The gaps of a claim in ICD-10-CM, queries first; weights: relative weights of DRGs."""
    found = [_of_query(claim, query) for query in claim.queries]
    asked = {gap.code for gap, _ in found}
    found += [pair for pair in _of_codes(claim) if pair[0].code not in asked]
    assigned, fields = claim.assigned, claim.checked_fields
    drg, hcc = group_drg(assigned, fields), score_hcc(assigned, fields)

    def answer(gap: Gap, code: str) -> Answer:
        codes = _answered(assigned, gap.code, code)
        return _compared(code, drg, group_drg(codes, fields), hcc, score_hcc(codes, fields), weights or {})

    return [replace(gap, drg=drg.drg, answers=tuple(answer(gap, code) for code in codes)) for gap, codes in found]


def _of_query(claim: Claim, query: Query) -> tuple[Gap, Sequence[str]]:
    """The gap of a question, and the codes of its answers."""
    if query.rule.startswith(_PROCEDURE):
        name = query.rule.removeprefix(_PROCEDURE).replace("-", " ").replace("_", " ")
        title = f"A procedure lacks details for its code: {name}."
        return Gap("procedure", query.rule, title, "", query.question, query.evidence), ()
    rule = rules_by_id()[query.rule]
    codes = [item.code for item in claim.codes if rule.codes and matches(rule.codes[0], item.code)]
    code = codes[0] if codes else ""
    kind = "specificity" if rule.codes else "diagnosis"
    gap = Gap(kind, query.rule, rule.message, code, query.question, query.evidence)
    if rule.codes and not codes:  # the claim has left the code out
        return gap, ()
    listed = query_answers().get((query.rule, code), ())
    lines = table("icd10cm", claim.encounter.release)
    return gap, _billable(claim.encounter.release, listed) if listed else specific_siblings(lines, code)


def _of_codes(claim: Claim) -> Iterator[tuple[Gap, Sequence[str]]]:
    """The gaps of codes that are unspecified or leave the side open, and the codes of their answers."""
    lines = table("icd10cm", claim.encounter.release)
    for item in claim.codes:
        if matches(_NOT_ASKED, item.code):
            continue
        sides = side_variants(lines, item.code)
        if sides and item.code not in sides.values():
            kind, codes, missing = "side", list(sides.values()), "The side is not stated"
        elif not sides and (codes := _more_specific(lines, item.code)):
            kind, missing = "unspecified", "Details are not stated"
        else:
            continue
        yield Gap(kind, item.code, f"{missing}: {item.description}.", item.code, "", item.evidence), codes


def _more_specific(lines: CodeTable, code: str) -> list[str]:
    """The codes that an unspecified code leaves open; those beside a category are other diseases."""
    if len(code) == 3 or _ALSO_UNSPECIFIED in lines.description(code):
        return []
    return specific_siblings(lines, code)


@cache
def query_answers() -> dict[tuple[str, str], tuple[str, ...]]:
    """Rule of a query and code of the claim ("" for a finding) -> categories and codes that answer it."""
    lines = files("nosology.claims").joinpath("data/query_answers.tsv").read_text(encoding="utf-8").splitlines()
    return {(row["rule"], row["code"]): tuple(row["answers"].split()) for row in csv.DictReader(lines, delimiter="\t")}


@lru_cache(maxsize=256)
def _billable(release: str | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """The billable codes among some codes and those below them."""
    lines = table("icd10cm", release)
    return tuple(
        code for name in names if name in lines for code in (name, *lines.descendants(name)) if lines.billable(code)
    )


def _answered(assigned: AssignedCodes, old: str, new: str) -> AssignedCodes:
    """The codes with a new one in place of an old one, or at the end."""
    code = Code("icd10cm", new)
    if not old:
        return AssignedCodes((*assigned.chosen, AssignedCode(code, "added", "Y")))
    open_code = Code("icd10cm", old)
    return AssignedCodes(tuple(replace(it, code=code) if it.code == open_code else it for it in assigned.chosen))


def _compared(code: str, old: DrgGroup, new: DrgGroup, before: HccScore, after: HccScore, weights: Weights) -> Answer:
    earlier, later = (weights.get(group.fiscal_year, {}).get(group.drg or 0) for group in (old, new))
    weight = None if earlier is None or later is None else round(later.weight - earlier.weight, 4)
    risk = None if before.risk is None or after.risk is None else round(after.risk - before.risk, 4)
    return Answer(code, new.drg, weight, risk)
