"""Training of HMHAN: encode the reports, train the nets, tune on held-out reports.

With dev notes, every net is trained on train and early stopping uses dev. Without dev notes, or with `--refit`, an
ensemble of two nets or more is cross-fitted: the reports are partitioned into as many folds as there are nets. Each net
is trained on all folds but one, for a fixed number of epochs, and scores the fold that it has not seen. Calibration,
prior over code sets and threshold are tuned on these scores. So every report is used for training, and every report is
held out once.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from nosology.encoders.state_cache import CachedStates
from nosology.evaluation import brief
from nosology.models.hmhan.code_groups import CodeCombinations
from nosology.models.hmhan.hmhan_decision import code_shares, mask_by_date, tune_on_held_out
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.report_batches import (
    ReportDataset,
    assign_folds,
)
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.train import CoderTrainer, TrainedCoder
from nosology.training.examples import Examples, union, validation_rows
from nosology.training.run_folder import REFIT, run_fingerprint
from nosology.training.training_run import TrainingResult

RecipeT = TypeVar("RecipeT", bound=HmhanRecipe)


class HmhanTrainer(CoderTrainer[RecipeT], Generic[RecipeT]):
    """Trains an ensemble of nets on one encoder."""

    ensemble_trainer: type[HmhanEnsembleTrainer] = HmhanEnsembleTrainer

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""
        recipe, folder = self.recipe, self.folder
        all_notes = union(train_notes, dev_notes)
        if refit and recipe.model.ensemble_size > 1:
            trainer = self._trainer(all_notes, folder, run_fingerprint(recipe, all_notes))
            if recipe.model.ensemble_size <= len(set(trainer.train.groups)):
                return train_cross_fitted(trainer)
        trainer = self._trainer(train_notes, folder, run_fingerprint(recipe, train_notes, dev_notes))
        dev = ReportDataset.from_notes(list(dev_notes.notes()), recipe, trainer.model)
        rows = np.arange(len(trainer.train))
        states = None if trainer.cached_states is None else trainer.encode(dev)
        scored = validation_rows(len(dev), recipe.training.validation_notes, recipe.seed)
        dev_states = None if states is None else states.subset(scored)
        validate = partial(dev_metrics, dev=dev.subset(scored), cached_states=dev_states)
        trained = [trainer.train_net(i, rows, folder / f"net_{i}", validate) for i in range(recipe.model.ensemble_size)]
        model = trainer.model
        model.net = HmhanEnsemble([net for net, _ in trained])
        logits = model.logits_of(dev.reports, cached_states=states)
        logits = trainer.mix_logits(logits, trainer.held_out_offsets(dev), dev)
        model, decision = tune_on_held_out(recipe, model, logits, dev, trainer.train.gold)
        report = _report(trainer, [result for _, result in trained], dev)
        if refit:
            trainer.device_states = None  # frees GPU memory for the second training
            model = self._refit(all_notes, model, trained[0][1].best_epoch)
        return TrainedCoder(model, decision, report)

    def _trainer(self, notes: Examples, folder: Path, run_fingerprint: str) -> HmhanEnsembleTrainer:
        return self.ensemble_trainer.from_notes(self.recipe, list(notes.notes()), folder, run_fingerprint)

    def _refit(self, notes: Examples, tuned: Hmhan, epochs: int) -> Hmhan:
        """A model with one net, trained on all notes, with what was tuned on dev."""
        folder = self.folder / REFIT
        trainer = self._trainer(notes, folder, run_fingerprint(self.recipe, notes))
        net, _ = trainer.train_net(0, np.arange(len(trainer.train)), folder / "net_0", stop_epoch=epochs)
        model = trainer.model.tuned_like(tuned)
        model.net = HmhanEnsemble([net])
        if tuned.train_shares is not None:
            model.train_shares = code_shares(trainer.train.gold)
        if tuned.combinations is not None:
            model.combinations = replace(
                CodeCombinations.from_gold(trainer.train.gold),
                mixture_weight=tuned.combinations.mixture_weight,
                prior_exponent=tuned.combinations.prior_exponent,
            )
        return model


def train_cross_fitted(trainer: HmhanEnsembleTrainer) -> TrainedCoder:
    """The coder whose nets have each left out one fold, tuned on the scores of the left-out folds."""
    recipe, model, train, offsets = trainer.recipe, trainer.model, trainer.train, trainer.offsets
    states = trainer.cached_states
    fold = assign_folds(train, recipe.model.ensemble_size, recipe.seed)
    logits = np.full((len(train), len(model.labels)), EXCLUDED_LOGIT, dtype=np.float32)
    nets, results = [], []
    for number in range(recipe.model.ensemble_size):
        net, result = trainer.train_net(number, np.flatnonzero(fold != number), trainer.folder / f"net_{number}")
        rows = np.flatnonzero(fold == number)
        one = replace(model, net=HmhanEnsemble([net]))
        logits[rows] = one.logits_of(
            [train.reports[row] for row in rows],
            cached_states=None if states is None else states.subset(rows),
            offset=None if offsets is None else offsets[rows],
        )
        nets.append(net)
        results.append(result)
    model.net = HmhanEnsemble(nets)
    logits = trainer.mix_logits(logits, offsets, train)
    model, decision = tune_on_held_out(recipe, model, logits, train, train.gold, in_train=True)
    tuned_on = f"all notes, each scored by the one of {len(nets)} nets that was not trained on it"
    report = _report(trainer, results, train) | {"tuned_on": tuned_on, "n_dev": len(train)}
    return TrainedCoder(model, decision, report)


def dev_metrics(model: Hmhan, dev: ReportDataset, cached_states: CachedStates | None = None) -> dict[str, float]:
    """Micro F1 at its best threshold and mean average precision on dev reports; cached_states: of these reports."""
    logits = mask_by_date(model, model.logits_of(dev.reports, cached_states=cached_states), dev)
    return brief(model.labels, dev.codes, model.to_probabilities(logits))


def _report(trainer: HmhanEnsembleTrainer, results: list[TrainingResult], held_out: ReportDataset) -> dict[str, Any]:
    """What the provenance of the bundle says about training."""
    return {
        "members": [asdict(result) for result in results],
        "dev_codes": int(held_out.gold.nnz),
        "shape": trainer.model.settings.model_dump(mode="json"),
    } | trainer.report()
