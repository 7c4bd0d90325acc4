"""What a federation leaves behind: a bundle, the same kind as central training's, and its history as table and plot."""

from __future__ import annotations

import csv
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.core import ConfigError, __version__
from nosology.core.files import atomic_file
from nosology.evaluation.decision import UNTUNED, Decision
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.saved_rounds import HISTORY, PLOT, Agreement, SavedRound
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.models.bundle import Bundle
from nosology.models.heads.heads_model import Heads
from nosology.training.calibration import PlattScaling
from nosology.training.recipe_settings import LabelSettings

Row = dict[str, Any]  # of a history: what COLUMNS names
COLUMNS = ("round", "loss", "sites", "refused", "micro_f1", "epsilon", "record_epsilon", "seconds")


def bundle_of(
    agreement: Agreement,
    state: SavedRound,
    dev: SiteCounts | None,
    corpora: list[dict[str, Any]],
    refused: Mapping[str, str],
) -> Bundle:
    """The bundle of a federation's last weights; calibration and threshold from the sites' summed dev counts.

    Without a true code on dev, the logits are believed as they are and the threshold is `UNTUNED`.
    """
    recipe, labels, facts = agreement.recipe, agreement.labels, agreement.facts.values()
    net = agreement.head()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in state.weights.items()})
    notes = np.array([sum(told.codes.get(code, 0) for told in facts) for code in labels.codes], dtype=np.int64)
    tuned = dev is not None and bool(dev.true.any())
    calibration, threshold = (dev.calibration, dev.threshold) if tuned else (PlattScaling(), UNTUNED)
    if isinstance(recipe.decision.threshold, float):
        threshold = recipe.decision.threshold
    identity = next(iter(facts)).identity
    model = Heads(labels, notes, recipe.embedder, identity, agreement.scaler, net.eval(), calibration)
    found: dict[str, Any] = {"dev_codes": int(dev.true.sum()) if tuned else 0, "shape": net.shape.model_dump()}
    if tuned:
        found |= {"dev_micro_f1": dev.best[1], "dev_map": dev.map}
    provenance = {
        "corpora": corpora,
        "trained_on": ["train"],
        "tuned_on": "dev",
        "n_train": sum(told.notes for told in facts),
        "n_dev": int(dev.notes[0]) if dev is not None else 0,
        "refit": False,
        "found": found,
        "federation": {
            "sites": {site: told.notes for site, told in agreement.facts.items()},
            "rounds": state.number,
            "refused": dict(refused),
            "epsilon": state.history[-1]["epsilon"] if state.history else None,
            "record_epsilon": state.history[-1].get("record_epsilon") if state.history else None,
        },
        "seed": recipe.seed,
        "package": f"nosology {__version__}",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    return Bundle(model, Decision(threshold), recipe.model_dump(mode="json"), provenance)


def check_recipe(recipe: FederatedHeadsRecipe) -> None:
    """Raises if the recipe asks for labels, a decision or numbers that a federation does not make."""
    if recipe.training.precision == "bf16":
        raise ConfigError('training.precision must be "fp32" or "fp64" in a federation; got "bf16"')
    if recipe.decision.threshold == "per_code":
        raise ConfigError('decision.threshold must be a number or "global" in a federation; got "per_code"')
    if recipe.decision.at_least_one:
        raise ConfigError(f"decision.at_least_one must be false in a federation; got {recipe.decision.at_least_one}")
    for name in ("min_notes", "max_notes", "top_k"):
        if (given := getattr(recipe.labels, name)) != LabelSettings.model_fields[name].default:
            raise ConfigError(f"labels.{name} must not be set in a federation (federation.min_notes); got {given}")


def add_test(bundle: Bundle, test: SiteCounts | None) -> None:
    """Writes down how the bundle does on the sites' test notes, where they have any."""
    if test is not None and test.notes[0]:
        bundle.provenance["found"]["test"] = test.metrics(bundle.model.labels)
        bundle.provenance["n_test"] = int(test.notes[0])


def line_of(row: Row, rounds: int) -> str:
    """A row of the history as a line."""
    parts = [f"round {row['round']}/{rounds}", f"loss {row['loss']:.4f}", f"{row['sites']} sites"]
    parts += [f"{row['refused']} refused"] if row["refused"] else []
    parts += [f"micro F1 {row['micro_f1']:.4f}"] if row["micro_f1"] is not None else []
    parts += [f"epsilon of a site {row['epsilon']:.2f}"] if row["epsilon"] is not None else []
    parts += [f"epsilon of a note {row['record_epsilon']:.2f}"] if row.get("record_epsilon") is not None else []
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


def write_history(history: list[dict[str, Any]], folder: Path) -> dict[str, Path]:
    """The paths by name of the table and the plot of a history, written into a folder."""
    with atomic_file(folder / HISTORY) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(history)
    with atomic_file(folder / PLOT) as aside:
        _plot(history, aside)
    return {name: folder / name for name in (HISTORY, PLOT)}


def _plot(history: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.1, right=0.9, bottom=0.13, top=0.96)
    left = figure.subplots()
    left.plot([row["round"] for row in history], [row["loss"] for row in history], color="tab:blue")
    left.set(xlabel="round", ylabel="training loss, mean of a note", ylim=(0, None))
    right = left.twinx()
    measured = [row for row in history if row["micro_f1"] is not None]
    right.plot([row["round"] for row in measured], [row["micro_f1"] for row in measured], "o-", color="tab:orange")
    right.set(ylabel="micro F1 on dev notes, best threshold", ylim=(0, 1))
    figure.savefig(path, format="png", dpi=120)
