"""A hospital that trains HMHAN: reports as states of a frozen encoder, which stay at the site.

The encoder is the same at all sites and is never sent. Nothing here depends on Flower.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.core import Code, DataError, Note, __version__
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions, note_versions
from nosology.encoders.state_cache import CachedStates
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.federated.federation_settings import FederatedHmhanRecipe
from nosology.federated.rounds.federation_setup import Arrays, SiteMetadata, embedder_key, reported_codes
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.local_training import (
    loop_settings,
    restore_unused_labels,
    round_epochs,
    train_net,
    used_labels,
)
from nosology.federated.rounds.personal_layers import mark, marked
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.models.hmhan.encoder_states import encoder_fingerprint
from nosology.models.hmhan.hmhan_decision import mask_by_date
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.report_batches import ReportBatchBuilder, ReportDataset
from nosology.models.hmhan.report_features import MetadataColumns, column_number
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling
from nosology.training.data_loader import make_batch_plan
from nosology.training.examples import Examples, codes_in_systems
from nosology.training.inference import default_device

REPORT_PREPROCESSING = "reports with marks of negation and context, states of a frozen encoder"
_ENCODER = "encoder."  # in the names of weights of a net
_LABEL_ROWS = ("code_attention.codes", "head.code_weight", "head.bias")  # in the names of weights of a net


@dataclass(frozen=True, eq=False)
class SharedReports:
    """What all sites use to read reports and to weigh codes."""

    columns: MetadataColumns
    seen: np.ndarray  # (C,) bool: entries of the vectors of columns that are not 0 at all sites
    known: np.ndarray  # (L,) train reports of the ICD version of each label, of all sites
    counts: np.ndarray  # (L,) train reports with each label, as sites have reported them


@dataclass
class ColumnCounts:
    """What a site reports of metadata columns and ICD versions; small counts are left out."""

    versions: dict[str, int] = field(default_factory=dict)  # ICD versions, as bits -> reports
    missing: dict[str, int] = field(default_factory=dict)  # column -> reports without a value
    numbers: dict[str, list[float]] = field(default_factory=dict)  # column -> count, sum, sum of squares
    choices: dict[str, dict[str, int]] = field(default_factory=dict)  # column -> value -> patients


def shared_weights(net: HmhanEnsemble) -> Arrays:
    """Copies of the weights of nets by name, without the encoder."""
    named = {name: value for name, value in net.named_parameters(remove_duplicate=False) if _ENCODER not in name}
    return {name: value.detach().cpu().numpy().copy() for name, value in named.items()}


def load_shared_weights(net: HmhanEnsemble, weights: Mapping[str, np.ndarray]) -> None:
    """Loads what `shared_weights` returned; other weights stay as they are."""
    parameters = dict(net.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, array in weights.items():
            parameters[name].copy_(torch.from_numpy(np.array(array)))


def hmhan_label_rows(weights: Mapping[str, np.ndarray]) -> LabelRows:
    """The weights of nets with one row per label."""
    return LabelRows(tuple(name for name in weights if name.endswith(_LABEL_ROWS)))


@dataclass
class HmhanSite:
    """The reports of a hospital. After `configure` it can train and evaluate."""

    name: str
    examples: dict[str, Examples]  # by split
    recipe: FederatedHmhanRecipe  # the tables that decide how reports are read
    tokenizer: ReportTokenizer
    encoder: WindowedTransformer
    cache: Path  # of encoder states
    code_list: frozenset[Code] | None = None  # codes that the site uses; None: all of the systems of its notes
    device: torch.device = field(default_factory=default_device)

    labels: LabelSpace | None = None
    inputs: SharedReports | None = None
    label_mask: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of notes of each split."""
        return {split: len(part) for split, part in self.examples.items()}

    def _uses(self, code: Code) -> bool:
        return self.code_list is None or code in self.code_list

    def metadata(self, min_site_notes: int) -> SiteMetadata:
        """The metadata of the site, without codes of fewer than `min_site_notes` notes."""
        codes = codes_in_systems(self.recipe.labels, self.examples["train"].codes)
        reported = reported_codes(codes, self.code_list, min_site_notes)
        identity = {"tokenizer": "reports", "encoder": self._fingerprint, "dim": self.encoder.width}
        identity |= {"report": self.recipe.report.model_dump(mode="json")}
        key, dim = embedder_key(identity), self.encoder.width
        return SiteMetadata(__version__, key, identity, dim, REPORT_PREPROCESSING, len(codes), reported)

    def __post_init__(self) -> None:
        self.encoder.requires_grad_(False).eval()
        self._fingerprint = encoder_fingerprint(self.encoder)

    def column_counts(self, min_site_notes: int) -> ColumnCounts:
        """Versions and columns of the train reports; counts of fewer than `min_site_notes` are left out.

        Patients count, not reports: those of one patient may be many.
        """
        notes, columns, counts = list(self.examples["train"].notes()), self.recipe.columns, ColumnCounts()
        within = self.recipe.model.within_versions
        flags = note_versions([note.codes for note in notes]) if within else np.full(len(notes), ICD9 | ICD10)
        found = Counter(flags.tolist())
        counts.versions = {str(flag): n for flag, n in sorted(found.items()) if n >= min_site_notes}
        for name in columns.numbers:
            with_value = [note for note in notes if column_number(note.extra.get(name)) is not None]
            values = [column_number(note.extra.get(name)) or 0.0 for note in with_value]
            if len({note.patient or note.id for note in with_value}) >= min_site_notes:
                counts.numbers[name] = [len(values), float(np.sum(values)), float(np.square(values).sum())]
                counts.missing[name] = len(notes) - len(values)
        for name in columns.choices:
            patients = _patients_of_values(notes, name)
            reported = {value: len(of) for value, of in sorted(patients.items()) if len(of) >= min_site_notes}
            if reported:
                counts.choices[name] = reported
                counts.missing[name] = sum(str(note.extra.get(name)) not in reported for note in notes)
        counts.missing = {name: n if n >= min_site_notes else 0 for name, n in counts.missing.items()}
        return counts

    def configure(self, labels: LabelSpace, inputs: SharedReports) -> None:
        """Sets labels and columns of the federation."""
        self.labels, self.inputs = labels, inputs
        self.label_mask = used_labels(labels, self.examples["train"].codes, self.code_list)
        self._built: tuple[Any, HmhanEnsembleTrainer] | None = None
        self._datasets: dict[str, tuple[ReportDataset, CachedStates]] = {}

    def _model(self, recipe: FederatedHmhanRecipe, weights: Arrays) -> Hmhan:
        """The model with these weights on the device."""
        if self.labels is None or self.inputs is None:
            raise DataError(f"site {self.name} has no labels and no columns yet")
        key = (recipe.model, recipe.columns, recipe.loss, recipe.training.precision)
        if self._built is None or self._built[0] != key:
            trainer = report_trainer(recipe, self.labels, self.inputs, self.tokenizer, self.encoder, self.cache)
            self._built, self._datasets = (key, trainer), {}
        model = self._built[1].model
        load_shared_weights(model.net, weights)
        return model.to(self.device)

    def _reports(self, split: str) -> tuple[ReportDataset, CachedStates]:
        """The reports of a split with the codes that the site uses, and their cached states."""
        if split not in self._datasets:
            assert self._built is not None
            trainer = self._built[1]
            dataset = ReportDataset.from_notes(list(self.examples[split].notes()), self.recipe, trainer.model)
            codes = [tuple(code for code in note if self._uses(code)) for note in dataset.codes]
            dataset = replace(dataset, codes=codes, gold=trainer.model.labels.encode(codes))
            self._datasets[split] = dataset, trainer.encode(dataset)
        return self._datasets[split]

    def train(
        self,
        weights: Arrays,
        recipe: FederatedHmhanRecipe,
        round_number: int,
        optimizer_state: Arrays | None = None,
    ) -> SiteUpdate:
        """The update of one round of local training. Rounds are counted from 1."""
        model = self._model(recipe, weights)
        if not self.label_mask.any():
            raise DataError("it uses none of the codes of the federation")
        losses, state = [], Arrays()
        for number, net in enumerate(model.net.nets):
            prefix = f"nets.{number}."
            before = marked(optimizer_state or {}, prefix)
            loss, kept = self._train_net(net, recipe, round_number, recipe.seed + 1000 * number, before)
            losses.append(loss)
            state |= mark(kept, prefix)
        trained = shared_weights(model.net)
        restore_unused_labels(trained, weights, hmhan_label_rows(trained), self.label_mask)
        loss = float(np.mean(losses))
        return SiteUpdate(self.name, trained, self.sizes["train"], loss, self.label_mask, state)

    def _train_net(
        self, net: HmhanNet, recipe: FederatedHmhanRecipe, round_number: int, seed: int, state: Arrays
    ) -> tuple[float, Arrays]:
        """The loss of a net that is trained for one round, and its optimizer state."""
        train, states = self._reports("train")
        versions = label_versions(self.labels) if self.labels is not None else np.zeros(0, int)
        labels = {v: np.flatnonzero(self.label_mask & ((versions & v) > 0)) for v in np.unique(train.versions).tolist()}
        batches = ReportBatchBuilder(train, np.arange(len(train)), states, None, labels=labels)
        settings, federation = loop_settings(recipe), recipe.federation
        lengths = np.array([max(1, len(report)) for report in train.reports])
        plan = make_batch_plan(lengths, train.versions, settings, seed, self.device)
        epochs = round_epochs(federation, round_number)
        return train_net(net, plan, (batches.build, None), settings, epochs, federation, state)

    def evaluate(
        self,
        weights: Arrays,
        recipe: FederatedHmhanRecipe,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """The counts of a split; with a threshold (of probabilities) also hits."""
        model = self._model(recipe, weights)
        reports, states = self._reports(split)
        logits = mask_by_date(model, model.logits_of(reports.reports, cached_states=states), reports)
        scores = np.where(logits > EXCLUDED_LOGIT, (calibration or PlattScaling())(logits), np.float32(0))
        return SiteCounts.of(model.labels, logits, scores, reports.codes, self.label_mask, threshold)


def report_trainer(
    recipe: FederatedHmhanRecipe,
    labels: LabelSpace,
    inputs: SharedReports,
    tokenizer: ReportTokenizer,
    encoder: WindowedTransformer,
    folder: Path,
) -> HmhanEnsembleTrainer:
    """A trainer without reports, whose model has untrained nets. folder: for encoder states, whatever the recipe says.

    A recipe comes from the server, which must not choose a folder of the site.
    """
    recipe = recipe.model_copy(update={"states": recipe.states.model_copy(update={"cache": str(folder)})})
    model = HmhanEnsembleTrainer.new_model(recipe, [], labels, tokenizer, inputs.columns)
    model.train_counts = inputs.counts
    empty = ReportDataset.from_notes([], recipe, model)
    trainer = HmhanEnsembleTrainer(recipe, model, empty, empty, folder, "", encoder=encoder)
    counts, known = (torch.from_numpy(array.astype(np.float32)) for array in (inputs.counts, inputs.known))
    with torch.random.fork_rng(devices=[]):
        seeds = [recipe.seed + 1000 * number for number in range(recipe.model.ensemble_size)]
        model.net = HmhanEnsemble([trainer.new_net(seed, inputs.seen, counts, known) for seed in seeds])
    return trainer


def _patients_of_values(notes: list[Note], name: str) -> dict[str, set[str]]:
    """The patients with each value of a column; a note without a patient counts as one."""
    patients: dict[str, set[str]] = defaultdict(set)
    for note in notes:
        if (value := note.extra.get(name)) not in (None, ""):
            patients[str(value)].add(note.patient or note.id)
    return patients
