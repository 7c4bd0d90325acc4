"""Tables and figures of Sasikala et al. (2025), ablations of HMHAN, and protocols that leak."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import Field

from nosology.codes.lookup import label_description
from nosology.core import Code, ConfigError, DataError
from nosology.corpora.corpus import Corpus
from nosology.corpora.prepare import CorpusRecipe, prepare
from nosology.corpora.simulate import simulate as simulate_hospital
from nosology.corpora.splits import split_corpus
from nosology.reproduce import runner
from nosology.reproduce.hmhan_figures import draw_code_counts, draw_curves, draw_lime_words, draw_metric_bars
from nosology.reproduce.hmhan_leakage import PROTOCOLS
from nosology.reproduce.hmhan_runs import learned_codes
from nosology.reproduce.result_tables import ResultFigure, Row, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, check_splits, enough_patients, part_with_codes

TITLE = "Sasikala et al. (2025), Automated ICD Medical Code Generation for Radiology Reports (HMHAN)"
TABLES = {
    "1": "Reports of the corpus",
    "figure-1": "The most frequent codes",
    "2": "The encoder",
    "3": "Effect of SMOTE",
    "4": "HMHAN and its baselines, with figure 6",
    "figure-5": "LIME",
    "figure-7": "Training and validation of HMHAN",
    "ablations": "Parts of HMHAN",
    "leakage": "Protocols that leak",
}
PLAIN_LOSS = ["smote.ratio=0.0", "loss.focal=0.0", "loss.weighted=false"]
WITHOUT_SMOTE = "without SMOTE"
VARIANTS: dict[str, dict[str, list[str]]] = {
    "4": {
        "HMHAN": [],
        "single attention": ["model.attention=single"],
        "no attention": ["model.attention=none"],
        "plain cross-entropy": PLAIN_LOSS,
    },
    "ablations": {
        "HMHAN": [],
        WITHOUT_SMOTE: ["smote.ratio=0.0"],
        "without focal loss": ["loss.focal=0.0"],
        "plain cross-entropy": PLAIN_LOSS,
        "logits not corrected for the loss": ["loss.corrected=false"],
        "reports": [],
        "linear": [],
    },
}
OTHER_RECIPES = ("reports", "linear")  # rows that are not of the recipe `base`; they learn its codes
BARS = {
    "micro_precision": "precision", "micro_recall": "recall", "micro_f1": "F1", "micro_auc": "ROC-AUC",
    "hamming_loss": "Hamming loss",
}  # fmt: skip
COLUMNS = BARS | {"macro_f1": "macro F1"}
LEAK_COLUMNS = COLUMNS | {"density": "label density", "shared_patients": "test patients seen in training"}
SMOTE_COLUMNS = {
    "accuracy": "accuracy", "micro_precision": "precision", "micro_recall": "recall",
    "rare_recall": "recall of rare codes", "micro_f1": "F1", "overfitting": "F1 on train minus F1 on test",
}  # fmt: skip
CORPUS_COLUMNS = {
    "reports": "reports", "columns": "columns", "mean_age": "average age", "male": "male", "female": "female",
    "codes": "codes",
}  # fmt: skip
SPLIT_COLUMNS = {"reports": "reports", "train": "train", "dev": "dev", "test": "test"}
CLASS_COLUMNS = {"without": "train reports without SMOTE", "with": "with SMOTE", "synthetic": "synthetic"}
ENCODER_COLUMNS = {
    "layers": "layers", "hidden_size": "hidden size", "heads": "attention heads", "max_tokens": "tokens",
    "parameters": "parameters",
}  # fmt: skip
CURVE_COLUMNS = {
    "epochs": "epochs", "best_epoch": "best epoch", "train_loss": "training loss", "dev_loss": "validation loss",
    "train_accuracy": "training accuracy", "dev_accuracy": "validation accuracy",
}  # fmt: skip
LIME_COLUMNS = {
    "reports": "reports explained", "codes": "codes", "overlap": "of the 5 heaviest words, share that attention has"
}  # fmt: skip
SMALL: dict[str, Any] = {
    "seeds": 2,
    "patients": 60,
    "lime_reports": 4,
    "lime_samples": 100,
    "recipe": {"hmhan": {"model": {"encoder": "minilm"}, "training": {"learning_rate": 5e-4, "epochs": 5}}},
}


class HmhanStudy(runner.StudySettings):
    """The recipe of all rows, the reports, and how much LIME explains."""

    base: str = "hmhan-paper"
    lime_reports: int = Field(50, ge=1)
    lime_samples: int = Field(1000, ge=10)  # variants of each report
    # Reports without one of the codes are left out, as in the paper; False: they are train and test reports, too
    only_coded_reports: bool = True

    def recipes(self) -> dict[str, tuple[str, str]]:
        """The recipe of HMHAN, and those of other coders in the ablations."""
        return {"base": (self.base, "hmhan")} | {name: (name, name) for name in OTHER_RECIPES}

    def run_settings(self, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The settings of each row."""
        rows = {row: settings for table in tables for row, settings in VARIANTS.get(table, {}).items()}
        if "3" in tables:
            rows[WITHOUT_SMOTE] = VARIANTS["ablations"][WITHOUT_SMOTE]
        for row, settings in {"": [], **rows}.items():
            yield self.row_recipe(row, settings, seed=0)

    def row_recipe(self, row: str, settings: Sequence[str], seed: int) -> tuple[str, list[str]]:
        """The recipe of a row and its settings; other coders than HMHAN learn its codes."""
        if row not in OTHER_RECIPES:
            return self.base, [f"seed={seed}", *settings]
        labels = self.load(self.base).labels.model_dump(mode="json", exclude_defaults=True)
        of_labels = [f"labels.{key}={json.dumps(value)}" for key, value in labels.items()]
        return row, [f"seed={seed}", *settings, *of_labels]


