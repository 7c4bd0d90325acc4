"""HMHAN's way from reports to a coder: reading, states, members, calibration, sets of codes, threshold.

Where dev notes are given, every member learns from train and is chosen on dev. Where they are not, or `--refit` asks
for it, and the recipe has several members, the reports are dealt into as many parts: each member learns from all parts
but one, for a fixed number of epochs, and calibration, sets of codes and threshold are found on what each member says
of the part that it has not seen. So every report is learned from, and every report is held out once.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.codes.lookup import label_description
from nosology.core import DataError, Note
from nosology.core.label_space import label_versions, mask_other_versions
from nosology.core.progress import progress
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, EncoderStateCache, load_on_device
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.evaluation import brief
from nosology.models.coder_trainer import CoderTrainer, TrainedCoder
from nosology.models.hmhan.categories import Categories
from nosology.models.hmhan.columns import Columns
from nosology.models.hmhan.combinations import Combinations
from nosology.models.hmhan.frozen_states import encoded, encoder_key
from nosology.models.hmhan.hmhan_decision import decided, word_logits
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanNet, HmhanNets
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.mlsmote import Synthetic, mlsmote
from nosology.models.hmhan.report_batches import Batches, Reports, parts_of
from nosology.models.hmhan.word_scores import WordScores, fit_word_scores
from nosology.models.hmhan.words import Words
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.training.examples import Examples, codes_in_systems, label_space, union
from nosology.training.losses import class_weights
from nosology.training.run_folder import REFIT, STATES, fingerprint
from nosology.training.trainer import ParameterGroup, TrainingResult, TrainingRun, fit, launch_fabric


@dataclass
class Course:
    """What all members of a coder share: the model they are part of, the reports, and their states where kept."""

    recipe: HmhanRecipe
    model: Hmhan  # with the readers, and no net yet
    train: Reports
    folder: Path
    told: str  # the fingerprint of recipe and corpora
    places: CachedStates | None = None  # the states of `train`, of a frozen encoder
    encoder: WindowedTransformer | None = None  # that is frozen
    near: DeviceCachedStates | None = None  # the same states on a GPU

    @staticmethod
    def of(recipe: HmhanRecipe, notes: list[Note], folder: Path, told: str) -> Course:
        """The course of some train notes."""
        labels = label_space(recipe.labels, codes_in_systems(recipe.labels, [note.codes for note in notes]))
        reader, encoder = _pretrained(recipe)
        columns = Columns.fit((note.extra for note in notes), recipe.columns.numbers, recipe.columns.choices)
        told_words, words = recipe.words, None
        if told_words.features:
            texts = (note.text for note in progress(notes, "counting words", total=len(notes)))
            words = Words.fit(texts, told_words.min_notes, told_words.features, told_words.pairs)
        categories = Categories.at(labels, recipe.model.level)
        model = Hmhan(
            labels, np.zeros(len(labels), np.int64), reader, HmhanNets([]), recipe.model, categories=categories,
            columns=columns, words=words,
        )  # fmt: skip
        train = Reports.of(notes, recipe, model)
        if not any(len(report) for report in train.reports):
            raise DataError("the training notes have no word: nothing can be learned from them")
        model.train_counts = np.asarray(train.gold.sum(0)).ravel().astype(np.int64)
        model.settings = recipe.model.resolved(sum(len(report) for report in train.reports))
        course = Course(recipe, model, train, folder, told)
        if model.settings.frozen:
            course.encoder = encoder.requires_grad_(False).eval()
            course.places = course.states(train)
        return course

    def states(self, reports: Reports) -> CachedStates:
        """The states of reports, of the encoder as it came, kept in the cache."""
        encoder = self.encoder or _pretrained(self.recipe)[1]
        cache = EncoderStateCache(self.recipe.states.cache or self.folder / STATES, encoder_key(encoder), encoder.width)
        return cache.add([report.ids for report in reports.reports], lambda texts: encoded(encoder, texts))

    def places_on(self, device: torch.device) -> CachedStates | DeviceCachedStates | None:
        """The states of `train` for batches that go to a device: there already, where they fit."""
        if self.places is not None and self.near is None:
            self.near = load_on_device(self.places, device, self.recipe.states.device_gb)
        return self.near or self.places

    def net(self, rows: np.ndarray, seed: int) -> HmhanNet:
        """A net that is still to be trained on these rows of the train reports."""
        torch.manual_seed(seed)
        recipe, model = self.recipe, self.model
        encoder = self.encoder or _pretrained(recipe)[1]
        net = HmhanNet(
            model.settings, recipe.loss, encoder, torch.from_numpy(model.categories.of), len(model.columns),
            recipe.columns.width, len(model.words) if model.words else 0,
        )  # fmt: skip
        if self.scores is not None:
            net.words[1:] = torch.from_numpy(self.scores.weights)
            net.word_bias.copy_(torch.from_numpy(self.scores.bias))
        counts = torch.from_numpy(np.asarray(self.train.gold[rows].sum(0)).ravel().astype(np.float32))
        if not model.words:
            net.head.expect(counts / len(rows))
        if net.head.columns is not None:
            # What no report of these rows has, as an unknown age, is never learned: then it shall say nothing.
            seen = np.stack([self.train.reports[row].columns for row in rows]).any(0)
            net.head.columns.weight.data[:, torch.from_numpy(~seen)] = 0
        if recipe.loss.weighted:
            net.weights.copy_(class_weights(counts, len(rows), recipe.loss.max_class_weight))
        if model.settings.described and model.settings.attention == "hierarchical":
            descriptions = [label_description(code, expand_headers=True) for code in model.labels.codes]
            net.look.initialize_queries(
                *(self._described(encoder, texts) for texts in (descriptions, model.categories.descriptions))
            )
        return net

    def _described(self, encoder: WindowedTransformer, texts: list[str]) -> torch.Tensor:
        """The mean (N, D) of the states of each text; of one without a piece, 0."""
        pieces = [self.model.tokenizer.tokenize(text).ids for text in texts]
        found = torch.zeros(len(texts), encoder.width)
        for rows, states in encoded(encoder, pieces):
            for row, state in zip(rows, states):
                if len(state):
                    found[row] = torch.from_numpy(state.astype(np.float32)).mean(0)
        return found

    def member(
        self, number: int, rows: np.ndarray, dev: Reports | None, folder: Path, epochs: int = 0
    ) -> tuple[HmhanNet, TrainingResult]:
        """A net trained on some rows of the train reports; epochs: leave after so many, 0: after all or by dev."""
        recipe, seed = self.recipe, self.recipe.seed + 1000 * number
        net = self.net(rows, seed)
        settings = recipe.training.model_copy(update={"stop_epoch": epochs}) if epochs else recipe.training
        fabric = launch_fabric(settings)
        batches = Batches(
            self.train,
            rows,
            self.places_on(fabric.device),
            self.synthetic(rows, seed),
            None if self.scores is None else self.scores.held,
        )
        single = replace(self.model, net=HmhanNets([net]))
        seen = None if dev is None or self.places is None else self.states(dev)
        fitted = fit(
            TrainingRun(
                net,
                settings,
                lengths=np.array([max(1, len(self.train.reports[row])) for row in rows]),
                groups=self.train.versions[rows],
                make_batch=batches.make,
                validate=(lambda _: measured(single, dev, seen)) if dev is not None else None,
                parameter_groups=parameter_groups(net, recipe),
                use_cuda_graphs=self.places is not None,
                run_folder=folder,
                fingerprint=f"{self.told} {number} {hashlib.sha256(rows.tobytes()).hexdigest()}",
                seed=seed,
                fabric=fabric,
                title=f"hmhan, {number + 1} of {self.model.settings.ensemble_size}",
            )
        )
        return net, fitted

    @cached_property
    def scores(self) -> WordScores | None:
        """What words say of all train reports, held out, and the machines that say it of others; all members share
        them, since none of these scores is of a machine that has seen its report."""
        model, train, settings = self.model, self.train, self.recipe.words
        if not model.words:
            return None
        part = parts_of(train, min(settings.folds, len(set(train.groups))), self.recipe.seed)
        described = [
            model.tokenize(Note("", label_description(code, expand_headers=True))) for code in model.labels.codes
        ]
        return fit_word_scores(train.reports, described, len(model.words), train.gold, part, settings.c)

    def synthetic(self, rows: np.ndarray, seed: int) -> Synthetic | None:
        """Synthetic rows between reports of these rows alone, near in the encoder's mean and the columns."""
        settings = self.recipe.smote
        if not settings.share:
            return None
        train = self.train.part(rows)
        means = (self.states(self.train) if self.places is None else self.places).means()[rows]
        columns = np.stack([report.columns for report in train.reports])
        vectors = np.concatenate([means, columns], axis=1)
        made = mlsmote(train.gold, vectors, share=settings.share, neighbours=settings.neighbours, seed=seed)
        return made.among(rows)


