"""The official alphabetic index (XML): terms, each with the path of words that leads to it, and the codes they name."""

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


@dataclass(frozen=True, slots=True)
class IndexTerm:
    """A line of the index: ("Failure", "heart", "congestive") -> I50.9; or words to look under instead."""

    path: tuple[str, ...]
    codes: tuple[Code, ...]
    see: str | None = None
    see_also: str | None = None


def read_index(path: Path) -> Iterator[IndexTerm]:
    """All lines of icd10cm_index_YYYY.xml (or of the external causes), those that name codes and those that refer."""
    terms = read_xml(path).findall("./letter/mainTerm")
    if not terms:
        raise DataError(f"{path} holds no letter with main terms: it is not an index of ICD-10-CM")
    for term in terms:
        yield from _terms(term, ())


def _terms(element: ElementTree.Element, above: tuple[str, ...]) -> Iterator[IndexTerm]:
    title = element.find("title")
    words = " ".join("".join(title.itertext()).split()) if title is not None else ""
    path = (*above, words)
    codes = tuple(code for tag in ("code", "manif") for found in element.findall(tag) if (code := _code(found.text)))
    see, also = element.findtext("see"), element.findtext("seeAlso")
    if codes or see or also:
        yield IndexTerm(path, codes, see, also)
    for below in element.findall("term"):
        yield from _terms(below, path)


def _code(text: str | None) -> Code | None:
    """The code of an index line; a line such as I50.- names the category, and "-" stands for digits to be chosen."""
    try:
        return normalise((text or "").strip().rstrip("-"), "icd10cm")
    except CodeError:
        return None


_NONESSENTIAL = re.compile(r"\s*\([^()]*\)")  # words in brackets may stand there or not
_LINKS = re.compile(r"^(?:with|without|due to|in|of|by|from|to|and|or|at|on|for|involving|affecting|see)\b")
_DEPTH = 4  # lines below this say more than a note does in one place


def index_folder() -> Path:
    """Where added index files are kept."""
    return cache_folder() / "index"


def user_index_files() -> list[Path]:
    """The index files that the user has added."""
    return sorted(index_folder().glob("*.xml"))


def add_index(path: Path) -> tuple[Path, int]:
    """Keeps an index file for every lexicon from now on; where it lies, and how many terms it adds."""
    found = sum(1 for _ in index_terms(path))  # a file that is none is refused here
    kept = index_folder() / f"{path.stem}.xml"  # only these are looked for
    with atomic_file(kept) as aside:
        shutil.copyfile(path, aside)
    return kept, found


def user_index_terms() -> Iterator[Term]:
    """The terms of all index files that the user has added."""
    for path in user_index_files():
        yield from index_terms(path)


def index_terms(path: Path) -> Iterator[Term]:
    """The terms of an index file: the words along the path to each line that names a code of diagnoses."""
    for line in read_index(path):
        if not line.codes or len(line.path) > _DEPTH:
            continue
        main, *below = (_NONESSENTIAL.sub("", step).strip(" ,-") for step in line.path)
        rest = " ".join(_LINKS.sub("", step).strip() for step in below)
        for head in main.split(","):  # "Failure, failed": either word opens the line
            if text := f"{head.strip()} {rest}".strip():
                yield Term(text, line.codes[0].code, "index")
