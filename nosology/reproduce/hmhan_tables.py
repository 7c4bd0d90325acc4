"""What leaks make of a score, side by side with the honest protocol; nothing that is trained here is kept for use.

honest      patients, and reports that repeat each other, stand on one side of the split; synthetic rows come from train
reports     reports are dealt out one by one: a patient's reports, and copies of one report, are on both sides
resampled   MLSMOTE runs over all reports before the split, as a table that is resampled and then divided: the test rows
            are partly synthetic, and lie between reports that training has seen

The last breaks on purpose what the types of `mlsmote.py` forbid: it has a measurement of its own, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.core import DataError, Note
from nosology.core.files import write_json
from nosology.core.label_space import label_versions, mask_other_versions
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.group_splits import summarize_notes
from nosology.corpora.splits import stratified_splits
from nosology.evaluation import Evaluation, examine, tune_threshold
from nosology.models.compare import judged, over_seeds
from nosology.models.hmhan.hmhan_net import HmhanNet, HmhanNets, SyntheticBatch
from nosology.models.hmhan.hmhan_settings import CombinationSettings, HmhanRecipe, SmoteSettings
from nosology.models.hmhan.hmhan_trainer import Course, parameter_groups
from nosology.models.hmhan.mlsmote import Synthetic
from nosology.models.hmhan.report_batches import Batches
from nosology.models.neural import evaluating
from nosology.models.train import train
from nosology.training.examples import Examples
from nosology.training.run_folder import clear_run_folder, fingerprint
from nosology.training.trainer import TrainingRun, fit, launch_fabric

_SHARES = (0.7, 0.15, 0.15)
_FULL = SmoteSettings(share=3.0)  # what all protocols make where the recipe makes nothing


def leakage(
    recipe: HmhanRecipe,
    corpus: Corpus,
    out: str | Path,
    *,
    seeds: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """For each protocol: mean and std of the metrics over seeds, label density of the test rows, and the share of test
    patients that training has seen; written to leakage.json."""
    notes = [note for note in corpus.notes() if note.codes]
    recipe = _plain(recipe)
    runs: dict[str, list[tuple[Evaluation, float | None]]] = {}
    for seed in range(recipe.seed, recipe.seed + seeds):
        seeded = recipe.model_copy(update={"seed": seed})
        for name, divided in (("honest", _by_patient), ("reports", _by_report)):
            given = divided(notes, seed)
            if missing := {"train", "dev", "test"} - {note.split for note in given}:
                raise DataError(
                    f"{corpus.folder} has too few coded notes ({len(notes)}): none is left for {missing.pop()}"
                )
            folder = Path(out) / f"{name}-{seed}"
            split = write_corpus(given, folder / "corpus", source=corpus.manifest["source"], filters=[], counts={})
            bundle = train(seeded, [split], folder / "bundle")
            test = [note for note in given if note.split == "test"]
            runs.setdefault(name, []).append((judged(bundle, test), _shared(given)))
            say(f"{name}, seed {seed}: micro F1 {runs[name][-1][0].metrics['micro_f1']:.4f}")
        told = fingerprint(seeded, Examples([corpus], lambda note: bool(note.codes)))
        for name, found in _resampled(seeded, notes, Path(out) / f"resampled-{seed}", told).items():
            runs.setdefault(name, []).append((found, None))
            say(f"{name}, seed {seed}: micro F1 {found.metrics['micro_f1']:.4f}")
    rows = {name: _row(found) for name, found in runs.items()}
    write_json(Path(out) / "leakage.json", rows)
    return rows


def _plain(recipe: HmhanRecipe) -> HmhanRecipe:
    """The recipe as all protocols have it, so that they differ in nothing else: one net with synthetic rows alone."""
    same = {
        "words": recipe.words.model_copy(update={"features": 0}),
        "model": recipe.model.model_copy(update={"ensemble_size": 1}),
        "smote": recipe.smote if recipe.smote.share else _FULL,
        "combinations": CombinationSettings(prior="never"),
        "decision": recipe.decision.model_copy(update={"at_least_one": False}),
    }
    return recipe.model_copy(update=same)


def _by_patient(notes: Sequence[Note], seed: int) -> list[Note]:
    [split] = stratified_splits(summarize_notes(notes), _SHARES, seed=seed)
    return [replace(note, split=split[note.id]) for note in notes]


def _by_report(notes: Sequence[Note], seed: int) -> list[Note]:
    part = _dealt(len(notes), seed)
    return [replace(note, split=("train", "dev", "test")[i]) for note, i in zip(notes, part)]


def _dealt(n: int, seed: int) -> np.ndarray:
    """The part (n,) of each row, 0 to 2, by chance alone."""
    bounds = np.cumsum(_SHARES)[:2] * n
    place = np.random.default_rng([seed, 7]).permutation(n)
    return np.searchsorted(bounds, place, side="right")


def _shared(notes: Sequence[Note]) -> float:
    """The share of test patients that are in train too."""
    test, seen = ({note.patient or note.id for note in notes if note.split == split} for split in ("test", "train"))
    return len(test & seen) / max(1, len(test))


def _resampled(recipe: HmhanRecipe, notes: list[Note], folder: Path, told: str) -> dict[str, Evaluation]:
    """Scores on the test rows of a table that was resampled before it was divided: on all, and on the real ones.

    told: the fingerprint of recipe and corpus.
    """
    course = Course.of(recipe, notes, folder, told)
    gold, made = course.train.gold, course.synthetic(np.arange(len(notes)), recipe.seed)
    if not len(made):
        raise DataError("MLSMOTE makes no row of these notes, for no rare code has two: nothing can be resampled")
    part = _dealt(len(notes) + len(made), recipe.seed)
    real, synthetic = part[: len(notes)], part[len(notes) :]
    rows = np.flatnonzero(real == 0)
    net = course.net(rows, recipe.seed)
    inside = made.part(np.flatnonzero(synthetic == 0))
    anchors = _anchors(course.train.versions, rows, inside, recipe.seed)
    fabric = launch_fabric(recipe.training)
    batches = Batches(course.train, rows, course.places_on(fabric.device), inside)
    batches.synthetic_of = anchors
    fit(
        TrainingRun(
            net,
            recipe.training,
            lengths=np.array([max(1, len(course.train.reports[row])) for row in rows]),
            groups=course.train.versions[rows],
            make_batch=batches.make,
            parameter_groups=parameter_groups(net, recipe),
            run_folder=folder / "member_0",
            fingerprint=told,
            seed=recipe.seed,
            fabric=fabric,
            title="resampled before the split",
        )
    )
    model = replace(course.model, net=HmhanNets([net]))

    versions, versioned = course.train.versions, label_versions(course.model.labels)

    def scores(number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Probabilities and gold of the rows of a part, real ones first, and how many of these there are."""
        chosen = np.flatnonzero(real == number)
        logits = model.logits_of([course.train.reports[row] for row in chosen])
        more = made.part(np.flatnonzero(synthetic == number))
        every = _sigmoid(np.concatenate([logits, _between(course, net, more)]))
        mask_other_versions(every, np.concatenate([versions[chosen], versions[more.first]]), versioned)
        return every, np.concatenate([gold[chosen].toarray(), more.targets]), len(chosen)

    labels = course.model.labels
    probabilities, true, _ = scores(1)
    threshold = tune_threshold(labels, _codes(labels.codes, true), probabilities)
    probabilities, true, count = scores(2)
    found = {}
    for name, kept in {"resampled": slice(None), "resampled, its real test rows": slice(count)}.items():
        expected = _codes(labels.codes, true[kept])
        found[name] = examine(labels, expected, probabilities[kept], threshold, replicates=0)
    clear_run_folder(folder)
    return found


