"""Tables 6, 7 and 8 and Figure 4 of Saha Roy et al. (2024), PLANT, and the effect of the leak in its program.

All coders learn from the same train notes, are selected on dev and measured on test. Table 6 is about the codes of 1 to
5 train notes; the threshold is tuned for them on dev.

In the authors' program the language model and the mutual information of words and codes see all documents, also those
of the test set. Table `leakage` compares this with stages that see train notes only, as in the rest of this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nosology.config import check
from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.neural_trainer import TokenizedNotes
from nosology.models.plant.plant_settings import PlantRecipe
from nosology.models.plant.plant_trainer import PlantPipeline, PlantTrainer, StageCache
from nosology.models.train import train
from nosology.reproduce import runner
from nosology.reproduce.result_tables import ResultFigure, Row, Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, Task, check_splits, part_of
from nosology.training.examples import Examples, train_and_dev

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Saha Roy et al. (2024), Don't Just Pay Attention, PLANT It"
TABLES = {
    "6": "Codes of 1 to 5 train notes",
    "7": "All codes",
    "8": "PLANT without one of its parts",
    "figure-4": "Smaller shares of the train notes",
    "leakage": "PLANT whose language model and mutual information see test notes",
}
FEW = 5  # train notes of a code, at most
ABLATIONS = {
    "all parts": [],
    "no inattention": ["model.inattention=0"],
    "inattention per window of 72 words": ["model.inattention_scope=window", "model.inattention=56"],
    "inattention per note": ["model.inattention_scope=note", "model.inattention=56"],
    "first 512 words (stateless)": ["model.max_words=512"],
    "discriminative learning rates": ["rates.ranker=0.5", "rates.encoder=0.5", "rates.layer_decay=2.6"],
    "one learning rate": ["rates.ranker=1.0", "rates.encoder=1.0", "rates.layer_decay=1.0"],
    "no gradual unfreezing": ["rates.gradual=false"],
    "no static attention": ["model.static=false"],
    "no planted attention": ["model.planted=false"],
}
COLUMNS = {
    "macro_auc": "macro AUC", "micro_auc": "micro AUC", "macro_f1": "macro F1", "micro_f1": "micro F1",
    "p@5": "P@5", "p@8": "P@8", "p@15": "P@15", "map": "MAP",
}  # fmt: skip
FEW_COLUMNS = {
    f"{mean}_{name}": f"{mean} {name}" for name in ("f1", "precision", "recall") for mean in ("macro", "micro")
}
SHORT_COLUMNS = {name: COLUMNS[name] for name in ("p@15", "micro_f1", "macro_f1", "map")} | {
    "few.macro_f1": "few: macro F1"
}
SMALL: dict[str, Any] = {
    "seeds": 1,
    "patients": 60,
    "coders": {"PLANT": "plant", "LAAT": "laat", "linear": "linear"},
    "fractions": [1.0, 0.3],
    "recipe": {
        "plant": {
            "language": {"training": {"epochs": 2}},
            "training": {"epochs": 5},
            "ranker": {"epochs": 10, "steps": 200},
        },
        "laat": {"training": {"epochs": 4}, "vectors": {"epochs": 5}},
    },
}


class PlantStudy(runner.StudySettings):
    """The coders with their recipes, and the shares of train notes in Figure 4."""

    coders: dict[str, str] = Field({"PLANT": "plant-paper", "LAAT": "laat-paper", "linear": "linear"})
    fractions: list[float] = Field([1.0, 0.5, 0.2, 0.1, 0.05], min_length=1)


STUDY = PlantStudy


def simulate(study: PlantStudy, folder: Path) -> list[Corpus]:
    """The discharge notes of a simulated hospital with their ICD-10 diagnoses."""
    return [runner.simulated_corpus(folder / "icd10", study.patients, seed=3, years=(2016, 2019), systems={"icd10cm"})]


def tables(study: PlantStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; they share the runs with all train notes."""
    if len(corpora) != 1 or "PLANT" not in study.coders:
        raise ConfigError(
            f"one corpus and a recipe for PLANT must be given; got {len(corpora)} corpora, {study.coders}"
        )
    [corpus] = corpora
    check_splits(corpus)

    def runs(coder: str, variant: str = "all parts", share: float = 1.0, leak: bool = False) -> list[Run]:
        """The runs of a coder, one per seed."""
        seeded = []
        for seed in range(study.seeds):
            recipe = study.load(study.coders[coder], f"seed={seed}", *ABLATIONS[variant])
            notes = corpus if share == 1 else _share(corpus, share, seed, folder / "corpora")
            names = (coder, "all notes" if leak else variant, f"{share:g}")
            group = f"stages of seed {seed}" if coder == "PLANT" else ""
            seeded.append(Run(names, f"{__name__}:run", recipe, (notes,), seed, {"leak": leak}, group))
        return seeded

    def main_table(name: str) -> Table:
        columns, prefix = (FEW_COLUMNS, "few.") if name == "6" else (COLUMNS, "")
        rows = rows_with_paper_numbers("plant", name, {coder: runs(coder) for coder in study.coders}, prefix=prefix)
        tests = lambda results: paired_tests(rows, "macro_f1", results)  # noqa: E731
        return Table(name, TABLES[name], ("coder",), columns, rows, remarks=tests)

    def ablations() -> Table:
        variants = {variant: runs("PLANT", variant) for variant in ABLATIONS}
        whole = variants["all parts"][0].recipe  # it may have the settings of a variant already
        different = {name: r for name, r in variants.items() if name == "all parts" or r[0].recipe != whole}
        rows = rows_with_paper_numbers("plant", "8", different)
        pairs = [(row.names[0], row.paper) for row in rows if row.paper]
        remarks = [
            f"P@15 in the paper, {name}: {v['p@15']:g}; with that part: {v['with_part']:g}." for name, v in pairs
        ]
        return Table("8", TABLES["8"], ("PLANT",), SHORT_COLUMNS, rows, remarks=lambda results: remarks)

    def leakage() -> Table:
        by_notes = {"train notes": runs("PLANT"), "all notes": runs("PLANT", leak=True)}
        rows = rows_with_paper_numbers("plant", "leakage", by_notes)
        return Table("leakage", TABLES["leakage"], ("stages learn from",), SHORT_COLUMNS, rows)

    makers = {"8": ablations, "leakage": leakage}
    makers["figure-4"] = lambda: _figure_4({(c, s): runs(c, share=s) for c in study.coders for s in study.fractions})
    return [makers[name]() if name in makers else main_table(name) for name in wanted]


