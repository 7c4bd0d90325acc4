"""The official ICD-10-CM Alphabetic Index (XML): its lines, and terms for the lexicon from files that a user adds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from nosology.codes.sources import read_xml
from nosology.codes.spelling import normalise
from nosology.codes.terms import Term
from nosology.core import Code, CodeError, DataError
from nosology.core.files import atomic_file, cache_folder

_NONESSENTIAL = re.compile(r"\s*\([^()]*\)")  # words in brackets are optional
_LINKS = re.compile(r"^(?:with|without|due to|in|of|by|from|to|and|or|at|on|for|involving|affecting|see)\b")
_MAX_DEPTH = 4  # deeper lines combine more words than notes have in one place


@dataclass(frozen=True, slots=True)
class IndexTerm:
    """A line of the index: ("Failure", "heart", "congestive") -> I50.9, or a reference to other terms."""

    path: tuple[str, ...]
    codes: tuple[Code, ...]
    see: str | None = None
    see_also: str | None = None


def read_index(path: Path) -> Iterator[IndexTerm]:
    """All lines of icd10cm_index_YYYY.xml (or of the external causes) that have codes or references."""
    terms = read_xml(path).findall("./letter/mainTerm")
    if not terms:
        raise DataError(f"{path} has no letter with main terms: it is not an index of ICD-10-CM")
    for term in terms:
        yield from _index_terms(term, ())


def _index_terms(element: ElementTree.Element, above: tuple[str, ...]) -> Iterator[IndexTerm]:
    title = element.find("title")
    path = (*above, " ".join("".join(title.itertext()).split()) if title is not None else "")
    codes = tuple(code for tag in ("code", "manif") for item in element.findall(tag) if (code := _code(item.text)))
    see, also = element.findtext("see"), element.findtext("seeAlso")
    if codes or see or also:
        yield IndexTerm(path, codes, see, also)
    for below in element.findall("term"):
        yield from _index_terms(below, path)


def _code(text: str | None) -> Code | None:
    """The code of an index line, or the category of a line such as I50.-; None if there is none."""
    try:
        return normalise((text or "").strip().rstrip("-"), "icd10cm")
    except CodeError:
        return None


def index_terms(path: Path) -> Iterator[Term]:
    """The terms of an index file: the words on the path to each line that has a code."""
    for line in read_index(path):
        if not line.codes or len(line.path) > _MAX_DEPTH:
            continue
        main, *below = (_NONESSENTIAL.sub("", step).strip(" ,-") for step in line.path)
        rest = " ".join(_LINKS.sub("", step).strip() for step in below)
        for head in main.split(","):  # "Failure, failed": two alternatives
            if text := f"{head.strip()} {rest}".strip():
                yield Term(text, line.codes[0].code, "index")


def user_index_files() -> list[Path]:
    """The index files that the user has added."""
    return sorted((cache_folder() / "index").glob("*.xml"))


def add_index(path: Path) -> tuple[Path, int]:
    """Copies an index file into the cache folder, where each lexicon uses it; its new path and number of terms."""
    count = sum(1 for _ in index_terms(path))  # raises DataError if it is not an index
    target = cache_folder() / "index" / f"{path.stem}.xml"
    with atomic_file(target) as temporary:
        shutil.copyfile(path, temporary)
    return target, count


def user_index_terms() -> Iterator[Term]:
    """The terms of all index files that the user has added."""
    for path in user_index_files():
        yield from index_terms(path)
