"""Distil the conditions that the Alphabetic Index links by "with", "in" or "due to" into pairs of codes (I.A.15).

python tools/distill_linked_conditions.py

Writes nosology/claims/data/linked_conditions.tsv: the code of a term, the code that the lexicon gives the linked
condition, and the code of the index line, which has the category of one of them. Pairs with several lines are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nosology.codes import table
from nosology.codes.alphabetic_index import index_terms, index_tree
from nosology.codes.terms import SOURCES, terms
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

OUT = Path(__file__).parents[1] / "nosology/claims/data/linked_conditions.tsv"
_NOT_TERMS = "FSTVWXYZ"  # a list that names dementia and anxiety does not say that one is with the other
_NOT_CONDITIONS = "OSTVWXYZ"


def _key(text: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(word_keys(word)[0] for word in words if word not in function_words() | {"nec", "nos"})


def _codes_by_words() -> dict[frozenset[str], str]:
    """The code of each set of words, by the source with the highest priority."""
    found: dict[frozenset[str], tuple[int, str]] = {}
    for term in (*terms(table("icd10cm")), *index_terms(index_tree())):
        key, rank = _key(term.text), SOURCES.index(term.source)
        if key and (key not in found or rank < found[key][0]):
            found[key] = rank, term.code
    return {key: code for key, (_, code) in found.items()}


def pairs() -> Iterator[tuple[str, str, str, str]]:
    """Code of the term, code of the condition, code of both, and the words of the index line."""
    codes, by_words = table("icd10cm"), _codes_by_words()
    for line in index_tree():
        if not codes.billable(line.code) or line.code[0] in _NOT_TERMS:
            continue
        for condition, linked in line.linked():
            other = by_words.get(_key(condition), "")
            both = linked.code
            if not codes.billable(other) or other[0] in _NOT_CONDITIONS or not codes.billable(both):
                continue
            if len({line.code, other, both}) == 3 and both[:3] in (line.code[:3], other[:3]):
                yield line.code, other, both, f"{', '.join(line.path)}: {condition}"


def main() -> None:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for term, condition, both, words in pairs():
        found.setdefault((term, condition), {}).setdefault(both, words)
    rows = ["term\tcondition\tboth\tindex"]
    for (term, condition), results in sorted(found.items()):
        if len(results) == 1:
            rows += ["\t".join((term, condition, both, words)) for both, words in results.items()]
    OUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows) - 1} pairs")


if __name__ == "__main__":
    main()
