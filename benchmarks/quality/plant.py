"""What planted attention adds: python benchmarks/quality/plant.py few|fractions|ablations|leak [--seeds 3] [--jobs 6]

A simulated hospital of 2016 to 2019 (ICD-10 diagnoses), split by patient (70/10/20), or your corpus (--corpus DIR, with
its splits; --paper for recipes of the papers' sizes). All coders use built-in recipes and the same train notes, choose
their settings on dev and are measured on test. Arms run in parallel (--jobs); each result is written when it ends, and
a study that was stopped continues. Run `few` first: the other studies reuse its results.

few        PLANT, LAAT and the linear coder on codes with 1 to 5 train notes: macro F1 with its interval
fractions  P@5 and P@15 of the three with fewer train notes (Saha Roy et al. 2024, figure 4), as a table and a plot, and
           the number of notes with which PLANT reaches the scores of LAAT with all notes
ablations  PLANT without inattention, words after the 512th (in all stages), gradual unfreezing, static attention or
           planted attention, and with the other choice of learning rates (Saha Roy et al. 2024, table 8)
leak       PLANT as in the authors' program, whose language model and mutual information see test notes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from nosology.config import load_recipe
from nosology.core import Code, Note, __version__
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.train import train
from nosology.training.examples import train_and_dev
from nosology.training.recipe_settings import Recipe

RESULT = Path(__file__).parents[1] / "results" / "quality_plant.json"
CODERS = ("plant", "laat", "linear")
FRACTIONS = (1.0, 0.5, 0.2, 0.1, 0.05)
ABLATIONS = {
    "all of it": [],
    "no inattention": ["model.inattention=0"],
    "first 512 words alone": ["model.max_words=512"],
    "the paper's rates": ["rates.ranker=0.5", "rates.encoder=0.5", "rates.layer_decay=2.6"],
    "one rate for all": ["rates.ranker=1.0", "rates.encoder=1.0", "rates.layer_decay=1.0"],
    "all parts at once": ["rates.gradual=false"],
    "no static attention": ["model.static=false"],
    "no planted attention": ["model.planted=false"],
}
LEAK = ("train notes alone", "all notes")
FEW_HAS = {  # arms that are coders of `few`, with all its codes
    "fractions": {f"1.0 {coder}": coder for coder in CODERS},
    "ablations": {"all of it": "plant"},
    "leak": {LEAK[0]: "plant"},
}
ARMS = {
    "few": list(CODERS),
    "fractions": [f"{share} {coder}" for share in FRACTIONS for coder in CODERS],
    "ablations": list(ABLATIONS),
    "leak": list(LEAK),
}
SHOWN = ("micro_f1", "macro_f1", "map", "p@5", "p@15")
FEW = 5  # train notes of a code at most


@dataclass(frozen=True)
class Arm:
    """One coder to be trained and measured."""

    study: str
    name: str
    seed: int
    folder: Path  # of the seed's corpora
    settings: tuple[str, ...]  # of PLANT
    threads: int
    paper: bool = False  # recipes of the papers' sizes

    @property
    def work(self) -> Path:
        """Where it may write."""
        return self.folder / self.study / self.name.replace(" ", "_")

    def recipe(self, coder: str, changed: Iterable[str] = ()) -> Recipe:
        """The recipe of a coder."""
        name = f"{coder}-paper" if self.paper and coder != "linear" else coder
        settings = [*self.settings, *changed] if coder == "plant" else []
        return load_recipe(name, [f"seed={self.seed}", *settings])


def recipe_hash(coder: str, paper: bool) -> str:
    """A name for what a recipe says: other recipes, other rows."""
    made = Arm("", "", 0, Path(), (), 1, paper).recipe(coder).model_dump_json()
    return hashlib.sha256(made.encode()).hexdigest()[:12]


def changes(settings: list[str], given: list[str], paper: bool) -> bool:
    """Whether settings make another recipe of PLANT."""
    arm = Arm("", "", 0, Path(), tuple(given), 1, paper)
    return arm.recipe("plant", settings) != arm.recipe("plant")


def divided(notes: list[Note], seed: int) -> list[Note]:
    """The notes with their splits: all of a patient's in one."""
    order = np.random.default_rng([seed, 5]).permutation(sorted({note.patient for note in notes})).tolist()
    rank = {patient: i / len(order) for i, patient in enumerate(order)}
    split = {p: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for p, r in rank.items()}
    return [replace(note, split=split[note.patient]) for note in notes]