def _anchors(versions: np.ndarray, rows: np.ndarray, made: Synthetic, seed: int) -> dict[int, list[int]]:
    """For train reports, by chance, the synthetic rows of their ICD version that are learned in their batch."""
    random = np.random.default_rng([seed, 8])
    every = rows[random.integers(0, len(rows), len(made))]
    for version in np.unique(versions[made.first]).tolist():
        like, its = rows[versions[rows] == version], versions[made.first] == version
        if len(like) < len(rows) and len(like):
            every[its] = like[random.integers(0, len(like), int(its.sum()))]
    found: dict[int, list[int]] = {}
    for number, row in enumerate(every.tolist()):
        found.setdefault(row, []).append(number)
    return found


def _between(course: Course, net: HmhanNet, made: Synthetic) -> np.ndarray:
    """Logits (S, L) of synthetic rows: of what lies between the vectors, after attention, of two reports each."""
    batches = Batches(course.train, np.arange(len(course.train)), course.places, made)
    parts = [np.zeros((0, course.train.gold.shape[1]), np.float32)]
    device = next(net.parameters()).device
    with evaluating(net):
        for start in range(0, len(made), 64):
            every, some = batches.between(np.empty(0, np.int64), list(range(start, min(start + 64, len(made)))))
            assert some is not None
            batch, some = batches.batch(every).to(device), some.to(device)
            vectors = _interpolated(net.look(*net.states(batch), None), some)
            columns = None if batch.columns is None else _interpolated(batch.columns, some)
            logits = net.share * net.head(vectors, columns, None) + _interpolated(net.wide(batch), some)
            parts.append(logits.float().cpu().numpy())
    return np.concatenate(parts)


def _interpolated(values: torch.Tensor, rows: SyntheticBatch) -> torch.Tensor:
    """The values (S, ...) between those (B, ...) of the two reports of each synthetic row."""
    first, second = values[rows.pairs[:, 0]], values[rows.pairs[:, 1]]
    return torch.lerp(first, second, rows.shares.to(values.dtype).view(-1, *[1] * (values.ndim - 1)))


def _codes(codes: Sequence[Any], gold: np.ndarray) -> list[list[Any]]:
    return [[codes[j] for j in np.flatnonzero(row)] for row in gold]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-np.clip(logits, -50, 50)))).astype(np.float32)


def _row(runs: Sequence[tuple[Evaluation, float | None]]) -> dict[str, Any]:
    row = over_seeds([run for run, _ in runs])
    row["density"] = float(np.mean([run.scored.gold.nnz / np.prod(run.scored.gold.shape) for run, _ in runs]))
    shared = [value for _, value in runs if value is not None]
    row["shared"] = float(np.mean(shared)) if shared else None
    return row
