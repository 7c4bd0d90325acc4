"""The result of a federation: a bundle, as of central training, and the history of the rounds as table and plot."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nosology.core import ConfigError
from nosology.core.files import atomic_file
from nosology.corpora.corpus import Corpus
from nosology.evaluation.decision import UNTUNED, Decision
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.rounds.federation_setup import HISTORY, PLOT, FederationSetup, RoundCheckpoint
from nosology.federated.rounds.learner import learner_of
from nosology.federated.rounds.robust_updates import format_shares
from nosology.federated.rounds.site_results import SiteCounts
from nosology.models.bundle import Bundle
from nosology.models.neural import CalibratedNet
from nosology.models.train import provenance
from nosology.training.calibration import PlattScaling
from nosology.training.recipe_settings import LabelSettings

HistoryRow = dict[str, Any]  # one round, keys as in COLUMNS
_TRAFFIC = ("bytes_to_sites", "bytes_from_sites")  # of all messages of a round
_PRIVACY = ("epsilon", "record_epsilon")
COLUMNS = ("round", "loss", "sites", "refused", "micro_f1", *_PRIVACY, *_TRAFFIC, "staleness", "seconds", "phase")


def check_recipe(recipe: FederatedRecipe) -> None:
    """Raises ConfigError for labels, decision or other settings that a federation does not support."""
    learner_of(recipe).check()
    if recipe.decision.threshold == "per_code":
        raise ConfigError('decision.threshold must be a number or "global" in a federation; got "per_code"')
    if recipe.decision.at_least_one is True:  # "auto" is false: sites do not report what it needs
        raise ConfigError(f"decision.at_least_one must be false in a federation; got {recipe.decision.at_least_one}")
    for name in ("min_notes", "max_notes", "top_k"):
        if (value := getattr(recipe.labels, name)) != LabelSettings.model_fields[name].default:
            raise ConfigError(f"labels.{name} must not be set in a federation (federation.min_notes); got {value}")


def with_resolved_precision(recipe: FederatedRecipe) -> FederatedRecipe:
    """The recipe with fp32 in place of the precision "auto", which sites with and without a GPU would read differently.

    Recipes without nets have no precision.
    """
    training = getattr(recipe, "training", None)
    if training is None or training.precision != "auto":
        return recipe
    return recipe.model_copy(update={"training": training.model_copy(update={"precision": "fp32"})})


def build_bundle(
    setup: FederationSetup,
    checkpoint: RoundCheckpoint,
    dev: SiteCounts | None,
    corpora: Sequence[Corpus],
    refused: Mapping[str, str],
) -> Bundle:
    """The bundle of the last checkpoint, with calibration and threshold from the summed dev counts.

    Without true codes on dev there is no calibration and the threshold is `UNTUNED`.
    """
    recipe, calibration, threshold = setup.recipe, PlattScaling(), UNTUNED
    report: dict[str, Any] = {"dev_codes": 0}
    if dev is not None and dev.true.any():
        calibration, threshold = dev.calibration, dev.threshold
        report |= {"dev_codes": int(dev.true.sum()), "dev_micro_f1": dev.best[1], "dev_map": dev.map}
    if isinstance(recipe.decision.threshold, float):
        threshold = recipe.decision.threshold
    sites = {name: site.notes for name, site in setup.metadata.items()}
    last = checkpoint.history[-1] if checkpoint.history else {}
    facts = {
        "trained_on": ["train"],
        "tuned_on": "dev",
        "n_train": sum(sites.values()),
        "n_dev": int(dev.notes[0]) if dev is not None else 0,
        "refit": False,
        "found": report,
        "federation": {
            "sites": sites,
            "rounds": checkpoint.number,
            "refused": dict(refused),
            "epsilon": last.get("epsilon"),
            "record_epsilon": last.get("record_epsilon"),
        }
        | setup.learner.facts()
        | ({"personal": {"missing": list(setup.personal), "setup": setup.hash}} if setup.personal else {}),
    }
    model = setup.learner.build_model(setup, checkpoint.weights | setup.personal, calibration)
    if shape := getattr(model, "settings", getattr(recipe, "model", None)):  # of word nets with all sizes resolved
        report["shape"] = shape.model_dump()
    return Bundle(model, Decision(threshold), recipe.model_dump(mode="json"), provenance(recipe, corpora, facts))


def calibration(bundle: Bundle) -> PlattScaling:
    """The calibration of the logits of the sites; the identity if their logits are calibrated already."""
    if not isinstance(bundle.model, CalibratedNet):
        return PlattScaling()
    assert isinstance(bundle.model.calibration, PlattScaling)
    return bundle.model.calibration


def add_test_metrics(bundle: Bundle, test: SiteCounts | None) -> None:
    """Adds the metrics on the test notes of the sites to the provenance, if there are any."""
    if test is not None and test.notes[0]:
        bundle.provenance["found"]["test"] = test.metrics(bundle.model.labels)
        bundle.provenance["n_test"] = int(test.notes[0])


def format_round(row: HistoryRow, rounds: int) -> str:
    """A row of the history as a line of text."""
    parts = [f"round {row['round']}/{rounds}", *([row["phase"]] if row.get("phase") else [])]
    parts += [f"loss {row['loss']:.4f}"] if row["loss"] or not row.get("phase") else []  # word vectors have no loss
    parts += [f"{row['sites']} sites"]
    parts += [f"{row['refused']} refused"] if row["refused"] else []
    parts += [f"micro F1 {row['micro_f1']:.4f}"] if row["micro_f1"] is not None else []
    parts += [f"site epsilon {row['epsilon']:.2f}"] if row["epsilon"] is not None else []
    parts += [f"note epsilon {row['record_epsilon']:.2f}"] if row.get("record_epsilon") is not None else []
    parts += [f"staleness {row['staleness']:.1f}"] if row.get("staleness") else []
    parts += [shares] if (shares := format_shares(row.get("cut", {}))) else []
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


def write_history(history: list[HistoryRow], folder: Path) -> dict[str, Path]:
    """The paths of the table and the plot of a history, written into a folder, by file name."""
    with atomic_file(folder / HISTORY) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(history)
    with atomic_file(folder / PLOT) as temporary:
        _plot(history, temporary)
    return {name: folder / name for name in (HISTORY, PLOT)}


def _plot(history: list[HistoryRow], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.1, right=0.9, bottom=0.13, top=0.96)
    left = figure.subplots()
    trained = [row for row in history if not row.get("phase")]
    left.plot([row["round"] for row in trained], [row["loss"] for row in trained], color="tab:blue")
    left.set(xlabel="round", ylabel="training loss, mean per note", ylim=(0, None))
    right = left.twinx()
    measured = [row for row in history if row["micro_f1"] is not None]
    right.plot([row["round"] for row in measured], [row["micro_f1"] for row in measured], "o-", color="tab:orange")
    right.set(ylabel="micro F1 on dev notes, best threshold", ylim=(0, 1))
    figure.savefig(path, format="png", dpi=120)
