"""Training of PLANT (PLANT, see REFERENCES.md) in four stages: language model, mutual information, ranker, classifier.

Every stage uses train notes only. Dev notes are for the epoch of the classifier, calibration and threshold. The result
of a stage is stored in the run folder, or in a folder that the recipe names, with a fingerprint of its inputs. A run
that was stopped, or another run with the same first stages, resumes from there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from nosology.codes.lookup import label_description
from nosology.core.files import atomic_file
from nosology.core.label_space import LabelSpace, label_versions, mask_other_versions
from nosology.core.progress import progress
from nosology.encoders.tokenizers import SPECIALS, Vocabulary, WordTokenizer
from nosology.encoders.word_encoders import AwdLstm, DropoutRates
from nosology.models.coder_trainer import CalibratedTrainer, Fit
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.neural_trainer import Notes, Targets, fit_labels
from nosology.models.plant.language_model import LanguageModel
from nosology.models.plant.plant_model import Plant, PlantNets, directions
from nosology.models.plant.plant_net import PlantNet
from nosology.models.plant.plant_settings import LanguageSettings, PlantRecipe, PlantSettings, RateSettings
from nosology.models.plant.ranker import train_ranker
from nosology.models.plant.relevance import Relevance
from nosology.models.plant.stage_cache import StageCache, file_hash
from nosology.models.plant.text_streams import StreamPlan, TextStreams
from nosology.models.published import load_language_model
from nosology.training.examples import Examples, codes_in_systems, label_space
from nosology.training.run_folder import REFIT, fingerprint
from nosology.training.trainer import ParameterGroup, TrainingResult, TrainingRun, fit

WORDS = "language_words.txt"  # of a language model, one per line, in the order of its vectors
NEVER = 1 << 60  # the first epoch of a part that is never trained
# Settings of the language model's training loop that change no weight: it has windows and no dev notes.
_WITHOUT_EFFECT = {
    *("checkpoint_minutes", "log_steps", "micro_tokens", "micro_batches"),
    *("patience", "monitor", "validation_notes"),
}


@dataclass(frozen=True)
class PlantPipeline:
    """The training stages of one set of notes. Each is computed at its first use, or read from the cache."""

    recipe: PlantRecipe
    notes: Notes
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
        labels = LabelSpace([])
        if coded:
            labels = label_space(recipe.labels, codes_in_systems(recipe.labels, examples.codes))
        texts = progress(examples.texts(), "counting words", total=len(examples))
        vocabulary = Vocabulary.build(texts, recipe.words.min_notes, max_words=recipe.words.max_words)
        tokenizer = WordTokenizer(vocabulary, recipe.model.max_words)
        notes = Notes.of(examples, recipe.labels, tokenizer, labels)
        return PlantPipeline(recipe, notes, labels, tokenizer, folder, stages or _stages(recipe, examples, folder))

    def language(self, backward: bool) -> AwdLstm:
        """The encoder of a language model that was trained on the train notes."""
        recipe, name = self.recipe, "backward" if backward else "forward"
        settings = recipe.language
        torch.manual_seed(recipe.seed)
        drop = DropoutRates(**settings.drop.model_dump())
        shape = recipe.model
        encoder = AwdLstm(len(self.tokenizer.vocabulary), shape.size, shape.hidden, shape.layers, drop)

        def compute(fingerprint: str) -> dict[str, Tensor]:
            if weights := _published_weights(settings, backward):
                load_language_model(encoder, self.tokenizer.vocabulary, Path(weights), Path(settings.words))
            texts = [read.ids for read in self.notes.reads if len(read.ids)]
            plan = StreamPlan.of(texts, settings.training.batch, settings.window, recipe.seed)
            streams, net = TextStreams(texts, plan, backward), LanguageModel(encoder, plan.streams)
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
        """The inputs of a language model besides the notes; the codes are not among them."""
        shape, settings = self.recipe.model, self.recipe.language
        language = _canonical(settings).model_dump(mode="json", exclude={"weights", "words", "backward_weights"})
        files = [file_hash(path) for path in (_published_weights(settings, backward), settings.words)]
        return [language, files, shape.size, shape.hidden, shape.layers]

    def _relevance_inputs(self) -> list:
        """The inputs of the relevance of words besides the notes."""
        return [part.model_dump(mode="json") for part in (self.recipe.labels, self.recipe.relevance)]

    def relevance(self) -> Relevance:
        """The words that are informative about each code."""
        settings = self.recipe.relevance

        def compute(fingerprint: str) -> dict[str, Tensor]:
            found = Relevance.of(self._presence(), self.notes.gold, settings.kind, settings.top)
            return {name: torch.from_numpy(array) for name, array in found.arrays().items()}

        tensors = self.stages.get_or_compute("relevance", self._relevance_inputs(), compute)
        return Relevance.from_arrays({name: value.numpy() for name, value in tensors.items()})

    def _presence(self) -> sparse.csr_matrix:
        """The words of each note: 0/1 (B, V), without padding and unknown words."""
        rows = [np.unique(read.ids[read.ids >= SPECIALS]) for read in self.notes.reads]
        bounds = np.cumsum([0, *map(len, rows)])
        columns = np.concatenate(rows) if rows else np.empty(0, np.int32)
        shape = (len(rows), len(self.tokenizer.vocabulary))
        return sparse.csr_matrix((np.ones(len(columns), np.int8), columns, bounds), shape=shape)

    def net(self, backward: bool) -> PlantNet:
        """The net of a direction with a trained encoder and ranker, and an untrained classifier."""
        recipe, relevance = self.recipe, self.relevance()
        encoder = self.language(backward)
        torch.manual_seed(recipe.seed + 1)
        net = PlantNet(
            recipe.model, recipe.ranker, len(self.tokenizer.vocabulary), len(self.labels), relevance, backward
        )
        net.encoder.load_state_dict(encoder.state_dict())
        rates = np.asarray(self.notes.gold.mean(0)).ravel()
        with torch.no_grad():
            net.bias.copy_(torch.from_numpy(np.log(np.maximum(rates, 1e-6) / np.maximum(1 - rates, 1e-6))).float())
        if net.ranker is not None:
            self._rank(net, relevance, backward)
        return net

    def train_ranker(self, backward: bool) -> float:
        """The nDCG@k of the ranker of a direction on the words of the train notes; 0 if there is no ranker."""
        net = self.net(backward)
        return self._rank(net, self.relevance(), backward) if net.ranker is not None else 0.0

    def _rank(self, net: PlantNet, relevance: Relevance, backward: bool) -> float:
        """The nDCG@k of the ranker after its training."""
        recipe, name = self.recipe, "backward" if backward else "forward"
        vectors = net.encoder.encoder.weight.detach()
        with torch.no_grad():
            net.ranker.labels.copy_(self._description_vectors(vectors))

        def compute(fingerprint: str) -> dict[str, Tensor]:
            reached = train_ranker(
                net.ranker,
                vectors,
                relevance,
                recipe.ranker,
                folder=self.stages.folder / f"ranker_{name}",
                fingerprint=fingerprint,
                seed=recipe.seed,
            )
            return {k: v.detach().cpu() for k, v in net.ranker.state_dict().items()} | {"ndcg": torch.tensor([reached])}

        inputs = [*self._language_inputs(backward), *self._relevance_inputs(), recipe.ranker.model_dump(mode="json")]
        tensors = dict(self.stages.get_or_compute(f"ranker_{name}", inputs, compute))
        reached = float(tensors.pop("ndcg"))
        net.ranker.load_state_dict(tensors)
        return reached

    def _description_vectors(self, vectors: Tensor) -> Tensor:
        """The initial vectors (L, E) of labels: the mean of the word vectors of each description."""
        rows = []
        for code in self.labels.codes:
            ids = self.tokenizer.description_ids(label_description(code))
            ids = torch.from_numpy(ids[ids >= SPECIALS].astype(np.int64))
            rows.append(vectors[ids].mean(0) if len(ids) else torch.zeros(vectors.shape[1]))
        return torch.stack(rows)


def _stages(recipe: PlantRecipe, examples: Examples, folder: Path) -> StageCache:
    """The stage cache of examples: in the run folder, or in a subfolder of the folder in the recipe."""
    parts = {"seed": recipe.seed, "holdout": recipe.holdout, "words": recipe.words}
    common = fingerprint(PlantRecipe(**parts, model=PlantSettings(max_words=recipe.model.max_words)), examples)
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

    def fit(self, train_notes: Examples, dev_notes: Examples) -> Fit[Plant]:
        """A model trained on train notes; the best epoch of each direction is chosen on dev notes."""
        recipe = self.recipe
        pipeline = PlantPipeline.of(recipe, train_notes, self.folder, self.stages)
        dev = Notes.of(dev_notes, recipe.labels, pipeline.tokenizer, pipeline.labels)
        model, fitted = _classifiers(pipeline, dev, _classifier_fingerprint(recipe, train_notes, dev_notes), {})
        logits = mask_other_versions(
            model.logits_of(dev.reads), dev.versions, label_versions(pipeline.labels), EXCLUDED_LOGIT
        )
        report = {name: asdict(result) for name, result in fitted.items()} | {"shape": model.settings.model_dump()}
        return Fit(model, logits, dev.gold, dev.codes, report, choice=fitted)

    def refit(self, notes: Examples, fitted: Fit[Plant]) -> Plant:
        """A model trained on all notes, each direction for as many epochs as were best."""
        pipeline = PlantPipeline.of(self.recipe, notes, self.folder / REFIT)
        return _classifiers(pipeline, None, _classifier_fingerprint(self.recipe, notes), fitted.choice)[0]


def train_classifiers(
    recipe: PlantRecipe, train_notes: Examples, dev_notes: Examples, folder: Path
) -> dict[str, TrainingResult]:
    """The training result of the classifier of each direction; `PlantTrainer` reads the classifiers from the folder."""
    pipeline = PlantPipeline.of(recipe, train_notes, folder)
    dev = Notes.of(dev_notes, recipe.labels, pipeline.tokenizer, pipeline.labels)
    return _classifiers(pipeline, dev, _classifier_fingerprint(recipe, train_notes, dev_notes), {})[1]


def _classifier_fingerprint(recipe: PlantRecipe, *examples: Examples) -> str:
    """The fingerprint of a classifier without its direction: both directions can be trained separately."""
    model = recipe.model.model_copy(update={"direction": "both"})
    language = _canonical(recipe.language)
    files = {name: file_hash(getattr(language, name)) for name in ("weights", "words", "backward_weights")}
    same = {"model": model, "stages": "", "language": language.model_copy(update=files)}
    return fingerprint(recipe.model_copy(update=same), *examples)


def _classifiers(
    pipeline: PlantPipeline, dev: Notes | None, fingerprint: str, before: dict[str, TrainingResult]
) -> tuple[Plant, dict[str, TrainingResult]]:
    """The coder with all directions trained; before: the results of an earlier training, for a refit."""
    recipe, fitted = pipeline.recipe, {}
    counts = np.asarray(pipeline.notes.gold.sum(0)).ravel().astype(np.int64)
    model = Plant.of(pipeline.labels, counts, pipeline.tokenizer, recipe.model, recipe.ranker, pipeline.relevance())
    targets = Targets.of(pipeline.labels)
    for number, backward in enumerate(directions(recipe.model)):
        name = "backward" if backward else "forward"
        net = pipeline.net(backward)
        single = Plant(
            model.labels, counts, pipeline.tokenizer, PlantNets([net]), model.settings, relevance=model.relevance
        )
        settings = recipe.training
        if name in before:
            settings = settings.model_copy(update={"stop_epoch": before[name].best_epoch})
        fitted[name] = fit_labels(
            recipe.model_copy(update={"training": settings}),
            single,
            targets,
            pipeline.notes,
            dev,
            pipeline.folder / f"classifier_{name}",
            f"{fingerprint} {name}",
            parameter_groups=parameter_groups(net, recipe.rates),
            title=f"plant, {name}",
        )
        net.cache.clear()
        model.net.nets[number] = net
    return model, fitted


def parameter_groups(net: PlantNet, rates: RateSettings) -> list[ParameterGroup]:
    """The parameter groups of a net, the last layer first, each with its learning-rate factor and first epoch."""
    found, below = [], 0
    for number, (name, parameters) in enumerate(net.groups()):
        rate = getattr(rates, name)
        if name == "encoder":
            rate, below = rate / rates.layer_decay**below, below + 1
        begins = number if rates.gradual else 0
        found.append(ParameterGroup(parameters, rate, begins if rate else NEVER))
    return found
