"""A hospital that trains PLANT: language model, numbers of notes with words and codes, then the net.

Notes are read as by `WordSite`. The ranker is trained by the server: it needs no notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from nosology.core.label_space import LabelSpace, column_sums
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.federated.federation_settings import FederatedPlantRecipe
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.local_training import loop_settings, restore_unused_labels, round_epochs, train_net
from nosology.federated.rounds.personal_layers import mark, marked
from nosology.federated.rounds.site_results import SiteUpdate
from nosology.federated.rounds.word_site import WordSite, net_weights
from nosology.models.neural import NeuralModel
from nosology.models.neural_trainer import Targets, TokenizedNotes
from nosology.models.plant.plant_model import Plant, direction_name, directions
from nosology.models.plant.plant_trainer import (
    language_streams,
    new_language_encoder,
    parameter_groups,
    word_presence,
)
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import make_batch_plan
from nosology.training.recipe_settings import TrainerSettings

WORD_SHARE, CODE_SHARE, BOTH_SHARE = "relevance.words", "relevance.codes", "relevance.both"  # of the notes of a site
RELEVANCE = "relevance/"  # before the names of the arrays of a `Relevance`
_ROWS = ("queries", "weights", "bias", "ranker.labels")  # of a direction, with one row per label


@dataclass(frozen=True, eq=False)
class SharedPlant:
    """What all sites use to read notes, and what was learned before the net. Sites have the relevance of words only."""

    words: tuple[str, ...]
    notes: int  # of all sites
    learned: Mapping[str, np.ndarray]

    @property
    def relevance(self) -> Relevance:
        """The relevance of words for codes."""
        return Relevance.from_arrays(marked(dict(self.learned), RELEVANCE))


def plant_tokenizer(recipe: FederatedPlantRecipe, words: tuple[str, ...]) -> WordTokenizer:
    """The tokenizer of a vocabulary."""
    return WordTokenizer(Vocabulary(words), recipe.model.max_words, alphabetic=recipe.words.alphabetic)


def plant_label_rows(recipe: FederatedPlantRecipe, labels: LabelSpace) -> LabelRows:
    """The weights of the net that have one row per label."""
    parts = [name for name in _ROWS if recipe.model.planted or name != "ranker.labels"]
    numbers = range(len(directions(recipe.model)))
    return LabelRows(tuple(f"nets.{number}.{name}" for number in numbers for name in parts), len(labels))


def language_schedule(recipe: FederatedPlantRecipe) -> tuple[TrainerSettings, int]:
    """The training settings of the language model over all its rounds, and the epochs of a round."""
    rounds, settings = recipe.federation.language_rounds, recipe.language.training
    epochs = -(-settings.epochs // rounds)
    return settings.model_copy(update={"epochs": epochs * rounds}), epochs


class PlantSite(WordSite):
    """The notes of a hospital. Its rounds are those of the language model, one of relevance, and those of the net."""

    inputs: SharedPlant | None

    @staticmethod
    def _model_settings(recipe: Any) -> Any:
        return recipe.model, recipe.ranker, recipe.words

    def _new_model(self, recipe: Any, labels: LabelSpace) -> tuple[NeuralModel, Targets]:
        assert self.inputs is not None
        tokenizer = plant_tokenizer(recipe, self.inputs.words)
        relevance = self.inputs.relevance if self.inputs.learned else Relevance.empty()
        with torch.random.fork_rng(devices=[]):
            counts = np.zeros(len(labels), np.int64)
            model = Plant.of(labels, counts, tokenizer, recipe.model, recipe.ranker, relevance)
        model.precision = recipe.training.precision
        return model, Targets.of(labels)

    def _model(self, recipe: Any, weights: Arrays) -> tuple[Any, Targets]:
        model, targets = self._untrained(recipe)
        model.net.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()})
        model.weights_changed()
        return model.to(self.device), targets

    def train(
        self, weights: Arrays, recipe: Any, round_number: int, optimizer_state: Arrays | None = None
    ) -> SiteUpdate:
        """The update of one round. Rounds are counted from 1 over all phases."""
        state, rounds = optimizer_state or {}, recipe.federation.language_rounds
        if round_number <= rounds:
            return self._train_language(weights, recipe, round_number, state)
        if round_number == rounds + 1:
            return self._count(recipe)
        return self._train_net(weights, recipe, round_number - rounds - 1, state)

    def _train_language(self, weights: Arrays, recipe: Any, round_number: int, state: Arrays) -> SiteUpdate:
        """The update of a round of the language model, of all directions."""
        notes = self._notes("train", model := self._untrained(recipe)[0])
        settings, epochs = language_schedule(recipe)
        trained, kept, losses = Arrays(), Arrays(), []
        for backward in directions(recipe.model):
            prefix = direction_name(backward) + "."
            encoder = new_language_encoder(recipe, len(model.tokenizer.vocabulary))
            net, plan, streams = language_streams(recipe, encoder, notes, backward)
            parameters = dict(net.named_parameters())
            with torch.no_grad():
                for name, array in marked(weights, prefix).items():
                    parameters[name].copy_(torch.from_numpy(np.array(array)))
            net.to(self.device)
            part = range((round_number - 1) * epochs, round_number * epochs)
            step = (lambda rows, _, streams=streams: streams.batch(rows), None)
            loss, after = train_net(net, plan, step, settings, part, recipe.federation, marked(state, prefix))
            losses.append(loss)
            trained |= mark(parameter_arrays(net), prefix)
            kept |= mark(after, prefix)
        return SiteUpdate(self.name, trained, self.sizes["train"], float(np.mean(losses)), self.label_mask, kept)

    def _count(self, recipe: Any) -> SiteUpdate:
        """Shares of the train notes with each word, code, and both: their mean over sites is that of all notes.

        Unless sums are secure, numbers of fewer than `min_site_notes` patients (of codes: notes) are 0.
        """
        notes = self._notes("train", model := self._untrained(recipe)[0])
        vocabulary, size = model.tokenizer.vocabulary, self.sizes["train"]
        presence = word_presence(notes, len(vocabulary))
        words, codes = (column_sums(matrix).astype(np.int64) for matrix in (presence, notes.gold))
        both = (notes.gold.T.astype(np.int32) @ presence.astype(np.int32)).toarray()
        if not recipe.federation.privacy.secure:
            minimum = recipe.federation.min_site_notes
            frequent = np.zeros(len(vocabulary), bool)
            frequent[vocabulary.ids(list(self.word_counts(minimum)))] = True
            words[~frequent], codes[codes < minimum] = 0, 0
            both[self._patients_with_both(notes, presence, minimum) < minimum] = 0
        counts = {WORD_SHARE: words, CODE_SHARE: codes, BOTH_SHARE: both}
        shares = {name: np.divide(count, size, dtype=np.float32) for name, count in counts.items()}
        return SiteUpdate(self.name, shares, size, 0.0, self.label_mask)

    def _patients_with_both(self, notes: TokenizedNotes, presence: sparse.csr_matrix, minimum: int) -> np.ndarray:
        """The number of patients (L, V) with a note that has a code and a word; 0 for codes of fewer notes."""
        train = self.examples["train"]
        rows_of = (note for corpus in train.corpora for note in corpus.notes(text=False) if train.keep(note))
        patients = np.unique([note.patient or note.id for note in rows_of], return_inverse=True)[1].astype(np.int64)
        size, of_code = presence.shape[1], notes.gold.tocsc()
        result = np.zeros((notes.gold.shape[1], size), np.int32)
        for label, (first, last) in enumerate(pairwise(of_code.indptr)):
            if last - first >= minimum:
                rows = of_code.indices[first:last]
                words = presence[rows].tocoo()
                pairs = np.unique(patients[rows[words.row]] * size + words.col)
                result[label] = np.bincount(pairs % size, minlength=size)
        return result

    def _train_net(self, weights: Arrays, recipe: Any, round_number: int, state: Arrays) -> SiteUpdate:
        """The update of a round of the net, of all directions."""
        model, targets = self._model(recipe, weights)
        settings, federation, kept, losses = loop_settings(recipe), recipe.federation, Arrays(), []
        batches = self._batches(model, targets)
        plan = make_batch_plan(batches.lengths, batches.groups, settings, recipe.seed, self.device)
        for number, net in enumerate(model.net.by_direction):
            groups, prefix = parameter_groups(net, recipe.rates), f"net{number}."
            net.cache.clear()  # states of other weights
            step, epochs = (batches.make_batch, batches.prepare_step), round_epochs(federation, round_number)
            before = marked(state, prefix)
            loss, after = train_net(net, plan, step, settings, epochs, federation, before, groups)
            net.cache.clear()
            losses.append(loss)
            kept |= mark(after, prefix)
        model.weights_changed()
        trained = net_weights(model.net)
        restore_unused_labels(trained, weights, plant_label_rows(recipe, model.labels), self.label_mask)
        return SiteUpdate(self.name, trained, self.sizes["train"], float(np.mean(losses)), self.label_mask, kept)


def parameter_arrays(net: nn.Module) -> Arrays:
    """Copies of the parameters of a net by name, without its buffers."""
    return {name: value.detach().cpu().numpy().copy() for name, value in net.named_parameters()}
