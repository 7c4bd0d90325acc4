"""Table 4 of Sasikala et al. (2025), ablations of HMHAN, and the effect of leaking protocols on its score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nosology.config import check
from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.corpora.prepare import CorpusRecipe, prepare
from nosology.corpora.simulate import simulate as simulate_hospital
from nosology.corpora.splits import split_corpus
from nosology.models.compare import evaluate_bundle
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.train import train
from nosology.reproduce import runner
from nosology.reproduce.hmhan_leakage import PROTOCOLS, metrics_of, protocol_metrics
from nosology.reproduce.result_tables import Row, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Run, Task, check_splits

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
        "logits not corrected for the loss": ["loss.corrected=false"],
        "reports": ["labels.top_k=10"],
        "linear": ["labels.top_k=10"],
    },
}
OTHER_RECIPES = ("reports", "linear")  # rows that are not of the recipe `base`
COLUMNS = {
    "micro_precision": "precision", "micro_recall": "recall", "micro_f1": "F1", "macro_f1": "macro F1",
    "micro_auc": "ROC-AUC", "hamming_loss": "Hamming loss",
}  # fmt: skip
LEAK_COLUMNS = COLUMNS | {"density": "label density", "shared_patients": "test patients seen in training"}
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
        base, function = row if row in OTHER_RECIPES else study.base, f"{__name__}:{function}"
        seeded = enumerate(study.load(base, f"seed={seed}", *settings) for seed in range(study.seeds))
        return [Run((row,), function, recipe, (corpus,), seed, options, "states") for seed, recipe in seeded]

    result = []
    for name in wanted:
        if name == "leakage":
            rows = rows_with_paper_numbers("hmhan", name, {p: runs(p, "run_protocol", protocol=p) for p in PROTOCOLS})
            rows.insert(3, Row(("resampled, real test rows",), rows[2].runs, {}, "real."))
            columns = LEAK_COLUMNS
        else:
            check_splits(corpus)
            by_row = {row: runs(row, "run_variant", settings) for row, settings in VARIANTS[name].items()}
            rows, columns = rows_with_paper_numbers("hmhan", name, by_row), COLUMNS
        tests = lambda results, rows=rows: paired_tests(rows, "micro_f1", results)  # noqa: E731
        header = "protocol" if name == "leakage" else "model"
        result.append(Table(name, TABLES[name], (header,), columns, rows, remarks=tests))
    return result


def run_variant(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on the test notes; in its own process."""
    recipe, [corpus] = check(task.recipe, task.function), map(Corpus.open, task.corpora)
    bundle = train(_with_cache(recipe, task.cache), [corpus], Path(task.folder) / "bundle")
    return {"metrics": metrics_of(evaluate_bundle(bundle, list(corpus.notes("test"))))}


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
