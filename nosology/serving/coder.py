"""A coder: a note goes in, codes with evidence come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nosology.codes import describe, in_release, releases
from nosology.codes.code_list import read_code_list
from nosology.core import SYSTEMS, BundleError, Code, CodeError, ConfigError, EvidenceSpan, Note, Suggestion
from nosology.core.model import BatchScoring, Model, OpenVocabulary
from nosology.core.parallel import batched
from nosology.models.bundle import Bundle, suggested_systems
from nosology.serving.day_one_systems import for_systems

TOP = 50  # default number of suggestions per note; all accepted codes are added
_BATCH = 64


class Coder:
    """A bundle that codes notes.

    release: translate suggestions to the codes of this release.
    codes: the codes to choose among with their descriptions, instead of those of training; only for coders that read
    descriptions.
    systems: suggest only codes of these systems; day one knows every system that has a table. Without systems and
    codes, a neural coder that knows ICD-9 and ICD-10 suggests only ICD-10 codes, or the list would name one diagnosis
    twice. The linear coder suggests all its codes.
    """

    def __init__(
        self,
        bundle: Bundle,
        release: str | None = None,
        *,
        codes: Sequence[tuple[Code, str]] | None = None,
        systems: Collection[str] = (),
    ):
        if missing := bundle.missing_layers:
            raise BundleError(
                f"the coder lacks {', '.join(missing)}, which each site of its federation keeps: add those of your site"
                " with `nosology federate complete`"
            )
        model = for_systems(bundle.model, systems) if codes is None else _with_codes(bundle.model, codes)
        wanted = suggested_systems(model, systems, given=codes is not None)
        self.model, self._mask = _restrict_systems(model, wanted)
        self.decision = bundle.decision
        self._thresholds = bundle.decision.thresholds(self.model.labels)
        self.release = release
        self.reports_uncertain = False  # also what it would drop outside of claims
        # The lexicon gains nothing by batches, and one by one what it read of a note is still cached for the claim.
        self._batch = 1 if model.kind == "lexicon" else _BATCH
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
        """The coder in a bundle folder; `threshold` replaces the tuned thresholds of all codes.

        codes: pairs of code and description, or a file of them (see `read_code_list`).
        """
        if isinstance(codes, str | Path):
            codes = read_code_list(codes)
        return cls(Bundle.load(folder).with_threshold(threshold), release, codes=codes, systems=systems)

    @classmethod
    def for_claims(cls, folder: str | Path, *, release: str | None = None, systems: Collection[str] = ()) -> Coder:
        """The coder in a bundle folder for claims: a lexicon also reports uncertain diagnoses.

        Whether they count depends on the setting of the encounter, which the claim knows.
        """
        from nosology.models.lexicon.lexicon_model import Lexicon

        bundle, dropped = Bundle.load(folder), False
        if isinstance(bundle.model, Lexicon):
            context = bundle.model.recipe.context
            if dropped := context.uncertain == "drop":
                model = bundle.model.with_context(context.model_copy(update={"uncertain": "keep"}))
                bundle = replace(bundle, model=model)
        coder = cls(bundle, release, systems=systems)
        coder.reports_uncertain = dropped
        return coder

    def code(self, text: str, top: int | None = None) -> list[Suggestion]:
        """Suggestions for one note, the most probable first: `top` of them, or the first 50 and all accepted ones."""
        return next(self.code_all([text], top))

    def code_all(self, notes: Iterable[str | Note], top: int | None = None) -> Iterator[list[Suggestion]]:
        """Suggestions for each note, in order; notes are read lazily.

        notes: texts, or Notes, whose `extra` columns are input of some coders.
        """
        if top is not None and top < 1:
            raise ConfigError(f"top must be at least 1; got {top}")
        checked = map(_note, notes)
        if isinstance(self.model, BatchScoring):
            for ranked, evidence in self.model.explained(checked, lambda row: self._choose(row, top)):
                yield self._suggest(ranked, evidence)
            return
        for batch in batched(checked, self._batch):
            for note, row in zip(batch, self.model.probabilities(batch)):
                ranked, columns = self._choose(row, top)
                yield self._suggest(ranked, self.model.evidence(note, columns) if columns else [])

    def _choose(self, probabilities: np.ndarray, top: int | None) -> tuple[list[RankedCode], list[int]]:
        """The codes to suggest for a note with these probabilities (L,), most probable first, and their columns."""
        if self._mask is not None:
            probabilities = probabilities * self._mask
        accepted = self.decision.accepted_at(self._thresholds, probabilities)
        more = 0 if top is not None else int(accepted.sum())  # accepted codes that are not ranked yet
        wanted = TOP if top is None else top
        ranked: dict[Code, RankedCode] = {}
        for column in _descending(probabilities, wanted + 1):  # the last one shows that nothing more is wanted
            full = len(ranked) >= wanted
            if full and not more:
                break
            more -= bool(accepted[column]) and top is None
            if full and not accepted[column]:
                continue
            code = self.model.labels.codes[column]
            translated = code if self._translate is None else self._translate(code)
            if translated is not None and translated not in ranked:
                of_code = RankedCode(translated, column, float(probabilities[column]), bool(accepted[column]))
                ranked[translated] = of_code
        return list(ranked.values()), [item.column for item in ranked.values()]

    def _describe(self, code: Code) -> str:
        """The description of a code in the release of this coder, or else the one that the model reads."""
        of_model = self._descriptions.get(code, "")
        return describe(code, self.release) or of_model if self.release else of_model or describe(code)

    def _suggest(self, ranked: Sequence[RankedCode], evidence: Sequence[Sequence[EvidenceSpan]]) -> list[Suggestion]:
        return [
            Suggestion(
                system=item.code.system,
                code=item.code.code,
                description=self._describe(item.code),
                probability=item.probability,
                accepted=item.accepted,
                evidence=tuple(spans),
            )
            for item, spans in zip(ranked, evidence)
        ]


def _note(note: str | Note) -> Note:
    if isinstance(note, Note):
        return note
    if not isinstance(note, str):
        raise ConfigError(f"a note must be a text or a Note; got {type(note).__name__}")
    return Note("", note)


class RankedCode(NamedTuple):
    """A code to suggest."""

    code: Code
    column: int  # of the model
    probability: float
    accepted: bool


def _descending(probabilities: np.ndarray, first: int) -> Iterator[int]:
    """The columns with a probability above 0, the most probable first; equal ones in order.

    The columns after the `first` ones are sorted only if they are asked for.
    """
    found = np.flatnonzero(probabilities > 0)  # of a lexicon some hundred, of a net all
    values = probabilities[found]
    bound = np.partition(values, -first)[-first] if first < len(values) else 0
    for part in (values >= bound, values < bound):
        yield from found[part][np.argsort(-values[part], kind="stable")].tolist()


def _with_codes(model: Model, codes: Sequence[tuple[Code, str]]) -> Model:
    """The model with these codes instead of its own."""
    if not isinstance(model, OpenVocabulary):
        raise ConfigError(
            f"codes cannot be given to a coder of kind {model.kind}: it knows only the codes it was trained on"
        )
    if not codes:
        raise ConfigError("codes must name one code at least")
    return model.with_codes(list(codes))


def _restrict_systems(model: Model, systems: set[str]) -> tuple[Model, np.ndarray | None]:
    """The model for the codes of these systems, and a mask (L,) with 1 for each label to suggest; None: all labels."""
    mask = np.array([code.system in systems for code in model.labels.codes], dtype=np.float32)
    if mask.all():
        return model, None
    if isinstance(model, OpenVocabulary):  # other codes need not be scored
        pairs = zip(model.labels.codes, model.descriptions)
        return model.with_codes([pair for pair, keep in zip(pairs, mask) if keep]), None
    return model, mask


def release_translator(release: str) -> Callable[[Code], Code | None]:
    """A function from a code to its successor or predecessor in a release, None if it has none.

    If there are several (M54.5 was divided into three), it is the unspecified one, because the coder gave no detail.
    Codes of systems without such a release do not change.
    """
    translated_systems = [system for system in SYSTEMS if release in releases(system)]
    if not translated_systems:
        allowed = sorted({name for system in SYSTEMS for name in releases(system)})
        raise CodeError(f"release must be one of {', '.join(allowed)}; got {release!r}")

    def translate(code: Code) -> Code | None:
        if code.system not in translated_systems:
            return code
        targets = in_release(code, release)
        unspecified = (target for target in targets if "unspecified" in describe(target, release).lower())
        return next(unspecified, targets[0] if targets else None)

    return translate
