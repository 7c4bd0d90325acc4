"""Table 4 of Sasikala et al. (2025), ablations of HMHAN, and the effect of leaking protocols on its score.

Protocols of table `leakage`:

    by patient   all reports of a patient, and near-duplicates, are in one split; synthetic rows of train reports only
    by report    reports are split at random: a patient, or copies of a report, can be in several splits
    resampled    MLSMOTE is applied to all reports before the split: some test rows are synthetic, interpolated between
                 train reports

Do not use coders trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nosology.config import check
from nosology.core import ConfigError, DataError, Note
from nosology.core.label_space import label_versions, mask_other_versions
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.group_splits import summarize_notes
from nosology.corpora.prepare import CorpusRecipe, prepare
from nosology.corpora.simulate import simulate as simulate_hospital
from nosology.corpora.splits import split_corpus, stratified_splits
from nosology.evaluation import Evaluation, examine, tune_threshold
from nosology.models.compare import METRICS, evaluate_bundle
from nosology.models.hmhan.hmhan_net import HmhanEnsemble, HmhanNet
from nosology.models.hmhan.hmhan_settings import CombinationSettings, HmhanRecipe, SmoteSettings
from nosology.models.hmhan.hmhan_trainer import HmhanEnsembleTrainer, parameter_groups
from nosology.models.hmhan.report_batches import ReportBatchBuilder, SyntheticRows
from nosology.models.neural import evaluating
from nosology.models.train import train
from nosology.reproduce import runner
from nosology.reproduce.result_tables import Row, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Run, Task, check_splits
from nosology.training.examples import Examples
from nosology.training.run_folder import fingerprint
from nosology.training.trainer import TrainingRun, fit, launch_fabric

TITLE = "Sasikala et al. (2025), Automated ICD Medical Code Generation for Radiology ReportDataset (HMHAN)"
TABLES = {"4": "HMHAN and its baselines", "ablations": "Parts of HMHAN", "leakage": "Protocols that leak"}
PLAIN_LOSS = ["smote.ratio=0.0", "loss.focal=0.0", "loss.weighted=false"]
VARIANTS: dict[str, dict[str, list[str]]] = {
    "4": {"HMHAN": [], "single attention": ["model.attention=single"], "no attention": ["model.attention=none"]},
    "ablations": {
        "HMHAN": [],
        "without SMOTE": ["smote.ratio=0.0"],
        "without focal loss": ["loss.focal=0.0"],
        "plain cross entropy": PLAIN_LOSS,
        "plain cross entropy, with words": [*PLAIN_LOSS, "words.features=30000"],
        "linear": ["labels.top_k=10"],
    },
}
PROTOCOLS = ("by patient", "by report", "resampled")
COLUMNS = {
    "micro_precision": "precision", "micro_recall": "recall", "micro_f1": "F1", "macro_f1": "macro F1",
    "micro_auc": "ROC-AUC", "hamming_loss": "Hamming loss",
}  # fmt: skip
LEAK_COLUMNS = COLUMNS | {"density": "label density", "shared_patients": "test patients seen in training"}
RATIOS = (0.7, 0.15, 0.15)
SMALL: dict[str, Any] = {
    "seeds": 1,
    "patients": 60,
    "recipe": {"hmhan": {"model": {"encoder": "minilm"}, "training": {"learning_rate": 5e-4, "epochs": 5}}},
}


class HmhanStudy(runner.StudySettings):
    """The recipe of all rows."""

    base: str = "hmhan-paper"


STUDY = HmhanStudy


def simulate(study: HmhanStudy, folder: Path) -> list[Corpus]:
    """The radiology reports of a simulated hospital with their ICD-10 diagnoses, split by patient."""
    out, hospital = folder / f"reports-{study.patients}", folder / f"hospital-{study.patients}"
    if not out.exists():
        simulate_hospital(study.patients, 11, hospital, years=(2016, 2019))
        rules = CorpusRecipe(kind="mimic4-radiology", systems=["icd10cm"], drop_uncoded=True)
        notes = prepare("mimic4-radiology", [hospital], folder / f"notes-{study.patients}", recipe=rules)
        split_corpus(notes.folder, out)
    return [Corpus.open(out)]


def tables(study: HmhanStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; row HMHAN of Table 4 and of `ablations` is the same."""
    if len(corpora) != 1:
        raise ConfigError(f"--corpus must be given once; got {len(corpora)} corpora")
    [corpus] = corpora

    def runs(row: str, function: str, settings: Sequence[str] = (), **options: Any) -> list[Run]:
        """The runs of a row, one per seed; they share the cached states of the frozen encoder."""
        base, function = "linear" if row == "linear" else study.base, f"{__name__}:{function}"
        seeded = enumerate(study.load(base, f"seed={seed}", *settings) for seed in range(study.seeds))
        return [Run((row,), function, recipe, (corpus,), seed, options, "states") for seed, recipe in seeded]

    result = []
    for name in wanted:
        if name == "leakage":
            rows = rows_with_paper_numbers("hmhan", name, {p: runs(p, "run_protocol", protocol=p) for p in PROTOCOLS})
            rows.insert(3, Row(("resampled, real test rows",), rows[2].runs, {}, "real."))
            result.append(Table(name, TABLES[name], ("protocol",), LEAK_COLUMNS, rows))
            continue
        check_splits(corpus)
        by_row = {row: runs(row, "run_variant", settings) for row, settings in VARIANTS[name].items()}
        rows = rows_with_paper_numbers("hmhan", name, by_row)
        tests = lambda results, rows=rows: paired_tests(rows, "micro_f1", results)  # noqa: E731
        result.append(Table(name, TABLES[name], ("model",), COLUMNS, rows, remarks=tests))
    return result


