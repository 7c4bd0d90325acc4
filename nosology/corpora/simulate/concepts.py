"""Clinical concepts of the simulated hospital: conditions and procedures, their codes, and the words for them.

The files in data/conditions have one block per concept:

    @ key kind [F|M] [18-50] | cluster weight, ... | general weight young middle old
    CODE[/ICD9] weight [if key ...] [: wordings of this code; ...]     (:= if the general wordings do not fit it)
    ~ wordings of the whole concept; ...
    lay | rx | lab | ex | hc | im   signals that imply it without a mention: lay words, drugs, laboratory values,
                                    examination, hospital course, imaging (EXAM: finding)
    + key probability, ...          concepts that occur with it
    ! key, ...                      concepts that it excludes
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar
from zlib import crc32

import numpy as np

from nosology.codes import describe, map_code, table
from nosology.core import Code, DataError
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

KINDS = ("chronic", "acute", "symptom", "status", "family", "cause", "procedure")
SIGNALS = ("lay", "rx", "lab", "ex", "hc", "im")

_CODE = re.compile(r"([A-Z0-9.]+)(?:/([A-Z0-9.]+))?\s+([\d.]+)(?:\s+if\s+([a-z0-9_ ]+?))?\s*(?:(:=?)\s*(.*))?$")

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
    requires: tuple[str, ...] = ()
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
    ages: tuple[int, int] = (18, 120)
    clusters: dict[str, float] = field(default_factory=dict)
    general: tuple[float, ...] = (0.0, 0.0, 0.0)
    signals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[tuple[str, float], ...] = ()
    excludes: tuple[str, ...] = ()


@cache
def concepts() -> dict[str, Concept]:
    """key -> concept, all hand-written concepts."""
    by_key: dict[str, Concept] = {}
    folder = files("nosology.corpora.simulate").joinpath("data/conditions")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        for row, block in _blocks(file.read_text(encoding="utf-8")):
            try:
                concept = _parse_concept(block)
            except (ValueError, IndexError) as error:
                raise DataError(f"{file.name}, line {row}: cannot read the block: {error}") from error
            by_key[concept.key] = concept
    for concept in by_key.values():
        required = [key for coding in concept.codings for key in coding.requires]
        keys = [*required, *(key for key, _ in concept.links), *concept.excludes]
        if unknown := [key for key in keys if key not in by_key]:
            raise DataError(f"simulate/data/conditions: {concept.key} names unknown concepts {', '.join(unknown)}")
    return by_key


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    block: list[str] = []
    start = 0
    for row, line in enumerate(text.splitlines(), 1):
        if line.startswith("@"):
            if block:
                yield start, block
            block, start = [line], row
        elif line.strip() and not line.startswith("#"):
            block.append(line.strip())
    if block:
        yield start, block


def _parse_concept(block: list[str]) -> Concept:
    head, *weights = block[0][1:].split("|")
    key, kind, *limits = head.split()
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind}")
    sex, ages = "", (18, 120)
    for limit in limits:
        if limit in ("F", "M"):
            sex = limit
        else:
            low, high = limit.split("-")
            ages = (int(low), int(high))
    codings: list[Coding] = []
    lines: dict[str, list[str]] = {}
    for line in block[1:]:
        mark, _, rest = line.partition(" ")
        if mark in ("~", "+", "!", *SIGNALS):
            lines.setdefault(mark, []).extend(_parse_phrases(rest, mark))
        else:
            codings.append(_parse_coding(line))
    if not codings:
        raise ValueError(f"{key} has no code")
    return Concept(
        key=key,
        kind=kind,
        codings=tuple(codings),
        generic=Wording.of(lines.get("~", [])),
        sex=sex,
        ages=ages,
        clusters=dict(_parse_weights(_parse_phrases(weights[0] if weights else "", "+"))),
        general=tuple(float(weight) for weight in weights[1].split()) if len(weights) > 1 else (0.0, 0.0, 0.0),
        signals={mark: tuple(lines[mark]) for mark in SIGNALS if mark in lines},
        links=tuple(_parse_weights(lines.get("+", []))),
        excludes=tuple(lines.get("!", ())),
    )


def _parse_weights(phrases: list[str]) -> list[tuple[str, float]]:
    return [(phrase.split()[0], float(phrase.split()[1])) for phrase in phrases]


def _parse_phrases(text: str, mark: str) -> list[str]:
    parts = [part.strip() for part in text.split("," if mark in "+!" else ";")]
    return [phrase for part in parts if part for phrase in ([part] if mark in "+!" else expand_pattern(part))]


def _parse_coding(line: str) -> Coding:
    match = _CODE.match(line)
    if not match:
        raise ValueError(f"neither a code line nor a known mark: {line[:30]!r}")
    code, icd9, weight, requires, mark, names = match.groups()
    wording = Wording.of(_parse_phrases(names, "~")) if names else NO_WORDING
    return Coding(code, icd9, float(weight), tuple((requires or "").split()), wording, distinct=mark == ":=")


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
        self._concepts: dict[tuple[str, str], Concept] = {}
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
        if (system, code) not in self._concepts:
            entry = table(system, RELEASE[system])[code]
            if system == "icd10pcs":
                exact, vague = procedure_wordings(entry.description)
            else:
                exact, vague = diagnosis_wordings(entry.description, entry.inclusion_terms)
            sex = "F" if _is_in(code, FEMALE) else "M" if _is_in(code, MALE) else ""
            coding = Coding(code, code if system == "icd9proc" else None, wording=exact)
            concept = Concept(code, kind, (coding,), vague, sex=sex if kind != "procedure" else "")
            self._concepts[system, code] = concept
        return self._concepts[system, code]

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
        self._wordings: dict[str, Wording] = {}

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
        if coding.code not in self._wordings:
            if len(concept.codings) == 1 and concept.generic:
                wording = concept.generic
            elif concept.kind == "procedure":
                wording = procedure_wordings(describe(Code("icd10pcs", coding.code)))[0]
            else:
                wording = diagnosis_wordings(describe(Code("icd10cm", coding.code)))[0]
            self._wordings[coding.code] = wording or concept.generic
        return self._wordings[coding.code]


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
