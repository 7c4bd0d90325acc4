"""ICD-10-PCS codes for the words of a search: composed as in a claim, with the values that are still open to choose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

from nosology.claims.draft import Draft
from nosology.claims.encounter import Encounter
from nosology.claims.procedure_names import NamedProcedure, ProcedurePart, named_procedures, procedures
from nosology.claims.procedure_resolver import ProcedureResolver
from nosology.claims.procedure_values import NOTHING, Cells, cells, value_words
from nosology.claims.procedures import procedure_rank
from nosology.codes.pcs_tables import AXES, PcsTables
from nosology.codes.table import CodeTable
from nosology.codes.word_guesses import WordGuesses
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words, words_of

FEW = 6  # so many codes are listed; of more, the values of the first open character are
_PERFORMED = "Underwent "  # names of procedures count in a note only with a word for what was done
_PATTERN = re.compile(r"[0-9A-HJ-NP-Z]{3}(?:[0-9A-HJ-NP-Z?]|\[[0-9A-HJ-NP-Z]+\]){0,4}")
_SIDES = {"l": "left", "lt": "left", "r": "right", "rt": "right"}
_CAPITALS = re.compile(r"\b(?:[ctl]\d{1,2}|s1|lad|lcx|rca|pda|om\d?|lima|rima|svg)\b")  # vessels, grafts, vertebrae
_TIMES = re.compile(
    r"\bx ?([1-9])\b|\b([1-9])[- ]?(?:vessels?|grafts?|levels?|x)\b|\b(single|double|triple|quadruple)\b"
)
_TIMES_WORDS = {"1": "one", "2": "two", "3": "three", "single": "one", "double": "two", "triple": "three"}
# Body parts that an endoscope reaches, by the table and body part of its inspection.
_REACH = {"0DJ0": "123456789", "0DJD": "EFGHKLMNP"}
_TITLES = {  # of characters 4 to 7, by section
    "0": ("body part", "approach", "device", "qualifier"),
    "2": ("body region", "approach", "device", "qualifier"),
    "3": ("body system", "approach", "substance", "qualifier"),
    "4": ("body system", "approach", "function", "qualifier"),
    "5": ("body system", "duration", "function", "qualifier"),
    "6": ("body system", "duration", "qualifier", "qualifier"),
    **dict.fromkeys("789", ("body region", "approach", "method", "qualifier")),
    "B": ("body part", "contrast", "qualifier", "qualifier"),
    "C": ("body part", "radionuclide", "qualifier", "qualifier"),
    "D": ("treatment site", "modality", "isotope", "qualifier"),
    "F": ("body system and region", "type", "equipment", "qualifier"),
    **dict.fromkeys("GH", ("type", "qualifier", "qualifier", "qualifier")),
    "X": ("body part", "approach", "device or substance", "qualifier"),
}
_OPEN = dict.fromkeys(AXES[1:], "-")  # no default of these axes
_TOO_MANY = 1000  # codes of an operation without a body part
_SHORTEST, _LONG = 4, 8  # letters of a word that is corrected, and of one that is hardly another word


@dataclass(frozen=True, slots=True)
class ProcedureLine:
    """A code, or a choice: `step` is the character that it decides, `code` the pattern of the codes that remain.

    usual: the code is what a claim would have without further words.
    """

    code: str
    complete: bool
    step: str = ""
    value: str = ""
    usual: bool = False


class ProcedureLines(NamedTuple):
    """The lines for a query; certain: it names a procedure; has_other_words: and has words that are not about one."""

    lines: list[ProcedureLine]
    name: str = ""
    certain: bool = False
    has_other_words: bool = False


def search_procedures(query: str, codes: CodeTable, tables: PcsTables) -> ProcedureLines:
    """The procedures that a query names, the most extensive first; no lines if it names none."""
    for text, is_certain in _readings(query, tables):
        found = _read(text, codes, tables)
        if side := _only_side(text, found.lines, codes):  # it stands too far from the name
            moved = _read(" ".join([side, *(word for word in text.split() if word != side)]), codes, tables)
            found = found if _only_side(text, moved.lines, codes) or not moved.lines else moved
        if found.lines:
            known, _ = _vocabulary(tables)
            words = {word for word in words_of(text) if word.isalpha() and len(word) > 1} - function_words()
            return found._replace(certain=found.certain and is_certain, has_other_words=not words <= known)
    return ProcedureLines([])


def _read(text: str, codes: CodeTable, tables: PcsTables) -> ProcedureLines:
    """The lines of one reading of a query."""
    draft = Draft(_PERFORMED + text, Encounter())
    named = named_procedures(draft)
    if not named:
        return ProcedureLines([])
    lines = _composed(text, ProcedureResolver(draft, named, named, tables), named, codes)
    first = named[0].span
    is_certain = any(it.procedure.kind != "operation" for it in named)
    return ProcedureLines(lines, draft.text[first.start : first.end], is_certain)


def _only_side(text: str, lines: Iterable[ProcedureLine], codes: CodeTable) -> str:
    """The only side that a query names, if codes of the other side are among the lines; "" if not."""
    sides = [side for side in ("left", "right") if re.search(rf"\b{side}\b", text)]
    if len(sides) != 1:
        return ""
    other = "Right" if sides == ["left"] else "Left"
    return sides[0] if any(line.complete and other in codes.description(line.code) for line in lines) else ""


def lines_of_pattern(query: str, codes: CodeTable, tables: PcsTables) -> list[ProcedureLine]:
    """The codes of a pattern such as 0SRB0 or 0DB?8ZX if they are few, else the values of its first open character.

    [] if the query is no pattern. An open character is ? or _.
    """
    pattern = query.strip().upper().replace(" ", "").replace("_", "?").rstrip("?")
    if len(pattern) == 2 and pattern in codes:  # a body system
        below = codes.children(pattern)
        return [ProcedureLine(line, False, "operation", codes.description(line).split(",")[0]) for line in below]
    parts = pattern.split("|")
    if not all(map(_PATTERN.fullmatch, parts)):
        return []
    found = _within(cells(tables, pattern), codes)
    return list(_lines(found, tables, codes)) if found else []


# Readings of a query


def _readings(query: str, tables: PcsTables) -> Iterator[tuple[str, bool]]:
    """The query as a note would say it: as written, with a name in its usual order, and with its spelling corrected."""
    text = _as_written(query)
    yield text, True
    if ordered := _in_order(text):
        yield ordered, True
    corrected, is_certain = _corrected(text, tables)
    if corrected != text:
        yield corrected, is_certain
        if ordered := _in_order(corrected):
            yield ordered, is_certain


def _as_written(query: str) -> str:
    """The query with short words written out and abbreviations in capitals."""
    text = " ".join(query.lower().split())
    for pattern, means in _look_ups():
        text = pattern.sub(means, text)
    text = re.sub(r"\b(l|lt|r|rt)\b(?![-/]?\d)", lambda it: _SIDES[it[0]], text)
    text = _CAPITALS.sub(lambda it: it[0].upper(), text)
    return re.sub(r"[a-z]+", lambda it: it[0].upper() if it[0] in _short_names() else it[0], text)


@cache
def _look_ups() -> list[tuple[re.Pattern[str], str]]:
    """Words of a search, the longest first, and the words of notes that they stand for."""
    text = files("nosology.claims").joinpath("data", "procedure_look_ups.tsv").read_text(encoding="utf-8")
    pairs = [line.split("\t") for line in text.splitlines()[1:]]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return [(re.compile(rf"(?<!\w){re.escape(words)}(?!\w)"), means) for words, means in pairs]


@cache
def _short_names() -> frozenset[str]:
    return frozenset(name.lower() for it in procedures() for name in it.names if name.isupper() and name.isalpha())


def _in_order(text: str) -> str:
    """The text with the name of a procedure first, if its words are there in another order; "" if there is none."""
    words = [word for word in words_of(text) if word not in function_words()]
    keys = {word_keys(word)[0]: word for word in words}
    fitting = [(len(name), text) for name, text in _names_by_keys() if name <= keys.keys()]
    if not fitting:
        return ""
    _, name = max(fitting, key=lambda it: it[0])
    used = {word_keys(word)[0] for word in words_of(name)}
    return " ".join([name, *(word for key, word in keys.items() if key not in used)])


@cache
def _names_by_keys() -> list[tuple[frozenset[str], str]]:
    """The names of several words, as the keys of their words."""
    names = dict.fromkeys(name for it in procedures() for name in it.names if " " in name and "|" not in name)
    return [(frozenset(word_keys(word)[0] for word in words_of(name)), name) for name in names]


def _corrected(text: str, tables: PcsTables) -> tuple[str, bool]:
    """The text with unknown words replaced by known ones of similar spelling, and whether all these are long words."""
    known, guesses = _vocabulary(tables)
    replaced: list[str] = []

    def correct(match: re.Match[str]) -> str:
        word = match[0]
        if len(word) < _SHORTEST or word in known or word in function_words():
            return word
        guess = next((guess for guess, _ in guesses.guess(word)), word)
        if guess != word:
            replaced.append(word if not guess.startswith(word) else "")
        return guess

    corrected = re.sub(r"[a-z]+", correct, text)
    return corrected, all(len(word) >= _LONG for word in replaced)


@lru_cache(maxsize=4)
def _vocabulary(tables: PcsTables) -> tuple[frozenset[str], WordGuesses]:
    """The words of the names and values of procedures, the most frequent first."""
    counts = Counter(word for it in procedures() for name in it.names for word in words_of(name))
    counts.update(value_words(tables))
    words = [word for word, _ in sorted(counts.items(), key=lambda it: (-it[1], it[0])) if word.isalpha()]
    return frozenset(words), WordGuesses(words)


# Codes and choices


def _composed(
    text: str, resolver: ProcedureResolver, named: Sequence[NamedProcedure], codes: CodeTable
) -> list[ProcedureLine]:
    """The lines of the procedures that a query names, the most extensive procedure first."""
    groups: list[tuple[str, bool, list[ProcedureLine]]] = []
    reach = _reach(named)
    for item in named:
        for part in resolver.parts(item):
            lines = list(_part_lines(text, resolver, item, part, reach, codes))
            if lines:
                is_vague = item.procedure.kind == "operation" and len(lines) > FEW
                groups.append((lines[0].code, is_vague, lines))
    operations = {code[:2] for code, *_ in groups if code[2] != "J"}
    kept = [it for it in groups if it[0][2] != "J" or it[0][:2] not in operations]  # an inspection on the way
    kept.sort(key=lambda it: (it[1], procedure_rank(it[0])))
    first: dict[str, ProcedureLine] = {}
    for line in (line for *_, lines in kept for line in lines):
        first.setdefault(line.code, line)
    return list(first.values())


def _part_lines(
    text: str, resolver: ProcedureResolver, item: NamedProcedure, part: ProcedurePart, reach: str, codes: CodeTable
) -> Iterator[ProcedureLine]:
    """The codes of a part as a claim would have them, then the codes or values that are possible without defaults."""
    usual = resolver.resolve(item, part)
    for possible in (it.cells.codes() for it in usual):
        if len(possible) == 1 and codes.billable(possible[0]):
            yield ProcedureLine(possible[0], True, usual=True)
    is_counted = not any(part.count in it.missing for it in usual)
    for partial in resolver.resolve(item, _opened(text, part, resolver.tables, reach, is_counted)):
        found = _within(partial.cells, codes)
        if 0 < len(found) <= _TOO_MANY:
            yield from _lines(found, resolver.tables, codes)


def _reach(named: Iterable[NamedProcedure]) -> str:
    """The body parts of the endoscopy that a query names; "" if it names none."""
    return next((parts for it in named for code, parts in _REACH.items() if it.procedure.code.startswith(code)), "")


def _opened(text: str, part: ProcedurePart, tables: PcsTables, reach: str, is_counted: bool) -> ProcedurePart:
    """The part without its defaults, with the number of arteries or joints, and within the reach of an endoscope.

    is_counted: the words of the query determine what the part counts; otherwise "x3" or "triple" does.
    """
    code = part.code
    times = _TIMES.search(text)
    if part.count and times and not is_counted:
        possible = cells(tables, code)
        word = _TIMES_WORDS.get(next(filter(None, times.groups())), "four or more")
        counted = [it for it in possible.labels("body_part") if re.search(rf"\b{word}\b", it, re.IGNORECASE)]
        code = _pattern(possible.keep("body_part", counted).codes(), tables) if counted else code
    if reach and code.startswith("0DB"):
        possible_codes = [it for it in cells(tables, code).codes() if it[3] in reach]
        code = _pattern(possible_codes, tables) if possible_codes else code
    return part.model_copy(update={"code": code, "count": part.count if is_counted else "", "default": _OPEN})


def _within(possible: Cells, codes: CodeTable) -> list[str]:
    """The possible codes that the release has."""
    return [code for code in dict.fromkeys(possible.codes()) if codes.billable(code)]


def _lines(found: Sequence[str], tables: PcsTables, codes: CodeTable) -> Iterator[ProcedureLine]:
    """The codes if they are few, else a line for each value of their first open character (or operation)."""
    differing = [at for at in range(2, 7) if len({code[:3] if at == 2 else code[at] for code in found}) > 1]
    at = differing[0] if differing else 6
    step = step_title(found[0], at)

    def value(prefix: str) -> str:
        return codes.description(prefix) if at == 2 else _label(tables, prefix)

    if len(found) <= FEW:
        for code in sorted(found, key=lambda it: [_label(tables, it[:end]) not in NOTHING for end in (7, 6)]):
            is_step = len(differing) == 1 and at > 2
            yield ProcedureLine(code, True, step if is_step else "", value(code[: at + 1]) if is_step else "")
        return
    groups: dict[str, list[str]] = {}
    for code in found:
        groups.setdefault(code[: at + 1], []).append(code)
    for prefix, group in sorted(groups.items(), key=lambda it: _label(tables, it[0]) not in NOTHING):
        is_complete = len(group) == 1
        yield ProcedureLine(group[0] if is_complete else _pattern(group, tables), is_complete, step, value(prefix))


def step_title(code: str, at: int) -> str:
    """The title of a character of the codes of a section."""
    titles = _TITLES.get(code[0], _TITLES["0"])
    return "operation" if at == 2 else titles[at - 3]


def _label(tables: PcsTables, prefix: str) -> str:
    """The label of the last character of the first characters of a code."""
    return _labels(tables).get((prefix[:3], len(prefix) - 4, prefix[-1]), "")


@lru_cache(maxsize=4)
def _labels(tables: PcsTables) -> dict[tuple[str, int, str], str]:
    return {
        (row.table, axis, value.character): value.label
        for row in tables.rows
        for axis, values in enumerate(row.values)
        for value in values
    }


def _pattern(found: Sequence[str], tables: PcsTables) -> str:
    """The pattern of codes such as 0SRB0[13]? (see `ProcedurePart.code`), without open characters at its end."""
    patterns = []
    for table in dict.fromkeys(code[:3] for code in found):
        axes = [{code[at] for code in found if code[:3] == table} for at in range(3, 7)]
        possible: list[set[str]] = [set(), set(), set(), set()]
        for row in tables.of(table):
            kept = [[it.character for it in values if it.character in axis] for values, axis in zip(row.values, axes)]
            for at, values in enumerate(row.values):
                if all(kept[other] for other in range(4) if other != at):
                    possible[at].update(it.character for it in values)
        texts = ("".join(sorted(axis)) for axis in axes)
        characters = [
            text if len(text) == 1 else "?" if axis == every else f"[{text}]"
            for text, axis, every in zip(texts, axes, possible)
        ]
        patterns.append((table + "".join(characters)).rstrip("?"))
    return "|".join(patterns)
