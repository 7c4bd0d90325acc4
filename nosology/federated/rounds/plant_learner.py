"""Federated PLANT: rounds of the language model, one round of counts, then the ranker at the server, then the net.

The counts are shares of the notes of a site with a word, a code, and both; their mean, weighted by notes, is that of
all notes. In secure sums the server sees only that mean, and the relevance of words is that of central training; in
the clear, sites leave out what few patients have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from nosology.core import ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import Vocabulary, has_letter
from nosology.federated.federation_settings import FederatedPlantRecipe
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, SiteMetadata
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.personal_layers import mark, marked
from nosology.federated.rounds.plant_site import (
    BOTH_SHARE,
    CODE_SHARE,
    RELEVANCE,
    WORD_SHARE,
    PlantSite,
    SharedPlant,
    parameter_arrays,
    plant_label_rows,
    plant_tokenizer,
)
from nosology.federated.rounds.vocabulary_learner import VocabularyLearner, WordCounts, read_words
from nosology.federated.rounds.word_site import WORD_PREPROCESSING, net_weights
from nosology.models.plant.language_model import LanguageModel
from nosology.models.plant.plant_model import Plant, PlantNet, PlantNets, direction_name, directions
from nosology.models.plant.plant_trainer import fit_ranker, new_classifier, new_language_encoder
from nosology.models.plant.relevance import Relevance
from nosology.training.calibration import PlattScaling
from nosology.training.examples import Examples

LANGUAGE, RANKER = "language/", "ranker/"  # before the names of learned weights; then the direction
_MAX_SHARES = 1 << 26  # codes x words of the round of counts: 256 MiB in a message


class PlantLearner(VocabularyLearner[PlantSite, SharedPlant]):
    """PLANT. What was learned before the net is in the inputs of the setup."""

    recipe: FederatedPlantRecipe
    preprocessing, site_tables = WORD_PREPROCESSING, {"kind", "words", "model", "labels"}
    head = tuple(f"nets.{number}.{name}" for number in (0, 1) for name in ("queries", "weights", "bias"))

    @property
    def reports_words(self) -> bool:
        """Whether sites report words, or in the clear the shares of their notes that have them."""
        return super().reports_words or not self.recipe.federation.privacy.secure

    def check(self) -> None:
        """Raises ConfigError for settings that PLANT does not support in a federation."""
        recipe, federation, privacy = self.recipe, self.recipe.federation, self.recipe.federation.privacy
        for name, value, allowed in (
            ("federation.mode", federation.mode, ("sync",)),  # the counts need all sites
            ("federation.optimizer", federation.optimizer, ("adamw",)),
            ("federation.strategy", federation.strategy, ("fedavg", "fedprox")),  # the counts need a mean
            ("federation.compression", federation.compression, ("none", "bf16")),
            ("federation.privacy.record_noise", privacy.record_noise, (0.0,)),
            ("federation.privacy.word_noise", privacy.word_noise, (0.0,)),  # the counts have none
            ("federation.privacy.site_clip", privacy.site_clip, (0.0,)),
            ("federation.norm_bound", federation.norm_bound, (0.0,)),
            ("federation.norm_multiple", federation.norm_multiple, (0.0,)),
            ("federation.fraction_train", federation.fraction_train, (1.0,)),
            ("language.weights", recipe.language.weights, ("",)),
            ("stages", recipe.stages, ("",)),
        ):
            if value not in allowed:
                choices = " or ".join(map(repr, allowed))
                raise ConfigError(f"{name} must be {choices} for a federated plant; got {value!r}")
        self.check_reading()

    def make_site(self, name: str, notes: dict[str, Examples]) -> PlantSite:
        """The site of these notes by split."""
        return PlantSite(name, notes, "none", self.recipe.model.size, self.recipe.labels)

    def share_inputs(
        self, reports: Sequence[WordCounts], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]
    ) -> SharedPlant:
        """The vocabulary, and the number of train notes."""
        settings, counts = self.recipe.words, self.add_reports(reports)
        if public := self.recipe.federation.vocabulary:
            listed = {word for word in read_words(Path(public)) if not settings.alphabetic or has_letter(word)}
            if len(listed) > (most := settings.max_words):
                raise ConfigError(
                    f"federation.vocabulary must have at most words.max_words = {most} words; got {len(listed)}"
                )
            words = Vocabulary.build({}, extra_words=listed).words
        else:
            limits = {"max_words": settings.max_words, "alphabetic": settings.alphabetic}
            words = Vocabulary.build(counts, settings.min_notes, **limits).words
        if not words:
            raise DataError("no word has enough patients: federation.min_site_notes and words.min_notes must be lower")
        if (cells := len(words) * len(labels)) > _MAX_SHARES:
            raise DataError(
                f"words x codes must be at most {_MAX_SHARES:,} for a federated plant: lower words.max_words or raise "
                f"federation.min_notes; got {cells:,}"
            )
        return SharedPlant(words, sum(site.notes for site in metadata.values()), {})

    def pack_inputs(self, inputs: SharedPlant) -> tuple[Arrays, dict[str, Any]]:
        """Words and number of notes as values, and the relevance of words: the part of what was learned for sites."""
        relevance = {name: array for name, array in inputs.learned.items() if name.startswith(RELEVANCE)}
        return relevance, {"words": list(inputs.words), "notes": inputs.notes}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> SharedPlant:
        """The inputs of `pack_inputs`."""
        learned = {name: array for name, array in arrays.items() if name.startswith(RELEVANCE)}
        return SharedPlant(tuple(values["words"]), values["notes"], learned)

    @property
    def pretraining_rounds(self) -> int:
        """The rounds of the language model, and one of counts."""
        return self.recipe.federation.language_rounds + 1

    def phase_name(self, number: int) -> str:
        """Language model, counts of words and codes, or the net."""
        if number > self.pretraining_rounds:
            return ""
        return "language model" if number < self.pretraining_rounds else "words and codes"

    def is_pretraining(self, inputs: SharedPlant) -> bool:
        """Whether there is no relevance of words yet."""
        return not any(name.startswith(RELEVANCE) for name in inputs.learned)

    def add_learned(self, inputs: SharedPlant, arrays: Mapping[str, np.ndarray]) -> SharedPlant:
        """The inputs with all that was learned."""
        return replace(inputs, learned=arrays)

    def finish_phase(self, setup: FederationSetup, number: int, weights: Mapping[str, np.ndarray]) -> Arrays | None:
        """The encoders after the last round of the language model; then also relevance and trained rankers."""
        if number == self.recipe.federation.language_rounds:
            parts = {way: marked(dict(weights), f"{way}.encoder.") for way in self._directions()}
            return {f"{LANGUAGE}{way}/{name}": array for way, part in parts.items() for name, array in part.items()}
        if number == self.pretraining_rounds:
            return self._learn_relevance(setup, weights)
        return None

    def _directions(self) -> list[str]:
        return [direction_name(backward) for backward in directions(self.recipe.model)]

    def _learn_relevance(self, setup: FederationSetup, shares: Mapping[str, np.ndarray]) -> Arrays:
        """What was learned before, with the relevance of the counts of all sites and rankers that have learned it."""
        notes, settings = setup.inputs.notes, self.recipe.relevance
        words, codes = (np.clip(np.round(shares[name] * float(notes)), 0, notes) for name in (WORD_SHARE, CODE_SHARE))

        def together(part: slice) -> np.ndarray:
            both = np.round(shares[BOTH_SHARE][part] * float(notes))
            return np.clip(both, 0, np.minimum(words, codes[part, None]))  # of a false site: impossible numbers

        relevance = Relevance.of_counts(
            notes, words, codes, together, settings.kind, settings.top, positive=settings.positive
        )
        learned = dict(setup.inputs.learned) | mark(relevance.arrays(), RELEVANCE)
        if self.recipe.model.planted:
            trained = setup.with_learned(learned)
            tokenizer = plant_tokenizer(self.recipe, setup.inputs.words)
            for backward in directions(self.recipe.model):
                net = self._net(trained, backward)
                with TemporaryDirectory() as folder:
                    fit_ranker(net, relevance, setup.labels, tokenizer, self.recipe, Path(folder), "")
                assert net.ranker is not None
                learned |= mark(parameter_arrays(net.ranker), f"{RANKER}{direction_name(backward)}/")
        return learned

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """The rows of labels in all parts of the net; none before it."""
        if self.is_pretraining(setup.inputs):
            return LabelRows((), len(setup.labels))
        return plant_label_rows(self.recipe, setup.labels)

    def weight_names(self, setup: FederationSetup) -> list[str]:
        """The names of the weights of the net, whatever the phase."""
        model, ranker = self.recipe.model, self.recipe.ranker
        return list(PlantNets.of(model, ranker, 3, 1, None).state_dict())

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The weights before the first round of a phase."""
        inputs, words, labels = setup.inputs, len(Vocabulary(setup.inputs.words)), len(setup.labels)
        with torch.random.fork_rng(devices=[]):
            if not inputs.learned:
                encoder = new_language_encoder(self.recipe, words)
                arrays = parameter_arrays(LanguageModel(encoder, 1))
                return {f"{way}.{name}": array for way in self._directions() for name, array in arrays.items()}
            if self.is_pretraining(inputs):
                shapes = {WORD_SHARE: (words,), CODE_SHARE: (labels,), BOTH_SHARE: (labels, words)}
                return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            nets = [self._net(setup, backward) for backward in directions(self.recipe.model)]
            return net_weights(PlantNets(nets))

    def _net(self, setup: FederationSetup, backward: bool) -> PlantNet:
        """The untrained net of a direction, with its encoder, and its ranker where that is trained."""
        inputs, way = setup.inputs, direction_name(backward)
        rates = setup.label_counts / max(1, inputs.notes)
        encoder, ranker = (
            {name: torch.from_numpy(np.array(array)) for name, array in marked(dict(inputs.learned), prefix).items()}
            for prefix in (f"{LANGUAGE}{way}/", f"{RANKER}{way}/")
        )
        net = new_classifier(self.recipe, len(Vocabulary(inputs.words)), inputs.relevance, rates, encoder, backward)
        if net.ranker is not None and ranker:
            net.ranker.load_state_dict(ranker)
        return net

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Plant:
        """The model with these weights."""
        recipe, inputs = self.recipe, setup.inputs
        tokenizer = plant_tokenizer(recipe, inputs.words)
        with torch.random.fork_rng(devices=[]):
            model = Plant.of(setup.labels, setup.label_counts, tokenizer, recipe.model, recipe.ranker, inputs.relevance)
        model.net.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()})
        model.net.eval()
        model.precision, model.calibration = recipe.training.precision, calibration
        model.weights_changed()
        return model
