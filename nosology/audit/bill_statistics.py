"""How often codes, their categories and words occur together in coded notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from nosology.codes import CodeEntry, table
from nosology.text.phrases import phrase_keys

_CODE_PRIOR, _CATEGORY_PRIOR = 0.5, 1.0  # notes added to observed and expected pairs: rare pairs say little
_WORD_PRIOR = 2.0  # notes of a group added with the average share of a word
_TOPIC_WORDS, _STORED_WORDS = 20, 80  # typical words of a group that count in a note, and that are stored
_MIN_NOTES = 2  # of a typical word


@dataclass(frozen=True)
class BillStatistics:
    """Numbers of notes: all, with a code, with a category (first three characters), with a pair, with a word.

    typical: of each group, the log ratios of the words that are more frequent in its notes than in all. Groups are
    categories, and the notes with a code whose description has a word ("~" and the key of the word).
    """

    notes: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    code_pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    category_pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    typical: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def count(cls, notes: Iterable[tuple[Collection[str], Collection[str]]]) -> BillStatistics:
        """The statistics of notes, each with its codes and the keys of its words."""
        codes, categories, code_pairs, category_pairs, words = (Counter() for _ in range(5))
        groups: dict[str, list[Collection[str]]] = {}
        number = 0
        for of_note, keys in notes:
            number += 1
            names = {code[:3] for code in of_note}
            codes.update(of_note)
            categories.update(names)
            code_pairs.update(_pairs(of_note))
            category_pairs.update(_pairs(names))
            words.update(keys)
            for group in names | {name_group(key) for code in of_note for name in code_names(code)[:1] for key in name}:
                groups.setdefault(group, []).append(keys)
        typical = {group: _typical(of_group, words, number) for group, of_group in groups.items()}
        return cls(number, codes, categories, code_pairs, category_pairs, words, typical)

    def rarity(self, word: str) -> float:
        """The inverse document frequency of the key of a word."""
        return math.log((self.notes + 1) / (self.words[word] + 0.5))

    def code_affinity(self, one: str, other: str) -> float:
        """The log ratio of observed to expected notes with both codes, smoothed."""
        expected = self.codes[one] * self.codes[other] / max(1, self.notes)
        return math.log((self.code_pairs[_ordered(one, other)] + _CODE_PRIOR) / (expected + _CODE_PRIOR))

    def category_affinity(self, one: str, other: str) -> float:
        """The log ratio of observed to expected notes with both categories, smoothed."""
        expected = self.categories[one] * self.categories[other] / max(1, self.notes)
        return math.log((self.category_pairs[_ordered(one, other)] + _CATEGORY_PRIOR) / (expected + _CATEGORY_PRIOR))

    def topic(self, words: Collection[str], group: str) -> float:
        """How typical the words of a note are for the notes of a group; 0 for an unknown group."""
        ratios = (ratio for word, ratio in self.typical.get(group, {}).items() if word in words)  # highest first
        return sum(islice(ratios, _TOPIC_WORDS)) / _TOPIC_WORDS

    def affinities(self, codes: Sequence[str]) -> np.ndarray:
        """The affinities (N, N) of the categories of codes; 0 for codes of one category."""
        names = [code[:3] for code in codes]
        rows = [[0.0 if one == other else self.category_affinity(one, other) for other in names] for one in names]
        return np.array(rows).reshape(len(names), len(names))

    def names(self) -> dict[str, list[str]]:
        """The names that the numbers of `arrays` mean, sorted."""
        return {"codes": sorted(self.codes), "categories": sorted(self.categories), "words": sorted(self.words)} | {
            "groups": sorted(self.typical)
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts as arrays, in the order of `names`; ratios in thousandths."""
        names = self.names()
        row = {kind: {name: number for number, name in enumerate(of_kind)} for kind, of_kind in names.items()}
        typical = [self.typical[group] for group in names["groups"]]
        stored: dict[str, list[Any]] = {
            "notes": [self.notes],
            **{kind: [getattr(self, kind)[name] for name in names[kind]] for kind in ("codes", "categories", "words")},
            "typical.size": [len(ratios) for ratios in typical],
            "typical.word": [row["words"][word] for ratios in typical for word in ratios],
            "typical.ratio": [round(1000 * ratio) for ratios in typical for ratio in ratios.values()],
        }
        for kind, pairs in (("codes", self.code_pairs), ("categories", self.category_pairs)):
            at = row[kind]
            stored[f"{kind}.pairs"] = [[at[one], at[other], n] for (one, other), n in sorted(pairs.items())]
        return {name: _smallest(values) for name, values in stored.items()}

    @classmethod
    def from_arrays(cls, names: Mapping[str, Sequence[str]], arrays: Mapping[str, np.ndarray]) -> BillStatistics:
        """The statistics of `names` and `arrays`."""
        counts = [Counter(dict(zip(names[kind], arrays[kind].tolist()))) for kind in ("codes", "categories", "words")]
        pairs = [
            Counter({(names[kind][one], names[kind][other]): n for one, other, n in arrays[f"{kind}.pairs"].tolist()})
            for kind in ("codes", "categories")
        ]
        words = (names["words"][number] for number in arrays["typical.word"].tolist())
        ratios = zip(words, (ratio / 1000 for ratio in arrays["typical.ratio"].tolist()))
        sizes = zip(names["groups"], arrays["typical.size"].tolist())
        typical = {group: dict(islice(ratios, size)) for group, size in sizes}
        return cls(int(arrays["notes"][0]), counts[0], counts[1], pairs[0], pairs[1], counts[2], typical)


def _smallest(values: Sequence[Any]) -> np.ndarray:
    """Whole numbers as an array of the smallest type that has them all."""
    array = np.array(values, dtype=np.int64)
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))


def name_group(key: str) -> str:
    """The group of notes with a code whose description has a word with this key."""
    return f"~{key}"


def nearest_line(code: str) -> CodeEntry | None:
    """The line of a code in the newest table; the nearest above for a code without one; None without its category."""
    lines = table("icd10cm")
    while code not in lines and len(code) > len("A00"):
        code = code[:-1].rstrip(".")
    return lines.get(code)


@lru_cache(maxsize=20_000)
def code_names(code: str) -> tuple[tuple[str, ...], ...]:
    """The keys of the description and the inclusion terms, of the nearest line of the table."""
    line = nearest_line(code)
    names = (line.description, *line.inclusion_terms) if line else ()
    return tuple(keys for name in names if (keys := phrase_keys(name)))


def _typical(notes: Sequence[Collection[str]], words: Counter[str], total: int) -> dict[str, float]:
    """The log ratios of the most typical words of a group of notes, highest first; words: of all notes."""
    counts = Counter(word for keys in notes for word in keys)
    ratios = []
    for word, with_word in counts.items():
        share = words[word] / total
        ratio = math.log((with_word + _WORD_PRIOR * share) / (len(notes) + _WORD_PRIOR) / share)
        if words[word] >= _MIN_NOTES and ratio > 0:
            ratios.append((-ratio, word))
    return {word: round(-negative, 3) for negative, word in sorted(ratios)[:_STORED_WORDS]}


def _pairs(names: Collection[str]) -> list[tuple[str, str]]:
    ordered = sorted(names)
    return [(one, other) for at, one in enumerate(ordered) for other in ordered[at + 1 :]]


def _ordered(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
