"""A coder: a note goes in, codes with evidence come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from nosology.codes import describe
from nosology.core import Code, Suggestion
from nosology.models.bundle import Bundle
from nosology.serving.release import release_translator

TOP = 50  # suggestions a note at least, where nobody asks for another number
_BATCH = 64


class Coder:
    """A bundle that codes notes, within one code-set release if asked."""

    def __init__(self, bundle: Bundle, release: str | None = None):
        self.model, self.decision = bundle.model, bundle.decision
        self.release = release
        self._translate = release_translator(release) if release else None

    @classmethod
    def load(cls, folder: str | Path, *, release: str | None = None, threshold: float | None = None) -> Coder:
        """The coder in a bundle folder; `threshold` replaces the one found in training, for every code."""
        return cls(Bundle.load(folder).with_threshold(threshold), release)

    def code(self, text: str, top: int | None = None) -> list[Suggestion]:
        """Suggestions for one note, the most probable first: `top` of them, or the first 50 and all accepted ones."""
        return next(self.code_all([text], top))

    def code_all(self, texts: Iterable[str], top: int | None = None) -> Iterator[list[Suggestion]]:
        """Suggestions for each note, in order; notes are read as they are needed."""
        texts = iter(texts)
        while batch := list(islice(texts, _BATCH)):
            probabilities = self.model.probabilities(batch)
            for text, row in zip(batch, probabilities):
                yield self._suggest(text, row, top)

    def _ranked(self, probabilities: np.ndarray, top: int | None) -> dict[Code, tuple[float, int]]:
        """The codes to suggest, each with its probability and the column it comes from; probabilities: (L,)."""
        accepted = (probabilities > 0) & (probabilities >= self.decision.thresholds(self.model.labels))
        more = 0 if top is not None else int(accepted.sum())  # accepted codes still to come
        ranked: dict[Code, tuple[float, int]] = {}
        for column in np.argsort(-probabilities, kind="stable"):
            full = len(ranked) >= (TOP if top is None else top)
            if not probabilities[column] or (full and not more):
                break
            more -= bool(accepted[column]) and top is None
            if full and not accepted[column]:
                continue
            code: Code | None = self.model.labels.codes[column]
            if self._translate is not None:
                code = self._translate(code)
            if code is not None:
                ranked.setdefault(code, (float(probabilities[column]), int(column)))
        return ranked

    def _suggest(self, text: str, probabilities: np.ndarray, top: int | None) -> list[Suggestion]:
        ranked = self._ranked(probabilities, top)
        evidence = self.model.evidence(text, [column for _, column in ranked.values()]) if ranked else []
        return [
            Suggestion(
                system=code.system,
                code=code.code,
                description=describe(code, self.release),
                probability=probability,
                accepted=self.decision.accepts(self.model.labels.codes[column], probability),
                evidence=tuple(spans),
            )
            for (code, (probability, column)), spans in zip(ranked.items(), evidence)
        ]