def run_variant(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on the test notes; in its own process."""
    recipe, [corpus] = check(task.recipe, task.function), map(Corpus.open, task.corpora)
    bundle = train(_with_cache(recipe, task.cache), [corpus], Path(task.folder) / "bundle")
    return {"metrics": _metrics(evaluate_bundle(bundle, list(corpus.notes("test"))))}


def run_protocol(task: Task) -> dict[str, Any]:
    """Trains and measures under one of PROTOCOLS; in its own process."""
    recipe, [corpus], folder = check(task.recipe, task.function), map(Corpus.open, task.corpora), Path(task.folder)
    if not isinstance(recipe, HmhanRecipe):
        raise ConfigError(f"recipe must be of kind hmhan; got {recipe.kind}")
    return {"metrics": protocol_metrics(_with_cache(recipe, task.cache), corpus, task.options["protocol"], folder)}


def _with_cache(recipe: Any, cache: str) -> Any:
    if not isinstance(recipe, HmhanRecipe):
        return recipe
    return recipe.model_copy(update={"states": recipe.states.model_copy(update={"cache": cache})})


def _metrics(evaluation: Evaluation) -> dict[str, float | None]:
    gold = evaluation.scored.gold
    metrics: dict[str, Any] = {name: evaluation.metrics[name] for name in METRICS}
    return metrics | {"density": float(gold.nnz / np.prod(gold.shape))}


def protocol_metrics(recipe: HmhanRecipe, corpus: Corpus, protocol: str, folder: Path) -> dict[str, float | None]:
    """The metrics of a protocol. `resampled` has those of the real test rows too, with the prefix `real.`.

    All protocols train one net with synthetic rows and no other option, so that only the protocol differs.
    """
    recipe = recipe.model_copy(
        update={
            "words": recipe.words.model_copy(update={"features": 0}),
            "model": recipe.model.model_copy(update={"ensemble_size": 1}),
            "smote": recipe.smote if recipe.smote.ratio else SmoteSettings(ratio=3.0),
            "combinations": CombinationSettings(prior="never"),
            "decision": recipe.decision.model_copy(update={"at_least_one": False}),
        }
    )
    notes = [note for note in corpus.notes() if note.codes]
    if protocol == "resampled":
        examples = Examples([corpus], lambda note: bool(note.codes))
        return _resampled(recipe, notes, folder / "resampled", fingerprint(recipe, examples))
    if protocol == "by patient":
        [split] = stratified_splits(summarize_notes(notes), RATIOS, seed=recipe.seed)
    else:
        names = zip(notes, _random_parts(len(notes), recipe.seed))
        split = {note.id: ("train", "dev", "test")[part] for note, part in names}
    notes = [replace(note, split=split[note.id]) for note in notes]
    if missing := {"train", "dev", "test"} - {note.split for note in notes}:
        raise DataError(f"{corpus.folder} has too few coded notes ({len(notes)}): none is left for {missing.pop()}")
    divided = write_corpus(notes, folder / "corpus", source=corpus.manifest["source"], filters=[], counts={})
    bundle = train(recipe, [divided], folder / "bundle")
    metrics = _metrics(evaluate_bundle(bundle, [note for note in notes if note.split == "test"]))
    return metrics | {"shared_patients": _shared_patients(notes)}


def _random_parts(n: int, seed: int) -> np.ndarray:
    """The random part (n,) of each row, 0 to 2 in the proportions of RATIOS."""
    rank = np.random.default_rng([seed, 7]).permutation(n)
    return np.searchsorted(np.cumsum(RATIOS)[:2] * n, rank, side="right")


def _shared_patients(notes: Sequence[Note]) -> float:
    """The fraction of test patients who are in train too."""
    test, seen = ({note.patient or note.id for note in notes if note.split == split} for split in ("test", "train"))
    return len(test & seen) / max(1, len(test))


def _resampled(recipe: HmhanRecipe, notes: list[Note], folder: Path, identity: str) -> dict[str, float | None]:
    """Metrics on the test rows of a table that was resampled before it was split.

    identity: the fingerprint of recipe and corpus.
    """
    trainer = HmhanEnsembleTrainer.from_notes(recipe, notes, folder, identity)
    train_reports, labels = trainer.train, trainer.model.labels
    synthetic_rows = trainer.synthetic_rows(np.arange(len(notes)), recipe.seed)
    if synthetic_rows is None or not len(synthetic_rows):
        raise DataError("MLSMOTE needs a rare code with two notes; got none")
    part = _random_parts(len(notes) + len(synthetic_rows), recipe.seed)
    real, synthetic = part[: len(notes)], part[len(notes) :]
    rows = np.flatnonzero(real == 0)
    net = trainer.build_net(rows, recipe.seed)
    inside = synthetic_rows.subset(np.flatnonzero(synthetic == 0))
    fabric = launch_fabric(recipe.training)
    batches = ReportBatchBuilder(train_reports, rows, trainer.cached_states_on(fabric.device), inside)
    batches.synthetic_of = _assign_to_reports(train_reports.versions, rows, inside, recipe.seed)
    fit(
        TrainingRun(
            net,
            recipe.training,
            lengths=np.array([max(1, len(train_reports.reports[row])) for row in rows]),
            groups=train_reports.versions[rows],
            make_batch=batches.build,
            parameter_groups=parameter_groups(net, recipe),
            run_folder=folder / "net_0",
            fingerprint=identity,
            seed=recipe.seed,
            fabric=fabric,
            title="resampled before the split",
        )
    )
    model = replace(trainer.model, net=HmhanEnsemble([net]))

    def scores(number: int) -> tuple[np.ndarray, list[list[Any]], int]:
        """Probabilities and gold codes of the rows of a part, the real rows first, and the number of real rows."""
        chosen = np.flatnonzero(real == number)
        more = synthetic_rows.subset(np.flatnonzero(synthetic == number))
        logits = model.logits_of([train_reports.reports[row] for row in chosen])
        logits = np.concatenate([logits, _synthetic_logits(trainer, net, more)])
        probabilities = (1 / (1 + np.exp(-np.clip(logits, -50, 50)))).astype(np.float32)
        versions = np.concatenate([train_reports.versions[chosen], train_reports.versions[more.first]])
        mask_other_versions(probabilities, versions, label_versions(labels))
        gold = np.concatenate([train_reports.gold.toarray()[chosen], more.targets])
        return probabilities, [[labels.codes[j] for j in np.flatnonzero(row)] for row in gold], len(chosen)

    probabilities, gold, _ = scores(1)
    threshold = tune_threshold(labels, gold, probabilities)
    probabilities, gold, count = scores(2)
    metrics = _metrics(examine(labels, gold, probabilities, threshold, replicates=0))
    only_real = _metrics(examine(labels, gold[:count], probabilities[:count], threshold, replicates=0))
    return metrics | {f"real.{name}": value for name, value in only_real.items()}


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


def _synthetic_logits(trainer: HmhanEnsembleTrainer, net: HmhanNet, synthetic: SyntheticRows) -> np.ndarray:
    """Logits (S, L) of synthetic rows: the head reads a vector between the vectors of two reports, after attention."""
    batches = ReportBatchBuilder(trainer.train, np.arange(len(trainer.train)), trainer.cached_states, synthetic)
    parts = [np.zeros((0, trainer.train.gold.shape[1]), np.float32)]
    device = next(net.parameters()).device
    with evaluating(net):
        for start in range(0, len(synthetic), 64):
            every, rows = batches.add_synthetic(
                np.empty(0, np.int64), list(range(start, min(start + 64, len(synthetic))))
            )
            assert rows is not None
            batch, rows = batches.collate(every).to(device), rows.to(device)
            vectors = rows.interpolate(net.code_vectors(batch))
            columns = None if batch.columns is None else rows.interpolate(batch.columns)
            logits = net.share * net.head(vectors, columns, None) + rows.interpolate(net.word_logits(batch))
            parts.append(logits.float().cpu().numpy())
    return np.concatenate(parts)
