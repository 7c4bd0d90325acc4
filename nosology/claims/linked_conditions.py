"""Combination codes from the "with" lists of the Alphabetic Index (guideline I.A.15).

The table has the code of a term, the code of a condition that the index links to it, and the code of both.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

from nosology.claims.draft import Draft
from nosology.codes.table import CodeTable
from nosology.codes.tabular import code_references

_RULE = "index-with"
_NOTES = ("use_additional", "code_also", "code_first")


@cache
def linked_conditions() -> dict[str, dict[str, tuple[str, str]]]:
    """Code of a term -> code of a linked condition -> code of both, and the words of the index."""
    raw = files("nosology.claims").joinpath("data/linked_conditions.tsv").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for row in csv.DictReader(raw.splitlines(), delimiter="\t"):
        found.setdefault(row["term"], {})[row["condition"]] = row["both"], row["index"]
    return found


def combine_linked(draft: Draft) -> None:
    """Replaces a term and a condition in one sentence by the code that the index gives both of them.

    The condition stays if a note of the tabular list asks for it as an additional or first code.
    """
    linked = linked_conditions()
    for term in list(draft.entries):
        for condition, (both, words) in linked.get(term, {}).items():
            if term in draft.entries and condition in draft.entries and _in_one_sentence(draft, term, condition):
                stays = _asks_for(draft.table, both, condition) or _asks_for(draft.table, condition, both)
                old = [term] if stays else [term, condition]
                draft.replace(old, both, f"the Alphabetic Index has one code ({words})", _RULE)


def _in_one_sentence(draft: Draft, first: str, second: str) -> bool:
    places = [{draft.sentence(span.start) for span in draft.entries[code].evidence} for code in (first, second)]
    return bool(places[0] & places[1])


def _asks_for(codes: CodeTable, code: str, other: str) -> bool:
    """Whether a note at a code names another code, or asks for an underlying cause without naming codes."""
    wanted = [list(code_references(note)) for kind in _NOTES for _, note in codes.inherited_notes(code, kind)]
    if any(reference.covers(other) for references in wanted for reference in references):
        return True
    return any(not list(code_references(note)) for _, note in codes.inherited_notes(code, "code_first"))