def part_of(notes: list[Note], share: float, seed: int) -> list[Note]:
    """The notes with a share of the train notes, a smaller one's among a larger one's; dev and test stay whole."""
    drawn = np.random.default_rng([seed, 6]).random(len(notes))
    return [note for note, chance in zip(notes, drawn) if note.split != "train" or chance < share]


def simulated(patients: int) -> list[Note]:
    """The coded notes of a simulated hospital, with their ICD-10 diagnoses."""
    made = [note for note in simulate_notes(patients, 3, years=(2016, 2019)) if note.codes]
    return [replace(n, codes=tuple(c for c in n.codes if c.system == "icd10cm"), evidence=()) for n in made]


def write_corpora(study: str, notes: list[Note], seeds: int, folder: Path) -> None:
    """Writes the corpora of all seeds and shares; notes without splits are divided anew for each seed."""
    own = any(note.split for note in notes)
    for seed in range(seeds):
        for share in FRACTIONS if study == "fractions" else (1.0,):
            some = part_of(notes if own else divided(notes, seed), share, seed)
            where = folder / str(seed) / f"corpus_{share}"
            where.parent.mkdir(parents=True, exist_ok=True)
            write_corpus(some, where, source={"kind": "benchmark"}, filters=[], counts={})


def train_counts(corpus: Corpus) -> dict[Code, int]:
    """How many train notes each code has."""
    counts: dict[Code, int] = {}
    for note in corpus.notes("train", text=False):
        for code in note.codes:
            counts[code] = counts.get(code, 0) + 1
    return counts


def train_notes(corpus: Corpus) -> int:
    """How many train notes there are."""
    return sum(1 for _ in corpus.notes("train", text=False))


def row(bundle: Bundle, corpus: Corpus, arm: Arm, codes: set[Code] | None = None) -> dict[str, float]:
    """How a coder does on test, over all codes or some; for some, the threshold is found for them on dev."""
    report = arm.work / "report"
    metrics = measure(bundle, corpus, "test", report, codes=codes, tune=codes is not None).evaluation.metrics
    names = [*SHOWN, "macro_f1_low", "macro_f1_high"]
    return {name: metrics[name] for name in names if metrics.get(name) is not None}


def few(arm: Arm) -> dict:
    """A coder on all codes, and on those with few train notes."""
    corpus = Corpus.open(arm.folder / "corpus_1.0")
    bundle = trained(arm, arm.name, corpus)
    counts = {"few codes": len(few_codes(corpus)), "train notes": train_notes(corpus)}
    found = {"few": row(bundle, corpus, arm, few_codes(corpus)), "full": row(bundle, corpus, arm)} | counts
    made = bundle.provenance["found"]
    dev = made.get("forward", made).get("metrics")  # by which settings may be chosen
    return found | ({"dev": dev} if dev else {})


def few_codes(corpus: Corpus) -> set[Code]:
    """Codes with few train notes."""
    return {code for code, count in train_counts(corpus).items() if count <= FEW}


def both_rows(bundle: Bundle, corpus: Corpus, arm: Arm) -> dict[str, float]:
    """How a coder does over all codes, and its macro F1 and MAP over those with few train notes."""
    return row(bundle, corpus, arm) | _of_few(row(bundle, corpus, arm, few_codes(corpus)))


def _of_few(found: dict[str, float]) -> dict[str, float]:
    return {f"few {name}": found[name] for name in ("macro_f1", "map") if name in found}


def fractions(arm: Arm) -> dict:
    """A coder with a share of the train notes."""
    share, coder = arm.name.split()
    corpus = Corpus.open(arm.folder / f"corpus_{share}")
    return row(trained(arm, coder, corpus), corpus, arm) | {"train notes": train_notes(corpus)}


def ablations(arm: Arm) -> dict:
    """PLANT without a part of it; stages before the classifier are taken over where they are the same."""
    corpus = Corpus.open(arm.folder / "corpus_1.0")
    return both_rows(trained(arm, "plant", corpus, [_stages(arm), *ABLATIONS[arm.name]]), corpus, arm)


