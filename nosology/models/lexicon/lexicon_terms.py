"""All terms of ICD-10-CM as an index of phrases: built once a release, kept in the cache folder, opened at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nosology.codes.alphabetic_index import user_index_files, user_index_terms
from nosology.codes.history import in_release
from nosology.codes.lookup import table
from nosology.codes.related_codes import laterality_variants
from nosology.codes.sources import DATA, cached_json, package_file
from nosology.codes.terms import SOURCES, DefaultCodes, Term, specificity_keys, terms
from nosology.core import Code
from nosology.text.data import general_words
from nosology.text.phrases import PhraseIndex, phrase_keys
from nosology.text.stems import word_keys

SEPARATOR = "\x7f"  # in no key and no code
_ALONE = ("synonym", "description", "inclusion", "index", "category")  # sources of terms of one word
_RARE_CHAPTERS = "OPQVWXY"  # births, malformations and accidents are not meant unless they are said


@dataclass(frozen=True)
class Terms:
    """P phrases, and the codes each names, the likeliest first: entries bounds[p] to bounds[p + 1] are its own."""

    index: PhraseIndex
    codes: list[str]
    bounds: np.ndarray  # (P + 1,)
    entry_code: np.ndarray  # into codes
    entry_source: np.ndarray  # into SOURCES
    sides: dict[str, dict[str, str]]  # code -> side -> the code on that side

    @classmethod
    def open(cls, release: str | None = None, *, seventh: bool = True) -> Terms:
        """The terms of a release, by default the newest."""
        return _open(table("icd10cm", release).release, seventh)

    @classmethod
    def of(cls, found: Iterable[Term], release: str) -> Terms:
        """The index of terms."""
        general = {word_keys(word)[0]: joined for word, joined in general_words().items()}
        entries: dict[tuple[str, ...], dict[str, int]] = {}
        for term in found:
            keys = phrase_keys(term.text)
            if keys and _may_stand(keys, term, general):
                known = entries.setdefault(keys, {})
                known[term.code] = min(SOURCES.index(term.source), known.get(term.code, len(SOURCES)))
        phrases = sorted(entries)
        codes = sorted({code for known in entries.values() for code in known})
        column = {code: i for i, code in enumerate(codes)}
        vague = specificity_keys(table("icd10cm", release), codes)
        lists = [
            sorted(entries[keys].items(), key=lambda item: (item[1], item[0][0] in _RARE_CHAPTERS, vague[item[0]]))
            for keys in phrases
        ]
        bounds = np.concatenate([[0], np.cumsum([len(items) for items in lists])]).astype(np.int32)
        entry_code = np.array([column[code] for items in lists for code, _ in items], dtype=np.int32)
        entry_source = np.array([source for items in lists for _, source in items], dtype=np.int8)
        sides = laterality_variants(
            table("icd10cm", release), (code for code in codes if code in table("icd10cm", release))
        )
        return cls(PhraseIndex.build(phrases), codes, bounds, entry_code, entry_source, sides)

    def entries(self, phrase: int) -> list[tuple[str, int]]:
        """The codes of a phrase with their sources (numbers), the likeliest first."""
        own = slice(self.bounds[phrase], self.bounds[phrase + 1])
        codes, sources = self.entry_code[own].tolist(), self.entry_source[own].tolist()
        return [(self.codes[code], source) for code, source in zip(codes, sources)]

    def to_json(self) -> dict[str, Any]:
        """Columns; strings joined, since these load several times faster than lists."""
        return {
            "vocabulary": SEPARATOR.join(self.index.vocabulary),
            "phrase_bounds": self.index.bounds.tolist(),
            "keys": self.index.keys.tolist(),
            "codes": SEPARATOR.join(self.codes),
            "bounds": self.bounds.tolist(),
            "entry_code": self.entry_code.tolist(),
            "entry_source": self.entry_source.tolist(),
            "sides": self.sides,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Terms:
        """The terms that `to_json` gave."""
        phrase_bounds, keys, bounds, entry_code = (
            np.array(value[name], dtype=np.int32) for name in ("phrase_bounds", "keys", "bounds", "entry_code")
        )
        index = PhraseIndex(value["vocabulary"].split(SEPARATOR), phrase_bounds, keys)
        sources = np.array(value["entry_source"], dtype=np.int8)
        return cls(index, value["codes"].split(SEPARATOR), bounds, entry_code, sources, value["sides"])


def _may_stand(keys: tuple[str, ...], term: Term, general: dict[str, bool]) -> bool:
    """Whether a term is telling enough: not made of general words alone, and of one word only where that names it."""
    if term.source == "synonym":
        return True
    if all(key in general for key in keys) and not (
        len(keys) > 1 and term.source in _ALONE and any(general[key] for key in keys)
    ):
        return False
    if len(keys) > 1:
        return True
    # A drug's name alone does not say that it has poisoned anybody, nor an animal's that it has bitten.
    told = term.code[0] in "VWXY" or "T36" <= term.code[:3] <= "T65"
    return term.source in _ALONE and not told and len(keys[0]) > 2


@cache
def _open(release: str, seventh: bool) -> Terms:
    text_data = Path(__file__).parents[2] / "text" / "data"
    sources = [
        *sorted((DATA / "synonyms").glob("*.tsv")),
        *(text_data / name for name in ("words.tsv", "general_words.tsv", "function_words.tsv")),
        Path(__file__),
        *(
            Path(__file__).parents[2] / place
            for place in (
                "codes/terms.py",
                "codes/alphabetic_index.py",
                "codes/related_codes.py",
                "text/stems.py",
                "text/phrases.py",
            )
        ),
        DATA / "icd10cm_releases.json.gz",
        package_file("simple_icd_10_cm", "data/*tabular*.xml"),
        *user_index_files(),
    ]

    def build() -> dict[str, Any]:
        return Terms.of(terms(table("icd10cm", release), seventh=seventh, added=user_index_terms()), release).to_json()

    return Terms.from_json(cached_json(f"terms-{release}-{'seventh' if seventh else 'short'}", sources, build))


class Resolver:
    """Codes of any release as one release has them: billable, and the unspecified one where a code was divided."""

    def __init__(self, release: str | None = None, *, seventh: bool = True):
        self.table = table("icd10cm", release)
        self.seventh = seventh

    @cached_property
    def leaves(self) -> DefaultCodes:
        """Made when first needed."""
        return DefaultCodes(self.table, self.seventh)

    def __call__(self, code: str) -> str | None:
        found = self.leaves.get(code)
        if found is not None:
            return found
        heirs = in_release(Code("icd10cm", code), self.table.release)
        return self.leaves.get(heirs[0].code) if heirs else None
