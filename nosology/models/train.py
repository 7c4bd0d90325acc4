"""One training run: recipe and corpora in, bundle out."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nosology.core import ConfigError, DataError, __version__
from nosology.core.files import check_output_folder
from nosology.corpora.corpus import Corpus
from nosology.evaluation.decision import Decision
from nosology.models.bundle import MANIFEST, Bundle, Model
from nosology.models.linear.linear_model import LinearRecipe, choose, fit_linear
from nosology.models.linear.tfidf import Tfidf
from nosology.training.examples import Examples, codes_in_labels, label_space, train_and_dev, union
from nosology.training.recipe_settings import Recipe
from nosology.training.run_folder import clear_run_folder, curve_files, run_folder

Trained = tuple[Model, Decision, dict[str, Any]]  # and what dev has said: settings, number of true codes it could use


def train(recipe: Recipe, corpora: list[Corpus], out: str | Path, *, refit: bool = False) -> Bundle:
    """The bundle that the recipe makes of the corpora, saved in `out`.

    Settings and threshold are found on dev; with `refit`, or where dev had to be carved out of train, the model is then
    trained once more on train and dev together.
    """
    train_notes, dev_notes, carved = examples_for(recipe, corpora, out)
    model, decision, found = TRAINERS[recipe.kind](recipe, train_notes, dev_notes, refit or carved, run_folder(out))
    provenance = {
        "corpora": [{"hash": corpus.hash, "source": corpus.manifest["source"]} for corpus in corpora],
        "trained_on": sorted({"train", "dev"} if refit and not carved else {"train"}),
        "tuned_on": found.pop("tuned_on", f"{recipe.holdout.share:.0%} of train" if carved else "dev"),
        "n_train": len(train_notes),
        "n_dev": found.pop("n_dev", len(dev_notes)),
        "refit": refit or carved,
        "found": found,
        "seed": recipe.seed,
        "package": f"nosology {__version__}",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    bundle = Bundle(model, decision, recipe.model_dump(mode="json"), provenance)
    if not int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0):  # of several processes the first writes
        bundle.save(out, also=curve_files(run_folder(out)))
        clear_run_folder(run_folder(out))
    return bundle


def examples_for(
    recipe: Recipe, corpora: list[Corpus], out: str | Path, *, coded: bool = True
) -> tuple[Examples, Examples, bool]:
    """What `train_and_dev` gives; raises at once what would end a training after hours. coded: it needs codes."""
    check_output_folder(out, marker=MANIFEST)
    if len({corpus.hash for corpus in corpora}) < len(corpora):
        raise ConfigError("each corpus must be given once; two of them have the same notes")
    train_notes, dev_notes, carved = train_and_dev(corpora, recipe.holdout.share, recipe.seed)
    if not coded:
        return train_notes, dev_notes, carved
    if not any(train_notes.codes):
        raise DataError("the training notes have no codes: nothing can be learned from them")
    if carved and not any(dev_notes.codes):
        raise DataError("training needs two notes with codes or more, to learn from and to tune on; got one")
    if not any(dev_notes.codes):
        raise DataError("the dev notes have no codes: no threshold can be found on them")
    return train_notes, dev_notes, carved


def _train_linear(
    recipe: LinearRecipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path
) -> Trained:
    labels = label_space(recipe.labels, train_notes.codes)
    gold, dev_gold = labels.encode(train_notes.codes), labels.encode(dev_notes.codes)
    tfidf, vectors = Tfidf.fit(train_notes.texts(), recipe.features)
    dev_vectors = tfidf.transform(dev_notes.texts())
    choice = choose(recipe, vectors, gold, dev_vectors, dev_gold)
    model = fit_linear(recipe, labels, tfidf, vectors, gold, choice).calibrated(dev_vectors, dev_gold)
    dev_codes = codes_in_labels(recipe.labels, labels, dev_notes.codes)
    decision = Decision.tune(recipe.decision, labels, dev_codes, model.vector_probabilities(dev_vectors))
    if refit:
        notes = union(train_notes, dev_notes)
        labels = label_space(recipe.labels, notes.codes)
        tfidf, vectors = Tfidf.fit(notes.texts(), recipe.features)
        last = fit_linear(recipe, labels, tfidf, vectors, labels.encode(notes.codes), choice)
        model = replace(last, calibration=model.calibration)
    return model, decision, asdict(choice) | {"dev_codes": int(dev_gold.nnz)}


def _train_lexicon(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    from nosology.models.lexicon.lexicon_trainer import train_lexicon

    model, decision, found = train_lexicon(recipe, train_notes, dev_notes, refit, folder)
    return model, decision, found | {"tuned_on": f"{recipe.learn.folds} parts of the notes it learned from, crosswise"}


def _train_neural(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    try:
        from nosology.models.neural_trainer import train_neural  # torch takes seconds to import
    except ImportError as error:
        raise ConfigError(
            f"{recipe.kind} needs {error.name}, which is not there: pip install nosology[train]"
        ) from error
    return train_neural(recipe, train_notes, dev_notes, refit, folder)


def _train_heads(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    try:
        from nosology.models.heads.heads_trainer import train_heads
    except ImportError as error:
        raise ConfigError(f"heads need {error.name}, which is not there: pip install nosology[embed]") from error
    return train_heads(recipe, train_notes, dev_notes, refit, folder)


def _train_plant(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    try:
        from nosology.models.plant.plant_trainer import train_plant
    except ImportError as error:
        raise ConfigError(f"plant needs {error.name}, which is not there: pip install nosology[train]") from error
    return train_plant(recipe, train_notes, dev_notes, refit, folder)


def _train_hmhan(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    try:
        from nosology.models.hmhan.hmhan_trainer import train_hmhan
    except ImportError as error:
        raise ConfigError(f"hmhan needs {error.name}, which is not there: pip install nosology[embed]") from error
    return train_hmhan(recipe, train_notes, dev_notes, refit, folder)


TRAINERS: dict[str, Callable[[Any, Examples, Examples, bool, Path], Trained]] = {
    "linear": _train_linear,
    "lexicon": _train_lexicon,
    "caml": _train_neural,
    "laat": _train_neural,
    "plm_icd": _train_neural,
    "dual_laat": _train_neural,
    "heads": _train_heads,
    "plant": _train_plant,
    "hmhan": _train_hmhan,
}
