"""Training of PLANT in four stages: language model, mutual information, ranker, classifier.

Every stage uses train notes only. Dev notes are for the epoch of the classifier, calibration and threshold. The result
of a stage is stored in the run folder, or in a folder that the recipe names, with a fingerprint of its inputs. A run
that was stopped, or another run with the same first stages, resumes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from nosology.codes.lookup import label_description
from nosology.core import ConfigError, DataError
from nosology.core.files import atomic_file, json_sha256, sha256
from nosology.core.label_space import LabelSpace
from nosology.core.progress import activity
from nosology.encoders.append_only_store import check_cache_folder
from nosology.encoders.cached_words import EncodedWords
from nosology.encoders.tokenizers import SPECIALS, Vocabulary, WordTokenizer
from nosology.encoders.word_encoders import AwdLstm
from nosology.models.neural_trainer import Targets, TokenizedNotes, fit_net, score_dev
from nosology.models.plant.language_model import LanguageModel, StreamPlan, TextStreams
from nosology.models.plant.plant_model import Plant, PlantNet, PlantNets, direction_name, directions
from nosology.models.plant.plant_settings import LanguageSettings, PlantRecipe, PlantSettings, RateSettings
from nosology.models.plant.ranker_trainer import train_ranker
from nosology.models.plant.relevance import Relevance
from nosology.models.published import load_language_model
from nosology.models.train import CalibratedTrainer, FittedModel
from nosology.training.checkpoint import read_tensors, write_tensors
from nosology.training.examples import Examples, label_space
from nosology.training.inference import default_device, trained_precision
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.run_folder import BEST, CHECKPOINT, REFIT, run_fingerprint
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingResult, TrainingRun

WORDS = "language_words.txt"  # of a language model, one per line, in the order of its vectors
NEVER = 1 << 60  # the first epoch of a part that is never trained
# Settings of the language model's training loop that change no weight: it has windows and no dev notes.
_WITHOUT_EFFECT = {
    *("checkpoint_minutes", "log_steps", "micro_tokens", "micro_batches"),
    *("patience", "monitor", "validation_notes"),
}


@dataclass(frozen=True)
class StageCache:
    """Results of the stages of one training set. The run folder of stage NAME is folder/NAME."""

    folder: Path
    fingerprint: str  # of what all stages depend on

    def get_or_compute(self, name: str, inputs: list, compute: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of a stage: read if they were computed from the same inputs, else computed and written.

        inputs: JSON values on which the tensors depend, without the common fingerprint. compute: gets the fingerprint
        of the stage.
        """
        path = self.folder / f"{name}.safetensors"
        fingerprint = json_sha256([self.fingerprint, inputs])
        with suppress(DataError):  # a damaged file is computed again
            metadata, tensors = read_tensors(path, fingerprint)
            if metadata is not None:
                return tensors
        tensors = compute(fingerprint)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, fingerprint)
        for checkpoint in (CHECKPOINT, BEST):  # of the stage: three times as large, and no longer needed
            (self.folder / name / checkpoint).unlink(missing_ok=True)
        return tensors


