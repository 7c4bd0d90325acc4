"""The official tables of neoplasms (by site and behavior) and of drugs and chemicals (by substance and intent)."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from nosology.codes.alphabetic_index import official_tree
from nosology.codes.index_tree import IndexLine, IndexTree, names

_WORD = re.compile(r"[a-z0-9]+")
_IGNORED = frozenset(
    ("of", "the", "a", "an", "and", "or", "in", "on", "to", "by", "nec", "nos", "left", "right", "bilateral", "both")
)


class NeoplasmCodes(NamedTuple):
    """The codes of a site by behavior, "" where there is none; a code may need more characters, such as the side."""

    malignant_primary: str
    malignant_secondary: str
    in_situ: str
    benign: str
    uncertain: str
    unspecified: str


class DrugCodes(NamedTuple):
    """The codes of a substance by intent, without the seventh character; "" where there is none."""

    poisoning_accidental: str
    poisoning_self_harm: str
    poisoning_assault: str
    poisoning_undetermined: str
    adverse_effect: str
    underdosing: str


@cache
def neoplasm_tree() -> IndexTree:
    """The Table of Neoplasms; the lines of level 1 and below are sites."""
    return official_tree("neoplasms")


@cache
def drug_tree() -> IndexTree:
    """The Table of Drugs and Chemicals; the main terms are substances."""
    return official_tree("drugs")


def neoplasm_codes(site: str) -> NeoplasmCodes | None:
    """The codes of a site such as "lower lobe of lung" or "skin of nose"; None if the table does not have it.

    Every word of the site must be in the line or above it; side and small words are ignored. Of several lines the one
    with the fewest other words counts, and every word of its own title must be in the site.
    """
    line = neoplasm_line(site)
    if line is None:
        return None
    # "colon" has two codes and refers to "intestine, large" for the others.
    other = neoplasm_tree().follow(line.see or line.see_also)
    cells = [line.cells or ("",) * 6, (other.cells if other else ()) or ("",) * 6]
    codes = NeoplasmCodes(*(own or referred for own, referred in zip(*cells)))
    return codes if any(codes) else None


def neoplasm_line(site: str) -> IndexLine | None:
    """The line of a site in the table; None if there is none."""
    words = _words(site)
    if not words:
        return None
    rarest = min((_site_rows().get(word, []) for word in sorted(words)), key=len)
    tree = neoplasm_tree()
    best = None
    for row in rarest:
        path = tree.rows_above(row)[1:]  # without "Neoplasm, neoplastic"
        titles = [_title_names(above) for above in path]
        everything = frozenset().union(*(name for title in titles for name in title), *map(_modifiers, path))
        if words <= everything and any(name <= words for name in titles[-1]):
            key = (sum(min(len(name - words) for name in title) for title in titles), len(path), row)
            best = min(best, key) if best else key
    return tree[best[2]] if best else None


@cache
def _title_names(row: int) -> list[frozenset[str]]:
    """The words of each name of a row: "abdomen, abdominal" has two."""
    return [words for name in names(neoplasm_tree().titles[row]) if (words := _words(name))]


@cache
def _modifiers(row: int) -> frozenset[str]:
    return _words(neoplasm_tree()[row].modifiers)


@cache
def _site_rows() -> dict[str, list[int]]:
    """word -> the rows with the word in the title, above it or among the modifiers."""
    tree = neoplasm_tree()
    rows: dict[str, list[int]] = {}
    stack: list[frozenset[str]] = []
    for row, level in enumerate(tree.levels):
        del stack[level:]
        own = frozenset().union(_modifiers(row), *_title_names(row)) if level else frozenset()
        stack.append(own | stack[-1] if stack else own)
        for word in stack[-1]:
            rows.setdefault(word, []).append(row)
    return rows


def drug_codes(substance: str) -> DrugCodes | None:
    """The codes of a substance such as "warfarin" or "penicillin G"; None if the table does not have it.

    The name must be that of the table, in singular or plural. The table has no brand names.
    """
    line = _substances().get(_phrase(substance))
    return DrugCodes(*drug_tree().cells(line)) if line is not None else None


@cache
def _substances() -> dict[str, int]:
    """Names of substances -> rows with codes: titles, their names, and the words on the path in both orders."""
    tree = drug_tree()
    rows: dict[str, int] = {}
    for line in sorted(tree, key=lambda line: line.level):
        row = _cells(tree, line.row)
        if row is None:
            continue
        if line.level == 0:
            keys = [line.title, *names(line.title)]
        else:
            *above, last = line.path
            main = names(above[0])
            keys = [f"{name} {' '.join((*above[1:], last))}" for name in main]
            keys += [f"{' '.join((last, *above[1:]))} {name}" for name in main]
        for key in keys:
            if phrase := _phrase(key):
                rows.setdefault(phrase, row)
    return rows


def _cells(tree: IndexTree, row: int) -> int | None:
    """The row with the codes of a line: itself, or the line that it refers to."""
    if tree.cells(row):
        return row
    line = tree[row]
    target = tree.follow(line.see or line.see_also)
    return target.row if target and target.cells else None


def _phrase(text: str) -> str:
    return " ".join(
        _singular(word) for word in _WORD.findall(text.casefold()) if word not in ("nec", "nos", "the", "of")
    )


def _words(text: str) -> frozenset[str]:
    words = frozenset(_singular(word) for word in _WORD.findall(text.casefold()) if word not in _IGNORED)
    return (words - {"node"}) | {"gland"} if {"lymph", "node"} <= words else words  # lymph glands in the table


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
