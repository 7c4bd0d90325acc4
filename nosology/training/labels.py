"""Which codes a model learns."""

from __future__ import annotations

from collections import Counter

from nosology.codes.label_space import LabelSpace
from nosology.core import Code, DataError
from nosology.models.settings import LabelSettings


def label_space(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> LabelSpace:
    """The codes that a model learns from these notes, sorted."""
    counts = Counter(code for note in codes for code in set(note))
    kept = [
        code
        for code, count in counts.items()
        if count >= settings.min_notes and (not settings.systems or code.system in settings.systems)
    ]
    if not kept:
        raise DataError(
            f"no code is left to learn: labels.systems = {settings.systems}, labels.min_notes = {settings.min_notes}"
        )
    return LabelSpace(sorted(kept))


def of_systems(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note that are of the systems to learn: another system's code is no miss."""
    if not settings.systems:
        return codes
    return [tuple(code for code in note if code.system in settings.systems) for note in codes]
