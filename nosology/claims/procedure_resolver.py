"""Completing procedure codes: which words of a note belong to a procedure, and the values that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from nosology.claims.draft import Draft
from nosology.claims.procedure_counts import COUNTS
from nosology.claims.procedure_names import NamedProcedure, ProcedurePart, word_pattern
from nosology.claims.procedure_status import body_sentences, is_report
from nosology.claims.procedure_values import NOTHING, Cells, WordValue, cells, find_sides, find_values, split_side
from nosology.codes.pcs_tables import PcsTables
from nosology.core import Span

_SEPARATOR = re.compile(r"[,;:\n]|\b(?:and|with|plus|then)\b|[&+]", re.IGNORECASE)
_OPERATION = re.compile(  # a word that names another operation
    r"\b(?:excision|resection|repair|bypass|fulguration|insertion|removal|drainage|release|division|transfer|replacement"
    r"|\w{3,}(?:ectomy|otomy|ostomy|plasty|scopy|rrhaphy|pexy|desis|centesis))\b",
    re.IGNORECASE,
)
_ORDER = ("body_part", "device", "approach", "qualifier")  # in which the axes are determined
_OWN = 2  # scopes in which the nearest words count: item and sentence; in wider ones words must agree
_AFTER_COST = 15  # a side after its body part is as far as one that is so many characters further before it
_NEAR_SIDE = 12  # characters between a side and its body part elsewhere in the note


class PartialCode(NamedTuple):
    """A code on the way: what is still possible, the words used, whether a default was, and what is missing."""

    cells: Cells
    spans: tuple[Span, ...] = ()
    by_default: bool = False
    missing: tuple[str, ...] = ()


class ProcedureResolver:
    """Completes the codes of the procedures of one note; named: all that it names, done: those performed."""

    def __init__(
        self, draft: Draft, named: Sequence[NamedProcedure], done: Sequence[NamedProcedure], tables: PcsTables
    ):
        self.draft, self.named, self.done, self.tables = draft, named, done, tables
        self.text = draft.text

    @cached_property
    def values(self) -> list[WordValue]:
        """The words of the note that mean values."""
        return find_values(self.text, self.draft.tokens, self.tables)

    @cached_property
    def sides(self) -> list[tuple[str, Span]]:
        """The words of the note for sides."""
        return find_sides(self.text, self.draft.tokens)

    def parts(self, item: NamedProcedure) -> Iterator[ProcedurePart]:
        """The codes of a procedure: its own, and further ones whose words are in the sentence."""
        yield item.procedure
        sentence = self.draft.sentence(item.span.start)
        for part in item.procedure.also:
            if not part.near or word_pattern(part.near).search(self.text, sentence.start, sentence.end):
                yield part

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
        if is_report(self.draft):
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

    def resolve(self, item: NamedProcedure, part: ProcedurePart) -> list[PartialCode]:
        """The codes of a part as far as the note determines them: several for several body parts or both sides."""
        branches = [PartialCode(cells(self.tables, part.code))]
        scopes = self._scopes(item)
        if part.count:
            counted = COUNTS[part.count](self.text, item.span, scopes, branches[0].cells)
            if not counted:
                return [branches[0]._replace(missing=(part.count,))]
            branches = [PartialCode(it.cells, it.spans) for it in counted]
        for axis in _ORDER:
            branches = [new for branch in branches for new in self._determine(item, part, axis, scopes, branch)]
            if axis == "body_part":
                branches = [self._operation(item, part, scopes, branch) for branch in branches]
        return branches

    def _operation(
        self, item: NamedProcedure, part: ProcedurePart, scopes: list[list[Span]], branch: PartialCode
    ) -> PartialCode:
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
        self, item: NamedProcedure, part: ProcedurePart, axis: str, scopes: list[list[Span]], branch: PartialCode
    ) -> list[PartialCode]:
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
        self, item: NamedProcedure, part: ProcedurePart, scopes: list[list[Span]], branch: PartialCode
    ) -> list[PartialCode]:
        labels = branch.cells.labels("body_part")
        bases = {split_side(label).base for label in labels}
        if len(bases) == 1:
            return self._sided(item, scopes, branch, labels, None)
        for number, scope in enumerate(scopes):
            if number and item.procedure.kind == "operation":  # its body part is named with it
                break
            matches = _sites([it for it in self._meant(item, "body_part", scope) if it.meaning.labels & bases])
            if not matches or (number >= _OWN and len({it.meaning.labels for it in matches}) > 1):
                continue
            preferred = {split_side(label).base for label in part.prefer}
            nearest = min(matches, key=lambda it: (not it.meaning.labels & preferred, _distance(it.span, item.span)))
            chosen = matches if part.each and number == 0 else [nearest]
            return [
                new
                for value in chosen
                for new in self._sided(item, scopes, branch, _of_bases(labels, self._refined(value, bases)), value)
            ]
        if default := part.default.get("body_part"):
            of_default = _of_bases(labels, {split_side(default).base})
            return self._sided(item, scopes, branch._replace(by_default=True), of_default, None)
        return [branch._replace(missing=(*branch.missing, "body_part"))]

    @cached_property
    def _all_sites(self) -> list[WordValue]:
        return _sites([it for it in self.values if it.meaning.axis == "body_part"])

    def _refined(self, value: WordValue, bases: set[str]) -> frozenset[str]:
        """The body parts that words mean; of several ("femur") the one named elsewhere in the note ("femoral neck")."""
        labels = value.meaning.labels & bases
        exact = {it.meaning.labels & bases for it in self._all_sites if len(it.meaning.labels & bases) == 1}
        narrower = [it for it in exact if it < labels]
        return narrower[0] if len(narrower) == 1 else labels

    def _sided(
        self,
        item: NamedProcedure,
        scopes: list[list[Span]],
        branch: PartialCode,
        labels: list[str],
        value: WordValue | None,
    ) -> list[PartialCode]:
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
        for found in (next_to, wide if is_report(self.draft) else []):
            if len({side for side, _ in found}) == 1:
                return found[0]
        return "", None


def _sites(values: Sequence[WordValue]) -> list[WordValue]:
    """The values with the meanings of the same words joined: "femur" is its upper end, its shaft or its lower end.

    Words of one procedure that mean several body parts mean all of them: "bimalleolar".
    """
    joined: dict[tuple[Span, frozenset[str]], WordValue] = {}
    for value in values:
        key = value.span, value.meaning.labels if value.meaning.procedure else frozenset()
        labels = joined[key].meaning.labels | value.meaning.labels if key in joined else value.meaning.labels
        joined[key] = value._replace(meaning=value.meaning._replace(labels=labels))
    return list(joined.values())


def _of_bases(labels: Iterable[str], bases: Iterable[str]) -> list[str]:
    wanted = set(bases)
    return [label for label in labels if split_side(label).base in wanted]


def _with_default(branch: PartialCode, part: ProcedurePart, axis: str, labels: list[str]) -> PartialCode:
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
