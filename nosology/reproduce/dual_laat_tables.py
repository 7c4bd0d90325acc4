"""Tables 1, 2 and 4 of Liu and Nguyen (2026): the effect of notes of another ICD version on DualLAAT.

The first corpus is coded in ICD-10; coders are evaluated on it. Rows "+ ICD-9" are also trained on the train notes of
the other corpora. The dev notes of the first corpus select checkpoints, and thresholds for each set of codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from nosology.config import check
from nosology.core import ConfigError, DataError, Note
from nosology.corpora.corpus import Corpus
from nosology.reproduce import runner
from nosology.reproduce.result_tables import Table, paired_tests, rows_with_paper_numbers
from nosology.reproduce.runner import Results, Run, Task, check_splits, part_of, slug

TITLE = "Liu and Nguyen (2026), Bridging the Version Gap (DualLAAT)"
TABLES = {"1": "Frequent codes", "2": "Rare codes", "4": "All codes"}
SETS = {"1": "frequent", "2": "rare", "4": "full"}  # of codes
COLUMNS = {
    "micro_auc": "micro AUC", "macro_auc": "macro AUC", "micro_f1": "micro F1", "macro_f1": "macro F1",
    "p@8": "P@8", "p@15": "P@15", "r_precision": "R-precision", "map": "MAP",
}  # fmt: skip
MIXED = " + ICD-9"
SMALL: dict[str, Any] = {
    "seeds": 1,
    "patients": 150,
    "models": {"CAML": "caml", "DualLAAT, CNN": "dual_laat"},
    "recipe": {kind: {"training": {"epochs": 4}, "vectors": {"epochs": 5}} for kind in ("caml", "dual_laat")},
}


class DualLaatStudy(runner.StudySettings):
    """Which models are compared, and the recipe of each."""

    seeds: int = Field(3, ge=1)
    models: dict[str, str] = Field(
        {
            "CAML": "caml-paper", "LAAT": "laat-paper", "PLM-ICD": "plm_icd-paper",
            "DualLAAT, CNN": "dual_laat-paper-cnn", "DualLAAT": "dual_laat-paper",
        },
        min_length=1,
    )  # fmt: skip


STUDY = DualLaatStudy


def simulate(study: DualLaatStudy, folder: Path) -> list[Corpus]:
    """The notes of a simulated hospital of 2008 to 2019: those coded in ICD-10, and those coded in ICD-9."""
    whole = runner.simulated_corpus(folder / "both", study.patients, seed=0, years=(2008, 2019))
    return [part_of(whole, folder / version, partial(_is_coded_in, version)) for version in ("icd10", "icd9")]


def _is_coded_in(version: str, note: Note) -> bool:
    return note.codes[0].system.startswith(version)


def tables(study: DualLaatStudy, corpora: Sequence[Corpus], folder: Path, wanted: Sequence[str]) -> list[Table]:
    """The wanted tables; they share their runs."""
    if len(corpora) < 2:
        raise ConfigError("--corpus must name the ICD-10 corpus and then one ICD-9 corpus or more; got one corpus")
    first, *others = corpora
    check_splits(first)
    more = [
        part_of(corpus, folder / "corpora" / f"train-{slug(corpus.folder.name)}", lambda note: note.split == "train")
        for corpus in others
    ]
    runs: dict[str, list[Run]] = {}
    for name, recipe in study.models.items():
        seeded = [study.load(recipe, f"seed={seed}") for seed in range(study.seeds)]
        mixes = {name: (first,)} | ({name + MIXED: (first, *more)} if seeded[0].kind == "dual_laat" else {})
        for label, mix in mixes.items():
            runs[label] = [Run((label,), f"{__name__}:run", recipe, mix, seed) for seed, recipe in enumerate(seeded)]
    return [_table(name, runs) for name in wanted]


def _table(name: str, runs: dict[str, list[Run]]) -> Table:
    rows = rows_with_paper_numbers("dual_laat", name, runs, prefix=f"{SETS[name]}.")

    def remarks(results: Results) -> Iterator[str]:
        for label in runs:
            pair = [row for row in rows if row.names[0] in (label, label + MIXED)]
            yield from paired_tests(pair[::-1], "micro_f1", results)

    return Table(name, TABLES[name], ("model",), COLUMNS, rows, remarks=remarks)


def run(task: Task) -> dict[str, Any]:
    """Trains a coder and measures it on each set of codes; in its own process."""
    from nosology.evaluation.measure import measure
    from nosology.models.train import train

    corpora, folder = [Corpus.open(path) for path in task.corpora], Path(task.folder)
    bundle = train(check(task.recipe, task.function), corpora, folder / "bundle")
    metrics, undefined = {}, {}
    for chosen in SETS.values():
        try:
            measured = measure(bundle, corpora[0], "test", folder / chosen, codes=chosen, tune=True)
        except DataError as error:  # a small corpus may have no rare codes, or none in dev
            undefined[chosen] = str(error)
        else:
            metrics |= {f"{chosen}.{name}": measured.evaluation.metrics.get(name) for name in COLUMNS}
    metrics["micro_f1"] = metrics.get("full.micro_f1")
    return {"metrics": metrics, "undefined": undefined, "n_train": bundle.provenance["n_train"]}
