"""Tables 1 to 6 and Figure 1 of Liu and Nguyen (2026): notes of another ICD version in the training of DualLAAT.

A run trains one coder, on one corpus or on all, and measures it on each of these corpora with each set of codes. The
tables share their runs. The dev notes of the training corpora select checkpoints; the threshold is tuned on the dev
notes of the measured corpus for each set of codes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nosology.config import parse_recipe
from nosology.core import DataError, Note
from nosology.core.settings import Settings
from nosology.corpora.corpus import Corpus
from nosology.reproduce import dual_laat_layout as layout
from nosology.reproduce import runner
from nosology.reproduce.dual_laat_corpora import (
    CODE_SETS,
    MIMIC3,
    MIMIC4_ICD10,
    ROLES,
    TITLES,
    by_role,
    with_frequent_codes,
)
from nosology.reproduce.dual_laat_layout import DeviationRow, SumRow, Training
from nosology.reproduce.result_tables import ResultFigure, Row, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, Task, check_splits, part_of
from nosology.training.recipe_settings import Recipe, WordRecipe

TITLE = "Liu and Nguyen (2026), Bridging the Version Gap (DualLAAT)"
TABLES = {
    "1": "Frequent codes",
    "2": "Rare codes",
    "3": "Training time and model size",
    "4": "All codes",
    "5": "Corpora",
    "6": "Frequent codes, further baselines",
    "figure-1": "What ICD-9 notes add to ICD-10",
}
SETS = {"1": "frequent", "2": "rare", "4": "full", "6": "frequent"}
TESTED = ("micro_f1", "macro_f1", "map")
PAPER_WORDS = 125_762  # vocabulary of the paper's models
SMALL: dict[str, Any] = {
    "seeds": 2,
    "patients": 100,
    "models": {"caml": "caml", "laat": "laat", "plm_icd": "plm_icd"},
    "recipe": {
        "caml": {"training": {"epochs": 4}, "vectors": {"epochs": 5}},
        "laat": {"training": {"epochs": 4}, "vectors": {"epochs": 5, "max_words": 300}},
        "plm_icd": {"training": {"epochs": 2}, "model": {"max_tokens": 128}},
        "dual_laat": {
            "training": {"epochs": 4, "batch": 16, "learning_rate": 4e-3, "warmup": 20},
            "vectors": {"max_words": 300},
            "model": {"width": 32, "heads": 2, "labels": 256, "tie_initialization": True, "output_bias": "prior"},
        },
    },
}


class ModelRecipes(Settings):
    """The recipe of each model; empty: the model is left out."""

    caml: str = "caml-paper"
    laat: str = "laat-paper"
    plm_icd: str = "plm_icd-paper"
    cnn: str = "dual_laat-paper-cnn"
    gru: str = "dual_laat-paper"


class DualLaatStudy(runner.StudySettings):
    """The models, which corpus is MIMIC-III, and the corpora of the word vectors."""

    seeds: int = Field(3, ge=1)
    models: ModelRecipes = ModelRecipes()
    mimic3: str = Field("mimic3", min_length=1)  # start of the name of the folder that stands for MIMIC-III
    vectors: Literal["all", "train"] = "all"  # DualLAAT's: from all given corpora, as in the paper, or the trained ones

    def recipes(self) -> dict[str, tuple[str, str]]:
        """The recipe of each model that is not left out."""
        kinds = {"cnn": "dual_laat", "gru": "dual_laat"}
        return {f"models.{model}": (name, kinds.get(model, model)) for model, name in self.models if name}

    def run_settings(self, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The settings of all runs of a model."""
        yield from ((name, ["seed=0", "labels.systems=[]"]) for _, name in self.models if name)


STUDY = DualLaatStudy


def simulate(study: DualLaatStudy, folder: Path) -> list[Corpus]:
    """Notes of simulated hospitals: one of 2011 to 2020, coded in ICD-10 and in ICD-9, and another of 2001 to 2012."""
    whole = runner.simulated_corpus(folder / "both", study.patients, seed=0, years=(2011, 2020))
    parts = [part_of(whole, folder / name, partial(_is_coded_in, name)) for name in ("icd10", "icd9")]
    return [*parts, runner.simulated_corpus(folder / MIMIC3, study.patients, seed=1, years=(2001, 2012))]


def _is_coded_in(version: str, note: Note) -> bool:
    return note.codes[0].system.startswith(version)