def _share(corpus: Corpus, share: float, seed: int, folder: Path) -> Corpus:
    """The corpus with a share of its train notes; the notes of a smaller share are among those of a larger one."""
    ids = [note.id for note in corpus.notes(text=False)]
    draws = dict(zip(ids, np.random.default_rng([seed, 6]).random(len(ids))))
    return part_of(corpus, folder / f"share-{share:g}-{seed}", lambda n: n.split != "train" or draws[n.id] < share)


def _figure_4(runs: dict[tuple[str, float], list[Run]]) -> Table:
    columns = {"train_notes": "train notes", "p@5": "P@5", "p@15": "P@15"}
    rows = [Row((coder, f"{share:g}"), tuple(row_runs)) for (coder, share), row_runs in runs.items()]

    def curve(coder: str, metric: str, results: Results) -> list[tuple[float, float]]:
        """(train notes, metric) of a coder, ascending."""
        own_rows = [row for row in rows if row.names[0] == coder]
        points = [tuple(row.cell(results, name).mean for name in ("train_notes", metric)) for row in own_rows]
        return sorted((notes, value) for notes, value in points if notes is not None and value is not None)

    def remarks(results: Results) -> Iterator[str]:
        for metric in ("p@5", "p@15"):
            laat, plant = curve("LAAT", metric, results), curve("PLANT", metric, results)
            if laat and plant:
                needed = notes_for(plant, laat[-1][1])
                reached = "does not reach it" if needed is None else f"reaches it with {needed:.0f}"
                yield f"{metric}: LAAT has {laat[-1][1]:.4f} with {laat[-1][0]:.0f} train notes; PLANT {reached}."
        yield "The paper, MIMIC-IV: p@5 0.50 with 1,090 notes, LAAT 10,337; p@15 0.37 with 2,743, LAAT 12,902."

    def draw(results: Results, figure: Figure) -> None:
        for axes, metric in zip(figure.subplots(1, 2), ("p@5", "p@15")):
            for coder in dict.fromkeys(coder for coder, _ in runs):
                axes.plot(*zip(*(curve(coder, metric, results) or [(np.nan, np.nan)])), "o-", label=coder)
            axes.set(xlabel="train notes", ylabel=metric.upper(), xscale="log")
            axes.legend()

    header, figures = ("coder", "share of train"), [ResultFigure("figure-4", "P@5 and P@15 by train notes", draw)]
    return Table("figure-4", TABLES["figure-4"], header, columns, rows, remarks=remarks, figures=figures)


