"""Evaluation of a bundle on the notes of a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.codes.lookup import label_description
from nosology.core import SPLITS, SYSTEMS, Code, ConfigError, DataError, Note, __version__
from nosology.core.label_space import SYSTEM_VERSION, LabelSpace, label_versions, note_versions, score_by_version
from nosology.core.model import BatchScoring, Model, OpenVocabulary
from nosology.core.parallel import batched
from nosology.core.progress import activity, counting
from nosology.corpora.corpus import Corpus
from nosology.corpora.seen_notes import count_seen
from nosology.evaluation import Evaluation, examine, tune_threshold
from nosology.evaluation.report import check_report_folder, write_report

if TYPE_CHECKING:
    from nosology.models.bundle import Bundle

_BATCH = 256
FREQUENT = 10  # notes of the whole corpus; a code with fewer is rare
SETS = {
    "full": "every code of the corpus",
    "frequent": f"{FREQUENT} notes or more",
    "rare": f"under {FREQUENT}",
    "known": "those that the coder has learned",
}


@dataclass(frozen=True)
class Measured:
    """The scores, and warnings that a reader of them needs."""

    evaluation: Evaluation
    cautions: list[str]


def measure(
    bundle: Bundle,
    corpus: Corpus,
    split: str,
    out: str | Path | None,
    *,
    systems: Collection[str] = (),
    codes: str | Collection[Code] | None = None,
    tune: bool = False,
    seed: int = 0,
) -> Measured:
    """The scores of a bundle on a split ("all": every note) of a corpus; writes the report to `out` unless it is None.

    systems: count only their codes; by default the systems of the notes of the split. A note is compared only with
    codes of the ICD versions that it is coded in. codes: count only the codes of a set (see SETS) or these codes; a
    coder that reads code descriptions then scores all of them, trained or not. tune: tune the threshold on the dev
    notes of the corpus with the same codes.
    """
    _check_arguments(split, systems)
    if out is not None:
        check_report_folder(out)
    gold = [note.codes for note in corpus.notes(_split(split), text=False)]
    if not gold:
        raise DataError(f"{corpus.folder} has no {split} notes; {_existing_splits(corpus)}")
    present = {code.system for note in gold for code in note}
    if not present:
        raise DataError(
            f"{corpus.folder}: no {split} note has a code to compare with; `nosology code` writes the predictions"
        )
    counted = set(systems) or present
    code_set = None
    if codes == "known":
        code_set = CodeSet("known", frozenset(bundle.model.labels.codes), only_with_code=True).of_systems(counted)
    elif codes is not None:
        code_set = CodeSet.of(codes, (note.codes for note in corpus.notes(text=False))).of_systems(counted)
    scorer = _SplitScorer.of(bundle.model, code_set, corpus, counted)

    thresholds: float | np.ndarray
    if tune:
        thresholds = tune_threshold(*scorer.score("dev"), systems=counted)
    else:
        thresholds = bundle.decision.thresholds(scorer.labels)
    labels, true, probabilities = scorer.score(split)
    one = bundle.decision.at_least_one
    with activity("metrics with intervals"):
        evaluation = examine(labels, true, probabilities, thresholds, systems=counted, at_least_one=one, seed=seed)

    cautions = _cautions(bundle, corpus, split, tune, counted & present - set(labels.systems))
    cautions += _version_cautions(scorer, scorer.versions(gold), split)
    if not systems and (absent := sorted(set(bundle.model.labels.systems) - counted)):
        cautions.append(f"codes of {', '.join(absent)} are not counted: no note of {split} has one (see --system)")
    if out is not None:
        counts = dict(zip(bundle.model.labels.codes, bundle.model.train_counts.tolist()))
        provenance = _provenance(bundle, scorer, split, tune, cautions)
        with activity("writing the report"):
            write_report(out, evaluation, train_counts=counts, provenance=provenance)
    return Measured(evaluation, cautions)


def _provenance(
    bundle: Bundle, scorer: _SplitScorer, split: str, tune: bool, cautions: Sequence[str]
) -> dict[str, Any]:
    """What produced the scores of a report."""
    code_set = scorer.code_set
    return {
        "corpus": scorer.corpus.hash,
        "split": split,
        "systems": ", ".join(sorted(scorer.systems)),
        "codes": str(code_set) if code_set else "label space of the coder and codes of the notes",
        "codes without training": len(set(scorer.labels.codes) - set(bundle.model.labels.codes)),
        "threshold": "tuned on the dev notes of this corpus with the same codes" if tune else "of the bundle",
        "cautions": "; ".join(cautions) or "none",
        "bundle": f"{bundle.model.kind}, labels {bundle.model.labels.hash}",
        "trained with": bundle.provenance.get("package"),
        "measured with": f"nosology {__version__}",
        "trained on": bundle.provenance.get("trained_on"),
        "training corpora": [item["hash"] for item in bundle.provenance.get("corpora", [])],
        "recipe": bundle.recipe,
    }


def _check_arguments(split: str, systems: Collection[str]) -> None:
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, all; got {split!r}")
    if unknown := set(systems) - set(SYSTEMS):
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {', '.join(sorted(unknown))}")


def _existing_splits(corpus: Corpus) -> str:
    splits = set(corpus.manifest["counts"]["splits"])
    if splits == {"none"}:
        return "its notes have no split: `nosology corpus split` makes them"
    return f"it has {', '.join(sorted(splits)) or 'none at all'}"


def _split(name: str) -> str | None:
    return None if name == "all" else name


@dataclass(frozen=True)
class _SplitScorer:
    """Scores the notes of a corpus for the selected columns of a model."""

    model: Model
    columns: np.ndarray
    labels: LabelSpace  # of the columns
    code_set: CodeSet | None
    corpus: Corpus
    systems: set[str]

    @classmethod
    def of(cls, model: Model, code_set: CodeSet | None, corpus: Corpus, systems: set[str]) -> _SplitScorer:
        """The scorer of the codes in the set; an open-vocabulary model gets the codes that it lacks."""
        if code_set is not None and code_set.codes - set(model.labels.codes) and isinstance(model, OpenVocabulary):
            known = dict(zip(model.labels.codes, model.descriptions))
            codes = sorted(code_set.codes)
            model = model.with_codes([(code, known.get(code) or label_description(code)) for code in codes])
        codes = model.labels.codes
        selected = [code.system in systems and (code_set is None or code in code_set.codes) for code in codes]
        columns = np.flatnonzero(selected)
        return cls(model, columns, LabelSpace(codes[j] for j in columns), code_set, corpus, systems)

    def score(self, split: str) -> tuple[LabelSpace, list[Collection[Code]], np.ndarray]:
        """The labels (L), and for the B notes of a split that count: true codes and probabilities (B, L)."""
        gold: list[Collection[Code]] = [note.codes for note in self.corpus.notes(_split(split), text=False)]
        versions = self.versions(gold)
        counts = self.is_counted(versions)
        if self.code_set is not None:
            rows, narrowed = self.code_set.narrow(gold)
            counts[np.setdiff1d(np.arange(len(gold)), rows)] = False
            gold = [codes for row, codes in zip(rows, narrowed) if counts[row]]
        else:
            gold = list(compress(gold, counts))
        if not gold:
            which = f" with a {self.code_set.name} code" if self.code_set else f" coded in {', '.join(self.systems)}"
            raise DataError(f"{self.corpus.folder} has no {split} notes{which}")
        probabilities = self._probabilities(split, np.flatnonzero(counts), versions[counts])
        self.corpus.check_unchanged()
        return self.labels, gold, probabilities

    @property
    def _counted_versions(self) -> int:
        """The ICD versions of the systems, as bits."""
        return int(np.bitwise_or.reduce([SYSTEM_VERSION[system] for system in self.systems]))

    def versions(self, gold: Sequence[Collection[Code]]) -> np.ndarray:
        """The ICD versions of each note (B,); a note without codes counts whatever the systems are."""
        versions, uncoded = note_versions(gold), np.array([not codes for codes in gold], dtype=bool)
        versions[uncoded & ~self.is_counted(versions)] = self._counted_versions
        return versions

    def is_counted(self, versions: np.ndarray) -> np.ndarray:
        """Whether each note (B,) counts: it has an ICD version of the systems."""
        return (versions & self._counted_versions) > 0

    def _probabilities(self, split: str, positions: np.ndarray, versions: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of the notes at these positions (B,) of a split; 0 for codes of another ICD version."""

        def score(rows: np.ndarray, columns: np.ndarray) -> Iterator[np.ndarray]:
            selected = np.zeros(positions[-1] + 1, bool)
            selected[positions[rows]] = True
            notes = compress(self.corpus.notes(_split(split)), selected)
            every = len(columns) == len(self.model.labels)
            return probability_blocks(self.model, notes, None if every else self.columns[columns].tolist())

        probabilities = np.zeros((len(positions), len(self.labels)), np.float32)
        with counting(f"coding {split}", total=len(positions)) as counter:
            return score_by_version(probabilities, versions, label_versions(self.labels), score, counter)


