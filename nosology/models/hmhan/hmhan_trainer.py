"""Training of HMHAN: encode the reports, train the nets of the ensemble, tune on held-out reports.

With dev notes, every net is trained on train and early stopping uses dev. Without dev notes, or with `--refit`, an
ensemble is cross-fitted: the reports are partitioned into as many folds as there are nets. Each net is trained on all
folds but one, for a fixed number of epochs, and scores the fold that it has not seen. Calibration, prior over code sets
and threshold are tuned on these scores. So every report is used for training, and every report is held out once.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.attention.hierarchical_attention import HierarchicalAttention
from nosology.codes.lookup import label_description
from nosology.core import DataError, Note
from nosology.core.label_space import label_versions, mask_other_versions
from nosology.core.progress import progress
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, EncoderStateCache, load_on_device
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.evaluation import brief
from nosology.models.hmhan.code_groups import CodeCombinations
from nosology.models.hmhan.hmhan_decision import tune_on_held_out, word_logits
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.report_batches import (
    ReportBatchBuilder,
    ReportDataset,
    SyntheticRows,
    assign_folds,
    encode_texts,
    encoder_fingerprint,
    mlsmote,
)
from nosology.models.hmhan.report_features import MetadataColumns, WordFeatures, WordSvms, fit_word_svms
from nosology.models.neural import EXCLUDED_LOGIT
from nosology.models.train import CoderTrainer, TrainedCoder
from nosology.training.examples import Examples, codes_in_systems, label_space, union
from nosology.training.losses import class_weights, log_odds_shift
from nosology.training.run_folder import REFIT, STATES, fingerprint
from nosology.training.trainer import ParameterGroup, TrainingResult, TrainingRun, fit, launch_fabric


@dataclass
class HmhanEnsembleTrainer:
    """Trains the nets of one ensemble. They share the tokenizer, the reports, and the states of a frozen encoder."""

    recipe: HmhanRecipe
    model: Hmhan  # without nets
    train: ReportDataset
    folder: Path
    fingerprint: str  # of recipe and corpora
    cached_states: CachedStates | None = None  # of `train`, if the encoder is frozen
    encoder: WindowedTransformer | None = None  # only if frozen: all nets share it
    device_states: DeviceCachedStates | None = None  # cached_states on a GPU

    @staticmethod
    def from_notes(recipe: HmhanRecipe, notes: list[Note], folder: Path, run_fingerprint: str) -> HmhanEnsembleTrainer:
        labels = label_space(recipe.labels, codes_in_systems(recipe.labels, [note.codes for note in notes]))
        tokenizer, encoder = _load_encoder(recipe)
        columns = MetadataColumns.fit((note.extra for note in notes), recipe.columns.numbers, recipe.columns.choices)
        words = None
        if recipe.words.features:
            texts = (note.text for note in progress(notes, "counting words", total=len(notes)))
            words = WordFeatures.fit(texts, recipe.words.min_notes, recipe.words.features, recipe.words.pairs)
        counts = np.zeros(len(labels), np.int64)
        model = Hmhan(labels, counts, tokenizer, HmhanEnsemble([]), recipe.model, columns=columns, words=words)
        train = ReportDataset.from_notes(notes, recipe, model)
        tokens = sum(len(report) for report in train.reports)
        if not tokens:
            raise DataError(f"training notes must contain words; got {len(notes)} notes without a word")
        model.train_counts = train.label_counts(np.arange(len(train))).astype(np.int64)
        model.settings = recipe.model.resolved(tokens)
        trainer = HmhanEnsembleTrainer(recipe, model, train, folder, run_fingerprint)
        if model.settings.frozen:
            trainer.encoder = encoder.requires_grad_(False).eval()
            trainer.cached_states = trainer.encode(train)
        return trainer

    def encode(self, dataset: ReportDataset) -> CachedStates:
        """The states of reports by the pretrained encoder, from the cache where they are there."""
        encoder = self.encoder or _load_encoder(self.recipe)[1]
        folder = self.recipe.states.cache or self.folder / STATES
        cache = EncoderStateCache(folder, encoder_fingerprint(encoder), encoder.width)
        return cache.add([report.ids for report in dataset.reports], lambda texts: encode_texts(encoder, texts))

    def cached_states_on(self, device: torch.device) -> CachedStates | DeviceCachedStates | None:
        """The cached states of `train` for batches on a device: on the device itself if they fit."""
        if self.cached_states is not None and self.device_states is None:
            self.device_states = load_on_device(self.cached_states, device, self.recipe.states.device_gb)
        return self.device_states or self.cached_states

    def build_net(self, rows: np.ndarray, seed: int, synthetic: SyntheticRows | None = None) -> HmhanNet:
        """An untrained net, initialised for these rows of the train reports and synthetic rows."""
        torch.manual_seed(seed)
        recipe, model, categories = self.recipe, self.model, self.model.categories
        encoder = self.encoder or _load_encoder(recipe)[1]
        net = HmhanNet(
            model.settings, recipe.loss, encoder, torch.from_numpy(categories.of_label), len(model.columns),
            recipe.columns.width, len(model.words) if model.words else 0,
        )  # fmt: skip
        if self.word_svms is not None and net.words is not None and net.word_bias is not None:
            net.words[1:] = torch.from_numpy(self.word_svms.weights)
            net.word_bias.copy_(torch.from_numpy(self.word_svms.bias))
        counts = torch.from_numpy(self.train.label_counts(rows).astype(np.float32))
        if net.head.columns is not None:
            # A column that is 0 in all these rows (such as "age unknown") is not learned: its random weights must go.
            seen = np.stack([self.train.reports[row].columns for row in rows]).any(0)
            net.head.columns.weight.data[:, torch.from_numpy(~seen)] = 0
        if recipe.loss.weighted:
            net.weights.copy_(class_weights(counts, len(rows), recipe.loss.max_class_weight))
        if synthetic is not None:
            added = torch.from_numpy(synthetic.targets.sum(0))
            net.prior_shift.copy_(log_odds_shift(counts, len(rows), added, len(synthetic)))
        bias = None
        if model.settings.output_bias == "prior":  # the net starts with the frequency of each code, or with the words
            prior = torch.zeros_like(counts) if model.words else torch.logit((counts / len(rows)).clamp(1e-4, 0.9))
            bias = net.loss_bias().add(prior) if recipe.loss.corrected else prior
        net.head.initialize_output(bias, model.settings.output_weights == "zero")
        if model.settings.init_from_descriptions and isinstance(net.look, HierarchicalAttention):
            descriptions = [label_description(code, expand_headers=True) for code in model.labels.codes]
            net.look.initialize_queries(
                self._mean_states(encoder, descriptions), self._mean_states(encoder, categories.descriptions)
            )
        return net

    def _mean_states(self, encoder: WindowedTransformer, texts: list[str]) -> torch.Tensor:
        """The mean state (N, D) of each text; 0 for a text without tokens."""
        tokens = [self.model.tokenizer.tokenize(text).ids for text in texts]
        means = torch.zeros(len(texts), encoder.width)
        for rows, states in encode_texts(encoder, tokens):
            for row, state in zip(rows, states):
                if len(state):
                    means[row] = torch.from_numpy(state.astype(np.float32)).mean(0)
        return means

    def train_net(
        self, number: int, rows: np.ndarray, dev: ReportDataset | None, folder: Path, stop_epoch: int = 0
    ) -> tuple[HmhanNet, TrainingResult]:
        """A net trained on these rows of the train reports; stop_epoch: 0 for all epochs or early stopping on dev."""
        recipe, seed = self.recipe, self.recipe.seed + 1000 * number
        synthetic = self.synthetic_rows(rows, seed)
        net = self.build_net(rows, seed, synthetic)
        settings = (recipe.stop_after(stop_epoch) if stop_epoch else recipe).training
        fabric = launch_fabric(settings)
        batches = ReportBatchBuilder(
            self.train,
            rows,
            self.cached_states_on(fabric.device),
            synthetic,
            None if self.word_svms is None else self.word_svms.held_out_logits,
        )
        model = replace(self.model, net=HmhanEnsemble([net]))
        dev_states = None if dev is None or self.cached_states is None else self.encode(dev)
        result = fit(
            TrainingRun(
                net,
                settings,
                lengths=np.array([max(1, len(self.train.reports[row])) for row in rows]),
                groups=self.train.versions[rows],
                make_batch=batches.build,
                validate=None if dev is None else lambda _: dev_metrics(model, dev, dev_states),
                parameter_groups=parameter_groups(net, recipe),
                use_cuda_graphs=self.cached_states is not None,
                run_folder=folder,
                fingerprint=f"{self.fingerprint} {number} {hashlib.sha256(rows.tobytes()).hexdigest()}",
                seed=seed,
                fabric=fabric,
                title=f"hmhan, net {number + 1} of {self.model.settings.ensemble_size}",
            )
        )
        return net, result

    @cached_property
    def word_svms(self) -> WordSvms | None:
        """The SVMs over word features of all train reports. All nets share them: each uses only held-out scores."""
        model, train, settings = self.model, self.train, self.recipe.words
        if not model.words:
            return None
        fold = assign_folds(train, min(settings.folds, len(set(train.groups))), self.recipe.seed)
        descriptions = [
            model.tokenize(Note("", label_description(code, expand_headers=True))) for code in model.labels.codes
        ]
        return fit_word_svms(train.reports, descriptions, len(model.words), train.gold, fold, settings.c)

    def synthetic_rows(self, rows: np.ndarray, seed: int) -> SyntheticRows | None:
        """MLSMOTE rows between reports of these rows only; distances are between mean encoder states and columns."""
        settings = self.recipe.smote
        if not settings.ratio:
            return None
        train = self.train.subset(rows)
        states = self.encode(self.train) if self.cached_states is None else self.cached_states
        columns = np.stack([report.columns for report in train.reports])
        vectors = np.concatenate([states.means()[rows], columns], axis=1)
        synthetic = mlsmote(train.gold, vectors, ratio=settings.ratio, neighbours=settings.neighbours, seed=seed)
        return synthetic.reindexed(rows)


class HmhanTrainer(CoderTrainer[HmhanRecipe]):
    """Trains an ensemble of nets on one encoder, with or without word features."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""
        recipe, folder = self.recipe, self.folder
        all_notes = union(train_notes, dev_notes)
        if refit and recipe.model.ensemble_size > 1:
            trainer = HmhanEnsembleTrainer.from_notes(
                recipe, list(all_notes.notes()), folder, fingerprint(recipe, all_notes)
            )
            if recipe.model.ensemble_size <= len(set(trainer.train.groups)):
                return train_cross_fitted(trainer)
        run_fingerprint = fingerprint(recipe, train_notes, dev_notes)
        trainer = HmhanEnsembleTrainer.from_notes(recipe, list(train_notes.notes()), folder, run_fingerprint)
        dev = ReportDataset.from_notes(list(dev_notes.notes()), recipe, trainer.model)
        rows = np.arange(len(trainer.train))
        trained = [trainer.train_net(i, rows, dev, folder / f"net_{i}") for i in range(recipe.model.ensemble_size)]
        model = trainer.model
        model.net = HmhanEnsemble([net for net, _ in trained])
        word_scores = word_logits(model.net.nets[0], dev.reports)
        logits = model.logits_of(dev.reports)
        model, decision = tune_on_held_out(recipe, model, logits, word_scores, dev, trainer.train.gold)
        report = _report(trainer, [result for _, result in trained], dev)
        if refit:
            trainer.device_states = None  # frees GPU memory for the second training
            model = self._refit(all_notes, model, trained[0][1].best_epoch)
        return TrainedCoder(model, decision, report)

    def _refit(self, notes: Examples, tuned: Hmhan, epochs: int) -> Hmhan:
        """A model with one net, trained on all notes, with what was tuned on dev."""
        recipe, folder = self.recipe, self.folder / REFIT
        trainer = HmhanEnsembleTrainer.from_notes(recipe, list(notes.notes()), folder, fingerprint(recipe, notes))
        net, _ = trainer.train_net(0, np.arange(len(trainer.train)), None, folder / "net_0", epochs)
        net.share.copy_(tuned.net.nets[0].share)
        model = replace(trainer.model, net=HmhanEnsemble([net]), calibration=tuned.calibration)
        if tuned.combinations is not None:
            model.combinations = replace(
                CodeCombinations.from_gold(trainer.train.gold),
                mixture_weight=tuned.combinations.mixture_weight,
                prior_exponent=tuned.combinations.prior_exponent,
            )
        return model