class HmhanTrainer(CoderTrainer[HmhanRecipe]):
    """Trains an ensemble of nets over one encoder, with or without word features."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: finally trained on union."""
        recipe, folder = self.recipe, self.folder
        every = union(train_notes, dev_notes)
        if refit and recipe.model.ensemble_size > 1:
            course = Course.of(recipe, list(every.notes()), folder, fingerprint(recipe, every))
            if recipe.model.ensemble_size <= len(set(course.train.groups)):
                return cross_fitted(course)
        told = fingerprint(recipe, train_notes, dev_notes)
        course = Course.of(recipe, list(train_notes.notes()), folder, told)
        dev = Reports.of(list(dev_notes.notes()), recipe, course.model)
        rows = np.arange(len(course.train))
        trained = [course.member(i, rows, dev, folder / f"member_{i}") for i in range(recipe.model.ensemble_size)]
        model = course.model
        model.net = HmhanNets([net for net, _ in trained])
        wide = word_logits(model.net.nets[0], dev.reports)
        model, decision = decided(recipe, model, model.logits_of(dev.reports), wide, dev, course.train.gold)
        found = _found(course, [fitted for _, fitted in trained], dev)
        if refit:
            course.near = None  # room for the next
            again = Course.of(recipe, list(every.notes()), folder / REFIT, fingerprint(recipe, every))
            epochs = trained[0][1].best_epoch
            net, _ = again.member(0, np.arange(len(again.train)), None, folder / REFIT / "member_0", epochs)
            net.share.copy_(model.net.nets[0].share)
            last = replace(again.model, net=HmhanNets([net]), calibration=model.calibration)
            if model.combinations is not None:
                kept = model.combinations
                last.combinations = replace(Combinations.of(again.train.gold), share=kept.share, weight=kept.weight)
            model = last
        return TrainedCoder(model, decision, found)


