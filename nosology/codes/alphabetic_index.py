"""The ICD-10-CM Alphabetic Index and the index of external causes, and terms for the lexicon from them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nosology.codes.index_addenda import apply_addenda, read_addenda
from nosology.codes.index_tree import IndexTree, names, read_index_tree
from nosology.codes.installed import installed, installed_releases
from nosology.codes.sources import DATA, cached_json, read_xml
from nosology.codes.terms import Term

_LINKS = re.compile(r"^(?:with|without|due to|in|of|by|from|to|and|or|at|on|for|involving|affecting|see)\b")
_NOT_ELSEWHERE = re.compile(r"\b(?:NEC|NOS)\b")
_MAX_DEPTH = 5  # deeper lines combine more words than notes have in one place


@cache
def index_tree() -> IndexTree:
    """The Alphabetic Index: main terms, subterms, codes and references; the newest that is built in or installed."""
    return official_tree("index")


@cache
def external_causes() -> IndexTree:
    """The index of external causes of injuries."""
    return official_tree("external_causes")


def official_tree(kind: str) -> IndexTree:
    """The newest tree of a kind (index, external_causes, neoplasms, drugs): installed if not older, else built in.

    Installed addenda are applied to the tree of the releases before.
    """
    with gzip.open(DATA / f"icd10cm_{kind}.json.gz", "rt", encoding="utf-8") as file:
        tree = IndexTree.from_json(json.load(file))
    addenda = f"{kind}_addenda"
    for release in installed_releases("icd10cm", (kind, addenda)):
        files = installed("icd10cm", release)
        if kind in files and release >= tree.release:
            value = cached_json(f"{kind}-{release}", [files[kind]], lambda path=files[kind]: read_index(path).to_json())
            tree = IndexTree.from_json(value)
        elif addenda in files and release > tree.release:
            source = f"{tree.source}, with the addenda of {release}"
            tree, _ = apply_addenda(tree, read_addenda(files[addenda]), release, source)
    return tree


def read_index(path: Path) -> IndexTree:
    """The tree of an official XML file: icd10cm_index_YYYY.xml, external causes, neoplasms or drugs."""
    return read_index_tree(read_xml(path), str(path))


def index_terms(tree: IndexTree) -> Iterator[Term]:
    """The terms of an index: the words on the path to each line that has a code or refers to a line that has one.

    Lines with a link ("with", "due to") are left out: their parts are conditions of their own. Most short terms are
    words that notes use for other things ("Cold", "Follow-up", "Lesion, eye"); matching in notes takes long ones.
    """
    path: list[str] = []
    for row in tree.rows():
        del path[row.level :]
        path.append(row.title)
        if row.level >= _MAX_DEPTH or any(map(_LINKS.match, path[1:])) or "without" in row.title:
            continue
        target = tree.follow(row.see) if row.see and not row.code else None
        code = target.code if target else row.code
        rest = " ".join(path[1:])
        for head in names(path[0])[1:] or names(path[0]):  # "Failure, failed": two alternatives
            if code and (text := _NOT_ELSEWHERE.sub("", f"{head} {rest}").strip()):
                yield Term(text, code, "index")
