"""Search for diagnoses and procedures as coders speak, on a date; the same for CLI, API and workbench."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date as day
from datetime import timedelta

from nosology.claims.procedure_search import ProcedureLines, lines_of_pattern, search_procedures
from nosology.codes import (
    describe,
    in_release,
    is_known,
    is_valid,
    map_code,
    normalise,
    parse,
    releases,
    table,
)
from nosology.codes.pcs_tables import pcs_tables
from nosology.codes.releases import effective_date
from nosology.codes.search import SearchHit
from nosology.codes.table import CodeTable
from nosology.core import SYSTEMS, Code, CodeError

ALL = "all"
MAX_BELOW = 8  # billable codes below a header
_MAX_OTHER = 4  # lines of the other system
_MAX_MAPPED = 6  # codes of ICD-10-CM that are mapped to ICD-9-CM
_ICD10_START = "2015-10-01"
# Words of a diagnosis about a procedure: what was done before, is planned, or went wrong.
_ABOUT = re.compile(
    r"\b(?:s/p|status|post|h/o|hx|history|prior|previous|screen\w*|encounter for|aftercare|fitting|attention to"
    r"|presence|absence|acquired|complicat\w*|infect\w*|malfunction\w*|depend\w*|refus\w*|declin\w*|dehiscence|loosening|broken"
    r"|after|following|fail\w*)\b",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?=\S*\d)[\w.]{3,8}")
# Scores of a line that is shown beside lines of the other system, that comes before a guess, that is the whole query.
_LIKELY, _SURE, _EXACT = 0.5, 0.75, 0.9


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line of the results.

    next: what to search for to go on from a line that is no billable code: the code of a header, or a pattern.
    step, value: the character that a choice decides (approach, device ...) and its value. The code of a choice has _
    for each open character.
    under: the header that the code is listed below.
    note: when the code is valid, if it is not on the date or not for ever.
    """

    system: str
    code: str
    description: str
    billable: bool
    matched: str = ""
    score: float = 0.0
    next: str = ""
    step: str = ""
    value: str = ""
    under: str = ""
    note: str = ""


def systems_on(date: str) -> tuple[str, str]:
    """The systems for diagnoses and procedures on a day: ICD-9 before October 2015."""
    return ("icd9cm", "icd9proc") if date and date < _ICD10_START else ("icd10cm", "icd10pcs")


def table_on(system: str, date: str) -> CodeTable:
    """The table in force on a day; the newest without a day or after its end, the earliest known before its start."""
    known = releases(system)
    past = [release for release in known if not date or effective_date(release).isoformat() <= date]
    return table(system, past[-1] if past else known[0])


def search_codes(
    query: str, system: str = ALL, date: str = "", limit: int = 12, *, billable: bool = False
) -> list[FoundLine]:
    """The lines for words, a code or a pattern of ICD-10-PCS; billable codes first.

    system: one of SYSTEMS, or "all" for the diagnoses and procedures of the date (YYYY-MM-DD, by default today's).
    billable: only billable codes. A header is followed by billable codes below it. Choices may exceed the limit.
    """
    if system != ALL and system not in SYSTEMS:
        raise CodeError(f"system must be {ALL} or one of {', '.join(SYSTEMS)}; got {system[:20]!r}")
    try:
        date = day.fromisoformat(date).isoformat() if date else ""
    except ValueError as error:
        raise CodeError(f"date must be YYYY-MM-DD; got {date[:20]!r}") from error
    if len(query.strip()) < 2:  # after a single letter the user is still typing
        return []
    if system == ALL:
        lines = _search_all(query, date, limit)
    else:
        lines = _of_system(query, table_on(system, date), limit, date)
    return [line for line in lines if line.billable or not billable]