def stages(arm: Arm) -> dict:
    """The ranker's nDCG, once the stages before the classifier are made, for all ablations."""
    from nosology.models.plant.plant_trainer import PlantPipeline

    recipe = arm.recipe("plant", [_stages(arm)])
    learn, _, _ = train_and_dev([Corpus.open(arm.folder / "corpus_1.0")], recipe.holdout.share, recipe.seed)
    return {"nDCG": PlantPipeline.of(recipe, learn, arm.work).train_ranker(False)}


def _stages(arm: Arm) -> str:
    return f"stages={arm.folder / 'stages'}"


def leak(arm: Arm) -> dict:
    """PLANT whose first stages have seen the test notes, or not."""
    from nosology.reproduce.plant_tables import train_on_all_notes

    corpus = Corpus.open(arm.folder / "corpus_1.0")
    if arm.name == LEAK[0]:
        return both_rows(trained(arm, "plant", corpus), corpus, arm)
    return both_rows(train_on_all_notes(arm.recipe("plant"), corpus, arm.work / "run"), corpus, arm)


def trained(arm: Arm, coder: str, corpus: Corpus, changed: list[str] = []) -> Bundle:  # noqa: B006
    """A coder of the corpus."""
    return train(arm.recipe(coder, changed), [corpus], arm.work / "bundle")


STUDIES = {"few": few, "fractions": fractions, "ablations": ablations, "leak": leak, "stages": stages}


def run(arm: Arm) -> dict:
    """What an arm has given, with the seconds it took; in a process of its own."""
    started = time.monotonic()
    try:
        import torch
    except ImportError:  # the linear coder alone needs none
        pass
    else:
        torch.set_num_threads(arm.threads)
    arm.work.mkdir(parents=True, exist_ok=True)
    found = STUDIES[arm.study](arm)
    return found | {"seconds": round(time.monotonic() - started, 1)}


def in_parallel(arms: list[Arm], jobs: int):
    """Each arm with what it has given, as they end; one that fails is told and passed over."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(run, arm): arm for arm in arms}
        for done in as_completed(waiting):
            arm = waiting[done]
            try:
                yield arm, done.result()
            except Exception as error:
                print(f"{arm.study} {arm.name} seed {arm.seed} failed: {error!r}", file=sys.stderr, flush=True)


def mean(values: list) -> dict | float:
    """The mean of numbers, or of each entry of dictionaries that all have."""
    if isinstance(values[0], dict):
        return {key: mean([value[key] for value in values]) for key in values[0] if all(key in v for v in values)}
    return float(np.mean(values))


def stands(coder: str, before: dict, told: dict) -> bool:
    """Whether rows of a coder that were measured before are what would be measured now."""

    def of_coder(told: dict) -> dict:
        own = {"recipes": told.get("recipes", {}).get(coder)} | ({} if coder == "plant" else {"settings": None})
        return {name: told.get(name) for name in ("patients", "settings", "corpus", "paper", "package")} | own

    return of_coder(before) == of_coder(told)


def measured_before(study: str, told: dict, results: dict, seeds: int) -> dict:
    """The rows of a study that need not be measured again, by arm and seed: its own, and those that `few` has."""
    rows: dict = {}
    wanted = {str(seed) for seed in range(seeds)}
    few = results.get("few", {})
    for arm, coder in FEW_HAS.get(study, {}).items():
        for seed, found in few.get("by seed", {}).get(coder, {}).items() if stands(coder, few, told) else ():
            more = {name: found[name] for name in ("train notes", "seconds")}
            if seed in wanted:
                rows.setdefault(arm, {})[seed] = found["full"] | _of_few(found["few"]) | more
    before = results.get(study, {})
    for arm, found in before.get("by seed", {}).items():
        if stands(arm.split()[-1] if study in ("few", "fractions") else "plant", before, told):
            rows[arm] = rows.get(arm, {}) | found
    return rows


def less_data(table: dict) -> dict[str, float | None]:
    """The number of train notes with which PLANT reaches LAAT's best, for P@5 and P@15; None: not at all."""
    found: dict[str, float | None] = {}
    for name in ("p@5", "p@15"):
        wanted = table["1.0 laat"][name]
        points = sorted((part["train notes"], part[name]) for arm, part in table.items() if arm.endswith("plant"))
        found[name] = points[0][0] if points[0][1] >= wanted else None
        for (n, low), (more, high) in pairwise(points):
            if found[name] is None and high >= wanted:
                found[name] = n + (more - n) * (wanted - low) / (high - low)
    return found