STUDY = HmhanStudy


def simulate(study: HmhanStudy, folder: Path) -> list[Corpus]:
    """The radiology reports of a simulated hospital with their ICD-10 diagnoses, split by patient."""
    out, hospital = folder / f"reports-{study.patients}", folder / f"hospital-{study.patients}"
    if not out.exists():
        simulate_hospital(study.patients, 11, hospital, years=(2016, 2019))
        rules = CorpusRecipe(kind="mimic4-radiology", systems=["icd10cm"], drop_uncoded=True)
        with enough_patients(study.patients):
            notes = prepare("mimic4-radiology", [hospital], folder / f"notes-{study.patients}", recipe=rules)
            split_corpus(notes.folder, out)
    return [Corpus.open(out)]


def tables(study: HmhanStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; tables share runs with the same row name."""
    if len(corpora) != 1:
        raise ConfigError(f"--corpus must be given once; got {len(corpora)} corpora")
    if set(wanted) - {"leakage"}:
        check_splits(corpora[0])
    parts = _HmhanTables(study, corpora[0], folder)
    return [table for name in wanted for table in parts.build(name)]


@dataclass(frozen=True)
class _HmhanTables:
    """Builds the tables of a study on one corpus."""

    study: HmhanStudy
    corpus: Corpus
    folder: Path

    def build(self, name: str) -> list[Table]:
        """The tables of a name."""
        builders = {
            "1": self._corpus_table, "figure-1": self._code_table, "2": self._encoder_table, "3": self._smote_tables,
            "4": self._baseline_table, "figure-5": self._lime_table, "figure-7": self._curve_table,
            "ablations": self._ablation_table, "leakage": self._leakage_table,
        }  # fmt: skip
        return builders[name]()

    @cached_property
    def codes(self) -> list[Code]:
        """The codes of the recipe, the most frequent first."""
        return learned_codes(self.corpus, self.study.load(self.study.base).labels)

    @cached_property
    def reports(self) -> Corpus:
        """The reports that coders are trained and measured on."""
        if not self.study.only_coded_reports:
            return self.corpus
        part = part_with_codes(self.corpus, self.codes, self.folder / "corpora" / "coded")
        if missing := self.corpus.manifest["counts"]["splits"].keys() - part.manifest["counts"]["splits"].keys():
            raise DataError(f"{self.corpus.folder} has no {min(missing)} report with one of {len(self.codes)} codes")
        return part

    def runs(
        self, row: str, function: str, settings: Sequence[str] = (), seeds: int | None = None, **options: Any
    ) -> tuple[Run, ...]:
        """The runs of a row, one per seed; they share the cached states of the frozen encoder."""
        named = [self.study.row_recipe(row, settings, seed) for seed in range(seeds or self.study.seeds)]
        recipes = [self.study.load(recipe, *changes) for recipe, changes in named]
        name = f"nosology.reproduce.hmhan_runs:{function}"
        corpus = self.corpus if function == "run_corpus" else self.reports
        return tuple(Run((row,), name, recipe, (corpus,), i, options, "states") for i, recipe in enumerate(recipes))

    def variants(self, table: str) -> list[Row]:
        """The rows of coders that are trained and measured on the test reports."""
        by_row = {row: self.runs(row, "run_variant", settings) for row, settings in VARIANTS[table].items()}
        return rows_with_paper_numbers("hmhan", table, by_row)

    def code_rows(self, runs: tuple[Run, ...]) -> list[Row]:
        """A row per code."""
        return [Row((code.code, label_description(code)), runs, {}, f"{code}.") for code in self.codes]

    def _corpus_table(self) -> list[Table]:
        runs = self.runs("corpus", "run_corpus", seeds=1)
        [frequent] = rows_with_paper_numbers("hmhan", "1", {"reports with one of the codes": runs}, prefix="frequent.")
        rows = [frequent, Row(("all coded reports",), runs, {}, "all.")]
        return [Table("1", TABLES["1"], ("",), CORPUS_COLUMNS, rows, without_best=CORPUS_COLUMNS)]

    def _code_table(self) -> list[Table]:
        rows = self.code_rows(self.runs("corpus", "run_corpus", seeds=1))
        figure = ResultFigure("figure-1", "Reports with each code", partial(draw_code_counts, rows))
        header = ("code", "description")
        return [Table("figure-1", TABLES["figure-1"], header, SPLIT_COLUMNS, rows, figures=[figure])]

    def _encoder_table(self) -> list[Table]:
        rows = rows_with_paper_numbers("hmhan", "2", {"encoder": self.runs("encoder", "run_encoder", seeds=1)})
        return [Table("2", TABLES["2"], ("",), ENCODER_COLUMNS, rows)]

    def _smote_tables(self) -> list[Table]:
        counts = self.runs("class counts", "run_class_counts", seeds=1)
        settings = {WITHOUT_SMOTE: VARIANTS["ablations"][WITHOUT_SMOTE], "HMHAN": []}
        without, with_smote = (self.runs(row, "run_variant", settings[row]) for row in settings)
        rows = [Row((WITHOUT_SMOTE,), without), Row(("with SMOTE",), with_smote)]

        def imbalance(results: Results) -> Iterable[str]:
            for metrics in (results[run.key]["metrics"] for run in counts if run.key in results):
                before, after = metrics["imbalance.without"], metrics["imbalance.with"]
                yield f"Mean imbalance ratio (MeanIR): {before:.2f} without SMOTE, {after:.2f} with it."

        header, title = ("code", "description"), "Train reports per code without and with SMOTE"
        effect = Table(
            "3", "Scores without and with SMOTE", ("HMHAN",), SMOTE_COLUMNS, rows, remarks=_tests(rows),
            without_best=["overfitting"],
        )  # fmt: skip
        return [Table("3", title, header, CLASS_COLUMNS, self.code_rows(counts), remarks=imbalance), effect]

    def _baseline_table(self) -> list[Table]:
        rows = self.variants("4")
        bars = ResultFigure("figure-6", "HMHAN and its baselines", partial(draw_metric_bars, rows, BARS))
        return [Table("4", TABLES["4"], ("model",), COLUMNS, rows, remarks=_tests(rows), figures=[bars])]

    def _ablation_table(self) -> list[Table]:
        rows = self.variants("ablations")
        return [Table("ablations", TABLES["ablations"], ("model",), COLUMNS, rows, remarks=_tests(rows))]

    def _lime_table(self) -> list[Table]:
        options = {"reports": self.study.lime_reports, "samples": self.study.lime_samples}
        rows = [Row(("HMHAN",), self.runs("LIME", "run_lime", seeds=1, **options))]
        draw = partial(draw_lime_words, rows[0].runs)
        figure = ResultFigure("figure-5", "Words with the largest mean LIME weights", draw)
        return [Table("figure-5", TABLES["figure-5"], ("model",), LIME_COLUMNS, rows, figures=[figure])]

    def _curve_table(self) -> list[Table]:
        rows = [Row(("HMHAN, best epoch",), self.runs("curves", "run_curves"))]
        figure = ResultFigure("figure-7", "Loss and accuracy over epochs", partial(draw_curves, rows[0].runs))
        return [Table("figure-7", TABLES["figure-7"], ("model",), CURVE_COLUMNS, rows, figures=[figure])]

    def _leakage_table(self) -> list[Table]:
        by_protocol = {protocol: self.runs(protocol, "run_protocol", protocol=protocol) for protocol in PROTOCOLS}
        rows = rows_with_paper_numbers("hmhan", "leakage", by_protocol)
        rows.insert(3, Row(("resampled, real test rows",), rows[2].runs, {}, "real."))
        without_best = ("density", "shared_patients")
        return [
            Table(
                "leakage", TABLES["leakage"], ("protocol",), LEAK_COLUMNS, rows, remarks=_tests(rows),
                without_best=without_best,
            )
        ]  # fmt: skip


def _tests(rows: Sequence[Row]) -> Callable[[Results], Iterable[str]]:
    """The paper's significance test: paired t-tests of micro F1 over seeds, the first row against each other one."""
    return lambda results: paired_tests(rows, "micro_f1", results)
