"""Training data of HMHAN: tokenized reports, and batches with synthetic rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from nosology.core import Code, DataError, Note
from nosology.core.label_space import ICD9, ICD10, column_sums, date_versions, note_versions
from nosology.core.progress import progress
from nosology.corpora.group_splits import group_folds, group_names
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, GatheredStates
from nosology.models.hmhan.hmhan_model import Hmhan, collate_reports
from nosology.models.hmhan.hmhan_net import ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.mlsmote import SyntheticRows
from nosology.models.hmhan.report_features import EncodedReport
from nosology.training.examples import codes_in_labels

LOADER_THREADS = 8  # that copy states from the disk's cache; one is slower than the GPU
_WIDTH_MULTIPLE = 64  # on a GPU: few different widths, so that CUDA graphs are reused


@dataclass(frozen=True)
class ReportDataset:
    """Encoded reports with their codes, ICD versions and groups."""

    reports: list[EncodedReport]
    codes: list[tuple[Code, ...]]  # of the systems to learn
    gold: sparse.csr_matrix  # (B, L)
    versions: np.ndarray  # (B,) ICD versions whose codes are known in training: of its codes, or all
    date_versions: np.ndarray  # (B,) ICD versions whose codes are scored: those of the report's date
    groups: list[str]  # reports of one patient, and near-duplicates, have the same group

    @staticmethod
    def from_notes(notes: list[Note], recipe: HmhanRecipe, model: Hmhan) -> ReportDataset:
        codes = codes_in_labels(recipe.labels, model.labels, [note.codes for note in notes])
        reports = [model.tokenize(note) for note in progress(notes, "reading", total=len(notes))]
        both = np.full(len(notes), ICD9 | ICD10)
        within = model.within_versions
        versions = note_versions([note.codes for note in notes]) if within else both
        dates = date_versions(notes, model.labels) if within else both
        group_of_patient = group_names(notes)
        patients = [note.patient or note.id for note in notes]
        groups = [group_of_patient[patient] for patient in patients]
        if 2 * max(Counter(groups).values(), default=0) > len(notes):
            groups = patients  # near-duplicates chain most reports into one group: no folds are possible
        return ReportDataset(reports, codes, model.labels.encode(codes), versions, dates, groups)

    def subset(self, rows: np.ndarray) -> ReportDataset:
        return ReportDataset(
            [self.reports[row] for row in rows],
            [self.codes[row] for row in rows],
            sparse.csr_matrix(self.gold[rows]),
            self.versions[rows],
            self.date_versions[rows],
            [self.groups[row] for row in rows],
        )

    def with_reports(
        self, reports: list[EncodedReport], gold: sparse.csr_matrix, versions: np.ndarray
    ) -> ReportDataset:
        """This dataset with more reports at the end, each of a group of its own; they are only for training."""
        return ReportDataset(
            [*self.reports, *reports],
            [*self.codes, *([()] * len(reports))],
            sparse.csr_matrix(sparse.vstack([self.gold, gold])),
            np.concatenate([self.versions, versions]),
            np.concatenate([self.date_versions, versions]),
            [*self.groups, *(f"added {number}" for number in range(len(reports)))],
        )

    def label_counts(self, rows: np.ndarray) -> np.ndarray:
        """The number of reports (L,) at `rows` with each label."""
        return column_sums(sparse.csr_matrix(self.gold[rows]))

    def known_counts(self, versions: np.ndarray) -> np.ndarray:
        """The number of rows (L,) for which each label is known to be present or absent; versions: of the rows."""
        counts = np.zeros(self.gold.shape[1])
        for version, labels in labels_by_version(self).items():
            counts[labels] += (versions == version).sum()
        return counts

    def __len__(self) -> int:
        return len(self.reports)


def assign_folds(dataset: ReportDataset, folds: int, seed: int) -> np.ndarray:
    """The fold (B,) of each report; reports of a group are in one fold, and folds have about equal sizes."""
    if len(set(dataset.groups)) < folds:
        raise DataError(f"model.ensemble_size must be at most the number of patients (or notes); got {folds}")
    return group_folds(dataset.groups, folds, seed)


class ReportBatchBuilder:
    """Builds the training batches of one net, which is trained on some rows of a dataset."""

    def __init__(
        self,
        train: ReportDataset,
        rows: np.ndarray,
        cached_states: CachedStates | DeviceCachedStates | None,
        synthetic: SyntheticRows | None,
        offsets: np.ndarray | None = None,
        labels: dict[int, np.ndarray] | None = None,
    ):
        """cached_states: of all reports, if the encoder is frozen. offsets: (N, L), see `ReportBatch.offset`.

        labels: that a report of each ICD version can have; None: those of the reports.
        """
        self.train, self.rows, self.cached_states, self.synthetic = train, rows, cached_states, synthetic
        self.offsets = offsets
        self.synthetic_of: dict[int, list[int]] = {}  # report -> its synthetic rows, which are in the same batch
        if synthetic is not None:
            for number, row in enumerate(synthetic.first.tolist()):
                self.synthetic_of.setdefault(row, []).append(number)
        self._labels = labels_by_version(train) if labels is None else labels
        self._gpu = torch.cuda.is_available()

    def build(self, chosen: np.ndarray, _: Any) -> ReportBatch:
        """The batch of reports rows[chosen], with their synthetic rows."""
        real = self.rows[chosen]
        numbers = [number for row in real.tolist() for number in self.synthetic_of.get(row, ())]
        labels = self._labels[int(self.train.versions[real[0]])]
        reports, synthetic = self.add_synthetic(real, numbers)
        targets = torch.from_numpy(sparse.csr_matrix(self.train.gold[real]).toarray().astype(np.float32))
        if len(labels) == targets.shape[1]:
            return self.collate(reports, None, targets, synthetic)
        # Codes of another ICD version are unknown for these reports, not absent.
        if synthetic is not None:
            synthetic = replace(synthetic, targets=synthetic.targets[:, labels])
        return self.collate(reports, torch.from_numpy(labels), targets[:, labels], synthetic)

    def add_synthetic(self, real: np.ndarray, numbers: Sequence[int]) -> tuple[list[int], SyntheticBatch | None]:
        """All reports that a batch needs, the real ones first, and its synthetic rows; numbers: of synthetic rows."""
        reports = real.tolist()
        if self.synthetic is None or not numbers:
            return reports, None
        chosen = self.synthetic.subset(np.array(numbers))
        ends = np.stack([chosen.first, chosen.second], axis=1)
        reports += sorted(set(ends.ravel().tolist()) - set(reports))
        position = {row: i for i, row in enumerate(reports)}
        pairs = torch.tensor([[position[row] for row in pair] for pair in ends.tolist()])
        fractions = torch.from_numpy(chosen.fractions.astype(np.float32))
        return reports, SyntheticBatch(pairs, fractions, torch.from_numpy(chosen.targets))

    def collate(
        self,
        reports: list[int],
        labels: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        synthetic: SyntheticBatch | None = None,
    ) -> ReportBatch:
        """The batch of the given reports, with their cached states if there are any."""
        batch = collate_reports([self.train.reports[row] for row in reports], labels, targets, synthetic)
        if self.offsets is not None:
            batch = replace(batch, offset=torch.from_numpy(self.offsets[reports]))
        if self.cached_states is None:
            return batch
        width = batch.tokens.shape[1]
        if self._gpu:
            width = -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
        return replace(batch, states=self._states(self.cached_states, reports, width))

    def _states(self, cached: CachedStates | DeviceCachedStates, rows: list[int], width: int) -> GatheredStates:
        if isinstance(cached, DeviceCachedStates):
            return cached.padded_batch(rows, width)
        return cached.padded_batch(rows, width, pin_memory=self._gpu)


def labels_by_version(train: ReportDataset) -> dict[int, np.ndarray]:
    """For each ICD version of reports, the labels that a report of this version can have."""
    versions = np.unique(train.versions).tolist()
    return {v: np.flatnonzero(train.label_counts((train.versions & v) > 0)) for v in versions}
