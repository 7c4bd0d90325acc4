"""ICD-10-PCS: the tree that their characters spell (section, body system, operation, part)."""

from __future__ import annotations

from pathlib import Path

from nosology.codes.common_words import common_title
from nosology.codes.sources import DATA, read_lines
from nosology.codes.table import CodeTable


def read_codes(path: Path, release: str) -> CodeTable:
    """The table of an official code list (icd10pcs_codes_YYYY.txt): code, blank, title."""
    return from_codes({line[:7]: line[8:].strip() for line in read_lines(path) if line.strip()}, release)


def from_codes(codes: dict[str, str], release: str) -> CodeTable:
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
