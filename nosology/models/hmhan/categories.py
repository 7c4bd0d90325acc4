"""The categories that the codes of a label space stand in: chapters or blocks of their own code system."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nosology.codes import table
from nosology.core.label_space import LabelSpace


@dataclass(frozen=True)
class Categories:
    """K categories; code j stands in `names[of[j]]`."""

    names: list[str]  # system and line: "icd9cm 460-519"
    descriptions: list[str]
    of: np.ndarray  # (L,)

    @staticmethod
    def at(labels: LabelSpace, level: str) -> Categories:
        """The chapters or blocks of the codes; a code that no table has is in a category of its system's unknown."""
        found = [_category(*code, level) for code in labels.codes]
        names = sorted(set(found))
        number = {name: i for i, name in enumerate(names)}
        texts = [_description(*name) for name in names]
        return Categories([" ".join(name) for name in names], texts, np.array([number[name] for name in found]))


def _category(system: str, code: str, level: str) -> tuple[str, str]:
    known = table(system)
    if code not in known:
        return system, "unknown"
    return system, (known.block(code) if level == "block" else None) or known.chapter(code)


def _description(system: str, line: str) -> str:
    known = table(system)
    return known.description(line) if line in known else line
