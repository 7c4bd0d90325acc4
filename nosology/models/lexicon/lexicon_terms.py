"""The phrase index of all terms of ICD-10-CM, built once per release and stored in the cache folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nosology.codes.alphabetic_index import index_terms, index_tree
from nosology.codes.history import in_release
from nosology.codes.installed import installed_files
from nosology.codes.lookup import table
from nosology.codes.related_codes import laterality_variants
from nosology.codes.sources import cached_json, package_file
from nosology.codes.table import CodeTable
from nosology.codes.terms import SOURCES, DefaultCodes, Term, specificity_keys, terms
from nosology.core import Code
from nosology.core.progress import activity
from nosology.text.phrases import PhraseIndex, phrase_keys
from nosology.text.stems import word_keys
from nosology.text.tokens import general_words

SEPARATOR = "\x7f"  # in no key and no code
_WORD = re.compile(r"[^\W_]+")
_SOURCE_SUFFIXES = (".py", ".tsv", ".gz")
_ALONE = ("synonym", "description", "inclusion", "index", "category")  # sources of terms of one word
_INDEX_WORDS = 4  # shorter lines of the Alphabetic Index are words that notes use for other things
_RARE_CHAPTERS = "OPQVWXY"  # births, malformations, accidents: last among the codes of a term
KeysOf = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class Terms:
    """P phrases and the codes of each, most likely first: phrase p has the entries bounds[p] to bounds[p + 1]."""

    index: PhraseIndex
    codes: list[str]
    bounds: np.ndarray  # (P + 1,)
    entry_code: np.ndarray  # into codes
    entry_source: np.ndarray  # into SOURCES
    sides: dict[str, dict[str, str]]  # code -> side -> the code on that side
    titles: dict[str, str]  # the words of a whole description (see title_words) -> its code

    @classmethod
    def open(cls, release: str | None = None, *, seventh: bool = True) -> Terms:
        """The terms of a release, by default the newest."""
        return _open(table("icd10cm", release).release, seventh)

    @classmethod
    def build(
        cls, all_terms: Iterable[Term], release: str, *, seventh: bool = True, keys_of: KeysOf = phrase_keys
    ) -> Terms:
        """The terms of a release. keys_of: phrase_keys, or the same with a cache."""
        general = {word_keys(word)[0]: joined for word, joined in general_words().items()}
        entries: dict[tuple[str, ...], dict[str, int]] = {}
        for term in all_terms:
            keys = keys_of(term.text)
            if keys and _is_specific(keys, term, general):
                sources = entries.setdefault(keys, {})
                sources[term.code] = min(SOURCES.index(term.source), sources.get(term.code, len(SOURCES)))
        phrases = sorted(entries)
        codes = sorted({code for sources in entries.values() for code in sources})
        column = {code: i for i, code in enumerate(codes)}
        code_lines = table("icd10cm", release)
        specificity = specificity_keys(code_lines, codes)

        def rank(entry: tuple[str, int]) -> tuple[Any, ...]:
            code, source = entry
            return source, code[0] in _RARE_CHAPTERS, specificity[code]

        lists = [sorted(entries[keys].items(), key=rank) for keys in phrases]
        bounds = np.concatenate([[0], np.cumsum([len(items) for items in lists])]).astype(np.int32)
        entry_code = np.array([column[code] for items in lists for code, _ in items], dtype=np.int32)
        entry_source = np.array([source for items in lists for _, source in items], dtype=np.int8)
        sides = laterality_variants(code_lines, (code for code in codes if code in code_lines))
        titles = _titles(code_lines) if seventh else {}
        return cls(PhraseIndex.build(phrases), codes, bounds, entry_code, entry_source, sides, titles)

    def entries(self, phrase: int) -> list[tuple[str, int]]:
        """The codes of a phrase with their sources (indices of SOURCES), most likely first."""
        entries = slice(self.bounds[phrase], self.bounds[phrase + 1])
        codes, sources = self.entry_code[entries].tolist(), self.entry_source[entries].tolist()
        return [(self.codes[code], source) for code, source in zip(codes, sources)]

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values; lists of strings are joined, because one string loads several times faster."""
        return {
            "vocabulary": SEPARATOR.join(self.index.vocabulary),
            "phrase_bounds": self.index.bounds.tolist(),
            "keys": self.index.keys.tolist(),
            "codes": SEPARATOR.join(self.codes),
            "bounds": self.bounds.tolist(),
            "entry_code": self.entry_code.tolist(),
            "entry_source": self.entry_source.tolist(),
            "sides": self.sides,
            "titles": SEPARATOR.join(self.titles),
            "title_codes": SEPARATOR.join(self.titles.values()),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Terms:
        phrase_bounds, keys, bounds, entry_code = (
            np.array(value[name], dtype=np.int32) for name in ("phrase_bounds", "keys", "bounds", "entry_code")
        )
        index = PhraseIndex(value["vocabulary"].split(SEPARATOR), phrase_bounds, keys)
        sources = np.array(value["entry_source"], dtype=np.int8)
        titles = dict(zip(value["titles"].split(SEPARATOR), value["title_codes"].split(SEPARATOR)))
        return cls(index, value["codes"].split(SEPARATOR), bounds, entry_code, sources, value["sides"], titles)


def title_words(text: str) -> str:
    """The words and numbers of a line in lower case, without punctuation."""
    return " ".join(_WORD.findall(text.lower()))


def _titles(codes: CodeTable) -> dict[str, str]:
    """The words of the description of each billable code."""
    titles: dict[str, str] = {}
    for code in codes.codes(billable=True):
        titles.setdefault(title_words(codes.description(code)), code)
    return titles


def _is_specific(keys: tuple[str, ...], term: Term, general: dict[str, bool]) -> bool:
    """Whether a term names its code: it has more than general words, and a single word only if that names the code."""
    if term.source == "synonym":
        return True
    if all(key in general for key in keys):
        return len(keys) > 1 and term.source in _ALONE and any(general[key] for key in keys)
    if len(keys) > 1:
        return True
    # The name of a drug alone does not mean a poisoning, nor that of an animal a bite.
    needs_event = term.code[0] in "VWXY" or "T36" <= term.code[:3] <= "T65"
    return term.source in _ALONE and not needs_event and len(keys[0]) > 2


@cache
def _open(release: str, seventh: bool) -> Terms:
    # Any change of code or data in these packages rebuilds the index.
    folders = [Path(__file__).parents[2] / package for package in ("codes", "text")]
    sources = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in _SOURCE_SUFFIXES]
    sources += [
        Path(__file__),
        package_file("simple_icd_10_cm", "data/*tabular*.xml"),
        *(file.path for file in installed_files()),
    ]

    def build() -> dict[str, Any]:
        keys = cache(phrase_keys)  # a term is asked for its keys three times
        with activity("building the index of terms (once)"):
            long = (term for term in index_terms(index_tree()) if len(keys(term.text)) >= _INDEX_WORDS)
            all_terms = terms(table("icd10cm", release), seventh=seventh, added=long)
            return Terms.build(_without_known(all_terms, keys), release, seventh=seventh, keys_of=keys).to_json()

    return Terms.from_json(cached_json(f"terms-{release}-{'seventh' if seventh else 'short'}", sources, build))


def _without_known(all_terms: Iterable[Term], keys_of: KeysOf) -> Iterator[Term]:
    """The terms without those of the index that another source has; the index comes last."""
    known = set()
    for term in all_terms:
        if term.source != "index":
            known.add(keys_of(term.text))
        elif keys_of(term.text) in known:
            continue
        yield term


class Resolver:
    """Maps codes of any release to billable codes of one release; a code that was divided to its unspecified code."""

    def __init__(self, release: str | None = None, *, seventh: bool = True):
        self.table = table("icd10cm", release)
        self.seventh = seventh

    @cached_property
    def _defaults(self) -> DefaultCodes:
        return DefaultCodes(self.table, self.seventh)

    def __call__(self, code: str) -> str | None:
        default = self._defaults.get(code)
        if default is not None:
            return default
        successors = in_release(Code("icd10cm", code), self.table.release)
        return self._defaults.get(successors[0].code) if successors else None
