"""One training run: recipe and corpora in, bundle out."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nosology.core import ConfigError, DataError, __version__
from nosology.core.files import check_output_folder
from nosology.corpora.corpus import Corpus
from nosology.models.bundle import MANIFEST, Bundle
from nosology.models.coder_trainer import CoderTrainer
from nosology.models.registry import load_class
from nosology.training.examples import Examples, train_and_dev
from nosology.training.recipe_settings import Recipe
from nosology.training.run_folder import clear_run_folder, curve_files, run_folder


def train(recipe: Recipe, corpora: list[Corpus], out: str | Path, *, refit: bool = False) -> Bundle:
    """The bundle that the recipe makes of the corpora, saved in `out`.

    Settings and threshold are found on dev; with `refit`, or where dev had to be carved out of train, the model is then
    trained once more on train and dev together.
    """
    train_notes, dev_notes, carved = examples_for(recipe, corpora, out)
    trainer: CoderTrainer = load_class(recipe.kind, "trainer")(recipe, run_folder(out))
    trained = trainer.train(train_notes, dev_notes, refit or carved)
    report = dict(trained.report)
    provenance = {
        "corpora": [{"hash": corpus.hash, "source": corpus.manifest["source"]} for corpus in corpora],
        "trained_on": sorted({"train", "dev"} if refit and not carved else {"train"}),
        "tuned_on": report.pop("tuned_on", f"{recipe.holdout.share:.0%} of train" if carved else "dev"),
        "n_train": len(train_notes),
        "n_dev": report.pop("n_dev", len(dev_notes)),
        "refit": refit or carved,
        "found": report,
        "seed": recipe.seed,
        "package": f"nosology {__version__}",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    bundle = Bundle(trained.model, trained.decision, recipe.model_dump(mode="json"), provenance)
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
