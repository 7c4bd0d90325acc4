"""The tables and figures of Saha Roy et al. (2024), PLANT, and the effect of the leak in its program.

All coders learn from the same train notes, are selected on dev and measured on test. A corpus with ICD-9 codes stands
for MIMIC-III, one with ICD-10 codes for MIMIC-IV. With one corpus, all tables are of it.

In the authors' program the language model and the mutual information of words and codes see all documents, also those
of the test set. Table `leakage` compares this with stages that see train notes only, as in the rest of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nosology.config import load_recipe
from nosology.corpora.corpus import Corpus
from nosology.reproduce import runner
from nosology.reproduce.plant_figures import FIGURES, LANT, figure_2, figure_3, figure_4, figure_5, figure_6
from nosology.reproduce.plant_runs import FEW, RARE
from nosology.reproduce.plant_study import (
    CODE_SETS,
    FROZEN,
    PARTS,
    RANKER_RATE,
    SMALL,
    TRAIN_NOTES,
    WINDOW,
    K,
    PlantStudy,
    Source,
    sources_of,
)
from nosology.reproduce.result_tables import Row, Table, randomisation_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, part_of, part_with_codes
from nosology.training.examples import label_space
from nosology.training.recipe_settings import LabelSettings, NeuralRecipe, Recipe

TITLE = "Saha Roy et al. (2024), Don't Just Pay Attention, PLANT It"
TABLES = {
    "2": "Corpora",
    "3": "All codes, MIMIC-III-full in the paper",
    "4": "The 50 most frequent codes, MIMIC-III-top50 in the paper",
    "5": f"50 codes with fewer than {RARE} train notes, MIMIC-III-rare50 in the paper",
    "6": f"Codes with 1 to {FEW} train notes, MIMIC-III-few in the paper",
    "7": "All codes, MIMIC-IV-full in the paper",
    "8": "PLANT with and without its parts",
    "9": "Words with the most attention",
    **FIGURES,
    "leakage": "PLANT whose language model and mutual information see test notes",
}
AUC_AND_F1 = {"macro_auc": "macro AUC", "micro_auc": "micro AUC", "macro_f1": "macro F1", "micro_f1": "micro F1"}
COLUMNS = AUC_AND_F1 | {"p@5": "P@5", "p@8": "P@8", "p@15": "P@15", "caml_macro_f1": "macro F1 of CAML"}
FEW_COLUMNS = {
    f"{mean}_{name.lower()}": f"{mean} {name}" for name in ("F1", "precision", "recall") for mean in ("macro", "micro")
}
SHORT_COLUMNS = {"p@15": "P@15", "micro_f1": "micro F1", "macro_f1": "macro F1", "map": "MAP"} | {
    "few.macro_f1": "few: macro F1"
}
TESTED = {*FEW_COLUMNS, "p@5", "p@8", "p@15"}  # all that the paper tests, except AUCs: scores are not stored
CORPUS_COLUMNS = {
    "documents": "documents", "patients": "patients", "codes": "codes",
    "codes_per_note.median": "codes a document: median", "codes_per_note.q1": "q1", "codes_per_note.q3": "q3",
    "words_per_note.median": "words a document: median", "words_per_note.q1": "q1", "words_per_note.q3": "q3",
    "train_percent": "train %", "dev_percent": "dev %", "test_percent": "test %",
}  # fmt: skip
EXPLAIN_COLUMNS = {
    "explanations": "explanations", "comprehensiveness": "comprehensiveness", "sufficiency": "sufficiency",
}  # fmt: skip
STUDY = PlantStudy
__all__ = ["SMALL", "STUDY", "TABLES", "TITLE", "simulate", "tables"]


def simulate(study: PlantStudy, folder: Path) -> list[Corpus]:
    """The discharge notes of a simulated hospital with their ICD-10 diagnoses."""
    return [runner.simulated_corpus(folder / "icd10", study.patients, seed=3, years=(2016, 2019), systems={"icd10cm"})]


def tables(study: PlantStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; equal runs are shared."""
    plan = PlantPlan(study, sources_of(corpora), folder)
    return [table for name in wanted for table in plan.tables(name)]


