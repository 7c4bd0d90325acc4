"""Short radiology reports, history and impression in about twenty words, coded as people code them.

A coder takes what is certain, leaves out what is denied, doubted or over, and gives a symptom its code only where no
certain diagnosis explains it. The coders of this hospital keep to these rules most of the time; the wording has a long
tail, and so have the codes. It stands in for reports that cannot be shipped, and knows nothing of any model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from random import Random

from nosology.core import Code, Note

_TAIL = 1.1  # a condition's name of rank r is drawn with weight r^-tail
_STRICT = 0.9  # how often a coder keeps to a rule
_SLIP = 0.03  # a code is forgotten, or a symptom's added, so often
_TYPO = 0.012  # of words


@dataclass(frozen=True)
class Condition:
    """Something that a report may speak of."""

    code: str
    role: str  # symptom or status, told in the history; finding, seen in the image
    area: str  # chest or renal
    weight: float
    names: tuple[str, ...]
    explains: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _world() -> tuple[list[Condition], dict[str, list[str]]]:
    source = files("nosology.reproduce") / "data" / "short_reports.toml"
    read = tomllib.loads(source.read_text(encoding="utf-8"))
    conditions = [
        Condition(**row | {key: tuple(row.get(key, ())) for key in ("names", "explains")}) for row in read["condition"]
    ]
    return conditions, read["phrases"]


def short_reports(n: int, seed: int = 0) -> Iterator[Note]:
    """n reports; the i-th hangs on seed and i alone, so that more reports keep the ones before."""
    for i in range(n):
        text, codes = _Writer(Random(f"{seed}/{i}/short")).report()
        yield Note(f"r{i:05d}", text, lang="en", codes=tuple(Code("icd9cm", code) for code in sorted(codes)))


class _Writer:
    """One report."""

    def __init__(self, rng: Random):
        self.rng = rng
        self.conditions, self.phrases = _world()

    def report(self) -> tuple[str, set[str]]:
        """Text and codes."""
        rng = self.rng
        area = "chest" if rng.random() < 0.58 else "renal"
        told = self._some(area, ("symptom", "status"), rng.choices((1, 2, 3), (72, 24, 4))[0])
        reasons = rng.choice(self.phrases["link"]).join(self._name(condition) for condition in told)
        history = self._fill("history", reasons=reasons, days=str(rng.randint(2, 9)))
        if rng.random() < 0.25:
            [doubt] = self._some(area, ("finding",), 1)
            history += " " + self._fill("asked", doubt=self._name(doubt))
        sentences, certain, doubted = self._impression(area)
        text = f"History: {self._typos(history)}\nImpression: {self._typos(' '.join(sentences))}"
        return text, self._codes(told, certain, doubted)

    def _impression(self, area: str) -> tuple[list[str], list[Condition], list[Condition]]:
        rng = self.rng
        seen = self._some(area, ("finding",), rng.choices((0, 1, 2), (55, 40, 5))[0])
        sentences, certain, doubted = [], [], []
        for finding in seen:
            kind = rng.choices(("certain", "unsure", "resolved"), (76, 16, 8))[0]
            [other] = self._some(area, ("finding",), 1)
            sentences.append(self._fill(kind, finding=self._name(finding), other=self._name(other)).capitalize())
            (certain if kind == "certain" else doubted if kind == "unsure" else []).append(finding)
        if not seen or (not certain and rng.random() < 0.6):
            sentences.append(rng.choice(self.phrases[f"normal_{area}"]))
        if rng.random() < 0.4:
            first, second = self._some(area, ("finding",), 2)
            if first not in seen and second not in seen:
                sentences.append(self._fill("absent", finding=self._name(first), other=self._name(second)).capitalize())
        sentences += rng.sample(self.phrases[f"aside_{area}"], rng.choices((0, 1, 2), (45, 40, 15))[0])
        return sentences, certain, doubted

    def _codes(self, told: list[Condition], certain: list[Condition], doubted: list[Condition]) -> set[str]:
        rng = self.rng

        def strict() -> bool:
            return rng.random() < _STRICT

        found = {c.code for c in certain if rng.random() > _SLIP}
        found |= {c.code for c in told if c.role == "status" and rng.random() > _SLIP}
        found |= {c.code for c in doubted if not strict()}
        firm = [*certain, *(c for c in told if c.role == "status")]
        explained = {code for c in firm for code in c.explains}
        found -= {code for code in explained if strict()}
        found |= {c.code for c in told if c.role == "symptom" and (c.code not in explained) == strict()}
        return found or {told[0].code}

    def _some(self, area: str, roles: Sequence[str], n: int) -> list[Condition]:
        pool = [c for c in self.conditions if c.area == area and c.role in roles]
        found: list[Condition] = []
        while len(found) < n:
            [drawn] = self.rng.choices(pool, [c.weight for c in pool])
            if drawn not in found:
                found.append(drawn)
        return found

    def _name(self, condition: Condition) -> str:
        weights = [(rank + 1) ** -_TAIL for rank in range(len(condition.names))]
        return self.rng.choices(condition.names, weights)[0]

    def _fill(self, kind: str, **given: str) -> str:
        pattern = self.rng.choice(self.phrases[kind])
        drawn = {slot: self.rng.choice(self.phrases[slot]) for slot in ("age", "side", "course")}
        return pattern.format(**(drawn | given))

    def _typos(self, text: str) -> str:
        words = text.split(" ")
        for i, word in enumerate(words):
            if len(word) > 5 and self.rng.random() < _TYPO:
                at = self.rng.randrange(1, len(word) - 2)
                words[i] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        return " ".join(words)
