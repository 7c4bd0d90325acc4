"""The pools of sentences in data/phrases, ready to draw from."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from nosology.corpora.simulate.spin import spin

Slot = tuple[str, str]  # the words before and after a mention

_OTHER_SEX = {
    "F": re.compile(r"\b([Hh]e|[Hh]is|man|M|wife|prostate)\b"),
    "M": re.compile(r"\b([Ss]he|[Hh]er|woman|F|husband|uterus)\b"),
}


@cache
def pools(name: str) -> dict[str, list[list[str]]]:
    """Heading -> patterns -> sentences of a phrase file."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in files(__package__).joinpath(f"data/phrases/{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            heading = line[1:-1]
            found[heading] = []
        elif line and not line.startswith("# "):
            found[heading].append(spin(line, 24, 120 if heading == "labs" else 12))
    return found


@cache
def flat(name: str) -> dict[str, list[str]]:
    """Heading -> sentences, all patterns together."""
    return {heading: [s for group in groups for s in group] for heading, groups in pools(name).items()}


@cache
def slots(name: str) -> dict[str, list[Slot]]:
    """Heading -> sentences that have a place for a mention, cut at that place."""
    return {
        heading: [(before, after) for s in sentences for before, gap, after in [s.partition("{}")] if gap]
        for heading, sentences in flat(name).items()
    }


def for_sex(phrases: dict[str, list], sex: str) -> dict[str, list]:
    """The phrases (sentences or slots) that do not speak of a patient of the other sex."""
    other = _OTHER_SEX[sex]

    def fits(phrase: str | Slot) -> bool:
        return not other.search(phrase if isinstance(phrase, str) else " ".join(phrase))

    return {heading: [phrase for phrase in some if fits(phrase)] for heading, some in phrases.items()}
