"""Procedures of a claim: ICD-10-PCS codes of what the note says was performed, completed within the official tables.

A code is proposed only if every character follows from words of the note, from the table (one value is possible) or
from a default that the data file of the procedure states. Otherwise the missing value becomes a question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from nosology.claims.draft import Draft, LeftOut, Query
from nosology.claims.procedure_names import NamedProcedure, named_procedures
from nosology.claims.procedure_resolver import PartialCode, ProcedureResolver
from nosology.claims.procedure_status import is_performed
from nosology.codes import release_on, releases, table
from nosology.codes.pcs_tables import AXES, pcs_tables
from nosology.codes.table import CodeTable
from nosology.core import CodeError, Span

_NAMED, _DEFAULT, _INDEX = 0.9, 0.75, 0.6  # probability: by words, with a default, by a name of the index
_TITLES = {  # of what is missing, in a question
    "body_part": "body part", "qualifier": "level or detail", "operation": "extent (all or a part of the organ)",
    "vessels": "vessels and stents", "grafts": "grafts and arteries", "joints": "vertebral levels",
    "hours": "duration in hours", "layers": "deepest layer that was removed",
}  # fmt: skip
_MAX_OPTIONS = 6  # values that a question lists
# The most extensive procedures first: (regular expression for codes, rank); any other has _OTHER_RANK.
_RANKS = (
    (r"0.Y|02[1R]|10[DE]", 0),  # transplantation, bypass and valves of the heart, delivery
    (r"0.[1GRTX6]", 1),  # bypass, fusion, replacement, resection, transfer, detachment
    (r"0.[9234H]", 3),  # drainage, change, control, creation, insertion
    (r"0.J", 6),  # inspection
    (r"0", 2),
    (r"5A1|1", 4),
    (r"[BCD]", 7),  # imaging
)
_OTHER_RANK = 5


@dataclass(frozen=True, slots=True)
class ProposedProcedure:
    """A procedure code with its evidence; rule: the id of the procedure in the data files."""

    code: str
    description: str
    probability: float
    evidence: tuple[Span, ...]
    rule: str


@dataclass(frozen=True, slots=True)
class ProposedProcedures:
    """The procedures in order, questions about those that cannot be coded, and codes that another one includes."""

    codes: tuple[ProposedProcedure, ...] = ()
    queries: tuple[Query, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def propose_procedures(draft: Draft) -> ProposedProcedures:
    """The procedures that a note says were performed, the principal one first."""
    named = named_procedures(draft)
    starts = [item.span.start for item in named[1:]] + [len(draft.text)]
    done = [item for item, start in zip(named, starts) if is_performed(draft, item, start)]
    if done and draft.is_newborn:
        done = [item for item in done if not item.procedure.of_mother]
    if not done:
        return ProposedProcedures()
    release = _release(draft)
    codes = table("icd10pcs", release)
    resolver = ProcedureResolver(draft, named, done, pcs_tables(release))
    found: dict[str, ProposedProcedure] = {}
    unclear: list[tuple[NamedProcedure, PartialCode]] = []
    for item in done:
        for partial in (it for part in resolver.parts(item) for it in resolver.resolve(item, part)):
            possible = partial.cells.codes()
            if len(possible) == 1 and codes.billable(possible[0]):
                found[possible[0]] = _joined(found.get(possible[0]), _proposed(codes, item, possible[0], partial))
            else:
                unclear.append((item, partial))
    unresolved = {name for _, partial in unclear for name, _ in partial.cells.rows}
    kept, left_out = _without_parts(found.values(), done, unresolved)
    ordered = sorted(kept, key=lambda it: (procedure_rank(it.code), _arteries(it.code), min(it.evidence).start))
    return ProposedProcedures(tuple(ordered), tuple(_questions(draft.text, unclear, found.values())), tuple(left_out))


def _release(draft: Draft) -> str:
    """The release of ICD-10-PCS on the date of the encounter."""
    try:
        return release_on(draft.encounter.date, "icd10pcs") if draft.encounter.date else releases("icd10pcs")[-1]
    except CodeError:  # before the first known one
        return releases("icd10pcs")[0]


def _proposed(codes: CodeTable, item: NamedProcedure, code: str, partial: PartialCode) -> ProposedProcedure:
    probability = _INDEX if item.procedure.kind == "index" else _DEFAULT if partial.by_default else _NAMED
    evidence = tuple(sorted({item.span, *partial.spans}))
    return ProposedProcedure(code, codes.description(code), probability, evidence, item.procedure.id)


def _joined(known: ProposedProcedure | None, new: ProposedProcedure) -> ProposedProcedure:
    if known is None:
        return new
    evidence = tuple(sorted({*known.evidence, *new.evidence}))
    return replace(known, evidence=evidence, probability=max(known.probability, new.probability))


def _without_parts(
    found: Iterable[ProposedProcedure], done: Sequence[NamedProcedure], unresolved: Collection[str]
) -> tuple[list[ProposedProcedure], list[LeftOut]]:
    """The procedures without those that another one of the claim includes (ICD-10-PCS guidelines B3.1b and B3.11a).

    unresolved: tables of procedures that were performed but cannot be coded; an inspection is part of these too.
    """
    items = list(found)
    part_of = {item.procedure.id: item.procedure.part_of for item in done}
    kept, left_out = [], []
    for item in items:
        others = {other.code for other in items if other.code != item.code}
        pattern = part_of.get(item.rule, "")
        if item.code[0] == "0" and item.code[2] == "J":  # inspection, on the way to another operation
            others |= set(unresolved)
            pattern = f"{item.code[:2]}[^J]{f'|{pattern}' if pattern else ''}"
        if pattern and any(re.match(pattern, other) for other in others):
            left_out.append(LeftOut(item.code, "it is part of another procedure", item.rule, item.evidence))
        else:
            kept.append(item)
    return kept, left_out


def procedure_rank(code: str) -> int:
    """The place of a code among procedures: the most extensive first."""
    return next((rank for pattern, rank in _RANKS if re.match(pattern, code)), _OTHER_RANK)


def _arteries(code: str) -> int:
    """Minus the number of coronary arteries of a bypass or dilation: the most extensive first."""
    return -int(code[3]) if re.match(r"02[17][0-3]", code) else 0


def _questions(
    text: str, unclear: Sequence[tuple[NamedProcedure, PartialCode]], found: Iterable[ProposedProcedure]
) -> list[Query]:
    """One question for each named procedure that was performed and has no code."""
    coded = {item.rule for item in found}
    questions: dict[str, Query] = {}
    for item, partial in unclear:
        procedure = item.procedure
        if procedure.kind == "named" and not procedure.quiet and procedure.id not in coded:
            questions.setdefault(procedure.id, _question(text, item, partial))
    return list(questions.values())


def _question(text: str, item: NamedProcedure, partial: PartialCode) -> Query:
    """What is missing, with the values of the table if they are few; it does not lead."""
    parts = []
    for name in dict.fromkeys(partial.missing):
        options = partial.cells.labels(name) if name in AXES else []
        listed = f" ({', '.join(options)})" if 1 < len(options) <= _MAX_OPTIONS else ""
        parts.append(f"{_TITLES.get(name, name)}{listed}")
    name = " ".join(text[item.span.start : item.span.end].split())
    question = f"{name} is documented as performed. Please state, if it is known: {'; '.join(parts) or 'details'}."
    return Query(question, f"procedure-{item.procedure.id}", (item.span,))
