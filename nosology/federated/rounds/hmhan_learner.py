"""Federated HMHAN: sites report metadata columns and ICD versions, and share attention and head on a frozen encoder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from nosology.core import SPLITS, ConfigError, DataError, Note
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions
from nosology.corpora.corpus import Corpus
from nosology.encoders.tokenizers import ReportTokenizer
from nosology.encoders.transformer import WindowedTransformer
from nosology.federated.federation_settings import FederatedHmhanRecipe
from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, SiteMetadata
from nosology.federated.rounds.hmhan_site import (
    REPORT_PREPROCESSING,
    ColumnCounts,
    HmhanSite,
    SharedReports,
    hmhan_label_rows,
    load_shared_weights,
    report_trainer,
    shared_weights,
)
from nosology.federated.rounds.learner import FederatedLearner, LabelRows, SiteFiles
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer, load_report_encoder
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_settings import ColumnSettings
from nosology.models.hmhan.report_features import MAX_NUMBER, MAX_VALUES, MetadataColumns
from nosology.training.calibration import PlattScaling
from nosology.training.examples import Examples

_MAX_REPORTED = 10**4  # values of a column

Encoder = tuple[ReportTokenizer, WindowedTransformer]


class HmhanLearner(FederatedLearner[HmhanSite, SharedReports]):
    """Attention and head on the states of a frozen encoder."""

    recipe: FederatedHmhanRecipe
    preprocessing, site_tables = REPORT_PREPROCESSING, {"kind", "model", "report", "columns", "labels"}

    def __init__(self, recipe: FederatedHmhanRecipe):
        super().__init__(recipe)
        self.head = tuple(f"nets.{number}.head." for number in range(recipe.model.ensemble_size))

    @property
    def inputs_name(self) -> str:
        """The encoder."""
        return f"read as reports by {self.recipe.model.encoder}"

    @property
    def reports_words(self) -> bool:
        """Whether sites report values of other columns than the usual ones, which may be words of notes."""
        return not set(self.recipe.columns.choices) <= set(ColumnSettings().choices)

    def check(self) -> None:
        """Raises ConfigError for settings that HMHAN does not support in a federation."""
        recipe, federation = self.recipe, self.recipe.federation
        for name, value, allowed in (
            ("model.frozen", recipe.model.frozen, True),
            ("smote.ratio", recipe.smote.ratio, 0.0),
            ("federation.optimizer", federation.optimizer, "adamw"),
            ("federation.vocabulary", federation.vocabulary, ""),
            ("federation.privacy.record_noise", federation.privacy.record_noise, 0.0),
            ("federation.privacy.word_noise", federation.privacy.word_noise, 0.0),
        ):
            if value != allowed:
                raise ConfigError(f"{name} must be {allowed!r} for a federated hmhan; got {value!r}")
        if recipe.training.precision == "fp64":
            raise ConfigError('training.precision must not be "fp64" for a federated hmhan')

    def open_site(self, files: SiteFiles) -> HmhanSite:
        """The site; encoder states are stored in its cache folder."""
        if files.cache is None:
            raise ConfigError(f"site {files.name} needs a cache folder for its encoder states")
        corpora = [Corpus.open(folder) for folder in files.corpora]
        site = self._site(files.name, corpora, lambda note: True, files.cache, load_report_encoder(self.recipe))
        if not site.sizes["train"]:
            raise DataError(f"site {files.name} has no train notes: make them with `nosology corpus split`")
        site.code_list = files.code_list
        return site

    def simulated_sites(self, corpora: Sequence[Corpus], site_of: Mapping[str, str], folder: Path) -> list[HmhanSite]:
        """One hospital per site; they share the encoder and the cache of its states."""
        loaded, cache = load_report_encoder(self.recipe), Path(self.recipe.states.cache or folder)

        def named(name: str) -> HmhanSite:
            return self._site(name, corpora, lambda note: site_of[note.id] == name, cache, loaded)

        return [named(name) for name in sorted(set(site_of.values()))]

    def _site(self, name: str, corpora: Sequence[Corpus], keep: Any, cache: Path, loaded: Encoder) -> HmhanSite:
        def examples(split: str) -> Examples:
            def is_kept(note: Note) -> bool:
                return note.split == split and keep(note)

            return Examples(corpora, is_kept)

        tokenizer, encoder = loaded
        parts = {split: examples(split) for split in SPLITS}
        return HmhanSite(name, parts, self.recipe, tokenizer, encoder, cache)

    def report(self, site: HmhanSite) -> RecordDict:
        """Counts of ICD versions and metadata columns."""
        return messages.make_content(columns=asdict(site.column_counts(self.recipe.federation.min_site_notes)))

    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> ColumnCounts | str:
        """The counts in a reply; a text says why they are invalid."""
        if reply is None:
            return "it did not send its columns in time"
        if reply.has_error():
            return messages.error_reason(reply.error)
        try:
            counts = ColumnCounts(**messages.get_value(reply.content, "columns"))
            valid = self._is_valid(counts, metadata.notes)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            return "its columns cannot be read"
        return counts if valid else "its columns are not counts of its train notes"

    def _is_valid(self, counts: ColumnCounts, notes: int) -> bool:
        """Whether train notes with these counts can exist."""
        columns, least = self.recipe.columns, self.recipe.federation.min_site_notes
        names = set(columns.numbers) | set(columns.choices)
        ok = set(counts.numbers) <= set(columns.numbers) and set(counts.choices) <= set(columns.choices)
        ok = ok and set(counts.missing) <= names and all(0 <= _whole(n) <= notes for n in counts.missing.values())
        flags = [int(flag) for flag in counts.versions]
        ok = ok and all(0 < flag <= (ICD9 | ICD10) for flag in flags)
        ok = ok and all(_whole(n) >= least for n in counts.versions.values()) and sum(counts.versions.values()) <= notes
        for n, total, squares in counts.numbers.values():
            bound = math.sqrt(n * squares) * (1 + 1e-6) + 1e-6
            ok = ok and least <= _whole(n) <= notes and 0 <= squares <= n * MAX_NUMBER**2 and abs(total) <= bound
        for values in counts.choices.values():
            ok = ok and len(values) <= _MAX_REPORTED and all(value.isprintable() for value in values)
            ok = ok and all(least <= _whole(n) <= notes for n in values.values())
        return ok

    def share_inputs(
        self, reports: Sequence[ColumnCounts], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]
    ) -> SharedReports:
        """Columns with means, deviations and values of all sites, and the counts of class weights."""
        columns, missing = self.recipe.columns, Counter[str]()
        numbers, choices = dict[str, tuple[float, float]](), dict[str, list[str]]()
        for report in reports:
            missing.update(report.missing)
        for name in columns.numbers:
            if sums := [report.numbers[name] for report in reports if name in report.numbers]:
                n, total, squares = np.sum(sums, axis=0)
                deviation = math.sqrt(max(0.0, squares / n - (total / n) ** 2))
                numbers[name] = (float(total / n), deviation or 1.0)
            missing[name] += sum(name not in report.numbers for report in reports)
        for name in columns.choices:
            values = Counter[str]()
            for report in reports:
                values.update(report.choices.get(name, {}))
            if values:
                ranked = sorted(values, key=lambda value: (-values[value], value))
                choices[name] = sorted(ranked[:MAX_VALUES])
            missing[name] += sum(name not in report.choices for report in reports) + (len(values) > MAX_VALUES)
        seen = [flag for name in numbers for flag in (True, missing[name] > 0)]
        for name, values_of in choices.items():
            seen += [True] * len(values_of) + [missing[name] > 0]
        known, versions = np.zeros(len(labels), np.int64), label_versions(labels)
        for report in reports:
            for flag, n in report.versions.items():
                known += n * ((versions & int(flag)) > 0)
        counts = [sum(site.codes.get(code, 0) for site in metadata.values()) for code in labels.codes]
        known = np.maximum(known, np.array(counts))
        return SharedReports(MetadataColumns(numbers, choices), np.array(seen, bool), known, np.array(counts, np.int64))

    def pack_inputs(self, inputs: SharedReports) -> tuple[Arrays, dict[str, Any]]:
        """Counts as arrays, columns as values."""
        arrays = {"seen": inputs.seen.astype(np.uint8), "known": inputs.known, "counts": inputs.counts}
        return arrays, {"columns": inputs.columns.to_json()}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> SharedReports:
        """The inputs."""
        columns = MetadataColumns.from_json(values["columns"])
        return SharedReports(columns, arrays["seen"].astype(bool), arrays["known"], arrays["counts"])

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """Queries, weights and biases of the labels."""
        names = hmhan_label_rows(shared_weights(self._trainer(setup).model.net)).names
        return LabelRows(names, len(setup.labels))

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The weights before the first round, without the encoder."""
        return shared_weights(self._trainer(setup).model.net)

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Hmhan:
        """The model with these weights."""
        model = self._trainer(setup).model
        load_shared_weights(model.net, weights)
        model.net.eval()
        model.calibration = calibration
        return model

    def _trainer(self, setup: FederationSetup) -> HmhanEnsembleTrainer:
        tokenizer, encoder = load_report_encoder(self.recipe)
        frozen = encoder.requires_grad_(False).eval()
        return report_trainer(self.recipe, setup.labels, setup.inputs, tokenizer, frozen, Path())


def _whole(number: Any) -> int:
    """The number; TypeError if it is not a whole number."""
    if type(number) is not int:
        raise TypeError("not a whole number")
    return number
