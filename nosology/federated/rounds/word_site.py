"""A hospital whose notes are read as words: local training and evaluation of CAML, LAAT and DualLAAT.

Words are read from the word caches of the corpora, which stay at the site. Nothing here depends on Flower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import Code, DataError, __version__
from nosology.core.label_space import LabelSpace, label_versions
from nosology.corpora.word_cache import Cleaning, word_cache
from nosology.encoders.cached_words import EncodedWords
from nosology.encoders.tokenizers import PAD, UNKNOWN, Vocabulary, WordTokenizer
from nosology.encoders.word_vectors import train_matrices
from nosology.federated.federation_settings import FederatedDualLaatRecipe, FederatedWordRecipe
from nosology.federated.privacy.dp_sgd import secure_generator
from nosology.federated.rounds.federation_setup import Arrays, SiteMetadata, embedder_key, reported_codes
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.local_training import (
    loop_settings,
    restore_unused_labels,
    round_epochs,
    train_net,
    used_labels,
)
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.federated.rounds.word_noise import WordNoise
from nosology.models.dual_laat.dual_laat_trainer import build_dual_laat
from nosology.models.laat.laat_trainer import build_laat
from nosology.models.neural import NeuralModel
from nosology.models.neural_trainer import LabelBatches, Targets, TokenizedNotes
from nosology.training.batch_plan import derive_seed
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling
from nosology.training.data_loader import make_batch_plan
from nosology.training.examples import Examples, codes_in_systems
from nosology.training.inference import default_device
from nosology.training.recipe_settings import LabelSettings

WORD_PREPROCESSING = "lower-case words of the text as given"
VECTORS, CONTEXTS = "word2vec.vectors", "word2vec.contexts"  # weights of the rounds of word2vec
_LABEL_ROWS = ("learned.queries", "learned.weights", "learned.bias")  # of CAML and LAAT; DualLAAT reads descriptions


@dataclass(frozen=True)
class SharedWords:
    """What all sites use to read notes: the words of the vocabulary in order, and the train notes of all sites."""

    words: tuple[str, ...]
    notes: int  # of all sites: decides the sizes of the net
    vector_epochs: int = 0  # of word2vec in a round
    vectors: np.ndarray | None = None  # of words, after the rounds of word2vec; the server has them


def vector_rounds(recipe: FederatedWordRecipe) -> int:
    """The number of rounds of word2vec before those of the net."""
    return recipe.federation.vector_rounds if recipe.vectors.epochs != 0 else 0


def word_label_rows(recipe: FederatedWordRecipe, labels: LabelSpace) -> LabelRows:
    """The weights of a word net that have one row per label."""
    return LabelRows((), len(labels)) if isinstance(recipe, FederatedDualLaatRecipe) else LabelRows(_LABEL_ROWS)


def build_word_model(
    recipe: FederatedWordRecipe, labels: LabelSpace, inputs: SharedWords, vectors: Tensor | None, counts: np.ndarray
) -> tuple[NeuralModel, Targets]:
    """An untrained model, and what it is trained to predict. counts: (L,) train notes of each label."""
    settings = recipe.vectors
    tokenizer = WordTokenizer(Vocabulary(inputs.words), settings.max_words, benchmark=settings.cleaning == "benchmark")
    with torch.random.fork_rng(devices=[]):
        if isinstance(recipe, FederatedDualLaatRecipe):
            model, targets = build_dual_laat(recipe, labels, tokenizer, vectors, inputs.notes, counts)
        else:
            model, targets = build_laat(recipe, labels, tokenizer, vectors, inputs.notes, counts)
    model.train_counts, model.precision = counts, recipe.training.precision
    return model, targets


def load_weights(model: NeuralModel, weights: Mapping[str, np.ndarray]) -> None:
    """Loads weights into the net. Noise may have changed the vector of padding, which must be zero."""
    model.net.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()})
    with torch.no_grad():
        model.net.get_parameter("embedding.weight")[PAD] = 0
    model.weights_changed()


def net_weights(net: nn.Module) -> Arrays:
    """Copies of the weights of a net by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in net.state_dict().items()}


