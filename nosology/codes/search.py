"""Search for codes as coders speak: abbreviations, lay words, synonyms, British spelling, misspellings, values.

The names of a code are the terms of the lexicon (see `terms`), the lines of the Alphabetic Index and the descriptions.
A name matches by keys: stems of its words, one for equivalent words (renal, kidney; see `nosology.text.stems`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosology.codes.alphabetic_index import external_causes, index_terms, index_tree
from nosology.codes.installed import installed_files
from nosology.codes.lookup import table as code_table
from nosology.codes.name_index import NameIndex, RankedCode
from nosology.codes.official_tables import drug_tree, neoplasm_tree
from nosology.codes.releases import releases
from nosology.codes.search_words import look_ups
from nosology.codes.sources import cached_json, package_file
from nosology.codes.spelling import normalise
from nosology.codes.terms import DefaultCodes, Term, terms
from nosology.core import CodeError
from nosology.core.progress import activity

if TYPE_CHECKING:
    from nosology.codes.table import CodeTable

_SOURCE_SUFFIXES = (".py", ".tsv", ".gz")
_OTHER = re.compile(r"other\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A code that matches a query; `matched` is its name that matches best."""

    code: str
    description: str
    billable: bool
    score: float
    matched: str


def search(table: CodeTable, query: str, limit: int = 20, *, billable: bool | None = None) -> list[SearchHit]:
    """The codes that a query names, best first: billable codes, and a header if the query is its name or code.

    billable: True for billable codes only, False for headers only.
    """
    found = _of_code(table, query, billable)[:limit]
    if not found:
        names = _names(table)
        found = names.search(query, limit, headers=billable is False)
        if billable is None:
            found = _with_header(table, names, query, found)[:limit]
    return [
        SearchHit(
            code, table.description(code), table.billable(code), round(score, 4), matched or table.description(code)
        )
        for code, score, matched in found
    ]


def _of_code(table: CodeTable, query: str, billable: bool | None) -> list[RankedCode]:
    """The line of a query that is a code, and the billable codes below it."""
    try:
        code = normalise(query.strip().rstrip("-."), table.system).code
    except CodeError:
        return []
    if code not in table or not any(character.isdigit() for character in query):
        return []
    lines = [code, *(line for line in table.descendants(code) if billable is False or table.billable(line))]
    return [RankedCode(line, 1.0, "") for line in lines if billable is None or table.billable(line) == billable]


def _with_header(table: CodeTable, names: NameIndex, query: str, found: list[RankedCode]) -> list[RankedCode]:
    """The codes with the header that has the query as its name, after the codes that match as well."""
    header = names.header(query)
    if header is None:
        return found
    place = next((i for i, hit in enumerate(found) if hit.score < 0.95), len(found))
    return [*found[: max(1, place)], RankedCode(header, 0.95, ""), *found[max(1, place) :]]


@lru_cache(maxsize=32)
def _names(table: CodeTable) -> NameIndex:
    """The names of the codes of a table; those of earlier releases share the index of the newest."""
    if table.release not in releases(table.system) or code_table(table.system, table.release) is not table:
        return NameIndex(NameIndex.build(table, _all_terms(table)), table)  # a table of the user
    newest = code_table(table.system)
    if newest is not table:
        return _names(newest).of_release(table)
    # Any change of code or data in these packages rebuilds the names.
    folders = [Path(__file__).parent, Path(__file__).parents[1] / "text"]
    sources = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in _SOURCE_SUFFIXES]
    sources += [package_file("simple_icd_10_cm", "data/*tabular*.xml"), *(file.path for file in installed_files())]

    def build() -> dict[str, Any]:
        with activity("building the index for searches (once)"):
            return NameIndex.build(table, chain(_all_terms(table), _past_terms(table)))

    return NameIndex(cached_json(f"search-{table.system}", sources, build), table)


def _all_terms(table: CodeTable) -> Iterator[Term]:
    """The names of the codes of a table."""
    if table.system == "icd10cm":
        indexes = (index_terms(tree) for tree in (index_tree(), external_causes()))
        yield from terms(table, added=chain(look_ups(), *indexes, _neoplasm_terms(), _drug_terms()))
        defaults = DefaultCodes(table, seventh=True)
        notes = table.all_notes()
    else:
        defaults, notes = None, table.all_notes()
    for code in table.codes():
        parent = table.parent(code) or ""
        if defaults and defaults.is_injury(parent) and defaults.get(parent) != code:
            continue  # seventh characters other than the first: see NameIndex._for_encounter
        description = table.description(code)
        yield Term(description, code, "other" if _OTHER.match(description) else "description")
        if defaults is None:
            for note in (*notes.get(code, {}).get("inclusion_terms", ()), *notes.get(code, {}).get("includes", ())):
                yield Term(note, code, "inclusion")


def _past_terms(newest: CodeTable) -> Iterator[Term]:
    """The descriptions of the codes that were billable in earlier releases only."""
    for release in releases(newest.system)[:-1]:
        past = code_table(newest.system, release)
        defaults = DefaultCodes(past, seventh=True) if past.system == "icd10cm" else None
        for code in past.codes(billable=True):
            if not newest.billable(code) and (defaults is None or defaults.get(code) == code):
                yield Term(past.description(code), code, "description")


def _neoplasm_terms() -> Iterator[Term]:
    """The sites of the Table of Neoplasms by behavior."""
    tree = neoplasm_tree()
    for row, cells in ((row, tree.cells(row)) for row in range(len(tree))):
        site = " ".join(tree.titles[above] for above in tree.rows_above(row)[1:])
        if site and cells:
            words = ("cancer", "metastasis", "carcinoma in situ", "benign neoplasm", "uncertain neoplasm", "neoplasm")
            yield from (Term(f"{word} {site}", code, "index") for word, code in zip(words, cells) if code)


def _drug_terms() -> Iterator[Term]:
    """The substances of the Table of Drugs by intent."""
    tree = drug_tree()
    words = ("poisoning", "poisoning self-harm", "poisoning assault", "", "adverse effect", "underdosing")
    for row, cells in ((row, tree.cells(row)) for row in range(len(tree))):
        substance = " ".join(tree.titles[above] for above in tree.rows_above(row))
        if cells:
            yield from (Term(f"{word} {substance}", code, "other") for word, code in zip(words, cells) if code and word)