def cross_fitted(course: Course) -> TrainedCoder:
    """The coder whose members have each left a part of the reports out, tuned on these parts."""
    recipe, model, train = course.recipe, course.model, course.train
    part = parts_of(train, recipe.model.ensemble_size, recipe.seed)
    held = np.full((len(train), len(model.labels)), EXCLUDED_LOGIT, dtype=np.float32)
    wide = np.zeros_like(held) if course.scores is None else course.scores.held
    nets, fits = [], []
    for number in range(recipe.model.ensemble_size):
        net, fitted = course.member(number, np.flatnonzero(part != number), None, course.folder / f"member_{number}")
        rows = np.flatnonzero(part == number)
        single = replace(model, net=HmhanNets([net]))
        some = [train.reports[row] for row in rows]
        said = single.logits_of(
            some
        )  # beside words that have seen these reports: what they say held out goes in their place
        held[rows] = np.where(said > EXCLUDED_LOGIT, said - word_logits(net, some) + wide[rows], EXCLUDED_LOGIT)
        nets.append(net)
        fits.append(fitted)
    model.net = HmhanNets(nets)
    model, decision = decided(recipe, model, held, wide, train, train.gold, own=True)
    told = {"tuned_on": f"all notes, each by the one of {len(nets)} members that has not seen it", "n_dev": len(train)}
    return TrainedCoder(model, decision, _found(course, fits, train) | told)


def measured(model: Hmhan, dev: Reports, places: CachedStates | None = None) -> dict[str, float]:
    """Micro F1 at its best threshold and mean average precision on dev reports; places: their states, where kept."""
    probabilities = model.to_probabilities(model.logits_of(dev.reports, places=places))
    mask_other_versions(probabilities, dev.versions, label_versions(model.labels))
    return brief(model.labels, dev.codes, probabilities)


def parameter_groups(net: HmhanNet, recipe: HmhanRecipe) -> list[ParameterGroup]:
    """The parts of a net with their paces: head and attention, and the encoder's layers, the last the fastest."""
    encoder = {id(parameter) for parameter in net.encoder.parameters()}
    rest = [p for n, p in net.named_parameters() if id(p) not in encoder]
    found = [ParameterGroup(rest)]
    if any(parameter.requires_grad for parameter in net.encoder.parameters()):
        rate = recipe.model.encoder_rate
        learned = recipe.model.learned_layers
        for below, layer in enumerate(_layers(net.encoder)):
            if learned and below >= learned:
                for parameter in layer:
                    parameter.requires_grad_(False)
            else:
                found.append(ParameterGroup(layer, rate / recipe.model.fall**below))
    return found


def _layers(encoder: WindowedTransformer) -> list[list[torch.nn.Parameter]]:
    """The weights of a transformer's layers, the last layer first; whatever is in no layer comes last."""
    inner = getattr(encoder.model, "encoder", encoder.model)
    layers = getattr(inner, "layer", None) or getattr(inner, "layers", None) or ()
    found = [list(layer.parameters()) for layer in reversed(layers)]
    known = {id(parameter) for layer in found for parameter in layer}
    others = [parameter for parameter in encoder.parameters() if id(parameter) not in known]
    return [part for part in (*found, others) if part]


def _pretrained(recipe: HmhanRecipe) -> tuple[ReportTokenizer, WindowedTransformer]:
    """The reader and the encoder that a recipe names."""
    reader, encoder = load_pretrained(recipe.model.encoder, 0, recipe.report.max_tokens)
    told = recipe.report
    return ReportTokenizer(reader.tokenizer_json, told.max_tokens, told.negation, told.cleaning), encoder


def _found(course: Course, fits: list[TrainingResult], held: Reports) -> dict[str, Any]:
    """What the training has found out, for the bundle's provenance."""
    shape = course.model.settings.model_dump(mode="json")
    share = float(course.model.net.nets[0].share)  # of what the net adds to what words say
    members = [asdict(fitted) for fitted in fits]
    return {"members": members, "dev_codes": int(held.gold.nnz), "shape": shape, "net_share": share}