@dataclass(frozen=True)
class PlantPlan:
    """The runs and tables of a study."""

    study: PlantStudy
    sources: list[Source]
    folder: Path

    def source(self, paper: str) -> Source:
        """The corpus that stands for a corpus of the paper; the only one if there is one."""
        return next((source for source in self.sources if source.paper == paper), self.sources[0])

    def tables(self, name: str) -> Iterator[Table]:
        """The tables of a name: one, or one per corpus."""
        mimic3, mimic4 = self.source("MIMIC-III"), self.source("MIMIC-IV")
        if name in ("3", "4", "5", "6", "7"):
            yield self.results(name, mimic4 if name == "7" else mimic3)
        elif name == "2":
            yield self.counts()
        elif name == "9":
            yield self.explanations(mimic3)
        elif name == "figure-2":
            yield figure_2(mimic4.name, self.coders(mimic4))
        elif name == "figure-3":
            yield figure_3(mimic3.name, self.coders(mimic3, "6"))
        elif name == "figure-5":
            yield figure_5(mimic4.name, self.long_runs(mimic4))
        elif name == "figure-6":
            yield figure_6({source.name: (source.paper, self.count(source)) for source in self.sources})
        else:
            makers = {"8": self.ablations, "figure-4": self.fractions, "leakage": self.leakage}
            yield from map(makers[name], self.sources)

    def runs(
        self,
        coder: str,
        source: Source,
        settings: Sequence[str] = (),
        *,
        codes: str = "",
        epochs: int = 0,
        train_notes: int = 0,
        leak: bool = False,
    ) -> list[Run]:
        """The runs of a coder, one per seed.

        codes: the table of CODE_SETS; empty: all codes. epochs: 0 for those of the recipe; epochs that the user sets
        replace them. train_notes: 0 for all.
        """
        name, seeded = self.study.coders[coder], []
        kind = load_recipe(name).kind
        for seed in range(self.study.seeds):
            usual = self._load(name, [], source, seed)
            is_set = _is_set(self.study.recipe, f"{kind}.training.epochs")
            stop = [f"training.epochs={epochs}"] if epochs and isinstance(usual, NeuralRecipe) and not is_set else []
            corpus, labels = self._train_part(source.corpus, train_notes, seed), []
            if codes and self.study.only_coded_notes:
                corpus = self._coded_part(corpus, CODE_SETS[codes])
            elif codes:
                chosen = CODE_SETS[codes].model_dump(exclude_defaults=True)
                labels = [f"labels.{key}={value}" for key, value in chosen.items()]
            recipe = self._load(name, [*labels, *stop, *settings], source, seed)
            is_main = recipe == usual and corpus is source.corpus and not (leak or codes)
            options = {"codes": "known" if codes else "", "leak": leak, "explained": 0, "examples": []}
            if is_main:
                options |= {"explained": self.study.explained, "examples": self.study.examples}
            changed = " ".join(_changes(recipe.model_dump(mode="json"), usual.model_dump(mode="json")))
            notes = f"{corpus.manifest['counts']['splits']['train']} notes"
            names = (coder, source.version, notes, *filter(None, [changed, "leak" if leak else ""]))
            group = f"{corpus.hash} {seed}" if kind == "plant" else ""
            seeded.append(Run(names, "nosology.reproduce.plant_runs:run", recipe, (corpus,), seed, options, group))
        return seeded

    def _load(self, name: str, settings: Sequence[str], source: Source, seed: int) -> Recipe:
        """A recipe with this study's changes and settings; plant-paper gets the values of the source's paper."""
        k, rate = source.of_pair(K), source.of_pair(RANKER_RATE)
        defaults = ["labels.systems=[]"]
        if name == "plant-paper":
            defaults += [f"model.inattention={k}", f"rates.ranker={rate}"]
        own = self.study.recipe.get(load_recipe(name).kind, {})
        kept = [setting for setting in defaults if not _is_set(own, setting.partition("=")[0])]
        filled = [setting.format(k=k, rate=rate) for setting in settings]
        return self.study.load(name, f"seed={seed}", *kept, *filled)

    def _train_part(self, corpus: Corpus, count: int, seed: int) -> Corpus:
        """The corpus with this many of its train notes (0: all), which are among those of a larger number."""
        if not 0 < count < corpus.manifest["counts"]["splits"]["train"]:
            return corpus
        ids = [note.id for note in corpus.notes("train", text=False)]
        chosen = {ids[i] for i in np.random.default_rng([seed, 6]).permutation(len(ids))[:count]}
        out = self.folder / "corpora" / f"train-{count}-{seed}"
        return part_of(corpus, out, lambda note: note.split != "train" or note.id in chosen)

    def _coded_part(self, corpus: Corpus, chosen: LabelSettings) -> Corpus:
        """The notes that have one of the chosen codes, without their other codes."""
        codes = set(label_space(chosen, [note.codes for note in corpus.notes("train", text=False)]).codes)
        return part_with_codes(corpus, codes, self.folder / "corpora" / "coded")

    def coders(self, source: Source, codes: str = "") -> dict[str, list[Run]]:
        """The runs of all coders."""
        return {coder: self.runs(coder, source, _on_set(coder, codes), codes=codes) for coder in self.study.coders}

    def results(self, name: str, source: Source) -> Table:
        """Tables 3 to 7: all coders, with the paper's test of significance."""
        rows = rows_with_paper_numbers("plant", name, self.coders(source, name if name in CODE_SETS else ""))
        columns = {"5": AUC_AND_F1, "6": FEW_COLUMNS}.get(name, COLUMNS)
        if name == "6":
            rows.insert(1, Row(("PLANT that learns all codes",), tuple(self.runs("PLANT", source)), prefix="few."))
        tested = [metric for metric in columns if metric in TESTED]

        def tests(results: Results) -> Iterator[str]:
            if source.paper != ("MIMIC-IV" if name == "7" else "MIMIC-III"):
                yield f"These notes are coded in another ICD version than those of the paper's Table {name}."
            yield from randomisation_tests(rows, tested, results)

        return Table(name, TABLES[name], ("coder",), columns, rows, source.name, tests)

    def count(self, source: Source) -> Run:
        """The run that counts a corpus."""
        function = "nosology.reproduce.plant_runs:count_corpus"
        return Run(("counts", source.version), function, load_recipe("linear"), (source.corpus,))

    def counts(self) -> Table:
        """Table 2: the size of the corpora."""
        rows = []
        for source in self.sources:
            [row] = [r for r in rows_with_paper_numbers("plant", "2", {source.paper: [self.count(source)]}) if r.runs]
            rows.append(Row((f"{source.name} [{source.paper}-full]",), row.runs, row.paper))
        return Table("2", TABLES["2"], ("corpus",), CORPUS_COLUMNS, rows, without_best=tuple(CORPUS_COLUMNS))

    def ablations(self, source: Source) -> Table:
        """Table 8: each part with the epochs and train notes of its own comparison, tested in pairs."""
        runs = {}
        for part_name, part in PARTS.items():
            protocol = {"epochs": source.of_pair(part.epochs), "train_notes": source.of_pair(part.train_notes)}
            for variant, settings in part.variants.items():
                settings = settings if part.trains_encoder else [*FROZEN, *settings]
                runs[f"{part_name} / {variant}"] = self.runs("PLANT", source, settings, **protocol)
        rows = rows_with_paper_numbers("plant", "8", runs, within=f"{source.paper} / ")

        def tests(results: Results) -> Iterator[str]:
            for part in PARTS:
                yield from randomisation_tests([row for row in rows if row.names[0] == part], ["p@15"], results)

        header, columns = ("part", "PLANT"), SHORT_COLUMNS  # parts have different epochs: no row is the best of all
        return Table("8", TABLES["8"], header, columns, rows, source.name, tests, without_best=tuple(columns))

    def explanations(self, source: Source) -> Table:
        """Table 9: how faithful the attention is, and the words with the most attention."""
        runs = self.coders(source)
        rows = [Row((coder,), tuple(own), prefix="explain.") for coder, own in runs.items()]

        def words(results: Results) -> Iterator[str]:
            listed = {c: results[own[0].key]["words"] for c, own in runs.items() if own[0].key in results}
            for code in sorted({code for words in listed.values() for code in words}):
                for coder, by_code in listed.items():
                    yield f"{code}, {coder}: {', '.join(by_code.get(code, [])) or 'no word'}"

        columns = EXPLAIN_COLUMNS
        return Table("9", TABLES["9"], ("coder",), columns, rows, source.name, words, without_best=["sufficiency"])

    def fractions(self, source: Source) -> Table:
        """Figure 4: PLANT, the paper's comparator and the other coders with fewer train notes, up to five epochs."""
        whole = source.corpus.manifest["counts"]["splits"]["train"]
        sizes = sorted({min(size, whole) for size in self.study.train_notes or source.of_pair(TRAIN_NOTES)})
        runs = {}
        for coder, variant, settings in self._attentions():
            for size in sizes:
                runs[variant, size] = self.runs(coder, source, settings, epochs=5, train_notes=size)
        drawing = "figure-4" if len(self.sources) == 1 else f"figure-4-{source.paper}"
        return figure_4(drawing, source.name, source.paper, runs)

    def long_runs(self, source: Source) -> dict[str, list[Run]]:
        """Figure 5: 60 epochs without early stopping."""
        runs = {}
        for coder, name, settings in self._attentions():
            if isinstance(load_recipe(self.study.coders[coder]), NeuralRecipe):
                runs[name] = self.runs(coder, source, [*settings, "training.patience=60"], epochs=60)
        return runs

    def _attentions(self) -> Iterator[tuple[str, str, list[str]]]:
        """Coder, name and settings of what figures 4 and 5 compare."""
        yield "PLANT", "PLANT", [*FROZEN, *WINDOW]
        yield "PLANT", LANT, [*FROZEN, "model.static=false", "model.planted=false"]
        yield from ((coder, coder, []) for coder in ("LAAT", "linear") if coder in self.study.coders)

    def leakage(self, source: Source) -> Table:
        """PLANT with stages of train notes and of all notes."""
        by_notes = {"train notes": self.runs("PLANT", source), "all notes": self.runs("PLANT", source, leak=True)}
        rows = rows_with_paper_numbers("plant", "leakage", by_notes)
        return Table("leakage", TABLES["leakage"], ("stages learn from",), SHORT_COLUMNS, rows, source.name)


def _on_set(coder: str, codes: str) -> list[str]:
    """Section 4.2: on the 50 rare codes, PLANT trains its decoder only."""
    return ["rates.encoder=0"] if coder == "PLANT" and codes == "5" else []


def _changes(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
    """`key=value` for each value of nested tables that differs."""
    for key, value in new.items():
        if isinstance(value, dict):
            yield from _changes(value, old[key])
        elif value != old[key]:
            yield f"{key}={value}"


def _is_set(table: Any, path: str) -> bool:
    """Whether nested tables have a value at `section.key`."""
    for key in path.split("."):
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True
