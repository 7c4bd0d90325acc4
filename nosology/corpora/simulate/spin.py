"""Sentence patterns: `{a|b}` stands for a or b, `<10-20>` for a number; a pattern becomes a list of plain sentences."""

from __future__ import annotations

import re
from random import Random

_CHOICE = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_NUMBER = re.compile(r"<(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)>")


def spin(pattern: str, limit: int = 12, numbers: int = 5) -> list[str]:
    """Up to `limit` distinct sentences of `pattern`, always the same ones; `{}` is left for the caller to fill.

    Choices may be nested. A pattern with numbers but no choice gives about `numbers` sentences.
    """
    if "{" not in pattern.replace("{}", ""):
        limit = numbers if _NUMBER.search(pattern) else 1
    rng = Random(pattern)
    sentences = {_one(pattern, rng): None for _ in range(2 * limit if limit > 1 else 1)}
    return list(sentences)[:limit]


def _one(pattern: str, rng: Random) -> str:
    text, changed = pattern, 1
    while changed:
        text, changed = _CHOICE.subn(lambda match: _pick(match.group(1).split("|"), rng), text)
    return _NUMBER.sub(lambda match: _number(match, rng), text)


def _pick(choices: list[str], rng: Random) -> str:
    return choices[int(rng.random() * len(choices))]


def _number(match: re.Match[str], rng: Random) -> str:
    low, high = match.groups()
    digits = len(low.partition(".")[2])
    number = f"{float(low) + rng.random() * (float(high) - float(low)):.{digits}f}"
    return number.zfill(len(low)) if low[0] == "0" and not digits else number