@dataclass
class WordSite:
    """The notes of a hospital as words. After `configure` it can train and evaluate."""

    name: str
    examples: dict[str, Examples]  # by split
    cleaning: Cleaning
    size: int  # of word vectors
    label_settings: LabelSettings
    code_list: frozenset[Code] | None = None  # codes that the site uses; None: all of the systems of its notes
    device: torch.device = field(default_factory=default_device)

    labels: LabelSpace | None = None
    inputs: Any = None  # the shared words, see `configure`
    label_mask: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of notes of each split."""
        return {split: len(part) for split, part in self.examples.items()}

    def metadata(self, min_site_notes: int) -> SiteMetadata:
        """The metadata of the site, without codes of fewer than `min_site_notes` notes."""
        codes = codes_in_systems(self.label_settings, self.examples["train"].codes)
        reported = reported_codes(codes, self.code_list, min_site_notes)
        identity = {"tokenizer": "words", "cleaning": self.cleaning, "dim": self.size}
        key = embedder_key(identity)
        return SiteMetadata(__version__, key, identity, self.size, WORD_PREPROCESSING, len(codes), reported)

    def word_counts(self, min_site_notes: int) -> dict[str, int]:
        """The number of patients with each word in train notes, of words of at least `min_site_notes` patients.

        Patients are counted, not notes: the name of one patient may be in many notes. A note without a patient counts
        as one patient.
        """
        words, patients = self._words_of_patients()
        counts = np.zeros(len(words), np.int64)
        for numbers in patients:
            counts[numbers] += 1
        reported = zip(words, counts.tolist())
        return {word: count for word, count in sorted(reported) if count >= max(1, min_site_notes)}

    def noisy_word_counts(self, noise: WordNoise) -> dict[str, int]:
        """The words that a site reports with noise, with their noisy number of patients."""
        return noise.report(*self._words_of_patients(), self.sizes["train"], secure_generator())

    def _words_of_patients(self) -> tuple[list[str], list[np.ndarray]]:
        """The words of train notes, and for each patient the numbers of the different words of all notes."""
        train, number_of = self.examples["train"], dict[str, int]()
        found: dict[str, list[np.ndarray]] = defaultdict(list)  # by patient, the numbers of words; of all corpora
        for corpus in train.corpora:
            cache = word_cache(corpus, self.cleaning)
            numbers = np.array([number_of.setdefault(word, len(number_of)) for word in cache.words], np.int64)
            for row, note in enumerate(corpus.notes(text=False)):
                if train.keep(note):
                    ids = np.unique(cache.ids[cache.bounds[row] : cache.bounds[row + 1]])
                    found[note.patient or note.id].append(numbers[ids])
        return list(number_of), [np.unique(np.concatenate(of_patient)) for of_patient in found.values()]

    def configure(self, labels: LabelSpace, inputs: SharedWords) -> None:
        """Sets labels and words of the federation."""
        self.labels, self.inputs = labels, inputs
        self.label_mask = used_labels(labels, self.examples["train"].codes, self.code_list)
        self._built: tuple[Any, NeuralModel, Targets] | None = None
        self._tokenized: dict[str, TokenizedNotes] = {}

    def _uses(self, code: Code) -> bool:
        return self.code_list is None or code in self.code_list

    def _model(self, recipe: FederatedWordRecipe, weights: Arrays) -> tuple[NeuralModel, Targets]:
        """The model with these weights on the device, and its targets: only labels that the site uses compete."""
        model, targets = self._untrained(recipe)
        load_weights(model, weights)
        return model.to(self.device), targets

    def _untrained(self, recipe: FederatedWordRecipe) -> tuple[NeuralModel, Targets]:
        """The model, with the weights that it had last, and its targets."""
        if self.labels is None or self.inputs is None:
            raise DataError(f"site {self.name} has no labels and no words yet")
        hidden = recipe.federation.min_site_notes if recipe.federation.rare_words == "unknown" else 1
        key = (self._model_settings(recipe), recipe.training.precision, hidden)
        if self._built is None or self._built[0] != key:
            model, targets = self._new_model(recipe, self.labels)
            used = np.unique(targets.of_label[self.label_mask])
            pools = {version: np.intersect1d(pool, used) for version, pool in targets.pools.items()}
            self._built, self._tokenized = (key, model, replace(targets, pools=pools)), {}
            if hidden > 1:
                self._tokenized["train"] = self._hide_rare_words(self._notes("train", model), model, hidden)
        _, model, targets = self._built
        return model, targets

    @staticmethod
    def _model_settings(recipe: Any) -> Any:
        """The parts of a recipe that decide the shape of the model."""
        return recipe.model, recipe.vectors

    def _new_model(self, recipe: Any, labels: LabelSpace) -> tuple[NeuralModel, Targets]:
        """A model without learned weights, and what it is trained to predict."""
        assert self.inputs is not None
        return build_word_model(recipe, labels, self.inputs, None, np.zeros(len(labels), np.int64))

    def _notes(self, split: str, model: NeuralModel) -> TokenizedNotes:
        """The tokenized notes of a split, with the codes that the site uses."""
        if split not in self._tokenized:
            tokenized = TokenizedNotes.of(self.examples[split], self.label_settings, model.tokenizer, model.labels)
            codes = [tuple(code for code in note if self._uses(code)) for note in tokenized.codes]
            self._tokenized[split] = replace(tokenized, codes=codes, gold=model.labels.encode(codes))
        return self._tokenized[split]

    def _hide_rare_words(self, notes: TokenizedNotes, model: NeuralModel, patients: int) -> TokenizedNotes:
        """The notes with unknown words in place of words of fewer than this many patients of the site."""
        vocabulary, encodings = model.tokenizer.vocabulary, notes.encodings
        assert isinstance(encodings, EncodedWords)
        frequent = np.zeros(len(vocabulary), bool)
        frequent[vocabulary.ids(list(self.word_counts(patients)))] = True
        # an id below 0 is a word that the tokenizer leaves out
        tables = [
            (cache, np.where((ids < 0) | frequent[ids], ids, np.int32(UNKNOWN))) for cache, ids in encodings.tables
        ]
        return replace(notes, encodings=replace(encodings, tables=tables))

    def train(
        self,
        weights: Arrays,
        recipe: FederatedWordRecipe,
        round_number: int,
        optimizer_state: Arrays | None = None,
    ) -> SiteUpdate:
        """The update of one round of local training. Rounds are counted from 1; those of word2vec are the first."""
        before = vector_rounds(recipe)
        if round_number <= before:
            return self._train_vectors(weights, recipe, round_number)
        model, targets = self._model(recipe, weights)
        net, settings, federation = model.net, loop_settings(recipe), recipe.federation
        batches = self._batches(model, targets)
        plan = make_batch_plan(batches.lengths, batches.groups, settings, recipe.seed, self.device)
        epochs, step = round_epochs(federation, round_number - before), (batches.make_batch, batches.prepare_step)
        loss, state = train_net(net, plan, step, settings, epochs, federation, optimizer_state)
        model.weights_changed()
        trained = net_weights(net)
        restore_unused_labels(trained, weights, word_label_rows(recipe, model.labels), self.label_mask)
        return SiteUpdate(self.name, trained, self.sizes["train"], loss, self.label_mask, state)

    def _batches(self, model: NeuralModel, targets: Targets) -> LabelBatches:
        """The batches of the train notes."""
        if not self.label_mask.any():
            raise DataError("it uses none of the codes of the federation")
        return LabelBatches.of(self._notes("train", model), targets, label_versions(model.labels)[self.label_mask])

    def _train_vectors(self, weights: Arrays, recipe: FederatedWordRecipe, round_number: int) -> SiteUpdate:
        """The update of a round of word2vec; it has no loss."""
        notes, rounds = self._notes("train", self._untrained(recipe)[0]), vector_rounds(recipe)
        assert self.inputs is not None and isinstance(notes.encodings, EncodedWords)
        matrices = train_matrices(
            notes.encodings,
            (weights[VECTORS], weights[CONTEXTS]),
            epochs=self.inputs.vector_epochs,
            done=(round_number - 1) / rounds,
            end=round_number / rounds,
            seed=derive_seed("word2vec", recipe.seed, round_number) % 2**32,
        )
        arrays = dict(zip((VECTORS, CONTEXTS), matrices))
        return SiteUpdate(self.name, arrays, self.sizes["train"], 0.0, self.label_mask)

    def evaluate(
        self,
        weights: Arrays,
        recipe: FederatedWordRecipe,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """The counts of a split; with a threshold (of probabilities) also hits."""
        model, _ = self._model(recipe, weights)
        notes = self._notes(split, model)
        logits = model.logits_of(notes.encodings)
        scores = np.where(logits > EXCLUDED_LOGIT, (calibration or PlattScaling())(logits), np.float32(0))
        return SiteCounts.of(model.labels, logits, scores, notes.codes, self.label_mask, threshold)
