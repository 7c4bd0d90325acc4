"""The lexical branch of a neural coder: words with what the note says of them, as sparse vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nosology.text.report_text import context_features, positioned_features
from nosology.text.tokens import tokenize


@dataclass(frozen=True)
class Words:
    """The features that are known; feature i has the number i + 1, since 0 is the pad."""

    names: list[str]
    scale: np.ndarray  # (F,) inverse document frequency
    pairs: bool = True

    @classmethod
    def fit(cls, texts: Iterable[str], min_notes: int, most: int, pairs: bool = True) -> Words:
        """The features of at least `min_notes` of the train notes; of more than `most` the most frequent."""
        counts: Counter[str] = Counter()
        notes = 0
        for text in texts:
            counts.update(set(context_features(text, pairs=pairs)))
            notes += 1
        kept = sorted(name for name, count in counts.items() if count >= min_notes)
        if len(kept) > most:
            kept = sorted(sorted(kept, key=lambda name: (-counts[name], name))[:most])
        frequency = np.array([counts[name] for name in kept], dtype=np.float64)
        return cls(kept, (np.log((1 + notes) / (1 + frequency)) + 1).astype(np.float32), pairs)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, 1)}

    def vector(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The numbers (K,) of a note's features, ascending, and their values (K,), of length 1 together."""
        known = {self._number.get(name, 0) for name in context_features(text, pairs=self.pairs)}
        numbers = np.array(sorted(known - {0}), dtype=np.int64)
        values = self.scale[numbers - 1]
        return numbers, values / max(float(np.linalg.norm(values)), 1e-6)

    def contributions(self, text: str, weights: np.ndarray) -> np.ndarray:
        """What each word of a note adds (T, C) under weights (F, C); a feature's part is shared among its places."""
        places: dict[int, list[int]] = {}
        for name, place in positioned_features(text, pairs=self.pairs):
            if name in self._number:
                places.setdefault(self._number[name], []).append(place)
        found = np.zeros((len(tokenize(text)), weights.shape[1]))
        for number, value in zip(*self.vector(text)):
            for place in places[number]:
                found[place] += value * weights[number - 1] / len(places[number])
        return found

    def to_json(self) -> dict[str, Any]:
        """All that it is made of."""
        return {"names": self.names, "scale": self.scale.tolist(), "pairs": self.pairs}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Words:
        """What `to_json` gave."""
        return cls(value["names"], np.array(value["scale"], dtype=np.float32), value["pairs"])