def train_cross_fitted(trainer: HmhanEnsembleTrainer) -> TrainedCoder:
    """The coder whose nets have each left out one fold, tuned on the scores of the left-out folds."""
    recipe, model, train = trainer.recipe, trainer.model, trainer.train
    fold = assign_folds(train, recipe.model.ensemble_size, recipe.seed)
    logits = np.full((len(train), len(model.labels)), EXCLUDED_LOGIT, dtype=np.float32)
    word_scores = np.zeros_like(logits) if trainer.word_svms is None else trainer.word_svms.held_out_logits
    nets, results = [], []
    for number in range(recipe.model.ensemble_size):
        net, result = trainer.train_net(number, np.flatnonzero(fold != number), None, trainer.folder / f"net_{number}")
        rows = np.flatnonzero(fold == number)
        reports = [train.reports[row] for row in rows]
        net_logits = replace(model, net=HmhanEnsemble([net])).logits_of(reports)
        # The SVMs in the net were fitted on these reports: their held-out scores replace those of the net.
        mixed = net_logits - word_logits(net, reports) + word_scores[rows]
        logits[rows] = np.where(net_logits > EXCLUDED_LOGIT, mixed, EXCLUDED_LOGIT)
        nets.append(net)
        results.append(result)
    model.net = HmhanEnsemble(nets)
    model, decision = tune_on_held_out(recipe, model, logits, word_scores, train, train.gold, in_train=True)
    tuned_on = f"all notes, each scored by the one of {len(nets)} nets that was not trained on it"
    report = _report(trainer, results, train) | {"tuned_on": tuned_on, "n_dev": len(train)}
    return TrainedCoder(model, decision, report)


