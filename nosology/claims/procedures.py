"""Procedures of a claim: ICD-10-PCS codes of what the note says was performed, completed within the official tables.

A code is proposed only if every character follows from words of the note, from the table (one value is possible) or
from a default that the data file of the procedure states. Otherwise the missing value becomes a question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from nosology.claims.draft import Draft, LeftOut, Query
from nosology.claims.procedure_counts import COUNTS
from nosology.claims.procedure_names import NamedProcedure, ProcedurePart, named_procedures, word_pattern
from nosology.claims.procedure_status import body_sentences, is_performed, is_report
from nosology.claims.procedure_values import (
    NOTHING,
    Cells,
    WordValue,
    cells,
    find_sides,
    find_values,
    split_side,
)  # fmt: skip
from nosology.codes import release_on, releases, table
from nosology.codes.pcs_tables import AXES, PcsTables, pcs_tables
from nosology.codes.table import CodeTable
from nosology.core import CodeError, Span

_SEPARATOR = re.compile(r"[,;:\n]|\b(?:and|with|plus|then)\b|[&+]", re.IGNORECASE)
_OPERATION = re.compile(  # a word that names another operation
    r"\b(?:excision|resection|repair|bypass|fulguration|insertion|removal|drainage|release|division|transfer|replacement"
    r"|\w{3,}(?:ectomy|otomy|ostomy|plasty|scopy|rrhaphy|pexy|desis|centesis))\b",
    re.IGNORECASE,
)
_ORDER = ("body_part", "device", "approach", "qualifier")  # in which the axes are determined
_TITLES = {  # of what is missing, in a question
    "body_part": "body part", "qualifier": "level or detail", "operation": "extent (all or a part of the organ)",
    "vessels": "vessels and stents",
    "grafts": "grafts and arteries", "joints": "vertebral levels", "hours": "duration in hours",
    "layers": "deepest layer that was removed",
}  # fmt: skip
_NAMED, _DEFAULT, _INDEX = 0.9, 0.75, 0.6  # probability: by words, with a default, by a name of the index
_OWN = 2  # scopes in which the nearest words count: item and sentence; in wider ones words must agree
_AFTER_COST = 15  # a side after its body part is as far as one that is so many characters further before it
_MAX_OPTIONS = 6  # values that a question lists
_NEAR_SIDE = 12  # characters between a side and its body part elsewhere in the note
# The most extensive operations first: (pattern of codes, rank); any other surgery has _OTHER_RANK.
_RANKS = (
    (r"0.Y|02[1RY]|10[DE]|XXA", 0),
    (r"0.[TRGX16]", 1),
    (r"0.[SBCUVQ78NMKPWF]", 2),
    (r"0.[L5D]", 2),
    (r"0JH|02H[6KL]|0.[HZ4]", 3),
    (r"0.[923]", 4),
    (r"0.J", 7),
    (r"5A1", 5),
    (r"[12]", 5),
    (r"[3-9F-HX]", 6),
    (r"[BCD]", 8),
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


class _Branch(NamedTuple):
    """A code on the way: what is still possible, the words that were used, and whether a default was."""

    cells: Cells
    spans: tuple[Span, ...] = ()
    by_default: bool = False
    missing: tuple[str, ...] = ()


def propose_procedures(draft: Draft) -> ProposedProcedures:
    """The procedures that a note says were performed."""
    named = named_procedures(draft)
    starts = [item.span.start for item in named[1:]] + [len(draft.text)]
    done = [item for item, start in zip(named, starts) if is_performed(draft, item, start)]
    if not done:
        return ProposedProcedures()
    return _Resolver(draft, named, done).propose()


def _release(draft: Draft) -> str:
    """The release of ICD-10-PCS on the date of the encounter."""
    try:
        return release_on(draft.encounter.date, "icd10pcs") if draft.encounter.date else releases("icd10pcs")[-1]
    except CodeError:  # before the first known one
        return releases("icd10pcs")[0]


class _Resolver:
    """Completes the codes of the procedures of one note."""

    def __init__(self, draft: Draft, named: Sequence[NamedProcedure], done: Sequence[NamedProcedure]):
        self.draft, self.named, self.done = draft, named, done
        self.text = draft.text
        self.release = _release(draft)
        self.tables: PcsTables = pcs_tables(self.release)

    @cached_property
    def codes(self) -> CodeTable:
        return table("icd10pcs", self.release)

    @cached_property
    def values(self) -> list[WordValue]:
        return find_values(self.text, self.draft.tokens, self.tables)

    @cached_property
    def sides(self) -> list[tuple[str, Span]]:
        return find_sides(self.text, self.draft.tokens)

    def propose(self) -> ProposedProcedures:
        found: dict[str, ProposedProcedure] = {}
        open_questions: list[tuple[NamedProcedure, _Branch]] = []
        coded: set[str] = set()
        for item in self.done:
            for part in self._parts(item):
                for branch in self._resolve(item, part):
                    codes = branch.cells.codes()
                    if len(codes) == 1 and self.codes.billable(codes[0]):
                        coded.add(item.procedure.id)
                        proposed = self._proposed(item, codes[0], branch)
                        found[codes[0]] = _joined(found.get(codes[0]), proposed)
                    else:
                        open_questions.append((item, branch))
        unresolved = {table for _, branch in open_questions for table, _ in branch.cells.rows}
        kept, left_out = _without_parts(found.values(), self.done, unresolved)
        queries = {
            item.procedure.id: _question(item, self.text, branch)
            for item, branch in open_questions
            if _asks(item) and item.procedure.id not in coded
        }
        ordered = sorted(kept, key=lambda it: (_rank(it.code), _arteries(it.code), min(it.evidence).start))
        return ProposedProcedures(tuple(ordered), tuple(queries.values()), tuple(left_out))

    def _parts(self, item: NamedProcedure) -> Iterator[ProcedurePart]:
        yield item.procedure
        sentence = self.draft.sentence(item.span.start)
        for part in item.procedure.also:
            if not part.near or word_pattern(part.near).search(self.text, sentence.start, sentence.end):
                yield part

    def _proposed(self, item: NamedProcedure, code: str, branch: _Branch) -> ProposedProcedure:
        probability = _INDEX if item.procedure.kind == "index" else _DEFAULT if branch.by_default else _NAMED
        evidence = tuple(sorted({item.span, *branch.spans}))
        return ProposedProcedure(code, self.codes.description(code), probability, evidence, item.procedure.id)

    # Scopes: where words may say more about a procedure, the nearest first.

    def _item(self, item: NamedProcedure) -> Span:
        """The part of the sentence that belongs to a name and not to another one."""
        sentence = self.draft.sentence(item.span.start)
        start, end = sentence.start, sentence.end
        for other in self.named:
            if sentence.start <= other.span.start < item.span.start:
                start = max(start, self._boundary(other.span.end, item.span.start))
            elif item.span.start < other.span.start < sentence.end:
                end = min(end, max(item.span.end, self._boundary(item.span.end, other.span.start)))
        for separator in _SEPARATOR.finditer(self.text, item.span.end, end):
            following = _SEPARATOR.search(self.text, separator.end(), end)
            if _OPERATION.search(self.text, separator.end(), following.start() if following else end):
                return Span(start, separator.start())
        return Span(start, end)

    def _boundary(self, start: int, end: int) -> int:
        """Where the words of the next name begin between two names."""
        separators = list(_SEPARATOR.finditer(self.text, start, end))
        return separators[-1].start() if separators else start

    def _scopes(self, item: NamedProcedure) -> list[list[Span]]:
        """Item, sentence, other items of the same procedure, what follows the sentence, and in a report all of it."""
        sentence = self.draft.sentence(item.span.start)
        same = [self._item(it) for it in self.done if it is not item and it.procedure.id == item.procedure.id]
        if item.procedure.kind == "operation":
            return [[self._item(item)], [sentence]]
        scopes = [[self._item(item)], [sentence], same, [self._next_sentence(sentence)]]
        if is_report(self.text):
            scopes.append(body_sentences(self.draft))
        return scopes

    def _next_sentence(self, sentence: Span) -> Span:
        """The next sentence of the same paragraph, up to the next name; empty if there is none."""
        end = min((it.span.start for it in self.named if it.span.start >= sentence.end), default=len(self.text))
        line = self.text.find("\n", sentence.end)
        after = self.draft.sentence(min(sentence.end + 1, len(self.text) - 1))
        is_next = after.start >= sentence.end and (line < 0 or after.start < line)
        return Span(after.start, max(after.start, min(after.end, end))) if is_next else Span(sentence.end, sentence.end)

    # Values

    def _resolve(self, item: NamedProcedure, part: ProcedurePart) -> list[_Branch]:
        branches = [_Branch(cells(self.tables, part.code))]
        scopes = self._scopes(item)
        if part.count:
            counted = COUNTS[part.count](self.text, item.span, scopes, branches[0].cells)
            if not counted:
                return [branches[0]._replace(missing=(part.count,))]
            branches = [_Branch(it.cells, it.spans) for it in counted]
        for axis in _ORDER:
            branches = [new for branch in branches for new in self._determine(item, part, axis, scopes, branch)]
            if axis == "body_part":
                branches = [self._operation(item, part, scopes, branch) for branch in branches]
        return branches

    def _operation(
        self, item: NamedProcedure, part: ProcedurePart, scopes: list[list[Span]], branch: _Branch
    ) -> _Branch:
        """The branch reduced to Excision or Resection, if both are possible."""
        operations = {table: self.tables.operations[table] for table, _ in branch.cells.rows}
        if not {"Excision", "Resection"} <= set(operations.values()):
            return branch
        chosen = self._by_words(item, "operation", scopes, list(operations.values()))
        label = chosen[0] if chosen else part.default.get("operation", "")
        if not label:
            return branch._replace(missing=(*branch.missing, "operation"))
        rows = tuple(row for row in branch.cells.rows if operations[row[0]] == label)
        spans = (*branch.spans, chosen[1]) if chosen else branch.spans
        return branch._replace(cells=Cells(rows), spans=spans, by_default=branch.by_default or not chosen)

    def _determine(
        self, item: NamedProcedure, part: ProcedurePart, axis: str, scopes: list[list[Span]], branch: _Branch
    ) -> list[_Branch]:
        """The branch with an axis reduced to one label; several if the words name several body parts or both sides."""
        labels = branch.cells.labels(axis)
        if len(labels) <= 1:
            return [branch]
        if axis == "body_part":
            return self._body_parts(item, part, scopes, branch)
        chosen = self._by_words(item, axis, scopes, labels, part.prefer)
        if chosen:
            label, span = chosen
            return [branch._replace(cells=branch.cells.keep(axis, {label}), spans=(*branch.spans, span))]
        return [_with_default(branch, part, axis, labels)]

    def _meant(self, item: NamedProcedure, axis: str, scope: list[Span]) -> Iterator[WordValue]:
        for value in self.values:
            is_meant = value.meaning.axis == axis and value.meaning.procedure in ("", item.procedure.id)
            if is_meant and any(span.start <= value.span.start and value.span.end <= span.end for span in scope):
                yield value

    def _by_words(
        self, item: NamedProcedure, axis: str, scopes: list[list[Span]], labels: list[str], prefer: Sequence[str] = ()
    ) -> tuple[str, Span] | None:
        """The label that words mean, and the words: the nearest within the sentence, beyond it only if unique."""
        by_name = {label.lower(): label for label in labels}

        def cost(found: tuple[str, WordValue]) -> tuple[bool, bool, int, int, int]:
            label, (meaning, span) = found
            return (
                label not in prefer,
                not meaning.procedure,
                _distance(span, item.span),
                span.start - span.end,
                span.start,
            )

        for number, scope in enumerate(scopes):
            found = [
                (by_name[name], value)
                for value in self._meant(item, axis, scope)
                for name in sorted(value.meaning.labels & by_name.keys())
            ]
            if found:
                label, value = min(found, key=cost)
                if number < _OWN or label in prefer or len({it for it, _ in found}) == 1:
                    return label, value.span
        return None

    def _body_parts(
        self, item: NamedProcedure, part: ProcedurePart, scopes: list[list[Span]], branch: _Branch
    ) -> list[_Branch]:
        labels = branch.cells.labels("body_part")
        bases = {split_side(label).base for label in labels}
        if len(bases) == 1:
            return self._sided(item, scopes, branch, labels, None)
        for number, scope in enumerate(scopes):
            matches = [it for it in self._meant(item, "body_part", scope) if it.meaning.labels & bases]
            if not matches or (number >= _OWN and len({it.meaning for it in matches}) > 1):
                continue
            preferred = {split_side(label).base for label in part.prefer}
            nearest = sorted(matches, key=lambda it: (not it.meaning.labels & preferred, _distance(it.span, item.span)))
            chosen = matches if part.each and number == 0 else nearest[:1]
            return [
                new
                for value in chosen
                for new in self._sided(item, scopes, branch, _of_bases(labels, value.meaning.labels), value)
            ]
        if default := part.default.get("body_part"):
            of_default = _of_bases(labels, {split_side(default).base})
            return self._sided(item, scopes, branch._replace(by_default=True), of_default, None)
        return [branch._replace(missing=(*branch.missing, "body_part"))]

    def _sided(
        self,
        item: NamedProcedure,
        scopes: list[list[Span]],
        branch: _Branch,
        labels: list[str],
        value: WordValue | None,
    ) -> list[_Branch]:
        """The branch with the labels of a body part reduced to its side; two branches for both sides."""
        used = branch._replace(spans=(*branch.spans, *([value.span] if value else [])))
        options = {split_side(label).side for label in labels}
        side, span = (value.meaning.side, value.span) if value and value.meaning.side else ("", None)
        if len(labels) > 1 and not side:
            side, span = self._side(item, scopes, options, labels, value)
        if side and side not in options and side == "bilateral":
            sides = [it for it in ("right", "left") if it in options]
        else:
            sides = [side] if side in options else [""] if "" in options else []
        if len(options) == 1:
            sides = list(options)
        if not sides:
            return [used._replace(cells=used.cells.keep("body_part", labels), missing=(*used.missing, "side"))]
        spans = (*used.spans, *([span] if span and side else []))
        return [
            used._replace(
                cells=used.cells.keep("body_part", [it for it in labels if split_side(it).side == one]), spans=spans
            )
            for one in sides
        ]

    def _side(
        self,
        item: NamedProcedure,
        scopes: list[list[Span]],
        options: set[str],
        labels: list[str],
        value: WordValue | None,
    ) -> tuple[str, Span | None]:
        """The side of a body part and its words: nearest in the sentence; else the one next to it elsewhere."""
        anchor = value.span if value else item.span
        allowed = {*options, "bilateral"} if options & {"right", "left"} else options
        sides = [(side, span) for side, span in self.sides if side in allowed]
        inside = [it for it in sides if scopes[0][0].start <= it[1].start < scopes[0][0].end]
        if inside:
            return min(inside, key=lambda it: _side_cost(it[1], anchor))
        bases = {split_side(label).base for label in labels}
        own = [it.span for it in self.values if it.meaning.axis == "body_part" and it.meaning.labels & bases]
        own += [it.span for it in self.done if it.procedure.id == item.procedure.id]
        next_to = [it for it in sides if any(0 <= span.start - it[1].end <= _NEAR_SIDE for span in own)]
        wide = [it for span in scopes[-1] for it in sides if span.start <= it[1].start < span.end]
        for found in (next_to, wide if is_report(self.text) else []):
            if len({side for side, _ in found}) == 1:
                return found[0]
        return "", None


def _of_bases(labels: Iterable[str], bases: Iterable[str]) -> list[str]:
    wanted = set(bases)
    return [label for label in labels if split_side(label).base in wanted]


def _with_default(branch: _Branch, part: ProcedurePart, axis: str, labels: list[str]) -> _Branch:
    """The branch with the default of an axis: that of the procedure, or no device and no qualifier."""
    default = part.default.get(axis) or next((label for label in labels if label in NOTHING), "")
    if default not in labels:
        return branch._replace(missing=(*branch.missing, axis))
    is_stated = default not in NOTHING
    return branch._replace(cells=branch.cells.keep(axis, {default}), by_default=branch.by_default or is_stated)


def _distance(one: Span, other: Span) -> int:
    return max(one.start - other.end, other.start - one.end, 0)


def _side_cost(side: Span, anchor: Span) -> int:
    """How far a side is from a body part; sides stand before it."""
    return anchor.start - side.end if side.end <= anchor.start else max(0, side.start - anchor.end) + _AFTER_COST


def _joined(known: ProposedProcedure | None, new: ProposedProcedure) -> ProposedProcedure:
    if known is None:
        return new
    evidence = tuple(sorted({*known.evidence, *new.evidence}))
    return replace(known, evidence=evidence, probability=max(known.probability, new.probability))


def _asks(item: NamedProcedure) -> bool:
    return item.procedure.kind == "named" and not item.procedure.quiet


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


def _rank(code: str) -> int:
    return next((rank for pattern, rank in _RANKS if re.match(pattern, code)), _OTHER_RANK)


def _arteries(code: str) -> int:
    """Minus the number of coronary arteries of a bypass or dilation: the most extensive first."""
    return -int(code[3]) if re.match(r"02[17][0-3]", code) else 0


def _question(item: NamedProcedure, text: str, branch: _Branch) -> Query:
    """The question about a procedure that cannot be coded: what is missing, with the values of the table if few."""
    parts = []
    for name in dict.fromkeys(branch.missing):
        options = branch.cells.labels(name) if name in AXES else []
        listed = f" ({', '.join(options)})" if 1 < len(options) <= _MAX_OPTIONS else ""
        parts.append(f"{_TITLES.get(name, name)}{listed}")
    name = " ".join(text[item.span.start : item.span.end].split())
    question = f"{name} is documented as performed. Please state, if it is known: {'; '.join(parts) or 'details'}."
    return Query(question, f"procedure-{item.procedure.id}", (item.span,))
