"""What HMHAN reads of a report: token ids and metadata columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nosology.encoders.tokenizers import Encoding

MAX_VALUES = 50  # of a categorical column; rarer values are unknown
_MAX_Z_SCORE = 10.0  # larger values are probably typing errors and must not dominate
MAX_NUMBER = 1e12


@dataclass(frozen=True, slots=True)
class EncodedReport(Encoding):
    """A report as input of the net."""

    columns: np.ndarray  # (C,) float32


@dataclass(frozen=True)
class MetadataColumns:
    """Metadata of a note as a vector: numbers as z-scores, categorical values one-hot, each with an "unknown" flag."""

    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> mean, standard deviation
    choices: dict[str, list[str]] = field(default_factory=dict)  # name -> values

    @classmethod
    def fit(
        cls, extras: Iterable[Mapping[str, Any]], numbers: Sequence[str], choices: Sequence[str]
    ) -> MetadataColumns:
        """Columns with means, deviations and values of training notes; a column without any value is dropped."""
        extras = list(extras)
        scales, categories = {}, {}
        for name in numbers:
            values = [value for extra in extras if (value := column_number(extra.get(name))) is not None]
            if values:
                scales[name] = (float(np.mean(values)), float(np.std(values)) or 1.0)
        for name in choices:
            values = [str(value) for extra in extras if (value := extra.get(name)) not in (None, "")]
            if values:
                names, counts = np.unique(values, return_counts=True)
                categories[name] = sorted(names[np.argsort(-counts, kind="stable")[:MAX_VALUES]].tolist())
        return cls(scales, categories)

    def __len__(self) -> int:
        return 2 * len(self.numbers) + sum(1 + len(values) for values in self.choices.values())

    def vector(self, extra: Mapping[str, Any]) -> np.ndarray:
        """The vector (C,), float32, of a note's `extra`; missing and new values are unknown."""
        parts: list[float] = []
        for name, (mean, deviation) in self.numbers.items():
            number = column_number(extra.get(name))
            if number is None:
                parts += [0.0, 1.0]
            else:
                parts += [min(max((number - mean) / deviation, -_MAX_Z_SCORE), _MAX_Z_SCORE), 0.0]
        for name, values in self.choices.items():
            choice = str(extra.get(name))
            parts += [float(choice == value) for value in values]
            parts.append(float(choice not in values))
        return np.array(parts, dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MetadataColumns:
        return cls({name: (pair[0], pair[1]) for name, pair in value["numbers"].items()}, value["choices"])


def column_number(value: Any) -> float | None:
    """The number of a value of a column; None if it is no number, or too large to be one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < MAX_NUMBER else None
