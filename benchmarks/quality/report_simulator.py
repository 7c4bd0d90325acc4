"""Simulated short radiology reports: history and impression in about twenty words, with ICD-9-CM codes.

The coding rules: certain findings are coded; denied, uncertain and resolved ones are not; a symptom is coded only if no
certain diagnosis explains it. A simulated coder follows each rule most of the time. Wording and codes have a long tail.
The reports replace a data set that cannot be distributed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from nosology.core import Code, Note

_TAIL = 1.1  # a condition's name of rank r is drawn with weight r^-tail
_STRICT = 0.9  # how often a coder follows a rule
_SLIP = 0.03  # how often a code is forgotten
_TYPO = 0.012  # of words


@dataclass(frozen=True)
class Condition:
    """A symptom, a status or a finding that a report may name."""

    code: str
    role: str  # symptom or status, in the history; finding, in the image
    area: str  # chest or renal
    weight: float
    names: tuple[str, ...]
    explains: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _conditions_and_phrases() -> tuple[list[Condition], dict[str, list[str]]]:
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    conditions = [
        Condition(**row | {key: tuple(row.get(key, ())) for key in ("names", "explains")}) for row in read["condition"]
    ]
    return conditions, read["phrases"]


def short_reports(n: int, seed: int = 0) -> Iterator[Note]:
    """n reports. Report i depends on seed and i only, so a larger n does not change the first reports."""
    for i in range(n):
        text, codes = _Writer(Random(f"{seed}/{i}/short")).report()
        yield Note(f"r{i:05d}", text, lang="en", codes=tuple(Code("icd9cm", code) for code in sorted(codes)))


class _Writer:
    """One report."""

    def __init__(self, rng: Random):
        self.rng = rng
        self.conditions, self.phrases = _conditions_and_phrases()

    def report(self) -> tuple[str, set[str]]:
        """Text and codes."""
        rng = self.rng
        area = "chest" if rng.random() < 0.58 else "renal"
        reasons = self._draw(area, ("symptom", "status"), rng.choices((1, 2, 3), (72, 24, 4))[0])
        names = rng.choice(self.phrases["link"]).join(self._name(condition) for condition in reasons)
        history = self._fill("history", reasons=names, days=str(rng.randint(2, 9)))
        if rng.random() < 0.25:
            [doubt] = self._draw(area, ("finding",), 1)
            history += " " + self._fill("question", doubt=self._name(doubt))
        sentences, certain, uncertain = self._impression(area)
        text = f"History: {self._typos(history)}\nImpression: {self._typos(' '.join(sentences))}"
        return text, self._codes(reasons, certain, uncertain)

    def _impression(self, area: str) -> tuple[list[str], list[Condition], list[Condition]]:
        rng = self.rng
        seen = self._draw(area, ("finding",), rng.choices((0, 1, 2), (55, 40, 5))[0])
        sentences, certain, uncertain = [], [], []
        for finding in seen:
            kind = rng.choices(("certain", "unsure", "resolved"), (76, 16, 8))[0]
            [other] = self._draw(area, ("finding",), 1)
            sentences.append(self._fill(kind, finding=self._name(finding), other=self._name(other)).capitalize())
            (certain if kind == "certain" else uncertain if kind == "unsure" else []).append(finding)
        if not seen or (not certain and rng.random() < 0.6):
            sentences.append(rng.choice(self.phrases[f"normal_{area}"]))
        if rng.random() < 0.4:
            first, second = self._draw(area, ("finding",), 2)
            if first not in seen and second not in seen:
                sentences.append(self._fill("absent", finding=self._name(first), other=self._name(second)).capitalize())
        sentences += rng.sample(self.phrases[f"incidental_{area}"], rng.choices((0, 1, 2), (45, 40, 15))[0])
        return sentences, certain, uncertain

    def _codes(self, history: list[Condition], certain: list[Condition], uncertain: list[Condition]) -> set[str]:
        rng = self.rng

        def strict() -> bool:
            return rng.random() < _STRICT

        codes = {c.code for c in certain if rng.random() > _SLIP}
        codes |= {c.code for c in history if c.role == "status" and rng.random() > _SLIP}
        codes |= {c.code for c in uncertain if not strict()}
        firm = [*certain, *(c for c in history if c.role == "status")]
        explained = {code for c in firm for code in c.explains}
        # Sorted, because the order of a set of strings differs between processes, and strict() draws.
        codes -= {code for code in sorted(explained) if strict()}
        codes |= {c.code for c in history if c.role == "symptom" and (c.code not in explained) == strict()}
        return codes or {history[0].code}

    def _draw(self, area: str, roles: Sequence[str], n: int) -> list[Condition]:
        pool = [c for c in self.conditions if c.area == area and c.role in roles]
        conditions: list[Condition] = []
        while len(conditions) < n:
            [drawn] = self.rng.choices(pool, [c.weight for c in pool])
            if drawn not in conditions:
                conditions.append(drawn)
        return conditions

    def _name(self, condition: Condition) -> str:
        weights = [(rank + 1) ** -_TAIL for rank in range(len(condition.names))]
        return self.rng.choices(condition.names, weights)[0]

    def _fill(self, kind: str, **values: str) -> str:
        pattern = self.rng.choice(self.phrases[kind])
        drawn = {slot: self.rng.choice(self.phrases[slot]) for slot in ("age", "side", "course")}
        return pattern.format(**(drawn | values))

    def _typos(self, text: str) -> str:
        words = text.split(" ")
        for i, word in enumerate(words):
            if len(word) > 5 and self.rng.random() < _TYPO:
                at = self.rng.randrange(1, len(word) - 2)
                words[i] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        return " ".join(words)
