"""Training of the coder of short reports: fit the SVMs over words, train nets on what they leave, tune on held-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from nosology.codes.lookup import label_description
from nosology.core import Note
from nosology.core.label_space import LabelSpace
from nosology.core.progress import progress
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.models.hmhan.hmhan_decision import mask_by_date
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.hmhan_trainer import HmhanTrainer
from nosology.models.hmhan.report_batches import ReportDataset, assign_folds
from nosology.models.hmhan.report_features import MetadataColumns
from nosology.models.reports.reports_model import Reports, mixed_logits
from nosology.models.reports.reports_settings import ReportsRecipe
from nosology.models.reports.word_features import WordFeatures, WordReport, fit_word_svms
from nosology.training.calibration import PlattScaling, cross_entropies

_NET_WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
_STANDARD_ERRORS = 2.0  # a net weight within this many standard errors of the best is as good


class ReportsEnsembleTrainer(HmhanEnsembleTrainer):
    """Fits the SVMs, and trains the nets of one ensemble on held-out SVM logits."""

    model_class = Reports

    recipe: ReportsRecipe  # pyrefly: ignore[bad-override-mutable-attribute]  # always of this type
    model: Reports  # pyrefly: ignore[bad-override-mutable-attribute]  # always of this type

    @classmethod
    def from_notes(cls, recipe: HmhanRecipe, notes: list[Note], folder: Path, run_fingerprint: str) -> Self:
        trainer = super().from_notes(recipe, notes, folder, run_fingerprint)
        trainer.fit_svms()
        return trainer

    @classmethod
    def new_model(
        cls,
        recipe: HmhanRecipe,
        notes: list[Note],
        labels: LabelSpace,
        tokenizer: ReportTokenizer,
        columns: MetadataColumns,
    ) -> Reports:
        """A model without nets and SVMs, with the word features of train notes."""
        assert isinstance(recipe, ReportsRecipe)
        model = super().new_model(recipe, notes, labels, tokenizer, columns)
        assert isinstance(model, Reports)
        texts = (note.text for note in progress(notes, "counting words", total=len(notes)))
        settings, descriptions = recipe.words, _descriptions(labels)
        model.words = WordFeatures.fit(texts, settings.min_notes, settings.features, settings.pairs, descriptions)
        return model

    def fit_svms(self) -> None:
        """Fits the SVMs of all train reports. All nets share them: each uses only held-out scores."""
        model, train, settings = self.model, self.train, self.recipe.words
        fold = assign_folds(train, min(settings.folds, len(set(train.groups))), self.recipe.seed)
        descriptions = [model.tokenize(Note("", text), by_section=False) for text in _descriptions(model.labels)]
        reports = cast("list[WordReport]", train.reports)
        model.svms, self.offsets = fit_word_svms(reports, descriptions, len(model.words), train.gold, fold, settings.c)

    def held_out_offsets(self, dataset: ReportDataset) -> np.ndarray:
        """The SVM logits (B, L) of reports that are not in `train`."""
        return self.model.svms.logits(dataset.reports)

    def mix_logits(self, logits: np.ndarray, offsets: np.ndarray | None, held_out: ReportDataset) -> np.ndarray:
        """The logits (B, L) with the best net weight for held-out reports; the model gets this weight."""
        assert offsets is not None

        def losses(net_weight: float) -> np.ndarray:
            mixed = mask_by_date(self.model, mixed_logits(logits, offsets, net_weight), held_out)
            return cross_entropies(PlattScaling.fit(mixed, held_out.gold), mixed, held_out.gold)

        self.model.net_weight = choose_net_weight({weight: losses(weight) for weight in _NET_WEIGHTS})
        return mixed_logits(logits, offsets, self.model.net_weight)

    def report(self) -> dict[str, Any]:
        """What the provenance of the bundle says about the mixture."""
        return {"net_weight": self.model.net_weight}


class ReportsTrainer(HmhanTrainer[ReportsRecipe]):
    """Trains SVMs over words and an ensemble of nets."""

    ensemble_trainer = ReportsEnsembleTrainer


def _descriptions(labels: LabelSpace) -> list[str]:
    """The description of each code."""
    return [label_description(code, expand_headers=True) for code in labels.codes]


def choose_net_weight(cross_entropies: dict[float, np.ndarray]) -> float:
    """The largest net weight whose mean cross-entropy is the lowest, or within two standard errors of the lowest.

    cross_entropies: net weight -> (B,) of held-out reports. The largest, because held-out scores underestimate the net:
    each comes from one net trained on a part of the reports, while new reports are scored by the whole ensemble.
    """
    best = min(cross_entropies.values(), key=lambda values: values.mean())

    def is_as_good(values: np.ndarray) -> bool:
        excess = values - best
        return bool(excess.mean() <= _STANDARD_ERRORS * excess.std() / len(excess) ** 0.5)

    return max(weight for weight, values in cross_entropies.items() if is_as_good(values))
