"""Bills with planted errors of a known kind, to fit and to measure audits."""

from __future__ import annotations

import random
from typing import NamedTuple

from nosology.codes import table

SHARE = 0.25  # of the codes of a bill that have an error, at least one code


class PlantedBill(NamedTuple):
    """Billed codes in order, and the codes about which a finding is right."""

    codes: list[str]
    planted: set[str]


def plant_errors(kind: str, gold: list[str], others: list[str], chance: random.Random) -> PlantedBill:
    """A bill with errors of one kind: untouched, dropped, foreign, sibling or moved; others: codes of another note."""
    count = max(1, round(SHARE * len(gold)))
    if kind == "untouched":
        return PlantedBill(gold, set())
    if kind == "dropped":
        gone = set(chance.sample(gold, min(count, len(gold) - 1)))
        return PlantedBill([code for code in gold if code not in gone], gone)
    if kind == "foreign":
        categories = {code[:3] for code in gold}
        allowed = sorted({code for code in others if code[:3] not in categories})
        added = chance.sample(allowed, min(count, len(allowed)))
        return PlantedBill([*gold, *added], set(added))
    if kind == "moved":
        if len(gold) < 2:
            return PlantedBill(gold, set())
        first = chance.choice(gold[1:])
        return PlantedBill([first, *(code for code in gold if code != first)], {first})
    replaced = {code: _sibling(code, gold, chance) for code in chance.sample(gold, count)}
    replaced = {code: other for code, other in replaced.items() if other}
    return PlantedBill(list(dict.fromkeys(replaced.get(code, code) for code in gold)), set(replaced.values()))


def _sibling(code: str, gold: list[str], chance: random.Random) -> str:
    lines = table("icd10cm")
    below = lines.descendants(code[:3]) if code[:3] in lines else []
    choices = [line for line in below if lines.billable(line) and line not in gold and line != code]
    return chance.choice(choices) if choices else ""
