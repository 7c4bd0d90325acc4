"""Tables of the PLANT paper (see REFERENCES.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nosology.corpora.corpus import Corpus
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import Notes
from nosology.models.plant.plant_settings import PlantRecipe
from nosology.models.plant.plant_trainer import Chain, PlantTrainer
from nosology.models.plant.stages import StageCache
from nosology.training.examples import Examples, train_and_dev


@dataclass(frozen=True)
class StagesOfAllNotes(StageCache):
    """Stages whose language model and mutual information come from a chain over all notes, test notes included."""

    everything: Chain

    def get_or_compute(self, name: str, inputs: list, compute: Any) -> dict[str, Tensor]:
        """The tensors of a stage."""
        if name == "relevance":
            return {key: torch.from_numpy(array) for key, array in self.everything.relevance().arrays().items()}
        if name.startswith("language"):
            return dict(self.everything.language(name.endswith("backward")).state_dict())
        return super().get_or_compute(name, inputs, compute)


def train_on_all_notes(recipe: PlantRecipe, corpus: Corpus, folder: Path) -> Bundle:
    """The coder of a corpus whose language model and mutual information have seen dev and test notes too.

    The authors' published program does this. It shows what the leak does to a score; do not use such a coder.
    """
    learn, dev, _ = train_and_dev([corpus], recipe.holdout.share, recipe.seed)
    chain = Chain.of(recipe, learn, folder)
    every = Examples([corpus], lambda note: True)
    notes = Notes.of(every, recipe.labels, chain.reader, chain.labels)
    whole = replace(Chain.of(recipe, every, folder / "all"), notes=notes, reader=chain.reader, labels=chain.labels)
    stages = StagesOfAllNotes(whole.stages.folder, whole.stages.fingerprint, whole)
    trained = PlantTrainer(recipe, folder, stages).train(learn, dev, False)
    model, decision, found = trained.model, trained.decision, trained.report
    return Bundle(model, decision, recipe.model_dump(mode="json"), {"found": found})