@dataclass(frozen=True)
class PlantPipeline:
    """The training stages of one set of notes. Each is computed at its first use, or read from the cache."""

    recipe: PlantRecipe
    notes: TokenizedNotes
    labels: LabelSpace
    tokenizer: WordTokenizer
    folder: Path  # of the classifier's loop
    stages: StageCache  # before it

    @staticmethod
    def of(
        recipe: PlantRecipe, examples: Examples, folder: Path, stages: StageCache | None = None, *, coded: bool = True
    ) -> PlantPipeline:
        """The pipeline of train notes; coded: whether they have codes, else only the language model can be trained.

        stages: where the tensors of the stages are stored; default: the folder that the recipe names, or `folder`.
        """
        labels = label_space(recipe.labels, examples.codes) if coded else LabelSpace([])
        words = recipe.words
        with activity("counting words"):
            counts = examples.words("none").note_counts()
        vocabulary = Vocabulary.build(counts, words.min_notes, max_words=words.max_words, alphabetic=words.alphabetic)
        tokenizer = WordTokenizer(vocabulary, recipe.model.max_words, alphabetic=words.alphabetic)
        notes = TokenizedNotes.of(examples, recipe.labels, tokenizer, labels)
        return PlantPipeline(recipe, notes, labels, tokenizer, folder, stages or _stages(recipe, examples, folder))

    def language(self, backward: bool) -> AwdLstm:
        """The encoder of a language model that was trained on the train notes."""
        recipe, name, settings = self.recipe, direction_name(backward), self.recipe.language
        encoder = new_language_encoder(recipe, len(self.tokenizer.vocabulary))

        def compute(fingerprint: str) -> dict[str, Tensor]:
            if weights := _published_weights(settings, backward):
                load_language_model(encoder, self.tokenizer.vocabulary, Path(weights), Path(settings.words))
            net, plan, streams = language_streams(recipe, encoder, self.notes, backward)
            fit(
                TrainingRun(
                    net,
                    settings.training,
                    lengths=plan.lengths,
                    groups=plan.groups,
                    plan=plan,
                    make_batch=lambda rows, _: streams.batch(rows),
                    run_folder=self.stages.folder / f"language_{name}",
                    fingerprint=fingerprint,
                    seed=recipe.seed,
                    title=f"language model, {name}",
                )
            )
            with atomic_file(self.stages.folder / WORDS) as temporary:  # for a `language.words` of other notes
                lines = "".join(f"{word}\n" for word in ("xxpad", "xxunk", *self.tokenizer.vocabulary.words))
                temporary.write_text(lines, encoding="utf-8")
            return {key: value.detach().cpu() for key, value in net.encoder.state_dict().items()}

        encoder.load_state_dict(
            self.stages.get_or_compute(f"language_{name}", self._language_inputs(backward), compute)
        )
        return encoder

    def _language_inputs(self, backward: bool) -> list:
        """The inputs of a language model except the notes; the codes are not among them."""
        shape, settings = self.recipe.model, self.recipe.language
        language = _canonical(settings).model_dump(mode="json", exclude={"weights", "words", "backward_weights"})
        files = [file_hash(path) for path in (_published_weights(settings, backward), settings.words)]
        return [language, files, shape.size, shape.hidden, shape.layers]

    def _relevance_inputs(self) -> list:
        """The inputs of the relevance of words except the notes."""
        return [part.model_dump(mode="json") for part in (self.recipe.labels, self.recipe.relevance)]

    def relevance(self) -> Relevance:
        """The words that are informative about each code."""
        settings = self.recipe.relevance

        def compute(fingerprint: str) -> dict[str, Tensor]:
            presence, gold = word_presence(self.notes, len(self.tokenizer.vocabulary)), self.notes.gold
            relevance = Relevance.of(presence, gold, settings.kind, settings.top, positive=settings.positive)
            return {name: torch.from_numpy(array) for name, array in relevance.arrays().items()}

        tensors = self.stages.get_or_compute("relevance", self._relevance_inputs(), compute)
        return Relevance.from_arrays({name: value.numpy() for name, value in tensors.items()})

    def net(self, backward: bool) -> PlantNet:
        """The net of a direction with a trained encoder and ranker, and an untrained classifier."""
        relevance, encoder = self.relevance(), self.language(backward).state_dict()
        rates = np.asarray(self.notes.gold.mean(0)).ravel()
        net = new_classifier(self.recipe, len(self.tokenizer.vocabulary), relevance, rates, encoder, backward)
        self._train_ranker(net, relevance)
        return net

    def train_ranker(self, backward: bool) -> float:
        """The nDCG@k of the ranker of a direction on the words of the train notes; 0 if there is no ranker."""
        return self._train_ranker(self.net(backward), self.relevance())

    def _train_ranker(self, net: PlantNet, relevance: Relevance) -> float:
        """The nDCG@k of the ranker of a net after its training; 0 if it has no ranker."""
        recipe, ranker, name = self.recipe, net.ranker, f"ranker_{direction_name(net.backward_reading)}"
        if ranker is None:
            return 0.0

        def compute(fingerprint: str) -> dict[str, Tensor]:
            folder = self.stages.folder / name
            ndcg = fit_ranker(net, relevance, self.labels, self.tokenizer, recipe, folder, fingerprint)
            state = net.ranker.state_dict() if net.ranker else {}
            return {key: v.detach().cpu() for key, v in state.items()} | {"ndcg": torch.tensor([ndcg])}

        inputs = [
            *self._language_inputs(net.backward_reading),
            *self._relevance_inputs(),
            recipe.ranker.model_dump(mode="json"),
        ]
        tensors = dict(self.stages.get_or_compute(name, inputs, compute))
        ndcg = float(tensors.pop("ndcg"))
        ranker.load_state_dict(tensors)
        return ndcg