def _search_all(query: str, date: str, limit: int) -> list[FoundLine]:
    """The lines of diagnoses and procedures; first those of the kind that the query asks for."""
    diagnoses, procedures = (table_on(system, date) for system in systems_on(date))
    found = _procedures(query, procedures) if procedures.system == "icd10pcs" else ProcedureLines([])
    if found.lines and not found.name and not _is_code(query, diagnoses):  # a pattern
        return _shown(found, procedures)
    first = _of_system(query, diagnoses, limit, date)
    second = _shown(found, procedures)
    best = max((line.score for line in first), default=0.0)
    is_certain = (found.certain and (best < _EXACT or not found.has_other_words)) or best < _SURE
    if not second and (best < _LIKELY or procedures.system == "icd9proc"):
        second = [line for line in _by_words(query, procedures, limit) if not first or line.score >= _LIKELY]
        is_certain = procedures.system == "icd9proc" and bool(second) and second[0].score >= _SURE
    if not second or not first:
        return first or second
    if _ABOUT.search(query) or not is_certain:
        kept = first[: max(limit - _MAX_OTHER, (limit + 1) // 2)]
        return [*kept, *second[: max(0, min(_MAX_OTHER, limit - len(kept)))]]
    return [*second, *first[:_MAX_OTHER]]


def _is_code(query: str, codes: CodeTable) -> bool:
    try:
        return normalise(query.strip().rstrip("-."), codes.system).code in codes
    except CodeError:
        return False


def _of_system(query: str, codes: CodeTable, limit: int, date: str) -> list[FoundLine]:
    """The lines of one system."""
    if codes.system == "icd10pcs":
        lines = _shown(_procedures(query, codes), codes)
        if lines:
            return lines
    lines = list(_at_other_times(query, codes, date)) or list(_of_icd9(query, codes)) or _by_words(query, codes, limit)
    if codes.system == "icd9cm" and not _is_code(query, codes):
        best: dict[str, FoundLine] = {}
        for line in sorted([*_mapped(query, codes), *lines], key=lambda line: -line.score):
            best.setdefault(line.code, line)
        lines = list(best.values())
    return lines[:limit]


def _procedures(query: str, codes: CodeTable) -> ProcedureLines:
    tables = pcs_tables(codes.release)
    if lines := lines_of_pattern(query, codes, tables):
        return ProcedureLines(lines)
    return search_procedures(query, codes, tables)


def _shown(found: ProcedureLines, codes: CodeTable) -> list[FoundLine]:
    """The lines of composed procedures, with their descriptions."""
    shown = []
    for line in found.lines:
        name = found.name if line.usual or not shown else ""
        if line.complete:
            text, note = codes.description(line.code), _until(codes, line.code)
            base = FoundLine("icd10pcs", line.code, text, True, name, 1.0 if line.usual else 0.9, note=note)
        else:
            picture = _picture(line.code)
            text = _title(picture.partition("_")[0], codes)
            base = FoundLine("icd10pcs", picture, text, False, name, 0.9, next=line.code)
        shown.append(replace(base, step=line.step, value=line.value))
    return shown


def _picture(pattern: str) -> str:
    """The seven characters of the codes of a pattern; _ for those that are open."""
    axes = [re.findall(r"\[[^\]]*\]|.", part.ljust(7, "?")) for part in pattern.split("|")]
    return "".join(values[0] if len({*values}) == 1 and len(values[0]) == 1 else "_" for values in zip(*axes)).replace(
        "?", "_"
    )


def _title(prefix: str, codes: CodeTable) -> str:
    """The description of the longest line, up to the body part, that starts a code."""
    lines = (prefix[:end] for end in range(min(4, len(prefix)), 0, -1))
    return next((codes.description(line) for line in lines if line in codes), "")


def _by_words(query: str, codes: CodeTable, limit: int) -> list[FoundLine]:
    """What the names of the system match; below a header its billable codes."""
    lines: dict[str, FoundLine] = {}
    for hit in codes.search(query, limit):
        lines.setdefault(hit.code, _line(codes, hit))
        if not hit.billable:
            below = [line for line in codes.descendants(hit.code) if codes.billable(line)]
            for code in below[:MAX_BELOW]:
                found = SearchHit(code, text := codes.description(code), True, hit.score, text)
                lines.setdefault(code, replace(_line(codes, found), under=hit.code))
    return list(lines.values())[:limit]


def _mapped(query: str, codes: CodeTable) -> Iterator[FoundLine]:
    """ICD-9-CM codes by the names of ICD-10-CM codes, which are many more."""
    for hit in table("icd10cm", releases("icd10cm")[0]).search(query, _MAX_MAPPED, billable=True):
        for mapping in map_code(Code("icd10cm", hit.code), codes.system):
            if mapping.target and not mapping.combination and codes.billable(mapping.target.code):
                code = mapping.target.code
                yield _line(codes, SearchHit(code, codes.description(code), True, hit.score, hit.matched))


def _line(codes: CodeTable, hit: SearchHit) -> FoundLine:
    matched = hit.matched if hit.matched != hit.description else ""
    line = FoundLine(codes.system, hit.code, hit.description, hit.billable, matched, hit.score)
    return replace(line, next="" if hit.billable else hit.code, note=_until(codes, hit.code) if hit.billable else "")


def _until(codes: CodeTable, code: str) -> str:
    """The last day of a code that a later release does not have any more; "" for others."""
    known = Code(codes.system, code)
    if not codes.billable(code) or is_valid(known, releases(codes.system)[-1]):
        return ""
    later = [release for release in releases(codes.system) if release > codes.release]
    ended = next((release for release in later if not is_valid(known, release)), "")
    return f"valid until {effective_date(ended) - timedelta(days=1)}" if ended else ""


def _of_icd9(query: str, codes: CodeTable) -> Iterator[FoundLine]:
    """A code of ICD-9-CM that is none of ICD-10-CM, and the codes in its place: 250.00, V58.61."""
    if codes.system != "icd10cm" or not _CODE.fullmatch(query.strip()) or _is_code(query, codes):
        return
    try:
        code = normalise(query, "icd9cm")
    except CodeError:
        return
    if code.code not in table("icd9cm"):
        return
    ended = day.fromisoformat(_ICD10_START) - timedelta(days=1)
    yield FoundLine("icd9cm", code.code, describe(code), False, note=f"ICD-9-CM, valid until {ended}")
    for mapping in map_code(code, "icd10cm"):
        if mapping.target and not mapping.combination:
            for target in in_release(mapping.target, codes.release):
                if codes.billable(target.code):
                    text = codes.description(target.code)
                    yield FoundLine("icd10cm", target.code, text, True, f"in place of {code.code}", 1.0)


def _at_other_times(query: str, codes: CodeTable, date: str) -> Iterator[FoundLine]:
    """A code that the release of the date does not have, and the codes in its place."""
    if not _CODE.fullmatch(query.strip()):
        return
    try:
        code = parse(query, codes.system).code
    except CodeError:
        return
    if code.code in codes or not is_known(code):
        return
    valid = [release for release in releases(codes.system) if is_valid(code, release)]
    if valid:
        is_new = valid[0] > codes.release
        limit = effective_date(valid[0]) if is_new else effective_date(str(int(valid[-1]) + 1)) - timedelta(days=1)
        note = f"not valid on {date or 'this day'}: {'from' if is_new else 'until'} {limit}"
        yield FoundLine(codes.system, code.code, describe(code), False, note=note)
    for other in in_release(code, codes.release):
        if codes.billable(other.code):
            text = codes.description(other.code)
            yield FoundLine(codes.system, other.code, text, True, f"in place of {code.code}", 1.0)
