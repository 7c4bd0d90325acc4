"""Reports as a member of HMHAN learns from them: read once, dealt into parts, made into batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from nosology.codes.versions import versions
from nosology.core import Code, DataError, Note
from nosology.core.progress import progress
from nosology.encoders.state_cache import Places
from nosology.models.hmhan import Hmhan, Report, report_batch
from nosology.models.hmhan_net import ReportBatch, SyntheticBatch
from nosology.models.hmhan_settings import HmhanRecipe
from nosology.training.labels import of_systems
from nosology.training.mlsmote import Synthetic


@dataclass(frozen=True)
class Reports:
    """Reports that are read, with what is known of them."""

    reports: list[Report]
    codes: list[tuple[Code, ...]]  # of the systems to learn
    gold: sparse.csr_matrix  # (B, L)
    versions: np.ndarray  # (B,)
    patients: list[str]  # or, without one, the note's own id

    @staticmethod
    def of(notes: list[Note], recipe: HmhanRecipe, model: Hmhan) -> Reports:
        """The notes as the model reads them."""
        codes = of_systems(recipe.labels, [note.codes for note in notes])
        reports = [model.read(note.text, note.extra) for note in progress(notes, "reading", total=len(notes))]
        found = versions([note.codes for note in notes])
        patients = [note.patient or note.id for note in notes]
        return Reports(reports, codes, model.labels.encode(codes), found, patients)

    def part(self, rows: np.ndarray) -> Reports:
        """Some of the reports."""
        chosen = [[items[row] for row in rows] for items in (self.reports, self.codes, self.patients)]
        return Reports(chosen[0], chosen[1], self.gold[rows], self.versions[rows], chosen[2])

    def __len__(self) -> int:
        return len(self.reports)


def parts_of(reports: Reports, parts: int, seed: int) -> np.ndarray:
    """The part (B,) of each report: patients are dealt out by hash, as evenly as they come."""
    names = sorted(set(reports.patients), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    part = {name: number % parts for number, name in enumerate(names)}
    found = np.array([part[name] for name in reports.patients])
    if len(names) < parts:
        raise DataError(f"model.members must be at most the number of patients (or notes); got {parts}")
    return found


class Batches:
    """The batches of one member; rows are counted within the reports that it learns from."""

    def __init__(self, train: Reports, rows: np.ndarray, places: Places | None, synthetic: Synthetic | None):
        self.train, self.rows, self.places, self.synthetic = train, rows, places, synthetic
        self._of: dict[int, list[int]] = {}  # synthetic rows by the report they begin at
        for number, row in enumerate(() if synthetic is None else synthetic.first.tolist()):
            self._of.setdefault(row, []).append(number)
        self._labels = label_columns(train)

    def make(self, chosen: np.ndarray, _: Any) -> ReportBatch:
        """The batch of some rows, with the synthetic rows that begin at them."""
        synthetic = [number for row in chosen.tolist() for number in self._of.get(row, ())]
        mates = sorted({int(self.synthetic.second[number]) for number in synthetic} - set(chosen.tolist()))
        every = [*chosen.tolist(), *mates]
        targets = torch.from_numpy(self.train.gold[self.rows[chosen]].toarray().astype(np.float32))
        more: dict[str, Any] = {"targets": targets}
        if synthetic:
            place = {row: i for i, row in enumerate(every)}
            made = self.synthetic
            pairs = [[place[int(made.first[n])], place[int(made.second[n])]] for n in synthetic]
            shares = torch.from_numpy(made.shares[synthetic].astype(np.float32))
            more["synthetic"] = SyntheticBatch(torch.tensor(pairs), shares, torch.from_numpy(made.targets[synthetic]))
        kept = self._labels[int(self.train.versions[self.rows[chosen[0]]])]
        if len(kept) < self.train.gold.shape[1]:  # codes of another ICD version are unknown for these reports
            more["labels"], more["targets"] = torch.from_numpy(kept), targets[:, kept]
            if synthetic:
                more["synthetic"] = replace(more["synthetic"], targets=more["synthetic"].targets[:, kept])
        batch = report_batch([self.train.reports[row] for row in self.rows[every]], **more)
        if self.places is not None:
            states = torch.from_numpy(self.places.rectangle(self.rows[every], batch.tokens.shape[1]))
            batch = replace(batch, states=states)
        return batch


def label_columns(train: Reports) -> dict[int, np.ndarray]:
    """For each version that reports are coded in, the columns that some report of it can have."""
    found = {}
    for version in np.unique(train.versions).tolist():
        rows = (train.versions & version) > 0
        found[version] = np.flatnonzero(np.asarray(train.gold[rows].sum(0)).ravel())
    return found
