"""A bundle measured on the notes of a corpus."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.codes.lookup import label_description
from nosology.core import SPLITS, SYSTEMS, Code, ConfigError, DataError, Note, __version__
from nosology.core.label_space import SYSTEM_VERSION, LabelSpace, label_versions, mask_other_versions, note_versions
from nosology.core.model import Model, OpenVocabulary
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.evaluation import Evaluation, examine, tune_threshold, write_report

if TYPE_CHECKING:
    from nosology.models.bundle import Bundle


from collections import Counter
from collections.abc import Callable, Sequence

_BATCH = 256


@dataclass(frozen=True)
class Measured:
    """The scores, and what a reader of them must know."""

    evaluation: Evaluation
    cautions: list[str]


def measure(
    bundle: Bundle,
    corpus: Corpus,
    split: str,
    out: str | Path,
    *,
    systems: Collection[str] = (),
    codes: str | Collection[Code] | None = None,
    tune: bool = False,
    seed: int = 0,
) -> Measured:
    """Codes the notes of a split ("all": every note), lays the result beside their gold codes and writes the report.

    systems: count only their codes; where none is named, those that a note of the split has. A note is held only
    against codes of the ICD versions it is coded in: about others it says nothing. codes: count only "full", "frequent"
    or "rare" ones (see `CodeSet`), the coder's own ("known"), or those given; a coder that reads codes by their
    descriptions is then asked for all of them, be they trained or not.
    tune: look for the threshold anew, on the dev notes of the corpus and with the same codes.
    """
    _check(split, systems)
    gold = [note.codes for note in corpus.notes(_split(split), text=False)]
    if not gold:
        found = corpus.manifest["counts"]["splits"]
        raise DataError(f"{corpus.folder} has no {split} notes; it has {', '.join(found) or 'none at all'}")
    present = {code.system for note in gold for code in note}
    counted = set(systems) or present or set(SYSTEMS)
    chosen = None
    if codes == KNOWN:
        chosen = CodeSet(KNOWN, frozenset(bundle.model.labels.codes), only_with_code=True).of_systems(counted)
    elif codes is not None:
        everything = (note.codes for note in corpus.notes(text=False))
        chosen = CodeSet.of(codes, everything).of_systems(counted)
    model, columns = _candidates(bundle.model, chosen, counted)
    asked = _Asked(model, columns, chosen, corpus, counted)

    thresholds: float | np.ndarray
    if tune:
        labels, true, probabilities = asked.on("dev")
        thresholds = tune_threshold(labels, true, probabilities, systems=counted)
        origin = "tuned on the dev notes of this corpus with the same codes"
    else:
        thresholds = bundle.decision.thresholds(LabelSpace(model.labels.codes[j] for j in columns))
        origin = "the coder's own"
    labels, true, probabilities = asked.on(split)
    one = bundle.decision.at_least_one
    evaluation = examine(labels, true, probabilities, thresholds, systems=counted, at_least_one=one, seed=seed)

    cautions = _cautions(bundle, corpus, split, tune, counted & present - set(labels.systems))
    if others := int((~asked.counts(note_versions(gold))).sum()):
        cautions.append(f"{others} notes of {split} are coded in another ICD version and left out")
    if not systems and (silent := sorted(set(bundle.model.labels.systems) - counted)):
        cautions.append(f"codes of {', '.join(silent)} are not counted: no note of {split} has one (--system asks)")
    provenance = {
        "corpus": corpus.hash,
        "split": split,
        "systems": ", ".join(sorted(counted)),
        "codes": str(chosen) if chosen else "all that the coder names and the notes have",
        "codes without training": len(set(labels.codes) - set(bundle.model.labels.codes)),
        "threshold": origin,
        "cautions": "; ".join(cautions) or "none",
    }
    counts = dict(zip(bundle.model.labels.codes, bundle.model.train_counts.tolist()))
    write_report(out, evaluation, train_counts=counts, provenance=provenance | _made_by(bundle))
    return Measured(evaluation, cautions)


def _made_by(bundle: Bundle) -> dict[str, Any]:
    """What the coder is and what it was made of."""
    return {
        "bundle": f"{bundle.model.kind}, labels {bundle.model.labels.hash}",
        "trained with": bundle.provenance.get("package"),
        "measured with": f"nosology {__version__}",
        "trained on": bundle.provenance.get("trained_on"),
        "training corpora": [item["hash"] for item in bundle.provenance.get("corpora", [])],
        "recipe": bundle.recipe,
    }


def _check(split: str, systems: Collection[str]) -> None:
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, all; got {split!r}")
    if unknown := set(systems) - set(SYSTEMS):
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {', '.join(sorted(unknown))}")


def _split(name: str) -> str | None:
    return None if name == "all" else name


def _candidates(model: Model, chosen: CodeSet | None, systems: set[str]) -> tuple[Model, np.ndarray]:
    """The model to ask, and which of its columns count."""
    if chosen is not None and chosen.codes - set(model.labels.codes) and isinstance(model, OpenVocabulary):
        known = dict(zip(model.labels.codes, model.descriptions))
        model = model.with_codes([(code, known.get(code) or label_description(code)) for code in sorted(chosen.codes)])
    wanted = [code.system in systems and (chosen is None or code in chosen.codes) for code in model.labels.codes]
    return model, np.flatnonzero(wanted)


@dataclass(frozen=True)
class _Asked:
    """A model that is asked for some of its codes about the notes of a corpus."""

    model: Model
    columns: np.ndarray
    chosen: CodeSet | None
    corpus: Corpus
    systems: set[str]

    def on(self, split: str) -> tuple[LabelSpace, list[Collection[Code]], np.ndarray]:
        """The L codes asked for, and of the B notes of a split that count: the true codes, and probabilities (B, L)."""
        gold: list[Collection[Code]] = [note.codes for note in self.corpus.notes(_split(split), text=False)]
        of_notes = note_versions(gold)
        kept = self.counts(of_notes)
        if self.chosen is not None:
            rows, narrowed = self.chosen.narrow(gold)
            kept[np.setdiff1d(np.arange(len(gold)), rows)] = False
            gold = [codes for row, codes in zip(rows, narrowed) if kept[row]]
        else:
            gold = list(compress(gold, kept))
        if not len(gold):
            which = f" with a {self.chosen.name} code" if self.chosen else f" coded in {', '.join(self.systems)}"
            raise DataError(f"{self.corpus.folder} has no {split} notes{which}")
        notes = compress(self.corpus.notes(_split(split)), kept)
        labels = LabelSpace(self.model.labels.codes[j] for j in self.columns)
        found = self._probabilities(progress(notes, f"coding {split}", total=len(gold)), len(gold))
        return labels, gold, mask_other_versions(found, of_notes[kept], label_versions(labels))

    def counts(self, of_notes: np.ndarray) -> np.ndarray:
        """Which notes (B,) are coded in a version of the systems that count; of the others nothing is known."""
        asked = np.bitwise_or.reduce([SYSTEM_VERSION[system] for system in self.systems])
        return (of_notes == 0) | ((of_notes & asked) > 0)

    def _probabilities(self, notes: Iterable[Note], n: int) -> np.ndarray:
        """Probabilities (B, columns)."""
        found = np.empty((n, len(self.columns)), dtype=np.float32)
        whole = len(self.columns) == len(self.model.labels)
        notes = iter(notes)
        for start in range(0, n, _BATCH):
            block = self.model.probabilities(list(islice(notes, _BATCH)))
            found[start : start + _BATCH] = block if whole else block[:, self.columns]
        return found


def _cautions(bundle: Bundle, corpus: Corpus, split: str, tune: bool, unknown: set[str]) -> list[str]:
    """What makes these scores better or worse than they look."""
    cautions = []
    if corpus.hash in {item["hash"] for item in bundle.provenance.get("corpora", [])}:
        if split == "all" or split in bundle.provenance.get("trained_on", ()):
            cautions.append(f"the coder was trained on these notes ({split}): the scores say nothing about new ones")
        elif split == bundle.provenance.get("tuned_on"):
            cautions.append(
                f"threshold and calibration were tuned on these notes ({split}): the scores flatter a little"
            )
        if tune and "dev" in bundle.provenance.get("trained_on", ()):
            cautions.append("the threshold was tuned on notes that the coder was trained on (dev): it is too high")
    if tune and split in ("dev", "all") and not cautions:
        cautions.append(f"the threshold was tuned on these notes ({split}): the scores flatter a little")
    if unknown:
        cautions.append(
            f"the coder names no code of {', '.join(sorted(unknown))}: each counts as a miss (--system narrows)"
        )
    return cautions


FREQUENT = 10  # notes of the whole corpus, whatever their split; a code of fewer is rare
SETS: dict[str, Callable[[int], bool]] = {
    "full": lambda notes: True,
    "frequent": lambda notes: notes >= FREQUENT,
    "rare": lambda notes: notes < FREQUENT,
}
KNOWN = "known"  # those that a coder has learned, over the notes that have one
_MEANING = {
    KNOWN: "those that the coder has learned",
    "full": "every code of the corpus",
    "frequent": f"{FREQUENT} notes or more",
    "rare": f"under {FREQUENT}",
}


@dataclass(frozen=True)
class CodeSet:
    """Codes that count; with `only_with_code` a note without a true one among them is left out."""

    name: str
    codes: frozenset[Code]
    only_with_code: bool = False

    @classmethod
    def of(cls, wanted: str | Collection[Code], notes: Iterable[Collection[Code]]) -> CodeSet:
        """The set of a name, or of given codes; notes: the codes of each note of the corpus, of all splits."""
        if not isinstance(wanted, str):
            return cls("given", frozenset(Code(*code) for code in wanted))
        if wanted not in SETS:
            raise ConfigError(f"codes must be one of {', '.join([*SETS, KNOWN])}; got {wanted!r}")
        counts = Counter(code for codes in notes for code in set(codes))
        found = frozenset(code for code, count in counts.items() if SETS[wanted](count))
        if not found:
            raise DataError(f"the corpus has no {wanted} codes ({_MEANING[wanted]})")
        return cls(wanted, found, only_with_code=wanted == "rare")

    def of_systems(self, systems: Collection[str]) -> CodeSet:
        """The codes of these systems alone."""
        return CodeSet(self.name, frozenset(c for c in self.codes if c.system in systems), self.only_with_code)

    def narrow(self, gold: Sequence[Collection[Code]]) -> tuple[list[int], list[list[Code]]]:
        """Which of these notes count, and the codes of each that count."""
        kept = [[code for code in codes if code in self.codes] for codes in gold]
        rows = [row for row, codes in enumerate(kept) if codes or not self.only_with_code]
        return rows, [kept[row] for row in rows]

    def __str__(self) -> str:
        return f"{self.name} ({_MEANING.get(self.name, 'a list')}): {len(self.codes):,} codes"
