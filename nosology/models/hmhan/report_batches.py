"""Reports as a member of HMHAN learns from them: read once, dealt into parts, made into batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from nosology.core import Code, DataError, Note
from nosology.core.label_space import note_versions
from nosology.core.progress import progress
from nosology.corpora.group_splits import group_folds, group_names
from nosology.encoders.state_cache import CachedStates, DeviceCachedStates, GatheredStates
from nosology.models.hmhan.hmhan_model import Hmhan, Report, report_batch
from nosology.models.hmhan.hmhan_net import ReportBatch, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.mlsmote import Synthetic
from nosology.training.examples import codes_in_labels

_WIDTHS = 64  # a GPU is given widths that are multiples of it: it repeats the step of a width that it has seen


@dataclass(frozen=True)
class Reports:
    """Reports that are read, with what is known of them."""

    reports: list[Report]
    codes: list[tuple[Code, ...]]  # of the systems to learn
    gold: sparse.csr_matrix  # (B, L)
    versions: np.ndarray  # (B,)
    groups: list[str]  # of patients, and of reports that repeat each other

    @staticmethod
    def of(notes: list[Note], recipe: HmhanRecipe, model: Hmhan) -> Reports:
        """The notes as the model reads them."""
        codes = codes_in_labels(recipe.labels, model.labels, [note.codes for note in notes])
        reports = [model.tokenize(note) for note in progress(notes, "reading", total=len(notes))]
        found = note_versions([note.codes for note in notes])
        together = group_names(notes)
        patients = [note.patient or note.id for note in notes]
        groups = [together[patient] for patient in patients]
        if 2 * max(Counter(groups).values(), default=0) > len(notes):  # chained into one: no parts
            groups = patients
        return Reports(reports, codes, model.labels.encode(codes), found, groups)

    def part(self, rows: np.ndarray) -> Reports:
        """Some of the reports."""
        chosen = [[items[row] for row in rows] for items in (self.reports, self.codes, self.groups)]
        return Reports(chosen[0], chosen[1], self.gold[rows], self.versions[rows], chosen[2])

    def __len__(self) -> int:
        return len(self.reports)


def parts_of(reports: Reports, parts: int, seed: int) -> np.ndarray:
    """The part (B,) of each report; reports of a group are in the same part, and parts have about equal sizes."""
    if len(set(reports.groups)) < parts:
        raise DataError(f"model.ensemble_size must be at most the number of patients (or notes); got {parts}")
    return group_folds(reports.groups, parts, seed)


class Batches:
    """The batches of one member, which learns from some rows of the reports."""

    def __init__(
        self,
        train: Reports,
        rows: np.ndarray,
        places: CachedStates | DeviceCachedStates | None,
        synthetic: Synthetic | None,
        offsets: np.ndarray | None = None,
    ):
        """places: the states of all reports, where the encoder is frozen.

        offsets: (N, L) what words say of all reports, held out.
        """
        self.offsets = offsets
        self.train, self.rows, self.places, self.synthetic = train, rows, places, synthetic
        self.synthetic_of: dict[int, list[int]] = {}  # report -> the synthetic rows that are learned in its batch
        if synthetic is not None:
            for number, row in enumerate(synthetic.first.tolist()):
                self.synthetic_of.setdefault(row, []).append(number)
        self._labels = label_columns(train)
        self._gpu = torch.cuda.is_available()

    def make(self, chosen: np.ndarray, _: Any) -> ReportBatch:
        """The batch of some of the member's rows, counted within them, with their synthetic rows."""
        real = self.rows[chosen]
        synthetic = [number for row in real.tolist() for number in self.synthetic_of.get(row, ())]
        kept = self._labels[int(self.train.versions[real[0]])]
        every, made = self.between(real, synthetic)
        targets = torch.from_numpy(self.train.gold[real].toarray().astype(np.float32))
        if len(kept) == targets.shape[1]:
            return self.batch(every, None, targets, made)
        # Codes of another ICD version are unknown for these reports.
        made = made and replace(made, targets=made.targets[:, kept])
        return self.batch(every, torch.from_numpy(kept), targets[:, kept], made)

    def between(self, real: np.ndarray, synthetic: list[int]) -> tuple[list[int], SyntheticBatch | None]:
        """All reports that a batch needs, the real ones first, and its synthetic rows; None where there are none."""
        made, every = self.synthetic, real.tolist()
        if not synthetic:
            return every, None
        ends = np.stack([made.first[synthetic], made.second[synthetic]], axis=1)
        every += sorted(set(ends.ravel().tolist()) - set(every))
        place = {row: i for i, row in enumerate(every)}
        pairs = torch.tensor([[place[row] for row in pair] for pair in ends.tolist()])
        shares = torch.from_numpy(made.shares[synthetic].astype(np.float32))
        return every, SyntheticBatch(pairs, shares, torch.from_numpy(made.targets[synthetic]))

    def batch(
        self,
        every: list[int],
        labels: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        synthetic: SyntheticBatch | None = None,
    ) -> ReportBatch:
        """The batch of some reports, with their states where they are kept."""
        found = report_batch([self.train.reports[row] for row in every], labels, targets, synthetic)
        if self.offsets is not None:
            found = replace(found, offsets=torch.from_numpy(self.offsets[every]))
        if self.places is None:
            return found
        width = found.tokens.shape[1]
        return replace(found, states=self._states(every, -(-width // _WIDTHS) * _WIDTHS if self._gpu else width))

    def _states(self, rows: list[int], width: int) -> torch.Tensor | GatheredStates:
        if isinstance(self.places, DeviceCachedStates):
            return self.places.padded_batch(rows, width)
        # At once into memory that a GPU copies from: the way there and the way on cost more than the training.
        shape = len(rows), width, self.places.width
        states = torch.empty(shape, dtype=torch.float16, pin_memory=self._gpu)
        self.places.padded_batch(rows, width, states.numpy())
        return states


def label_columns(train: Reports) -> dict[int, np.ndarray]:
    """For each version that reports are coded in, the columns that some report of it can have."""
    found = {}
    for version in np.unique(train.versions).tolist():
        rows = (train.versions & version) > 0
        found[version] = np.flatnonzero(np.asarray(train.gold[rows].sum(0)).ravel())
    return found