def probability_blocks(
    model: Model, notes: Iterable[Note], labels: Sequence[int] | None = None
) -> Iterator[np.ndarray]:
    """Probabilities (b, L) of one block of notes after the other, in order; labels: only these."""
    if isinstance(model, BatchScoring):
        yield from model.probability_blocks(notes, labels)
        return
    for block in batched(notes, _BATCH):
        probabilities = model.probabilities(block)
        yield probabilities if labels is None else probabilities[:, labels]


def _version_cautions(scorer: _SplitScorer, versions: np.ndarray, split: str) -> list[str]:
    """What a reader must know about the ICD versions of the notes (B,)."""
    counts = scorer.is_counted(versions)
    cautions = []
    if not counts.all():
        cautions.append(f"{(~counts).sum()} notes of {split} are coded in another ICD version and left out")
    if len({SYSTEM_VERSION[system] for system in scorer.systems}) > 1 and len(np.unique(versions)) > 1:
        cautions.append("each note is scored on the ICD version of its true codes; for new notes it must be known")
    return cautions


def _cautions(bundle: Bundle, corpus: Corpus, split: str, tune: bool, unknown: set[str]) -> list[str]:
    """Reasons why these scores are better or worse than on new notes."""
    cautions = []
    trained_on = bundle.provenance.get("trained_on", ())
    if corpus.hash in [item.get("hash") for item in bundle.provenance.get("corpora", [])]:
        if split == "all" or split in trained_on:
            cautions.append(f"the coder was trained on these notes ({split}): new notes will have lower scores")
        elif split == bundle.provenance.get("tuned_on"):
            cautions.append(f"threshold and calibration were tuned on these notes ({split}): the scores are too high")
        if tune and "dev" in trained_on:
            cautions.append("the threshold was tuned on notes that the coder was trained on (dev): it is too high")
    elif seen := count_seen(bundle.provenance, (note.text for note in corpus.notes(_split(split)))):
        cautions.append(f"the coder was trained on the texts of {seen:,} notes of {split}: new notes have lower scores")
    if tune and split in ("dev", "all") and not cautions:
        cautions.append(f"the threshold was tuned on these notes ({split}): the scores are too high")
    if unknown:
        names = ", ".join(sorted(unknown))
        cautions.append(f"the coder has no code of {names}: each counts as a miss (--system selects systems)")
    return cautions


