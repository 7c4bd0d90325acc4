"""Comparison of recipes: each is trained over seeds on one corpus, evaluated, and tested for significance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import BundleError, ConfigError, DataError, Note, OutputError
from nosology.core.files import check_results_folder, write_json
from nosology.core.label_space import date_versions, label_versions, mask_other_versions
from nosology.corpora.corpus import Corpus
from nosology.evaluation import Evaluation, examine
from nosology.evaluation.significance import paired_bootstrap, paired_t_test
from nosology.models.bundle import Bundle, read_manifest
from nosology.models.train import train
from nosology.training.examples import codes_in_labels
from nosology.training.recipe_settings import LabelSettings, Recipe

RESULT = "compare.json"
METRICS = ("micro_precision", "micro_recall", "micro_f1", "macro_f1", "micro_auc", "macro_auc", "hamming_loss")


@dataclass(frozen=True)
class Variant:
    """A recipe under a name. Run i has the seed of the recipe plus i."""

    name: str
    recipe: Recipe

    def seeded(self, number: int) -> Recipe:
        return self.recipe.model_copy(update={"seed": self.recipe.seed + number})


@dataclass(frozen=True)
class Comparison:
    """A row per variant, and significance tests of the first variant against each other one."""

    rows: dict[str, dict[str, Any]]  # mean, standard deviation and values over seeds of each metric
    tests: dict[str, dict[str, Any]]  # paired t-test over seeds, paired bootstrap over test patients


def compare(
    variants: Sequence[Variant],
    corpus: Corpus,
    out: str | Path,
    *,
    seeds: int = 5,
    split: str = "test",
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Trains each variant with each seed (a bundle that is already in `out` is reused) and compares them.

    The first variant is the baseline. The bootstrap samples patients with all their notes and uses the first seed of
    each variant; the t-test pairs seeds. report: is called with a line per run.
    """
    _check_out(Path(out), variants, corpus)
    if any(variant.recipe.labels != variants[0].recipe.labels for variant in variants):
        raise ConfigError("labels must be the same in all recipes: the recipes are compared on the same codes")
    notes = list(corpus.notes(split))
    if not notes:
        raise DataError(f"{corpus.folder} has no {split} notes: nothing can be compared on them")
    patients = [note.patient or note.id for note in notes]
    runs: dict[str, list[Evaluation]] = {variant.name: [] for variant in variants}
    for variant in variants:
        for number in range(seeds):
            bundle = _bundle(variant.seeded(number), corpus, Path(out) / f"{variant.name}-{number}")
            evaluation = evaluate_bundle(bundle, notes)
            runs[variant.name].append(evaluation)
            report(f"{variant.name}, seed {number}: micro F1 {evaluation.metrics['micro_f1']:.4f}")
    baseline, *others = runs
    f1 = {name: [float(run.metrics["micro_f1"] or 0) for run in of_name] for name, of_name in runs.items()}
    tests = {
        name: {
            "bootstrap": asdict(paired_bootstrap(runs[baseline][0], runs[name][0], groups=patients)),
            "t_test": asdict(paired_t_test(f1[baseline], f1[name])) if seeds > 1 else None,
        }
        for name in others
    }
    comparison = Comparison({name: _row(of_name) for name, of_name in runs.items()}, tests)
    write_json(Path(out) / RESULT, asdict(comparison))
    return comparison


def evaluate_bundle(bundle: Bundle, notes: Sequence[Note]) -> Evaluation:
    """The evaluation of a bundle on coded notes, over the codes that its recipe selects."""
    model = bundle.model
    codes = [note.codes for note in notes]
    probabilities = model.probabilities(notes)
    # By the date of a note, never by its true codes: a coder of new notes does not know their ICD version.
    mask_other_versions(probabilities, date_versions(notes, model.labels), label_versions(model.labels))
    gold = codes_in_labels(LabelSettings.model_validate(bundle.recipe["labels"]), model.labels, codes)
    thresholds, at_least_one = bundle.decision.thresholds(model.labels), bundle.decision.at_least_one
    return examine(model.labels, gold, probabilities, thresholds, at_least_one=at_least_one, replicates=0)


def _check_out(out: Path, variants: Sequence[Variant], corpus: Corpus) -> None:
    """Raises OutputError if a folder has files of others, or bundles that were trained on another corpus."""
    check_results_folder(out, own=[RESULT, *(f"{escape(variant.name)}-[0-9]*" for variant in variants)])
    for path in sorted(out.glob("*/bundle.json")):
        with suppress(BundleError):
            if _corpus_hashes(read_manifest(path.parent)["provenance"]) != [corpus.hash]:
                raise OutputError(
                    f"will not write to {out}: {path.parent.name} is of another corpus; give another folder"
                )


def _corpus_hashes(provenance: Mapping[str, Any]) -> list[Any]:
    return [item.get("hash") for item in provenance.get("corpora", [])]


def _bundle(recipe: Recipe, corpus: Corpus, folder: Path) -> Bundle:
    """The bundle in the folder if it is of this recipe and corpus, else a new one."""
    if (folder / "bundle.json").is_file():
        with suppress(BundleError):
            bundle = Bundle.load(folder)
            is_same = bundle.recipe == recipe.model_dump(mode="json")
            if is_same and _corpus_hashes(bundle.provenance) == [corpus.hash]:
                return bundle
    return train(recipe, [corpus], folder)


def _row(runs: Sequence[Evaluation]) -> dict[str, Any]:
    """Each metric over seeds (None if it is undefined in one of them), and the share of true and of accepted cells."""
    row: dict[str, Any] = {}
    for name in METRICS:
        values = [run.metrics[name] for run in runs]
        numbers = [float(value) for value in values if value is not None]
        defined = len(numbers) == len(values)
        row[name] = {
            "mean": float(np.mean(numbers)) if defined else None,
            "std": float(np.std(numbers, ddof=1)) if defined and len(numbers) > 1 else None,
            "values": values,
        }
    gold = runs[0].scored.gold
    row["density"] = {
        "true": float(gold.nnz / np.prod(gold.shape)),
        "predicted": float(np.mean([run.predicted.nnz / np.prod(run.predicted.shape) for run in runs])),
    }
    return row
