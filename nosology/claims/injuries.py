"""Codes of injuries that a note describes in parts: loss of consciousness, grade of an organ injury, burns by site."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from nosology.claims.code_completion import side_at
from nosology.claims.draft import RULE_PROBABILITY, Draft, Entry, matches
from nosology.core import Span

_RULE = "burn-by-site"
_GRADE = re.compile(r"\b(?:grade|gr)\.?\s?(IV|V|III|II|I|[1-5])\b", re.IGNORECASE)
_GRADES = {"i": 1, "ii": 2, "iii": 3, "iv": 4, "v": 5}
# Lacerations of liver, spleen and kidney: pattern, the characters before the digit of severity, the digit by grade.
_BY_GRADE = (("S36.11", "S36.11", "45666"), ("S36.03", "S36.03", "01122"), ("S37.04-S37.06", "S37.0", "44566"))

_BURN = re.compile(r"\bburn(?:s|ed)?\b|\bscald(?:s|ed)?\b", re.IGNORECASE)
_DEGREE = re.compile(
    r"(?<!% )(?<!%)\b(?:(?P<d1>first|1st|superficial(?! partial))|(?P<d2>second|2nd|(?:deep "
    r"|superficial )?partial)|(?P<d3>third|3rd|4th|fourth|full))"
    r"(?:[ -](?:degree|deg|thickness))?\b",
    re.IGNORECASE,
)
_TBSA = re.compile(r"(?P<value>\d{1,2}(?:\.\d)?)\s?%\s?(?:of )?(?:TBSA|BSA|total body|body surface)", re.IGNORECASE)
_FULL = re.compile(
    r"(?P<value>\d{1,2}(?:\.\d)?)\s?%\s?(?:\w+ )?(?:full[ -]thickness|third[ -]degree|3rd[ -]degree|3rd|FT)\b", re.I
)
_CLAUSE = re.compile(
    r"[;.\n]|\bof which\b|\band\b(?= (?:first|second|third|1st|2nd|3rd|full|partial|superficial))", re.I
)


def by_severity(draft: Draft, entry: Entry) -> str:
    """The code of an intracranial injury with its loss of consciousness, or of an organ injury with its grade."""
    code = entry.code
    if code.startswith("S06") and len(code) == 8 and code[6] in "9A" and (character := draft.loss_of_consciousness):
        better = f"{code[:6]}{character}{code[7]}"
        return better if draft.table.billable(better) else code
    for pattern, start, digits in _BY_GRADE:
        if matches(pattern, code) and (grade := _grade(draft, entry)):
            better = f"{start}{digits[grade - 1]}{code[len(start) + 1 :]}"
            return better if draft.table.billable(better) else code
    return code


def _grade(draft: Draft, entry: Entry) -> int:
    """The grade of the injury in the sentence of a mention; 0 if there is none."""
    for span in entry.evidence:
        sentence = draft.sentence(span.start)
        if match := _GRADE.search(draft.text, sentence.start, sentence.end):
            return _GRADES.get(match[1].lower()) or int(match[1])
    return 0


class _Site(NamedTuple):
    """A site of a burn: category, digits after the degree, and whether the next digit is the side."""

    category: str
    digits: str
    sided: bool


@cache
def _sites() -> tuple[re.Pattern[str], dict[str, _Site]]:
    raw = files("nosology.claims").joinpath("data/burn_sites.tsv").read_text(encoding="utf-8")
    lines = csv.DictReader(raw.splitlines(), delimiter="\t")
    table = {row["words"]: _Site(row["category"], row["digits"], row["sided"] == "1") for row in lines}
    longest_first = sorted(table, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})s?\b", re.IGNORECASE), table


def code_burns(draft: Draft) -> None:
    """Adds a code for each site of a burn with its degree, and the extent; drops burns of unspecified site."""
    if not draft.matching("T20-T25|T30"):
        return
    added = [code for code, span in _burns(draft) if _add(draft, code, span)]
    if added:
        for code in [it.code for it in draft.matching("T20-T25|T30") if it.code not in added]:
            draft.drop(code, "the note names the sites of the burns", _RULE)
    _add_extent(draft)


def _add(draft: Draft, code: str, span: Span) -> bool:
    return code in draft.entries or draft.add(code, RULE_PROBABILITY, [span], _RULE)


def _burns(draft: Draft) -> Iterator[tuple[str, Span]]:
    """The codes of the burns in clauses that name a burn and a degree, with the span of the site."""
    pattern, table = _sites()
    best: dict[str, tuple[str, str, Span]] = {}
    for start, end in _clauses(draft.text):
        degree = _DEGREE.search(draft.text, start, end)
        if degree is None or not _BURN.search(draft.text, start, end):
            continue
        digit = (degree.lastgroup or "d0")[1]
        for match in pattern.finditer(draft.text, start, end):
            span = Span(*match.span())
            if draft.context(span).negated:
                continue
            site = table.get(match[0].lower()) or table.get(match[0].lower().removesuffix("s"))
            if site is None:
                continue
            for side in _sides(draft, span) if site.sided else ("",):
                place = f"{site.category}{site.digits}{side}"
                code = f"{site.category}.{digit}{site.digits}{side}".ljust(7, "X") + "A"
                if draft.table.billable(code) and (place not in best or best[place][0] < digit):
                    best[place] = digit, code, span
    for _, code, span in sorted(best.values(), key=lambda item: (-int(item[0]), item[2])):
        yield code, span


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _CLAUSE.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _sides(draft: Draft, span: Span) -> tuple[str, ...]:
    """The digits of the side at a span: 1 right, 2 left, both, or 9 if the note does not say."""
    return {"right": ("1",), "left": ("2",), "bilateral": ("1", "2")}.get(side_at(draft, span), ("9",))


def _add_extent(draft: Draft) -> None:
    """Adds the code of the body surface that is burned, where the note states it (I.C.19.d.6)."""
    total = _TBSA.search(draft.text)
    if total is None or not draft.matching("T20-T25|T30"):
        return
    share = int(float(total["value"]) // 10)
    full = _FULL.search(draft.text)
    third = float(full["value"]) if full else 0.0
    if full is None and not [it for it in draft.matching("T20-T25") if it.code[4] != "3"]:
        third = float(total["value"])  # all of it is of third degree
    code = "T31.0" if share == 0 else f"T31.{share}{min(share, int(third // 10))}"
    for other in draft.matching("T31|T32"):
        draft.drop(other.code, "the note states the extent of the burns", _RULE)
    draft.add(code, RULE_PROBABILITY, [Span(*total.span())], _RULE)
