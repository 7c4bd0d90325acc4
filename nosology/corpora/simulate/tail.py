"""The long tail: which of all codes a kind of patient may have, how often, and what they look like in words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import accumulate
from random import Random
from zlib import crc32

import numpy as np

from nosology.codes import map_code, table
from nosology.core import Code
from nosology.corpora.simulate import wording
from nosology.corpora.simulate.concepts import Coding, Concept, concepts

# Spread of the logarithm of a code's frequency, between categories and between the codes of one; how many deviations
# from the mean are the commonest, and the rarest that are used at all.
CATEGORY_SPREAD, CODE_SPREAD, MOST = 1.2, 1.8, 1.8
LEAST = {"icd10cm": -0.1, "icd10pcs": 0.6, "icd9proc": -1.0}
# How rare, against the initial encounter, are later ones in a hospital.
SEVENTH = {"A": 1.0, "B": 0.15, "C": 0.05, "D": 0.03, "S": 0.03}
# Fixed, so that a new release of the classification does not change anybody's simulated patients.
RELEASE = {"icd10cm": "2019", "icd10pcs": "2024", "icd9proc": "2015"}

FEMALE = (("C51", "C58"), ("D25", "D28"), ("N70", "N98"), ("O00", "O9Z"), ("Z30", "Z39"))
MALE = (("C60", "C63"), ("N40", "N53"), ("D29", "D29"))


class Pool:
    """Things drawn in proportion to their weights."""

    __slots__ = ("items", "sums")

    def __init__(self, items: list, weights: list[float]):
        self.items, self.sums = items, list(accumulate(weights))

    def __bool__(self) -> bool:
        return bool(self.items)

    def draw(self, rng: Random):
        """One item."""
        return self.items[bisect_right(self.sums, rng.random() * self.sums[-1])]


class Tail:
    """Pools of codes by cluster, and concepts for codes that have none of their own."""

    def __init__(self) -> None:
        self._concepts: dict[tuple[str, str], Concept] = {}
        self._icd9: dict[str, tuple[Code, ...]] = {}

    @cached_property
    def diagnoses(self) -> dict[str, Pool]:
        """(kind, code) by cluster."""
        codes = self._own("icd10cm")
        weights = _weights("icd10cm", codes)
        pools: dict[str, tuple[list, list]] = {}
        for cluster, kind, low, high, weight in wording.rows("tail.tsv"):
            items, sums = pools.setdefault(cluster, ([], []))
            span = slice(bisect_left(codes, low), bisect_right(codes, high + "~"))
            share = weights[span] * (float(weight) / weights[span].sum())
            items.extend((kind, code) for code in codes[span])
            sums.extend(share.tolist())
        return {cluster: Pool(*pair) for cluster, pair in pools.items()}

    @cached_property
    def procedures(self) -> dict[tuple[str, str], Pool]:
        """Codes by cluster and system."""
        codes = {system: self._own(system) for system in ("icd10pcs", "icd9proc")}
        weights = {system: _weights(system, codes[system]) for system in codes}
        pools: dict[tuple[str, str], tuple[list, list]] = {}
        for cluster, system, low, high, weight in wording.rows("procedures_tail.tsv"):
            items, sums = pools.setdefault((cluster, system), ([], []))
            span = slice(bisect_left(codes[system], low), bisect_right(codes[system], high + "~"))
            share = weights[system][span] * (float(weight) / weights[system][span].sum())
            items.extend(codes[system][span])
            sums.extend(share.tolist())
        return {key: Pool(*pair) for key, pair in pools.items()}

    def _own(self, system: str) -> list[str]:
        taken = {c.icd9 if system == "icd9proc" else c.code for item in concepts().values() for c in item.codings}
        return sorted(set(table(system, RELEASE[system]).codes(billable=True)) - taken)

    def concept(self, system: str, code: str, kind: str) -> Concept:
        """The concept of a code of the tail, made when first asked for."""
        found = self._concepts.get((system, code))
        if found is None:
            entry = table(system, RELEASE[system])[code]
            if system == "icd10pcs":
                exact, vague = wording.procedure(entry.description)
            else:
                exact, vague = wording.diagnosis(entry.description, entry.inclusion_terms)
            sex = "F" if _within(code, FEMALE) else "M" if _within(code, MALE) else ""
            coding = Coding(code, code if system == "icd9proc" else None, wording=exact)
            found = Concept(code, kind, (coding,), vague, sex=sex if kind != "procedure" else "")
            self._concepts[system, code] = found
        return found

    def icd9(self, code: str) -> tuple[Code, ...]:
        """The ICD-9-CM codes that stand for an ICD-10-CM code; none if the mapping has none."""
        found = self._icd9.get(code)
        if found is None:
            lines = [line for line in map_code(Code("icd10cm", code), "icd9cm") if line.target]
            first = [line for line in lines if line.scenario == (lines[0].scenario if lines else 0)]
            by_choice = {line.choice_list: line.target for line in first}
            found = tuple(by_choice[choice] for choice in sorted(by_choice))
            self._icd9[code] = found
        return found


def _within(code: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(low <= code[:3] <= high for low, high in ranges)


def _weights(system: str, codes: list[str]) -> np.ndarray:
    """(codes,) how often each is drawn within any range, log-normal around its category."""
    # Without the upper end, since no code of the tail shall be among the common ones; without the lower end, since
    # most of what the book lists is never seen.
    normal = np.minimum(_normal(codes), MOST)
    categories = [code[:3] for code in codes]
    names = sorted(set(categories))
    by_category = dict(zip(names, np.minimum(_normal(names), MOST)))
    spread = CATEGORY_SPREAD * np.array([by_category[name] for name in categories]) + CODE_SPREAD * normal
    later = np.array([SEVENTH.get(code[7:], 0.02) if len(code) == 8 and code[0] in "STVWXYM" else 1 for code in codes])
    return np.exp(spread) * later * (normal >= LEAST[system])


def _normal(names: list[str]) -> np.ndarray:
    """(names,) standard normal numbers that hang on the name alone."""
    raw = np.array([[crc32(n.encode()), crc32(n[::-1].encode() + b"/")] for n in names], dtype=np.float64)
    uniform = (raw + 0.5) / 2**32
    return np.sqrt(-2 * np.log(uniform[:, 0])) * np.cos(2 * np.pi * uniform[:, 1])