@dataclass(frozen=True)
class CodeSet:
    """The codes that count; `only_with_code`: notes without a true code of the set are left out."""

    name: str
    codes: frozenset[Code]
    only_with_code: bool = False

    @classmethod
    def of(cls, selection: str | Collection[Code], notes: Iterable[Collection[Code]]) -> CodeSet:
        """The set full, frequent or rare, or these codes; notes: the codes of each note of the corpus."""
        if not isinstance(selection, str):
            return cls("given", frozenset(Code(*code) for code in selection))
        if selection not in SETS:
            raise ConfigError(f"codes must be one of {', '.join(SETS)}; got {selection!r}")
        counts = Counter(code for codes in notes for code in set(codes))
        low, high = {"frequent": (FREQUENT, np.inf), "rare": (0, FREQUENT - 1)}.get(selection, (0, np.inf))
        codes = frozenset(code for code, count in counts.items() if low <= count <= high)
        if not codes:
            raise DataError(f"the corpus has no {selection} codes ({SETS[selection]})")
        return cls(selection, codes, only_with_code=selection == "rare")

    def of_systems(self, systems: Collection[str]) -> CodeSet:
        """The codes of these systems only."""
        return CodeSet(self.name, frozenset(c for c in self.codes if c.system in systems), self.only_with_code)

    def narrow(self, gold: Sequence[Collection[Code]]) -> tuple[list[int], list[list[Code]]]:
        """The rows of the notes that count, and the codes of each that count."""
        selected = [[code for code in codes if code in self.codes] for codes in gold]
        rows = [row for row, codes in enumerate(selected) if codes or not self.only_with_code]
        return rows, [selected[row] for row in rows]

    def __str__(self) -> str:
        return f"{self.name} ({SETS.get(self.name, 'a list')}): {len(self.codes):,} codes"
