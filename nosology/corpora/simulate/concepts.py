"""Clinical concepts of the simulated hospital: conditions and procedures, their codes, and the words for them.

The files in data/conditions have one table per concept:

    [cad]
    kind = "chronic"                       # see clinic.VISIBILITY; optional: sex = "F", ages = [18, 50]
    clusters = { cardiac = 22 }            # weight in each cluster of patients
    general = [0, 9, 20]                   # weight in the general population: young, middle, old
    codes = [{ code = "I25.10", weight = 80 }]   # with the fields of Coding and the names of this code only
    names = ["coronary artery disease", "CAD"]   # names of the whole concept; {a|b} and <1-9> are choices
    signals.drug = ["Aspirin 81 mg PO DAILY"]    # implies it without a mention; also lay, lab, exam, course, imaging
    links = { hld = 0.5 }                  # probabilities of concepts that occur with it
    excludes = ["no_cad"]                  # concepts that it excludes
"""

from __future__ import annotations

import tomllib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from zlib import crc32

import numpy as np

from nosology.codes import describe, map_code, table
from nosology.core import Code
from nosology.corpora.simulate.wording import (
    NO_WORDING,
    Wording,
    diagnosis_wordings,
    expand_pattern,
    procedure_wordings,
    read_tsv,
)

if TYPE_CHECKING:
    from nosology.corpora.simulate.clinic import HospitalSite

# Standard deviations of the log frequency of a code: between categories, and between the codes of a category.
# Frequencies are clipped at MAX_DEVIATIONS; codes below MIN_DEVIATIONS do not occur.
CATEGORY_SPREAD, CODE_SPREAD, MAX_DEVIATIONS = 1.2, 1.8, 1.8
MIN_DEVIATIONS = {"icd10cm": -0.1, "icd10pcs": 0.6, "icd9proc": -1.0}
# Relative frequency of the seventh characters of injuries in a hospital: A is the initial encounter.
SEVENTH = {"A": 1.0, "B": 0.15, "C": 0.05, "D": 0.03, "S": 0.03}
# Fixed, so that a new release of a code system does not change simulated patients.
RELEASE = {"icd10cm": "2019", "icd10pcs": "2024", "icd9proc": "2015"}

FEMALE = (("C51", "C58"), ("D25", "D28"), ("N70", "N98"), ("O00", "O9Z"), ("Z30", "Z39"))
MALE = (("C60", "C63"), ("N40", "N53"), ("D29", "D29"))


@dataclass(frozen=True, slots=True)
class Coding:
    """A code of a concept.

    requires: concepts that the patient must also have. distinct: the general wordings and signals of the concept do
    not fit this code.
    """

    code: str
    icd9: str | None = None
    weight: float = 1.0
    requires: Sequence[str] = ()
    wording: Wording = NO_WORDING
    distinct: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Concept:
    """A condition, status, cause or procedure; the `generic` wording does not distinguish its codings."""

    key: str
    kind: str
    codings: tuple[Coding, ...]
    generic: Wording = NO_WORDING
    sex: str = ""
    ages: Sequence[int] = (18, 120)
    clusters: dict[str, float] = field(default_factory=dict)
    general: Sequence[float] = (0.0, 0.0, 0.0)
    signals: dict[str, list[str]] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)
    excludes: Sequence[str] = ()


@cache
def concepts() -> dict[str, Concept]:
    """key -> concept, all hand-written concepts."""
    folder = files("nosology.corpora.simulate").joinpath("data/conditions")
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {key: _concept(key, values) for table in tables for key, values in table.items()}


def _concept(key: str, values: dict[str, Any]) -> Concept:
    codings = tuple(Coding(wording=_pop_wording(code), **code) for code in values.pop("codes"))
    signals = {kind: _expand(patterns) for kind, patterns in values.pop("signals", {}).items()}
    return Concept(key, codings=codings, generic=_pop_wording(values), signals=signals, **values)


def _pop_wording(values: dict[str, Any]) -> Wording:
    return Wording.of(_expand(values.pop("names", ())))


def _expand(patterns: Iterable[str]) -> list[str]:
    return [phrase for pattern in patterns for phrase in expand_pattern(pattern)]


T = TypeVar("T")


class WeightedSampler(Generic[T]):
    """Samples items in proportion to their weights."""

    __slots__ = ("cumulative", "items")

    def __init__(self, items: Sequence[T], weights: Sequence[float]):
        self.items, self.cumulative = items, list(accumulate(weights))

    def __bool__(self) -> bool:
        return bool(self.items)

    def sample(self, rng: Random) -> T:
        """One item."""
        return self.items[bisect_right(self.cumulative, rng.random() * self.cumulative[-1])]


