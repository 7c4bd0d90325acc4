"""Sibling codes and what tells them apart: the words of their descriptions, sides, stages, "unspecified", "other"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nosology.codes.lookup import label_description, table
from nosology.core import Code
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words, words_of

MAX_SIBLINGS = 300  # of a category; some of injuries have thousands
_UNSPECIFIED = re.compile(r"\b(?:unspecified|not otherwise specified|NOS)\b", re.IGNORECASE)
_OTHER = re.compile(r"\b(?:other|elsewhere classified)\b", re.IGNORECASE)
_WITHOUT = re.compile(r"\b(?:without|with no|not)\b", re.IGNORECASE)
_FILLER_WORDS = ("unspecified", "other", "specified", "elsewhere", "classified")
_FILLER = frozenset(key for word in _FILLER_WORDS for key in word_keys(word))
# Words of which a diagnosis has one: another one near the evidence contradicts a description.
_ATTRIBUTES = {
    "side": ("right", "left", "bilateral"),
    "acuity": ("acute", "chronic", "subacute", "recurrent"),
    "severity": ("mild", "moderate", "severe"),
    "behaviour": ("malignant", "benign", "uncertain"),
    "part": ("upper", "lower", "middle"),
    "cause": ("primary", "secondary"),
}
_NUMBERED = re.compile(r"\b(stage|type|grade)s? (\w+)", re.IGNORECASE)
_ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5"}
_VALUE = {word: (name, word) for name, words in _ATTRIBUTES.items() for word in words}
_VALUE |= {"bilaterally": ("side", "bilateral"), "both": ("side", "bilateral")}


def attribute_values(words: Sequence[str]) -> dict[str, set[str]]:
    """The values of each attribute (side, acuity, stage ...) that lower-case words name."""
    found: dict[str, set[str]] = {}
    for word in words:
        if word in _VALUE:
            name, value = _VALUE[word]
            found.setdefault(name, set()).add(value)
    for name, value in _NUMBERED.findall(" ".join(words)):
        if (number := _ROMAN.get(value, value)).isdigit():
            found.setdefault(name.lower(), set()).add(number)
    return found


@dataclass(frozen=True, eq=False)
class SiblingGroup:
    """S sibling codes, the K words that only some of them have, and N names (descriptions and inclusion terms)."""

    codes: tuple[Code, ...]
    descriptions: tuple[str, ...]
    keys: dict[str, int]  # word -> column
    weights: np.ndarray  # (K,) the rarer a word is among the siblings, the more it weighs
    words: np.ndarray  # (S, K) 0/1, words of the descriptions
    names: np.ndarray  # (N, K) 0/1
    name_of: np.ndarray  # (N,) into codes
    attributes: tuple[dict[str, set[str]], ...]  # of each description
    is_unspecified: np.ndarray  # (S,)
    is_other: np.ndarray  # (S,)
    excludes: np.ndarray  # (S,) whether the description has "without"
    depth: np.ndarray  # (S,) characters of the code

    @classmethod
    def build(cls, codes: Sequence[Code], release: str | None = None) -> SiblingGroup:
        """The group of these codes; release: of ICD-10-CM, for inclusion terms."""
        titles = [label_description(code) for code in codes]
        of_names = [(row, name) for row, code in enumerate(codes) for name in _names(code, titles[row], release)]
        counts = Counter(key for title in titles for key in set(_content_keys(title)))
        shared = {key for key, count in counts.items() if count == len(codes)}
        keys = {
            key: column
            for column, key in enumerate(sorted({k for _, n in of_names for k in _content_keys(n)} - shared))
        }
        frequency = np.array([max(1, counts[key]) for key in keys], dtype=np.float64)
        return cls(
            codes=tuple(codes),
            descriptions=tuple(titles),
            keys=keys,
            weights=np.log((len(codes) + 1) / frequency),
            words=_indicators(titles, keys),
            names=_indicators([name for _, name in of_names], keys),
            name_of=np.array([row for row, _ in of_names], dtype=np.int64),
            attributes=tuple(attribute_values(words_of(title)) for title in titles),
            is_unspecified=_matching(_UNSPECIFIED, titles),
            is_other=_matching(_OTHER, titles),
            excludes=_matching(_WITHOUT, titles),
            depth=np.array([len(code.code) for code in codes], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.codes)


@lru_cache(maxsize=1 << 10)
def sibling_group(codes: tuple[Code, ...], release: str | None = None) -> SiblingGroup:
    """The group of these codes, cached."""
    return SiblingGroup.build(codes, release)


@lru_cache(maxsize=1 << 12)
def billable_siblings(code: Code, release: str | None = None, *, parent: bool = False) -> tuple[Code, ...]:
    """The billable codes of the category of a code, or with the same parent; empty for a code without a category."""
    lines = table(code.system, release)
    above = lines.parent(code.code) if parent and code.code in lines else code.code[:3]
    if above is None or above not in lines or "-" in above:
        return ()
    names = lines.children(above) if parent else (above, *lines.descendants(above))
    return tuple(Code(code.system, name) for name in names if lines.billable(name))


def content_keys(words: Iterable[str]) -> set[str]:
    """All keys of lower-case words that are no function words."""
    return {key for word in words if word not in function_words() for key in word_keys(word)}


def _content_keys(name: str) -> list[str]:
    """The first key of each content word of a name."""
    words = words_of(_WITHOUT.split(name)[0])
    return [key for word in words if word not in function_words() and (key := word_keys(word)[0]) not in _FILLER]


def _names(code: Code, title: str, release: str | None) -> list[str]:
    lines = table(code.system, release)
    terms = lines[code.code].inclusion_terms if code.code in lines else ()
    return list(dict.fromkeys((title, *terms)))


def _indicators(names: Sequence[str], keys: dict[str, int]) -> np.ndarray:
    rows = np.zeros((len(names), len(keys)))
    for row, name in zip(rows, names):
        row[[keys[key] for key in _content_keys(name) if key in keys]] = 1
    return rows


def _matching(pattern: re.Pattern[str], titles: Sequence[str]) -> np.ndarray:
    return np.array([bool(pattern.search(title)) for title in titles], dtype=np.float64)
