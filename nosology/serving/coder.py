"""A coder: a note goes in, codes with evidence come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from nosology.codes import describe, in_release, releases
from nosology.codes.code_list import read_code_list
from nosology.core import SYSTEMS, Code, CodeError, ConfigError, Note, Suggestion
from nosology.core.model import Model, OpenVocabulary
from nosology.models.bundle import Bundle, suggested_systems

TOP = 50  # suggestions a note at least, where nobody asks for another number
_BATCH = 64


class Coder:
    """A bundle that codes notes: within one code-set release, one list of codes, or some code systems if asked.

    codes: the codes to choose among, each with the description by which it is read, in the place of those that the
    coder was trained on; only a coder that reads descriptions can be given any.
    systems: suggestions are of these code systems alone. Where neither systems nor codes are named, a neural coder that
    knows both ICD-9 and ICD-10 suggests ICD-10 codes alone: otherwise a code of either version would stand in the list
    for the same thing. The linear coder suggests whatever it was trained on.
    """

    def __init__(
        self,
        bundle: Bundle,
        release: str | None = None,
        *,
        codes: Sequence[tuple[Code, str]] | None = None,
        systems: Collection[str] = (),
    ):
        model = bundle.model if codes is None else _with_codes(bundle.model, codes)
        wanted = suggested_systems(model, systems, given=codes is not None)
        self.model, self._kept = _narrowed(model, wanted)
        self.decision = bundle.decision
        self.release = release
        descriptions = self.model.descriptions if isinstance(self.model, OpenVocabulary) else ()
        self._descriptions = dict(zip(self.model.labels.codes, descriptions))
        self._translate = release_translator(release) if release else None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        release: str | None = None,
        threshold: float | None = None,
        codes: Sequence[tuple[Code, str]] | str | Path | None = None,
        systems: Collection[str] = (),
    ) -> Coder:
        """The coder in a bundle folder; `threshold` replaces the one found in training, for every code.

        codes: pairs of code and description, or a file of them (see `read_code_list`).
        """
        if isinstance(codes, str | Path):
            codes = read_code_list(codes)
        return cls(Bundle.load(folder).with_threshold(threshold), release, codes=codes, systems=systems)

    def code(self, text: str, top: int | None = None) -> list[Suggestion]:
        """Suggestions for one note, the most probable first: `top` of them, or the first 50 and all accepted ones."""
        return next(self.code_all([text], top))

    def code_all(self, notes: Iterable[str | Note], top: int | None = None) -> Iterator[list[Suggestion]]:
        """Suggestions for each note, in order; notes are read as they are needed.

        notes: texts, or notes with what stands beside their texts, which a coder that reads columns then takes in.
        """
        notes = (Note("", note) if isinstance(note, str) else note for note in notes)
        while batch := list(islice(notes, _BATCH)):
            probabilities = self.model.probabilities(batch)
            if self._kept is not None:
                probabilities = probabilities * self._kept
            for note, row in zip(batch, probabilities):
                yield self._suggest(note, row, top)

    def _ranked(self, probabilities: np.ndarray, top: int | None) -> dict[Code, tuple[float, int]]:
        """The codes to suggest, each with its probability and the column it comes from; probabilities: (L,)."""
        accepted = self.decision.accepted(self.model.labels, probabilities)
        more = 0 if top is not None else int(accepted.sum())  # accepted codes still to come
        ranked: dict[Code, tuple[float, int]] = {}
        for column in np.argsort(-probabilities, kind="stable"):
            full = len(ranked) >= (TOP if top is None else top)
            if not probabilities[column] or (full and not more):
                break
            more -= bool(accepted[column]) and top is None
            if full and not accepted[column]:
                continue
            code = self.model.labels.codes[column]
            translated = code if self._translate is None else self._translate(code)
            if translated is not None:
                ranked.setdefault(translated, (float(probabilities[column]), int(column)))
        return ranked

    def _describe(self, code: Code) -> str:
        """The description of a code in the release asked for, else the one that the model reads it by."""
        own = self._descriptions.get(code, "")
        return describe(code, self.release) or own if self.release else own or describe(code)

    def _suggest(self, note: Note, probabilities: np.ndarray, top: int | None) -> list[Suggestion]:
        ranked = self._ranked(probabilities, top)
        accepted = self.decision.accepted(self.model.labels, probabilities)
        evidence = self.model.evidence(note, [column for _, column in ranked.values()]) if ranked else []
        return [
            Suggestion(
                system=code.system,
                code=code.code,
                description=self._describe(code),
                probability=probability,
                accepted=bool(accepted[column]),
                evidence=tuple(spans),
            )
            for (code, (probability, column)), spans in zip(ranked.items(), evidence)
        ]


def _with_codes(model: Model, codes: Sequence[tuple[Code, str]]) -> Model:
    """The model with these codes in the place of its own."""
    if not isinstance(model, OpenVocabulary):
        raise ConfigError(
            f"codes cannot be given to a coder of kind {model.kind}: it knows only the codes it was trained on"
        )
    if not codes:
        raise ConfigError("codes must name one code at least")
    return model.with_codes(list(codes))


def _narrowed(model: Model, systems: set[str]) -> tuple[Model, np.ndarray | None]:
    """The model for the codes of these systems, and 1 for each label (L,) to keep, 0 for the others; None: all."""
    kept = np.array([code.system in systems for code in model.labels.codes], dtype=np.float32)
    if kept.all():
        return model, None
    if isinstance(model, OpenVocabulary):  # then the others need not even be scored
        pairs = zip(model.labels.codes, model.descriptions)
        return model.with_codes([pair for pair, keep in zip(pairs, kept) if keep]), None
    return model, kept


def release_translator(release: str) -> Callable[[Code], Code | None]:
    """A function that gives a code's counterpart in a release, None where it has none.

    Of several counterparts (M54.5 was divided into three) the unspecified one is taken: the coder has said no more.
    Codes of systems without such a release stay as they are.
    """
    having = [system for system in SYSTEMS if release in releases(system)]
    if not having:
        allowed = sorted({name for system in SYSTEMS for name in releases(system)})
        raise CodeError(f"release must be one of {', '.join(allowed)}; got {release!r}")

    def translate(code: Code) -> Code | None:
        if code.system not in having:
            return code
        heirs = in_release(code, release)
        vague = (heir for heir in heirs if "unspecified" in describe(heir, release).lower())
        return next(vague, heirs[0] if heirs else None)

    return translate
