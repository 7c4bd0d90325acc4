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
        if settings.min_notes <= count <= (settings.max_notes or count)
        and (not settings.systems or code.system in settings.systems)
    ]
    if not kept:
        told = {name: value for name, value in settings.model_dump().items() if value}
        raise DataError(f"no code is left to learn: {', '.join(f'labels.{k} = {v}' for k, v in told.items())}")
    return LabelSpace(sorted(sorted(kept, key=lambda code: (-counts[code], code))[: settings.most]))


def of_systems(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note that are of the systems to learn: another system's code is no miss."""
    if not settings.systems:
        return codes
    return [tuple(code for code in note if code.system in settings.systems) for note in codes]


def of_labels(settings: LabelSettings, labels: LabelSpace, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note that a model is held to: of its systems, and where a recipe narrows, of its labels."""
    if not settings.narrow:
        return of_systems(settings, codes)
    known = set(labels.codes)
    return [tuple(code for code in note if code in known) for note in codes]