class LongTail:
    """The codes without a hand-written concept: their frequencies per cluster, and concepts generated for them."""

    def __init__(self) -> None:
        self._concepts: dict[tuple[str, str, str], Concept] = {}  # of one code there are several kinds
        self._icd9: dict[str, tuple[Code, ...]] = {}
        self._ranges: dict[str, tuple[list[str], np.ndarray]] = {}

    @cached_property
    def diagnoses(self) -> dict[str, WeightedSampler[tuple[str, str]]]:
        """cluster -> sampler of (kind, ICD-10-CM code)."""
        items: dict[str, tuple[list, list]] = {}
        for cluster, kind, low, high, weight in read_tsv("tail.tsv"):
            codes, weights = self._weighted_range("icd10cm", low, high, float(weight))
            names, sums = items.setdefault(cluster, ([], []))
            names.extend((kind, code) for code in codes)
            sums.extend(weights)
        return {cluster: WeightedSampler(*pair) for cluster, pair in items.items()}

    @cached_property
    def procedures(self) -> dict[tuple[str, str], WeightedSampler[str]]:
        """(cluster, system) -> sampler of codes."""
        items: dict[tuple[str, str], tuple[list, list]] = {}
        for cluster, system, low, high, weight in read_tsv("procedures_tail.tsv"):
            codes, weights = self._weighted_range(system, low, high, float(weight))
            names, sums = items.setdefault((cluster, system), ([], []))
            names.extend(codes)
            sums.extend(weights)
        return {key: WeightedSampler(*pair) for key, pair in items.items()}

    def _weighted_range(self, system: str, low: str, high: str, total: float) -> tuple[list[str], list[float]]:
        """The codes of a range, and their weights, which sum to `total`."""
        if system not in self._ranges:
            used = {c.icd9 if system == "icd9proc" else c.code for item in concepts().values() for c in item.codings}
            codes = sorted(set(table(system, RELEASE[system]).codes(billable=True)) - used)
            self._ranges[system] = codes, _code_weights(system, codes)
        codes, weights = self._ranges[system]
        span = slice(bisect_left(codes, low), bisect_right(codes, high + "~"))
        return codes[span], (weights[span] * (total / weights[span].sum())).tolist()

    def concept(self, system: str, code: str, kind: str) -> Concept:
        """The concept of a code, generated from its description and cached."""
        if (system, code, kind) not in self._concepts:
            entry = table(system, RELEASE[system])[code]
            if system == "icd10pcs":
                exact, vague = procedure_wordings(entry.description)
            else:
                exact, vague = diagnosis_wordings(entry.description, entry.inclusion_terms)
            sex = "F" if _is_in(code, FEMALE) else "M" if _is_in(code, MALE) else ""
            coding = Coding(code, code if system == "icd9proc" else None, wording=exact)
            concept = Concept(code, kind, (coding,), vague, sex=sex if kind != "procedure" else "")
            self._concepts[system, code, kind] = concept
        return self._concepts[system, code, kind]

    def icd9(self, code: str) -> tuple[Code, ...]:
        """The ICD-9-CM codes of an ICD-10-CM code (General Equivalence Mappings); empty without a mapping."""
        if code not in self._icd9:
            lines = [line for line in map_code(Code("icd10cm", code), "icd9cm") if line.target]
            targets = {line.choice_list: line.target for line in lines if line.scenario == lines[0].scenario}
            self._icd9[code] = tuple(target for _, target in sorted(targets.items()) if target)
        return self._icd9[code]


def _is_in(code: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(low <= code[:3] <= high for low, high in ranges)


def _code_weights(system: str, codes: list[str]) -> np.ndarray:
    """(N,) relative frequencies, log-normal around the category of a code."""
    # The upper end is clipped because no code of the tail is common, the lower end because most codes never occur.
    normal = np.minimum(_hashed_normal(codes), MAX_DEVIATIONS)
    categories = [code[:3] for code in codes]
    names = sorted(set(categories))
    by_category = dict(zip(names, np.minimum(_hashed_normal(names), MAX_DEVIATIONS)))
    spread = CATEGORY_SPREAD * np.array([by_category[name] for name in categories]) + CODE_SPREAD * normal
    later = np.array([SEVENTH.get(code[7:], 0.02) if len(code) == 8 and code[0] in "STVWXYM" else 1 for code in codes])
    return np.exp(spread) * later * (normal >= MIN_DEVIATIONS[system])


def _hashed_normal(names: list[str]) -> np.ndarray:
    """(N,) standard normal values that depend only on the name."""
    raw = np.array([[crc32(name.encode()), crc32(name[::-1].encode() + b"/")] for name in names], dtype=np.float64)
    uniform = (raw + 0.5) / 2**32
    return np.sqrt(-2 * np.log(uniform[:, 0])) * np.cos(2 * np.pi * uniform[:, 1])


class MentionWriter:
    """Writes a concept the way a site does: exact or vague, abbreviated or not, sometimes misspelled."""

    def __init__(self) -> None:
        self._wordings: dict[tuple[str, str], Wording] = {}

    def write(self, rng: Random, site: HospitalSite, concept: Concept, coding: Coding) -> str:
        """A wording of the concept, which may fit several of its codes."""
        wording = concept.generic
        if not wording or coding.distinct or rng.random() < site.specific:
            wording = coding.wording or self._wording_of_code(concept, coding)
        use_short = wording.short and (not wording.long or rng.random() < site.short)
        names = wording.short if use_short else wording.long
        text = names[int(rng.random() * len(names))]
        return add_typo(rng, text) if rng.random() < site.typos else text

    def _wording_of_code(self, concept: Concept, coding: Coding) -> Wording:
        key = concept.key, coding.code
        if key not in self._wordings:
            if len(concept.codings) == 1 and concept.generic:
                wording = concept.generic
            elif concept.kind == "procedure":
                wording = procedure_wordings(describe(Code("icd10pcs", coding.code)))[0]
            else:
                wording = diagnosis_wordings(describe(Code("icd10cm", coding.code)))[0]
            self._wordings[key] = wording or concept.generic
        return self._wordings[key]


def add_typo(rng: Random, text: str) -> str:
    """The text with two letters of a word swapped, or one deleted or doubled; short words do not change."""
    words = text.split(" ")
    position = int(rng.random() * len(words))
    word = words[position]
    if len(word) < 6 or not word.isalpha():
        return text
    at = 1 + int(rng.random() * (len(word) - 3))
    kind = rng.random()
    if kind < 0.4:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif kind < 0.75:
        word = word[:at] + word[at + 1 :]
    else:
        word = word[:at] + word[at] + word[at:]
    words[position] = word
    return " ".join(words)