def plot(table: dict, path: Path) -> None:
    """P@5 and P@15 against the number of train notes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, 2), ("p@5", "p@15")):
        for coder in CODERS:
            points = sorted((part["train notes"], part[name]) for arm, part in table.items() if arm.endswith(coder))
            axes.plot(*zip(*points), "o-", label=coder)
        axes.set(xlabel="train notes", ylabel=name.upper(), xscale="log")
        axes.legend()
    figure.savefig(path, dpi=120)


def told_so_far(study: str, told: dict, rows: dict, out: Path) -> dict:
    """The means over the seeds that are there, written with all rows."""
    table = {arm: mean(list(rows[arm].values())) for arm in ARMS[study] if rows.get(arm)}
    found = told | {"mean": table, "by seed": rows}
    if study == "fractions" and len(table) == len(ARMS[study]):
        found["notes that PLANT needs for LAAT's best"] = less_data(table)
    results = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, results | {study: found})
    return found


def main() -> None:
    """Prints the table of a study and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=ARMS)
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="coders that are trained at the same time")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of PLANT, as in nosology train")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="of the study; default: all")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--corpus", type=Path, help="a corpus folder, in the place of the simulated hospital")
    parser.add_argument("--paper", action="store_true", help="recipes of the papers' sizes, for MIMIC")
    asked = parser.parse_args()
    wanted = asked.arms or ARMS[asked.study]
    if unknown := set(wanted) - set(ARMS[asked.study]):
        parser.error(f"--arms must be of {', '.join(ARMS[asked.study])}; got {', '.join(sorted(unknown))}")
    if asked.study == "ablations":
        wanted = [arm for arm in wanted if arm == "all of it" or changes(ABLATIONS[arm], asked.settings, asked.paper)]
    own = Corpus.open(asked.corpus) if asked.corpus else None
    told = {"patients": None if own else asked.patients, "settings": asked.settings}
    told |= {"corpus": own.hash if own else None, "paper": asked.paper or None, "package": __version__}
    told["recipes"] = {coder: recipe_hash(coder, asked.paper) for coder in CODERS}
    results = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    rows = measured_before(asked.study, told, results, asked.seeds)
    notes = list(own.notes()) if own else simulated(asked.patients)
    told["notes"] = len(notes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(asked.study, notes, asked.seeds, folder)
        threads = max(1, (os.cpu_count() or 1) // asked.jobs)
        missing = [(arm, seed) for arm in wanted for seed in range(asked.seeds) if str(seed) not in rows.get(arm, {})]

        def arms(study: str, of: Iterable[tuple[str, int]]) -> list[Arm]:
            """The arms to be run, the longest first."""
            rest = (tuple(asked.settings), threads, asked.paper)
            return [Arm(study, arm, seed, folder / str(seed), *rest) for arm, seed in of]

        if asked.study == "ablations":
            seeds = sorted({seed for _, seed in missing})
            for arm, found in in_parallel(arms("stages", [("stages", seed) for seed in seeds]), asked.jobs):
                print(f"stages, seed {arm.seed}: {json.dumps(found)}", flush=True)
        for arm, found in in_parallel(arms(asked.study, missing), asked.jobs):
            rows.setdefault(arm.name, {})[str(arm.seed)] = found
            print(f"{arm.name}, seed {arm.seed}: {json.dumps(found)}", flush=True)
            told_so_far(asked.study, told, rows, asked.out)
    table = told_so_far(asked.study, told, rows, asked.out)["mean"]
    print(json.dumps(table, indent=2))
    if asked.study == "fractions" and len(table) == len(ARMS["fractions"]):
        plot(table, asked.out.with_suffix(".png"))
    if any(str(seed) not in rows.get(arm, {}) for arm in wanted for seed in range(asked.seeds)):
        sys.exit(1)


if __name__ == "__main__":
    main()
