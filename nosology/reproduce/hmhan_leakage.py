"""The effect of leaking protocols on the score of HMHAN. Nothing but the protocol differs between the arms.

    by patient   all reports of a patient, and near-duplicates, are in one split; synthetic rows of train reports only
    by report    each report for itself: a patient, or copies of a report, can be in several splits
    resampled    MLSMOTE is applied to all reports before the split: some dev and test rows are synthetic, interpolated
                 between train reports

A protocol assigns reports and synthetic rows to train, dev and test, stratified by code. From there on all arms are the
same: labels, net, loss, batches, early stopping on the dev rows, calibration and threshold from the dev rows. Do not
use these coders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from nosology.core import SPLITS, DataError, Note
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.corpora.group_splits import group_numbers, stratify, summarize_notes
from nosology.evaluation import Evaluation, brief, examine
from nosology.evaluation.decision import Decision
from nosology.models.compare import METRICS
from nosology.models.hmhan.hmhan_decision import mask_by_date, tune_on_held_out
from nosology.models.hmhan.hmhan_ensemble import HmhanEnsembleTrainer
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.hmhan_settings import CombinationSettings, HmhanRecipe, SmoteSettings
from nosology.models.hmhan.mlsmote import SyntheticRows
from nosology.models.hmhan.report_batches import ReportBatchBuilder, ReportDataset
from nosology.training.examples import Examples
from nosology.training.inference import evaluating
from nosology.training.run_folder import run_fingerprint
from nosology.training.trainer import launch_fabric

PROTOCOLS = ("by patient", "by report", "resampled")
RATIOS = (0.7, 0.15, 0.15)


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split: reports and synthetic rows."""

    rows: np.ndarray  # of the reports
    synthetic: SyntheticRows

    def dataset(self, reports: ReportDataset, labels: LabelSpace) -> ReportDataset:
        """The reports, and codes, versions and groups of all rows, the reports first.

        A synthetic row is of the group of its first report.
        """
        real, between = reports.subset(self.rows), reports.subset(self.synthetic.first)
        gold = sparse.vstack([real.gold, sparse.csr_matrix(self.synthetic.targets.astype(np.int8))]).tocsr()
        rows = np.split(gold.indices, gold.indptr[1:-1])
        return replace(
            real,
            codes=[tuple(labels.codes[j] for j in row) for row in rows],
            gold=gold,
            versions=np.concatenate([real.versions, between.versions]),
            date_versions=np.concatenate([real.date_versions, between.date_versions]),
            groups=[*real.groups, *between.groups],
        )


def protocol_metrics(recipe: HmhanRecipe, corpus: Corpus, protocol: str, folder: Path) -> dict[str, float | None]:
    """The metrics on the test rows of a protocol, and those on the reports among them, with the prefix `real.`.

    One net with synthetic rows, without code sets and without a code for every report.
    """
    recipe = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"ensemble_size": 1}),
            "smote": recipe.smote if recipe.smote.ratio else SmoteSettings(ratio=3.0),
            "combinations": CombinationSettings(prior="never"),
            "decision": recipe.decision.model_copy(update={"at_least_one": False}),
        }
    )
    notes = [note for note in corpus.notes() if note.codes]
    identity = f"{run_fingerprint(recipe, Examples([corpus], lambda note: bool(note.codes)))} {protocol}"
    trainer = HmhanEnsembleTrainer.from_notes(recipe, notes, folder / "run", identity)
    splits = assign_rows(protocol, trainer, notes)
    if missing := [name for name, split in zip(SPLITS, splits) if not len(split.rows)]:
        raise DataError(f"{corpus.folder} has too few coded notes ({len(notes)}): none is left for {missing[0]}")
    if protocol == "resampled" and not len(splits[0].synthetic):
        raise DataError("MLSMOTE needs a rare code with two notes; got none")
    model, decision = _trained(trainer, splits[0], splits[1], folder / "net")
    labels, test = model.labels, SplitScorer(trainer, splits[2])
    probabilities = model.to_probabilities(test.logits(model))
    gold, count = test.dataset.codes, len(splits[2].rows)
    thresholds = decision.thresholds(labels)
    all_rows = metrics_of(examine(labels, gold, probabilities, thresholds, replicates=0))
    real = metrics_of(examine(labels, gold[:count], probabilities[:count], thresholds, replicates=0))
    shared = {"shared_patients": shared_patients(notes, splits[0].rows, splits[2].rows)}
    return all_rows | shared | {f"real.{name}": value for name, value in real.items()}


def metrics_of(evaluation: Evaluation) -> dict[str, float | None]:
    """The metrics of a table, and the share of true cells."""
    gold = evaluation.scored.gold
    metrics: dict[str, Any] = {name: evaluation.metrics[name] for name in METRICS}
    return metrics | {"density": float(gold.nnz / np.prod(gold.shape))}


def assign_rows(protocol: str, trainer: HmhanEnsembleTrainer, notes: Sequence[Note]) -> list[SplitRows]:
    """Train, dev and test of a protocol; notes: the train reports of the trainer. All protocols stratify by code."""
    seed, gold, everything = trainer.recipe.seed, trainer.train.gold, np.arange(len(notes))
    if protocol == "resampled":
        synthetic = _synthetic(trainer, everything)
        cells = sparse.vstack([gold, sparse.csr_matrix(synthetic.targets.astype(np.int8))]).tocsr()
        number = _stratified_parts(cells, np.arange(cells.shape[0]), seed)
        real, added = number[: len(notes)], number[len(notes) :]
        return [SplitRows(np.flatnonzero(real == i), synthetic.subset(np.flatnonzero(added == i))) for i in range(3)]
    groups = _groups(notes) if protocol == "by patient" else everything
    real = _stratified_parts(gold, groups, seed)
    rows = [np.flatnonzero(real == i) for i in range(3)]
    synthetic = _synthetic(trainer, rows[0])
    none = synthetic.subset(np.empty(0, np.int64))
    return [SplitRows(rows[0], synthetic), SplitRows(rows[1], none), SplitRows(rows[2], none)]