def new_language_encoder(recipe: PlantRecipe, words: int) -> AwdLstm:
    """The untrained encoder of a language model."""
    torch.manual_seed(recipe.seed)
    return AwdLstm(words, recipe.model.size, recipe.model.hidden, recipe.model.layers, recipe.language.dropout)


def language_streams(
    recipe: PlantRecipe, encoder: AwdLstm, notes: TokenizedNotes, backward: bool
) -> tuple[LanguageModel, StreamPlan, TextStreams]:
    """The language model of an encoder, and the text streams of notes that it is trained on."""
    settings, encodings = recipe.language, cast("EncodedWords", notes.encodings)
    texts = encodings[np.flatnonzero([len(encoding) for encoding in encodings])]
    if not len(texts):
        raise DataError("the training notes have no word: no language model can be learned from them")
    plan = StreamPlan.of(texts, settings.training.batch, settings.window, recipe.seed)
    net = LanguageModel(encoder, plan.streams, settings.ar, settings.tar)
    return net, plan, TextStreams(texts, plan, backward)


def word_presence(notes: TokenizedNotes, words: int) -> sparse.csr_matrix:
    """The words of each note: 0/1 (B, V), without padding and unknown words."""
    rows = [np.unique(encoding.ids[encoding.ids >= SPECIALS]) for encoding in notes.encodings]
    bounds = np.cumsum([0, *map(len, rows)])
    columns = np.concatenate(rows) if rows else np.empty(0, np.int32)
    return sparse.csr_matrix((np.ones(len(columns), np.int8), columns, bounds), shape=(len(rows), words))


def new_classifier(
    recipe: PlantRecipe,
    words: int,
    relevance: Relevance,
    rates: np.ndarray,
    encoder: Mapping[str, Tensor],
    backward: bool,
) -> PlantNet:
    """The untrained net of a direction with a trained encoder. rates: (L,) share of the train notes with each code."""
    torch.manual_seed(recipe.seed + 1)
    net = PlantNet(recipe.model, recipe.ranker, words, len(rates), relevance, backward)
    net.encoder.load_state_dict(encoder)
    if recipe.model.output_bias == "prior":
        prior = np.log(np.maximum(rates, 1e-6) / np.maximum(1 - rates, 1e-6))
        net.bias.data.copy_(torch.from_numpy(prior).float())
    return net


def fit_ranker(
    net: PlantNet,
    relevance: Relevance,
    labels: LabelSpace,
    tokenizer: WordTokenizer,
    recipe: PlantRecipe,
    folder: Path,
    fingerprint: str,
) -> float:
    """The nDCG@k of the ranker of a net after its training. It starts with the descriptions of the labels."""
    ranker, vectors = net.ranker, net.encoder.encoder.weight.detach()
    assert ranker is not None
    with torch.no_grad():
        ranker.labels.copy_(_description_vectors(labels, tokenizer, vectors))
    seed = recipe.seed
    return train_ranker(ranker, vectors, relevance, recipe.ranker, folder=folder, fingerprint=fingerprint, seed=seed)


def _description_vectors(labels: LabelSpace, tokenizer: WordTokenizer, vectors: Tensor) -> Tensor:
    """The initial vectors (L, E) of labels: the mean of the word vectors of each description."""
    rows = []
    for code in labels.codes:
        ids = tokenizer.description_ids(label_description(code))
        ids = torch.from_numpy(ids[ids >= SPECIALS].astype(np.int64))
        rows.append(vectors[ids].mean(0) if len(ids) else torch.zeros(vectors.shape[1]))
    return torch.stack(rows)


def _stages(recipe: PlantRecipe, examples: Examples, folder: Path) -> StageCache:
    """The stage cache of examples: in the run folder, or in a subfolder of the folder in the recipe."""
    parts = {"seed": recipe.seed, "holdout": recipe.holdout, "words": recipe.words}
    common = run_fingerprint(PlantRecipe(**parts, model=PlantSettings(max_words=recipe.model.max_words)), examples)
    if recipe.stages:
        check_cache_folder(recipe.stages)
    return StageCache(Path(recipe.stages) / common[:16] if recipe.stages else folder, common)


def _canonical(settings: LanguageSettings) -> LanguageSettings:
    """The settings with the default of each that changes no weight, so that equal stages have equal fingerprints."""
    usual = LanguageSettings().training.model_dump(include=_WITHOUT_EFFECT)
    return settings.model_copy(update={"training": settings.training.model_copy(update=usual)})