def dev_metrics(model: Hmhan, dev: ReportDataset, cached_states: CachedStates | None = None) -> dict[str, float]:
    """Micro F1 at its best threshold and mean average precision on dev reports; cached_states: of these reports."""
    probabilities = model.to_probabilities(model.logits_of(dev.reports, cached_states=cached_states))
    mask_other_versions(probabilities, dev.versions, label_versions(model.labels))
    return brief(model.labels, dev.codes, probabilities)


def parameter_groups(net: HmhanNet, recipe: HmhanRecipe) -> list[ParameterGroup]:
    """Head and attention, then the trainable encoder layers from the last to the first, with layer-wise decay."""
    encoder = {id(parameter) for parameter in net.encoder.parameters()}
    groups = [ParameterGroup([parameter for parameter in net.parameters() if id(parameter) not in encoder])]
    if any(parameter.requires_grad for parameter in net.encoder.parameters()):
        settings = recipe.model
        for depth, layer in enumerate(_layers(net.encoder)):
            if settings.trainable_layers and depth >= settings.trainable_layers:
                for parameter in layer:
                    parameter.requires_grad_(False)
            else:
                groups.append(ParameterGroup(layer, settings.encoder_lr_factor / settings.layer_decay**depth))
    return groups


def _layers(encoder: WindowedTransformer) -> list[list[torch.nn.Parameter]]:
    """The parameters of each layer of a transformer, the last layer first; parameters outside of layers come last."""
    inner = getattr(encoder.model, "encoder", encoder.model)
    modules = getattr(inner, "layer", None) or getattr(inner, "layers", None) or ()
    layers = [list(module.parameters()) for module in reversed(modules)]
    in_layers = {id(parameter) for layer in layers for parameter in layer}
    outside = [parameter for parameter in encoder.parameters() if id(parameter) not in in_layers]
    return [group for group in (*layers, outside) if group]


def _load_encoder(recipe: HmhanRecipe) -> tuple[ReportTokenizer, WindowedTransformer]:
    """The tokenizer and the pretrained encoder of a recipe."""
    settings = recipe.report
    tokenizer, encoder = load_pretrained(recipe.model.encoder, 0, settings.max_tokens)
    return ReportTokenizer(tokenizer.tokenizer_json, settings.max_tokens, settings.negation, settings.cleaning), encoder


def _report(trainer: HmhanEnsembleTrainer, results: list[TrainingResult], held_out: ReportDataset) -> dict[str, Any]:
    """What the provenance of the bundle says about training."""
    return {
        "members": [asdict(result) for result in results],
        "dev_codes": int(held_out.gold.nnz),
        "shape": trainer.model.settings.model_dump(mode="json"),
        "net_share": float(trainer.model.net.nets[0].share),  # the net weight
    }
