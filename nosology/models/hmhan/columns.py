"""Columns of a table beside a note's text, as one vector: age, gender, whatever a corpus has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

_MOST = 50  # values of a choice; the rarer ones are unknown
_FAR = 10.0  # deviations from the mean; what lies farther off is a slip of the pen, and must not drown all else
_HUGE = 1e12  # no number beside a note is as large


@dataclass(frozen=True)
class Columns:
    """Numbers as z-scores with a mark for "unknown", choices as one-hot with a place for "unknown"."""

    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> mean, deviation
    choices: dict[str, list[str]] = field(default_factory=dict)  # name -> values

    @classmethod
    def fit(cls, extras: Iterable[Mapping[str, Any]], numbers: Sequence[str], choices: Sequence[str]) -> Columns:
        """Mean, deviation and values from train notes; a column that no note has is left out."""
        extras = list(extras)
        scales = {}
        for name in numbers:
            values = [value for extra in extras if (value := _number(extra.get(name))) is not None]
            if values:
                scales[name] = (float(np.mean(values)), float(np.std(values)) or 1.0)
        kept = {}
        for name in choices:
            values = [str(value) for extra in extras if (value := extra.get(name)) not in (None, "")]
            if values:
                names, counts = np.unique(values, return_counts=True)
                kept[name] = sorted(names[np.argsort(-counts, kind="stable")[:_MOST]].tolist())
        return cls(scales, kept)

    def __len__(self) -> int:
        return 2 * len(self.numbers) + sum(1 + len(values) for values in self.choices.values())

    def vector(self, extra: Mapping[str, Any]) -> np.ndarray:
        """The columns of a note (len,), float32; what is not given or not a value seen before is unknown."""
        parts: list[float] = []
        for name, (mean, deviation) in self.numbers.items():
            value = _number(extra.get(name))
            parts += [0.0, 1.0] if value is None else [min(max((value - mean) / deviation, -_FAR), _FAR), 0.0]
        for name, values in self.choices.items():
            given = str(extra.get(name))
            parts += [float(given == value) for value in values]
            parts.append(float(given not in values))
        return np.array(parts, dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        """All that it is made of."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Columns:
        """What `to_json` gave."""
        return cls({name: (pair[0], pair[1]) for name, pair in value["numbers"].items()}, value["choices"])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _HUGE else None
