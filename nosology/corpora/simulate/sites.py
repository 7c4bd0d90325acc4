"""The hospitals: how each writes, codes, and whom it treats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Site:
    """A hospital.

    share: of all patients. short: how often it abbreviates. specific: how often words tell the exact code. typos: per
    mention. missed: how often a coder overlooks a condition. habit: how far its choice among codes of one condition
    departs from the others'. problem, bullet, sentence_list: the look of its lists. case_mix: factors by cluster.
    """

    name: str
    share: float
    short: float
    specific: float
    typos: float
    missed: float
    habit: float
    problem: str
    bullet: str
    sentence_list: bool
    case_mix: dict[str, float]
    headings: dict[str, str]


@cache
def sites() -> tuple[Site, ...]:
    """All sites, the largest first."""
    text = files(__package__).joinpath("data/sites.json").read_text(encoding="utf-8")
    return tuple(Site(**values) for values in json.loads(text))
