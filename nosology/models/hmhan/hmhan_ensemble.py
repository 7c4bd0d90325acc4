"""Training of the nets of one HMHAN ensemble, which share the tokenizer, the reports and a frozen encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy import sparse

from nosology.attention.hierarchical_attention import HierarchicalAttention
from nosology.codes.lookup import label_description
from nosology.core import DataError, Note
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, EncoderStateCache, load_on_device
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.models.hmhan.encoder_states import encode_texts, state_cache_key
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.mlsmote import SyntheticRows, mlsmote
from nosology.models.hmhan.report_batches import (
    LOADER_THREADS,
    ReportBatchBuilder,
    ReportDataset,
)
from nosology.models.hmhan.report_features import EncodedReport, MetadataColumns
from nosology.training.examples import label_space
from nosology.training.inference import default_device, trained_precision
from nosology.training.losses import class_weights, log_odds_shift
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.run_folder import STATES
from nosology.training.trainer import fit, launch_fabric
from nosology.training.training_run import TrainingResult, TrainingRun

ValidateModel = Callable[[Hmhan], dict[str, float]]  # metrics of a model on held-out reports


@dataclass
class HmhanEnsembleTrainer:
    """Trains the nets of one ensemble. They share the tokenizer, the reports, and the states of a frozen encoder."""

    model_class: ClassVar[type[Hmhan]] = Hmhan

    recipe: HmhanRecipe
    model: Hmhan  # without nets
    train: ReportDataset
    data: ReportDataset  # `train`, and then the descriptions of codes if the nets learn from them
    folder: Path
    fingerprint: str  # of recipe and corpora
    cached_states: CachedStates | None = None  # of `data`, if the encoder is frozen
    encoder: WindowedTransformer | None = None  # only if frozen: all nets share it
    device_states: DeviceCachedStates | None = None  # cached_states on a GPU
    offsets: np.ndarray | None = None  # (N, L) of `train`: held-out logits of another model, to which the nets add

    @classmethod
    def from_notes(cls, recipe: HmhanRecipe, notes: list[Note], folder: Path, run_fingerprint: str) -> Self:
        labels = label_space(recipe.labels, [note.codes for note in notes])
        tokenizer, encoder = load_report_encoder(recipe)
        columns = MetadataColumns.fit((note.extra for note in notes), recipe.columns.numbers, recipe.columns.choices)
        model = cls.new_model(recipe, notes, labels, tokenizer, columns)
        train = ReportDataset.from_notes(notes, recipe, model)
        tokens = sum(len(report) for report in train.reports)
        if not tokens:
            raise DataError(f"training notes must contain words; got {len(notes)} notes without a word")
        model.train_counts = train.label_counts(np.arange(len(train))).astype(np.int64)
        model.settings = recipe.model.resolved(tokens)
        data = train.with_reports(*described_codes(model)) if recipe.report.descriptions else train
        trainer = cls(recipe, model, train, data, folder, run_fingerprint)
        trainer._random_net(encoder)  # a wrong setting is found before hours of encoding
        if model.settings.frozen:
            trainer.encoder = encoder.requires_grad_(False).eval()
            trainer.cached_states = trainer.encode(data)
        return trainer

    @classmethod
    def new_model(
        cls,
        recipe: HmhanRecipe,
        notes: list[Note],
        labels: LabelSpace,
        tokenizer: ReportTokenizer,
        columns: MetadataColumns,
    ) -> Hmhan:
        """A model without nets for train notes."""
        precision = trained_precision(recipe.training.precision, default_device())
        counts = np.zeros(len(labels), np.int64)
        fields = labels, counts, tokenizer, HmhanEnsemble([]), recipe.model
        return cls.model_class(*fields, precision=precision, columns=columns)

    def mix_logits(self, logits: np.ndarray, offsets: np.ndarray | None, held_out: ReportDataset) -> np.ndarray:
        """The logits (B, L) of the nets and of the offsets together, for held-out reports with these offsets."""
        return logits

    def held_out_offsets(self, dataset: ReportDataset) -> np.ndarray | None:
        """The offsets (B, L) of reports that are not in `train`."""
        return None

    def report(self) -> dict[str, Any]:
        """What the provenance of the bundle says in addition about the trained model."""
        return {}

    def encode(self, dataset: ReportDataset) -> CachedStates:
        """The states of reports by the pretrained encoder, from the cache where they are there."""
        encoder = self.encoder or load_report_encoder(self.recipe)[1]
        folder, precision = self.recipe.states.cache or self.folder / STATES, self.recipe.training.precision
        cache = EncoderStateCache(folder, state_cache_key(encoder, precision), encoder.width)
        encode = partial(encode_texts, encoder, precision=precision)
        return cache.add([report.ids for report in dataset.reports], encode)

    def cached_states_on(self, device: torch.device) -> CachedStates | DeviceCachedStates | None:
        """The cached states of `data` for batches on a device: on the device itself if they fit."""
        if self.cached_states is not None and self.device_states is None:
            self.device_states = load_on_device(self.cached_states, device, self.recipe.states.device_gb)
        return self.device_states or self.cached_states

    def build_net(self, rows: np.ndarray, seed: int, synthetic: SyntheticRows | None = None) -> HmhanNet:
        """An untrained net, initialised for these rows of the train reports and synthetic rows."""
        train = self.train
        counts = torch.from_numpy(train.label_counts(rows).astype(np.float32))
        known = torch.from_numpy(train.known_counts(train.versions[rows]).astype(np.float32))
        shift = None
        if synthetic is not None:
            added = torch.from_numpy(synthetic.targets.sum(0))
            added_known = torch.from_numpy(train.known_counts(train.versions[synthetic.first]).astype(np.float32))
            shift = log_odds_shift(counts, known, added, added_known)
        seen = np.any([train.reports[row].columns for row in rows], axis=0)
        return self.new_net(seed, np.asarray(seen), counts, known, shift)

    def new_net(
        self, seed: int, seen: np.ndarray, counts: torch.Tensor, known: torch.Tensor, shift: torch.Tensor | None = None
    ) -> HmhanNet:
        """An untrained net for reports with these counts.

        seen: (C,) bool, columns that are not 0 in all of them. counts: (L,) reports with each label, of the `known`
        (L,) for which it is known. shift: (L,) of the log odds, by synthetic rows.
        """
        torch.manual_seed(seed)
        recipe, model, categories = self.recipe, self.model, self.model.categories
        encoder = self.encoder or load_report_encoder(recipe)[1]
        net = self._random_net(encoder)
        if net.column_layer is not None:
            # A column that is 0 in all reports (such as "age unknown") is not learned: its random weights must go.
            net.column_layer.weight.data[:, torch.from_numpy(~seen)] = 0
        self._initialize_output(net, counts, known, shift)
        if model.settings.init_from_descriptions and isinstance(net.code_attention, HierarchicalAttention):
            descriptions = [label_description(code, expand_headers=True) for code in model.labels.codes]
            net.code_attention.initialize_queries(
                self._mean_states(encoder, descriptions), self._mean_states(encoder, categories.descriptions)
            )
        return net

    def _random_net(self, encoder: WindowedTransformer) -> HmhanNet:
        """A net with random weights on an encoder. ConfigError if its settings do not fit the encoder."""
        columns, of_label = self.recipe.columns, torch.from_numpy(self.model.categories.of_label)
        shape = len(self.model.columns), columns.width, columns.fusion == "early"
        return HmhanNet(self.model.settings, self.recipe.loss, encoder, of_label, *shape)

    def _initialize_output(
        self, net: HmhanNet, counts: torch.Tensor, known: torch.Tensor, shift: torch.Tensor | None
    ) -> None:
        """Sets class weights, prior shift and the output layer of an untrained net."""
        settings, loss = self.model.settings, self.recipe.loss
        if loss.weighted:
            net.class_weights.copy_(class_weights(counts, known, loss.max_class_weight))
        if shift is not None:
            net.prior_shift.copy_(shift)
        bias = None
        if settings.output_bias == "prior":  # an untrained net returns the frequency of each code, or its offset
            rates = counts / known.clamp(min=1)
            prior = torch.logit(rates.clamp(1e-4, 0.9)) if self.offsets is None else torch.zeros_like(rates)
            bias = net.loss_bias().add(prior) if loss.corrected else prior
        net.head.initialize_output(bias, settings.output_weights == "zero")

    def _mean_states(self, encoder: WindowedTransformer, texts: list[str]) -> torch.Tensor:
        """The mean state (N, D) of each text; 0 for a text without tokens."""
        tokens = [self.model.tokenizer.tokenize(text).ids for text in texts]
        means = torch.zeros(len(texts), encoder.width)
        for rows, states in encode_texts(encoder, tokens, self.recipe.training.precision):
            for row, state in zip(rows, states):
                if len(state):
                    means[row] = torch.from_numpy(state.astype(np.float32)).mean(0)
        return means

    def train_net(
        self,
        number: int,
        rows: np.ndarray,
        folder: Path,
        validate: ValidateModel | None = None,
        *,
        stop_epoch: int = 0,
        batches: ReportBatchBuilder | None = None,
    ) -> tuple[HmhanNet, TrainingResult]:
        """A net trained on these rows of the train reports.

        validate: the metrics of a model on held-out reports, for early stopping; None: all epochs. stop_epoch: 0 for
        all epochs or early stopping. batches: in place of `batches_of` these rows.
        """
        seed = self.recipe.seed + 1000 * number
        settings = (self.recipe.stop_after(stop_epoch) if stop_epoch else self.recipe).training
        fabric = launch_fabric(settings)
        reports = rows
        if batches is None:
            rows = np.concatenate([rows, np.arange(len(self.train), len(self.data))])
            batches = self.batches_of(rows, self.synthetic_rows(reports, seed), fabric.device)
        net = self.build_net(reports, seed, batches.synthetic)
        model = replace(self.model, net=HmhanEnsemble([net]))
        result = fit(
            TrainingRun(
                net,
                settings,
                lengths=np.array([max(1, len(self.data.reports[row])) for row in rows]),
                groups=self.data.versions[rows],
                make_batch=batches.build,
                validate=None if validate is None else lambda _: validate(model),
                parameter_groups=parameter_groups(net, self.recipe),
                use_cuda_graphs=self.cached_states is not None,
                loader_threads=1 if self.device_states else LOADER_THREADS,
                run_folder=folder,
                fingerprint=f"{self.fingerprint} {number} {hashlib.sha256(rows.tobytes()).hexdigest()}",
                seed=seed,
                fabric=fabric,
                title=f"{model.kind}, net {number + 1} of {model.settings.ensemble_size}",
            )
        )
        return net, result

    def batches_of(self, rows: np.ndarray, synthetic: SyntheticRows | None, device: torch.device) -> ReportBatchBuilder:
        """The training batches of these rows of the train reports and of synthetic rows."""
        return ReportBatchBuilder(self.data, rows, self.cached_states_on(device), synthetic, self.offsets)

    def synthetic_rows(self, rows: np.ndarray, seed: int) -> SyntheticRows | None:
        """MLSMOTE rows between reports of these rows only; distances are between mean encoder states and columns."""
        settings = self.recipe.smote
        if not settings.ratio:
            return None
        train = self.train.subset(rows)
        states = self.encode(self.data) if self.cached_states is None else self.cached_states
        columns = np.stack([report.columns for report in train.reports])
        vectors = np.concatenate([states.means()[rows], columns], axis=1)
        synthetic = mlsmote(train.gold, vectors, ratio=settings.ratio, neighbours=settings.neighbours, seed=seed)
        return synthetic.reindexed(rows)


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


def described_codes(model: Hmhan) -> tuple[list[EncodedReport], sparse.csr_matrix, np.ndarray]:
    """The description of each code as a report, the codes with this description 0/1 (L, L), and their versions (L,)."""
    texts = [label_description(code, expand_headers=True) for code in model.labels.codes]
    number = np.unique(np.array(texts), return_inverse=True)[1]
    has_text = sparse.csr_matrix((np.ones(len(texts), np.int8), (np.arange(len(texts)), number)))
    versions = label_versions(model.labels) if model.within_versions else np.full(len(texts), ICD9 | ICD10)
    return [model.tokenize(Note("", text)) for text in texts], sparse.csr_matrix(has_text @ has_text.T), versions


def load_report_encoder(recipe: HmhanRecipe) -> tuple[ReportTokenizer, WindowedTransformer]:
    """The tokenizer and the pretrained encoder of a recipe."""
    settings = recipe.report
    tokenizer, encoder = load_pretrained(recipe.model.encoder, 0, settings.max_tokens)
    marks = settings.negation, settings.cleaning, settings.context
    special_tokens = len(encoder.prefix_ids) + len(encoder.suffix_ids)
    # With the special tokens a report of 512 tokens is one window; else its last two would be a window of their own.
    return ReportTokenizer(tokenizer.tokenizer_json, max(1, settings.max_tokens - special_tokens), *marks), encoder