def tables(study: DualLaatStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; they share their runs. Tables of corpora that are not given are left out, which they say."""
    given = by_role(corpora, study.mimic3)
    for corpus in given.values():
        check_splits(corpus)
    study_tables = DualLaatTables(study, given)
    makers = {"3": study_tables.sizes, "5": study_tables.corpora, "figure-1": study_tables.gains}
    return [table for name in wanted for table in (makers[name]() if name in makers else study_tables.scores(name))]


@dataclass(frozen=True)
class DualLaatTables:
    """Makes the tables of a study from the given corpora, by their role."""

    study: DualLaatStudy
    given: Mapping[str, Corpus]

    def scores(self, name: str) -> list[Table]:
        """Table 1, 2, 4 or 6, once per corpus."""
        made = []
        for role, trainings in layout.ROWS[name].items():
            if role not in self.given:
                continue
            runs = {row: runs for row, training in trainings.items() if (runs := self.runs(training, role))}
            prefix = f"{role}.{SETS[name]}."
            rows = rows_with_paper_numbers("dual_laat", name, runs, prefix=prefix, within=f"{role} / ")
            remarks = partial(self.remarks, name, rows, [trainings[row] for row in runs])
            made.append(self.table(name, ("model",), layout.columns_of(name), rows, role, remarks))
            if name == "6":
                made.append(self.deviations(runs, prefix))
        return self.with_absent(name, made, layout.ROWS[name])

    def remarks(self, name: str, rows: Sequence[Row], trainings: Sequence[Training], results: Results) -> Iterator[str]:
        """The corpora of mixed training, and tests of mixed against single training over seeds."""
        mix = ", ".join(TITLES[role] for role in self.given)
        yield f"Mixed training: {mix}." if len(self.given) > 1 else "Mixed training is left out: it needs two corpora."
        metrics = [metric for metric in TESTED if metric in layout.columns_of(name)]
        by_training = dict(zip(trainings, rows))
        for training, row in by_training.items():
            single = by_training.get(training._replace(mixed=False)) if training.mixed else None
            if single is not None:
                for metric in metrics:
                    yield from paired_tests([row, single], metric, results)

    def deviations(self, runs: Mapping[str, Sequence[Run]], prefix: str) -> Table:
        """The standard deviations of Table 6."""
        rows = rows_with_paper_numbers("dual_laat", "6", runs, prefix=prefix, within="deviation / ")
        ours = [DeviationRow(row.names, row.runs, row.paper, row.prefix) for row in rows]
        columns = layout.columns_of("6")
        return Table("6", "Standard deviations over seeds", ("model",), columns, ours, without_best=columns)

    def sizes(self) -> list[Table]:
        """Table 3."""
        if MIMIC4_ICD10 not in self.given:
            return self.with_absent("3", [], [MIMIC4_ICD10])
        trainings = layout.SIZE_ROWS
        runs = {row: self.runs(training, MIMIC4_ICD10) for row, training in trainings.items()}
        rows = rows_with_paper_numbers("dual_laat", "3", {row: own for row, own in runs.items() if own})
        for number, row in enumerate(rows):
            if row.runs and row.names[-1].startswith("PLM-ICD, one per corpus"):
                every = [run for role in self.given for run in self.runs(layout.PLM_ICD, role)]
                rows[number] = SumRow(row.names, tuple(every), row.paper)
        columns = layout.SIZE_COLUMNS
        hours = "Hours are those of the machine that computed a run; time before a run was resumed does not count."
        header = ("train notes", "model")
        return [self.table("3", header, columns, rows, MIMIC4_ICD10, lambda results: [hours], without_best=columns)]

    def corpora(self) -> list[Table]:
        """Table 5."""
        function = "nosology.reproduce.dual_laat_corpora:run_statistics"
        notes, options = tuple(self.given.values()), {"roles": list(self.given)}
        count = Run(("statistics",), function, Recipe(kind="statistics"), notes, options=options)
        rows = [replace(row, runs=(count,), prefix=f"{' / '.join(row.names)}.") for row in _paper_rows("5")]
        columns = {role: TITLES[role] for role in self.given}
        remarks = partial(layout.confirmed_counts, rows, columns)
        made = [self.table("5", ("of", "number"), columns, rows, "", remarks, without_best=columns)]
        return self.with_absent("5", made, ROLES)

    def gains(self) -> list[Table]:
        """Figure 1 (c)."""
        if MIMIC4_ICD10 not in self.given:
            return self.with_absent("figure-1", [], [MIMIC4_ICD10])
        rows = []
        for row in _paper_rows("figure-1"):
            prefix, trainings = layout.GAIN_ROWS[row.names[0]]
            runs = tuple(self.runs(trainings[row.names[1]], MIMIC4_ICD10))
            rows.append(replace(row, runs=runs, prefix=f"{MIMIC4_ICD10}.{prefix}"))
        figure = ResultFigure("figure-1", TABLES["figure-1"], partial(layout.draw_gains, rows))
        remarks = partial(layout.relative_gains, rows)
        header, columns = ("codes", "train notes"), {"f1": "F1"}
        return [self.table("figure-1", header, columns, rows, MIMIC4_ICD10, remarks, [figure], without_best=columns)]

    def table(
        self,
        name: str,
        header: tuple[str, ...],
        columns: Mapping[str, str],
        rows: Sequence[Row],
        role: str,
        remarks: Callable[[Results], Iterable[str]],
        figures: Sequence[ResultFigure] = (),
        without_best: Iterable[str] = (),
    ) -> Table:
        """A table; its title has the role of the corpus and the name of its folder."""
        corpus = f"{TITLES[role]} ({self.given[role].folder.name})" if role else ""
        return Table(name, TABLES[name], header, columns, rows, corpus, remarks, figures, set(without_best))

    def with_absent(self, name: str, made: list[Table], roles: Iterable[str]) -> list[Table]:
        """The tables, the last one with a sentence about corpora that were not given."""
        absent = [TITLES[role] for role in roles if role not in self.given]
        if not absent:
            return made
        sentence = f"Left out, because no corpus was given for it: {', '.join(absent)}."
        *others, last = made or [Table(name, TABLES[name], (), {}, [])]
        return [*others, replace(last, remarks=lambda results: [*last.remarks(results), sentence])]

    def runs(self, training: Training, role: str) -> list[Run]:
        """The runs of a training for a corpus, one per seed; none if its recipe or other corpora are missing."""
        name = getattr(self.study.models, training.model)
        if not name or (training.mixed and len(self.given) < 2):
            return []
        trained = list(self.given) if training.mixed else [role]
        return [self.run(training, name, trained, seed) for seed in range(self.study.seeds)]

    def run(self, training: Training, recipe_name: str, trained: Sequence[str], seed: int) -> Run:
        """The run of a training on these corpora with a seed; DualLAAT's word vectors may be of the others too."""
        recipe = self.study.load(recipe_name, f"seed={seed}", "labels.systems=[]")
        with_others = recipe.kind == "dual_laat" and self.study.vectors == "all"
        roles = [*trained, *(role for role in self.given if role not in trained and with_others)]
        options = {"roles": roles, "trained": len(trained), "codes": training.codes}
        names = (recipe_name, "mixed" if training.mixed else trained[0], training.codes)
        return Run(names, f"{__name__}:run", recipe, tuple(self.given[role] for role in roles), seed, options)


def _paper_rows(name: str) -> list[Row]:
    """The rows of a table of which the paper has all."""
    rows = rows_with_paper_numbers("dual_laat", name, {})
    return [replace(row, names=(*row.names[:-1], row.names[-1].removesuffix(" (paper)"))) for row in rows]


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on its corpora with each set of codes; in its own process."""
    from nosology.evaluation.measure import measure
    from nosology.models.train import train

    recipe, folder, n = parse_recipe(task.recipe, task.function), Path(task.folder), task.options["trained"]
    roles, corpora = task.options["roles"][:n], [Corpus.open(path) for path in task.corpora[:n]]
    if isinstance(recipe, WordRecipe):
        vectors = recipe.vectors.model_copy(update={"corpora": task.corpora[n:]})
        recipe = recipe.model_copy(update={"vectors": vectors})
    notes = corpora
    if task.options["codes"] == "frequent":
        notes = [with_frequent_codes(corpus, folder / "notes" / role) for role, corpus in zip(roles, corpora)]
    started = time.monotonic()
    bundle = train(recipe, notes, folder / "bundle")
    metrics: dict[str, Any] = {"hours": (time.monotonic() - started) / 3600} | _size(bundle.model)
    shutil.rmtree(folder / "notes", ignore_errors=True)  # also with --keep-bundles: a copy of notes
    undefined = {}
    for role, corpus in zip(roles, corpora):
        for chosen in CODE_SETS:
            place = f"{role}.{chosen}"
            try:
                values = measure(bundle, corpus, "test", None, codes=chosen, tune=True).evaluation.metrics
            except DataError as error:  # a small corpus may have no rare codes, or none in dev
                undefined[place] = str(error)
            else:
                metrics |= {f"{place}.{name}": values.get(name) for name in layout.COLUMNS}
    metrics["micro_f1"] = metrics.get(f"{roles[0]}.full.micro_f1")
    return {"metrics": metrics, "undefined": undefined, "n_train": bundle.provenance["n_train"]}


def _size(model: Any) -> dict[str, float]:
    """The size of a neural model: `millions` of parameters; of DualLAAT also the parameters with the paper's words."""
    parameters = sum(weight.numel() for weight in model.net.parameters())
    sizes: dict[str, float] = {"millions": parameters / 1e6}
    if model.kind == "dual_laat":
        words, size = model.net.embedding.weight.shape
        sizes["paper_vocabulary"] = parameters + (PAPER_WORDS - words) * size
    return sizes