def _published_weights(settings: LanguageSettings, backward: bool) -> str:
    """The file of initial weights of a direction; empty: none."""
    return (backward and settings.backward_weights) or settings.weights


class PlantTrainer(CalibratedTrainer[PlantRecipe, Plant]):
    """Trains PLANT stage by stage; `folder` stores the result of each stage. stages: see `PlantPipeline.of`."""

    def __init__(self, recipe: PlantRecipe, folder: Path, stages: StageCache | None = None):
        super().__init__(recipe, folder)
        self.stages = stages

    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[Plant]:
        """A model trained on train notes; the best epoch of each direction is chosen on dev notes."""
        model, results, dev = self._classifiers(train_notes, dev_notes)
        return score_dev(model, dev, {name: asdict(result) for name, result in results.items()}, results)

    def refit(self, notes: Examples, fitted: FittedModel[Plant]) -> Plant:
        """A model trained on all notes, each direction for as many epochs as were best."""
        pipeline = PlantPipeline.of(self.recipe, notes, self.folder / REFIT)
        return _train_classifiers(pipeline, None, _classifier_fingerprint(self.recipe, notes), fitted.choice)[0]

    def train_classifiers(self, train_notes: Examples, dev_notes: Examples) -> dict[str, TrainingResult]:
        """The training result of the classifier of each direction; `fit` then reads them from the folder."""
        return self._classifiers(train_notes, dev_notes)[1]

    def _classifiers(
        self, train_notes: Examples, dev_notes: Examples
    ) -> tuple[Plant, dict[str, TrainingResult], TokenizedNotes]:
        """The trained model, the result of each direction, and the tokenized dev notes."""
        pipeline = PlantPipeline.of(self.recipe, train_notes, self.folder, self.stages)
        dev = TokenizedNotes.of(dev_notes, self.recipe.labels, pipeline.tokenizer, pipeline.labels)
        key = _classifier_fingerprint(self.recipe, train_notes, dev_notes)
        return *_train_classifiers(pipeline, dev, key, {}), dev


def _classifier_fingerprint(recipe: PlantRecipe, *examples: Examples) -> str:
    """The fingerprint of a classifier without its direction: both directions can be trained separately."""
    model = recipe.model.model_copy(update={"direction": "both"})
    language = _canonical(recipe.language)
    files = {name: file_hash(getattr(language, name)) for name in ("weights", "words", "backward_weights")}
    same = {"model": model, "stages": "", "language": language.model_copy(update=files)}
    return run_fingerprint(recipe.model_copy(update=same), *examples)


def _train_classifiers(
    pipeline: PlantPipeline, dev: TokenizedNotes | None, fingerprint: str, before: dict[str, TrainingResult]
) -> tuple[Plant, dict[str, TrainingResult]]:
    """The model with all directions trained, and their results; before: results of an earlier training, for a refit."""
    recipe, results, counts = pipeline.recipe, {}, pipeline.notes.label_counts
    model = Plant.of(pipeline.labels, counts, pipeline.tokenizer, recipe.model, recipe.ranker, pipeline.relevance())
    model.precision = trained_precision(recipe.training.precision, default_device())
    for number, backward in enumerate(directions(recipe.model)):
        name, net = direction_name(backward), pipeline.net(backward)
        results[name] = fit_net(
            recipe.stop_after(before[name].best_epoch) if name in before else recipe,
            replace(model, net=PlantNets([net])),
            Targets.of(pipeline.labels),
            pipeline.notes,
            dev,
            pipeline.folder / f"classifier_{name}",
            f"{fingerprint} {name}",
            parameter_groups=parameter_groups(net, recipe.rates),
            title=f"plant, {name}",
        )
        net.cache.clear()
        model.net.nets[number] = net
    return model, results


def parameter_groups(net: PlantNet, rates: RateSettings) -> list[ParameterGroup]:
    """The parameter groups of a net, the last layer first, each with its learning-rate factor and first epoch."""
    groups, below = [], 0
    for number, (name, parameters) in enumerate(net.groups()):
        rate = getattr(rates, name)
        if name == "encoder":
            rate, below = rate / rates.layer_decay**below, below + 1
        start_epoch = number if rates.gradual else 0
        groups.append(ParameterGroup(parameters, rate, start_epoch if rate else NEVER))
    return groups


def file_hash(path: str) -> str:
    """The SHA-256 of a file; an empty string for an empty path."""
    if not path:
        return ""
    try:
        return sha256(Path(path))
    except OSError as error:
        raise ConfigError(f"{path} must be a readable file: {error.strerror or error}") from error
