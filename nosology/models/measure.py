"""A bundle measured on the notes of a corpus."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from nosology.core import SPLITS, SYSTEMS, ConfigError, DataError
from nosology.core.progress import progress
from nosology.core.version import __version__
from nosology.corpora.corpus import Corpus
from nosology.evaluation import Evaluation, examine, write_report
from nosology.models.bundle import Bundle, Model

_BATCH = 256


@dataclass(frozen=True)
class Measured:
    """The scores, and what a reader of them must know."""

    evaluation: Evaluation
    cautions: list[str]


def measure(
    bundle: Bundle, corpus: Corpus, split: str, out: str | Path, *, systems: Collection[str] = (), seed: int = 0
) -> Measured:
    """Codes the notes of a split ("all": every note), lays the result beside their gold codes and writes the report."""
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, all; got {split!r}")
    if unknown := set(systems) - set(SYSTEMS):
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {', '.join(sorted(unknown))}")
    wanted = None if split == "all" else split
    gold = [note.codes for note in corpus.notes(wanted, text=False)]
    if not gold:
        found = corpus.manifest["counts"]["splits"]
        raise DataError(f"{corpus.folder} has no {split} notes; it has {', '.join(found) or 'none at all'}")
    model = bundle.model
    probabilities = _probabilities(model, corpus, wanted, len(gold))
    chosen = set(systems) or None
    thresholds = bundle.decision.thresholds(model.labels)
    evaluation = examine(model.labels, gold, probabilities, thresholds, systems=chosen, seed=seed)
    cautions = _cautions(bundle, corpus, split, chosen, gold)
    provenance = {
        "corpus": corpus.hash,
        "split": split,
        "systems": ", ".join(sorted(chosen)) if chosen else "all",
        "cautions": "; ".join(cautions) or "none",
        "bundle": f"{model.kind}, labels {model.labels.hash}",
        "trained with": bundle.provenance.get("package"),
        "measured with": f"nosology {__version__}",
        "trained on": bundle.provenance.get("trained_on"),
        "training corpora": [item["hash"] for item in bundle.provenance.get("corpora", [])],
        "recipe": bundle.recipe,
    }
    counts = dict(zip(model.labels.codes, model.notes.tolist()))
    write_report(out, evaluation, train_counts=counts, provenance=provenance)
    return Measured(evaluation, cautions)


def _probabilities(model: Model, corpus: Corpus, split: str | None, n: int) -> np.ndarray:
    """Probabilities (n, L) of the notes of a split."""
    found = np.empty((n, len(model.labels)), dtype=np.float32)
    texts = (note.text for note in progress(corpus.notes(split), "coding", total=n))
    for start in range(0, n, _BATCH):
        found[start : start + _BATCH] = model.probabilities(islice(texts, _BATCH))
    return found


def _cautions(bundle: Bundle, corpus: Corpus, split: str, systems: set[str] | None, gold: list) -> list[str]:
    """What makes these scores better or worse than they look."""
    cautions = []
    if corpus.hash in {item["hash"] for item in bundle.provenance.get("corpora", [])}:
        if split == "all" or split in bundle.provenance.get("trained_on", ()):
            cautions.append(f"the coder was trained on these notes ({split}): the scores say nothing about new ones")
        elif split == bundle.provenance.get("tuned_on"):
            cautions.append(
                f"threshold and calibration were tuned on these notes ({split}): the scores flatter a little"
            )
    counted = {code.system for codes in gold for code in codes} & (systems or set(SYSTEMS))
    if unknown := sorted(counted - set(bundle.model.labels.systems)):
        cautions.append(f"the coder names no code of {', '.join(unknown)}: each counts as a miss (--system narrows)")
    return cautions