def notes_for(curve: Sequence[tuple[float, float]], target: float) -> float | None:
    """The number of train notes at which a curve reaches a value, by linear interpolation; None: it does not."""
    if curve[0][1] >= target:
        return curve[0][0]
    for (notes, low), (more, high) in pairwise(curve):
        if high >= target:
            return notes + (more - notes) * (target - low) / (high - low)
    return None


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on all codes and on those with few train notes; in its own process."""
    recipe, [corpus], folder = check(task.recipe, task.function), map(Corpus.open, task.corpora), Path(task.folder)
    if isinstance(recipe, PlantRecipe) and task.options["leak"]:
        bundle = train_on_all_notes(recipe, corpus, folder / "stages")
    else:
        stages = {"stages": task.cache} if isinstance(recipe, PlantRecipe) else {}  # shared by runs
        bundle = train(recipe.model_copy(update=stages), [corpus], folder / "bundle")
    counts = Counter(code for note in corpus.notes("train", text=False) for code in set(note.codes))
    few = {code for code, count in counts.items() if count <= FEW}
    values = measure(bundle, corpus, "test", folder / "report").evaluation.metrics
    metrics = {name: values.get(name) for name in COLUMNS}
    metrics["train_notes"] = corpus.manifest["counts"]["splits"]["train"]
    if few:
        values = measure(bundle, corpus, "test", folder / "few", codes=few, tune=True).evaluation.metrics
        metrics |= {f"few.{name}": values.get(name) for name in FEW_COLUMNS}
    return {"metrics": metrics, "few_codes": len(few)}


@dataclass(frozen=True)
class StagesOfAllNotes(StageCache):
    """Stages whose language model and mutual information come from a pipeline over all notes, test notes included."""

    everything: PlantPipeline

    def get_or_compute(self, name: str, inputs: list, compute: Any) -> dict[str, Tensor]:
        """The tensors of a stage."""
        if name == "relevance":
            return {key: torch.from_numpy(array) for key, array in self.everything.relevance().arrays().items()}
        if name.startswith("language"):
            return dict(self.everything.language(name.endswith("backward")).state_dict())
        return super().get_or_compute(name, inputs, compute)


def train_on_all_notes(recipe: PlantRecipe, corpus: Corpus, folder: Path) -> Bundle:
    """The coder of a corpus whose language model and mutual information are computed with dev and test notes too.

    It measures the effect of the leak. Do not use such a coder.
    """
    learn, dev, _ = train_and_dev([corpus], recipe.holdout.share, recipe.seed)
    pipeline = PlantPipeline.of(recipe, learn, folder)
    every = Examples([corpus], lambda note: True)
    notes = TokenizedNotes.of(every, recipe.labels, pipeline.tokenizer, pipeline.labels)
    whole = replace(
        PlantPipeline.of(recipe, every, folder / "all"),
        notes=notes,
        tokenizer=pipeline.tokenizer,
        labels=pipeline.labels,
    )
    stages = StagesOfAllNotes(whole.stages.folder, whole.stages.fingerprint, whole)
    trained = PlantTrainer(recipe, folder, stages).train(learn, dev, False)
    provenance = {"found": trained.report}
    return Bundle(trained.model, trained.decision, recipe.model_dump(mode="json"), provenance)
