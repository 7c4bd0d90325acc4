"""The official alphabetic index (XML): terms, each with the path of words that leads to it, and the codes they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from nosology.codes.sources import read_xml
from nosology.codes.spelling import normalise
from nosology.core import Code, CodeError, DataError


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