def _synthetic(trainer: HmhanEnsembleTrainer, rows: np.ndarray) -> SyntheticRows:
    synthetic = trainer.synthetic_rows(rows, trainer.recipe.seed) if len(rows) else None
    empty = np.empty(0, np.int64)
    labels = trainer.train.gold.shape[1]
    return synthetic or SyntheticRows(empty, empty, np.empty(0), np.empty((0, labels), np.float32))


def _groups(notes: Sequence[Note]) -> np.ndarray:
    """The group of each report (n,): those of a patient, and near-duplicates."""
    summaries = summarize_notes(notes)
    group_of = dict(zip([summary.id for summary in summaries], group_numbers(summaries).tolist()))
    return np.array([group_of[note.id] for note in notes])


def _stratified_parts(gold: sparse.csr_matrix, groups: np.ndarray, seed: int) -> np.ndarray:
    """The part (n,) of each row, 0 to 2 in the proportions of RATIOS for each code; a group is in one part."""
    sizes = np.bincount(groups)
    members = sparse.csr_matrix((np.ones(len(groups)), (groups, np.arange(len(groups)))))
    return stratify(members @ gold, sizes, np.array(RATIOS), np.random.default_rng([seed, 7]))[groups]


def shared_patients(notes: Sequence[Note], train: np.ndarray, test: np.ndarray) -> float:
    """The fraction of the patients of test reports who have a train report too."""
    seen, new = ({notes[row].patient or notes[row].id for row in rows} for rows in (train, test))
    return len(new & seen) / max(1, len(new))


def _trained(trainer: HmhanEnsembleTrainer, train: SplitRows, dev: SplitRows, folder: Path) -> tuple[Hmhan, Decision]:
    """The model and decision of train rows; epoch, calibration and threshold are chosen on dev rows."""
    recipe, scorer = trainer.recipe, SplitScorer(trainer, dev)
    batches = trainer.batches_of(train.rows, train.synthetic, launch_fabric(recipe.training).device)
    batches.synthetic_of = _assign_to_reports(trainer.train.versions, train.rows, train.synthetic, recipe.seed)

    def validate(model: Hmhan) -> dict[str, float]:
        return brief(model.labels, scorer.dataset.codes, model.to_probabilities(scorer.logits(model)))

    net, _ = trainer.train_net(0, train.rows, folder, validate, batches=batches)
    model = replace(trainer.model, net=HmhanEnsemble([net]))
    gold = train.dataset(trainer.train, model.labels).gold
    return tune_on_held_out(recipe, model, scorer.logits(model), scorer.dataset, gold)


class SplitScorer:
    """Scores the rows of a split."""

    def __init__(self, trainer: HmhanEnsembleTrainer, split: SplitRows):
        self.trainer, self.split = trainer, split
        self.dataset = split.dataset(trainer.train, trainer.model.labels)
        self._states = None if trainer.cached_states is None else trainer.encode(self.dataset)

    def logits(self, model: Hmhan) -> np.ndarray:
        """Logits (B, L) of the rows, the reports first, without codes that were not in use."""
        real = model.logits_of(self.dataset.reports, cached_states=self._states)
        synthetic = _synthetic_logits(self.trainer, model.net.nets[0], self.split.synthetic)
        return mask_by_date(model, np.concatenate([real, synthetic]), self.dataset)


def _synthetic_logits(trainer: HmhanEnsembleTrainer, net: HmhanNet, synthetic: SyntheticRows) -> np.ndarray:
    """Logits (S, L) of synthetic rows: the head reads a vector between the vectors of two reports, after attention."""
    batches = ReportBatchBuilder(trainer.train, np.arange(len(trainer.train)), trainer.cached_states, synthetic)
    parts = [np.zeros((0, trainer.train.gold.shape[1]), np.float32)]
    device = next(net.parameters()).device
    with evaluating(net):
        for start in range(0, len(synthetic), 64):
            reports, rows = batches.add_synthetic(
                np.empty(0, np.int64), list(range(start, min(start + 64, len(synthetic))))
            )
            assert rows is not None
            logits = net.synthetic_logits(batches.collate(reports).to(device), rows.to(device))
            parts.append(logits.float().cpu().numpy())
    return np.concatenate(parts)


def _assign_to_reports(
    versions: np.ndarray, rows: np.ndarray, synthetic: SyntheticRows, seed: int
) -> dict[int, list[int]]:
    """Train report -> synthetic rows that are learned in its batch: drawn at random from those of its ICD version."""
    random = np.random.default_rng([seed, 8])
    reports = rows[random.integers(0, len(rows), len(synthetic))]
    for version in np.unique(versions[synthetic.first]).tolist():
        candidates, selected = rows[versions[rows] == version], versions[synthetic.first] == version
        if 0 < len(candidates) < len(rows):
            reports[selected] = candidates[random.integers(0, len(candidates), int(selected.sum()))]
    by_report: dict[int, list[int]] = {}
    for number, report in enumerate(reports.tolist()):
        by_report.setdefault(report, []).append(number)
    return by_report
