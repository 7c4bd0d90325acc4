"""Recipes laid side by side: each trained over seeds on one corpus, measured on its test notes, and tested for luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import BundleError, ConfigError, DataError, Note
from nosology.core.files import write_json
from nosology.core.label_space import label_versions, mask_other_versions, note_versions
from nosology.corpora.corpus import Corpus
from nosology.evaluation import Evaluation, examine
from nosology.evaluation.significance import paired_bootstrap, paired_t_test
from nosology.models.bundle import Bundle
from nosology.models.train import train
from nosology.training.examples import codes_in_labels
from nosology.training.recipe_settings import LabelSettings, Recipe

METRICS = ("micro_precision", "micro_recall", "micro_f1", "macro_f1", "micro_auc", "hamming_loss")
_BATCH = 256


@dataclass(frozen=True)
class Variant:
    """A recipe under a name; its seed is counted up from the recipe's own."""

    name: str
    recipe: Recipe

    def seeded(self, number: int) -> Recipe:
        """The recipe of a run."""
        return self.recipe.model_copy(update={"seed": self.recipe.seed + number})


@dataclass(frozen=True)
class Compared:
    """What came out: a row a variant, and the difference of each but the first to the first."""

    rows: dict[str, dict[str, Any]]  # mean and std of each metric, and the values of the seeds
    tests: dict[str, dict[str, Any]]  # paired t-test over seeds, bootstrap over the test patients

    def to_json(self) -> dict[str, Any]:
        """Both by name."""
        return asdict(self)


def compare(
    variants: Sequence[Variant],
    corpus: Corpus,
    out: str | Path,
    *,
    seeds: int = 5,
    split: str = "test",
    say: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Trains each variant once a seed (bundles in `out`, taken as they are if they are there) and compares them.

    The first variant is what the others are held against. The bootstrap draws patients with all their notes and looks
    at the variants' first seeds; the t-test pairs seeds.
    """
    if any(variant.recipe.labels != variants[0].recipe.labels for variant in variants):
        raise ConfigError("labels must be the same in all recipes that are compared: each would be asked other codes")
    notes = list(corpus.notes(split))
    if not notes:
        raise DataError(f"{corpus.folder} has no {split} notes: nothing can be compared on them")
    patients = [note.patient or note.id for note in notes]
    found: dict[str, list[Evaluation]] = {}
    for variant in variants:
        for number in range(seeds):
            bundle = _bundle(variant.seeded(number), corpus, Path(out) / f"{variant.name}-{number}")
            found.setdefault(variant.name, []).append(judged(bundle, notes))
            say(f"{variant.name}, seed {number}: micro F1 {found[variant.name][-1].metrics['micro_f1']:.4f}")
    first = variants[0].name
    rows = {name: _row(runs) for name, runs in found.items()}
    tests = {}
    for name, runs in found.items():
        if name != first:
            f1 = [[float(run.metrics["micro_f1"] or 0) for run in side] for side in (found[first], runs)]
            tests[name] = {
                "bootstrap": asdict(paired_bootstrap(found[first][0], runs[0], groups=patients)),
                "t_test": asdict(paired_t_test(*f1)) if seeds > 1 else None,
            }
    compared = Compared(rows, tests)
    write_json(Path(out) / "compare.json", compared.to_json())
    return compared


def judged(bundle: Bundle, notes: Sequence[Note], threshold: float | None = None) -> Evaluation:
    """A bundle's scores on coded notes, over the codes that its recipe asks for."""
    model = bundle.model
    parts = [notes[start : start + _BATCH] for start in range(0, len(notes), _BATCH)]
    found = np.concatenate([model.probabilities(part) for part in parts])
    codes = [note.codes for note in notes]
    mask_other_versions(found, note_versions(codes), label_versions(model.labels))
    settings = LabelSettings.model_validate(bundle.recipe["labels"])
    gold = codes_in_labels(settings, model.labels, codes)
    limit = bundle.decision.thresholds(model.labels) if threshold is None else threshold
    one = bundle.decision.at_least_one
    return examine(model.labels, gold, found, limit, at_least_one=one, replicates=0)


def _bundle(recipe: Recipe, corpus: Corpus, folder: Path) -> Bundle:
    """The bundle of a recipe and a corpus: the one in the folder if it is of both, else trained."""
    if (folder / "bundle.json").is_file():
        try:
            bundle = Bundle.load(folder)
        except BundleError:
            bundle = None
        hashes = [item["hash"] for item in bundle.provenance.get("corpora", [])] if bundle else []
        if bundle and bundle.recipe == recipe.model_dump(mode="json") and hashes == [corpus.hash]:
            return bundle
    return train(recipe, [corpus], folder)


def over_seeds(runs: Sequence[Evaluation]) -> dict[str, Any]:
    """Mean, standard deviation and all values of each metric over seeds; None where one of them is undefined."""
    row: dict[str, Any] = {}
    for name in METRICS:
        values = [run.metrics[name] for run in runs]
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        defined = len(known) == len(values)
        row[name] = {
            "mean": float(known.mean()) if defined else None,
            "std": float(known.std(ddof=1)) if defined and len(values) > 1 else None,
            "values": values,
        }
    return row


def _row(runs: Sequence[Evaluation]) -> dict[str, Any]:
    """The metrics over seeds, and the share of cells that are true and that are accepted."""
    row = over_seeds(runs)
    predicted = [run.predicted.nnz / np.prod(run.predicted.shape) for run in runs]
    row["density"] = {
        "true": float(runs[0].scored.gold.nnz / np.prod(runs[0].scored.gold.shape)),
        "predicted": float(np.mean(predicted)),
    }
    return row
