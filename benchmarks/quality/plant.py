"""What planted attention adds: python benchmarks/quality/plant.py few|fractions|ablations|leak [--seeds 3] [--jobs 6]

A simulated hospital of 2016 to 2019 (ICD-10 diagnoses), split by patient (70/10/20), or your corpus (--corpus DIR, with
its splits; --paper for recipes of the papers' sizes). All coders use built-in recipes and the same train notes, choose
their settings on dev and are measured on test. Arms run in parallel (--jobs); each result is written when it ends, and
a study that was stopped continues. Run `few` first: the other studies reuse its results.

few        PLANT, LAAT and the linear coder on codes with 1 to 5 train notes: macro F1 with its interval
fractions  P@5 and P@15 of the three with fewer train notes (Saha Roy et al. 2024, figure 4), as a table and a plot, and
           the number of notes with which PLANT reaches the scores of LAAT with all notes
ablations  PLANT without inattention, words after the 512th (in all stages), decoder state, gradual unfreezing, static
           attention or planted attention, with inattention per window and per note, and with the other choice of
           learning rates (Saha Roy et al. 2024, table 8)
leak       PLANT as in the authors' program, whose language model and mutual information see test notes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
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
from nosology.core.parallel import cores
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
    "56 of each window of 72 words": ["model.inattention_scope=window", "model.inattention=56"],  # as in the paper
    "56 words of the note": ["model.inattention_scope=note", "model.inattention=56"],
    "first 512 words alone": ["model.max_words=512"],
    "decoder without state": ["model.stateful=false"],  # the last 20 windows of 72 words; as in the paper
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
    """One coder to train and measure."""

    study: str
    name: str
    seed: int
    folder: Path  # of the seed's corpora
    settings: tuple[str, ...]  # of PLANT
    threads: int
    paper: bool = False  # recipes of the papers' sizes

    @property
    def work(self) -> Path:
        """The working folder."""
        return self.folder / self.study / self.name.replace(" ", "_")

    def recipe(self, coder: str, changed: Iterable[str] = ()) -> Recipe:
        """The recipe of a coder."""
        name = f"{coder}-paper" if self.paper and coder != "linear" else coder
        settings = [*self.settings, *changed] if coder == "plant" else []
        return load_recipe(name, [f"seed={self.seed}", *settings])


def recipe_hash(coder: str, paper: bool) -> str:
    """The hash of a recipe."""
    recipe = Arm("", "", 0, Path(), (), 1, paper).recipe(coder).model_dump_json()
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def changes(settings: list[str], overrides: list[str], paper: bool) -> bool:
    """Whether settings make another recipe of PLANT."""
    arm = Arm("", "", 0, Path(), tuple(overrides), 1, paper)
    return arm.recipe("plant", settings) != arm.recipe("plant")


def split_by_patient(notes: list[Note], seed: int) -> list[Note]:
    """The notes with splits by patient."""
    order = np.random.default_rng([seed, 5]).permutation(sorted({note.patient for note in notes})).tolist()
    rank = {patient: i / len(order) for i, patient in enumerate(order)}
    split = {p: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for p, r in rank.items()}
    return [replace(note, split=split[note.patient]) for note in notes]


def with_train_share(notes: list[Note], share: float, seed: int) -> list[Note]:
    """The notes with a share of the train notes, a subset of each larger share; dev and test are complete."""
    drawn = np.random.default_rng([seed, 6]).random(len(notes))
    return [note for note, chance in zip(notes, drawn) if note.split != "train" or chance < share]


def simulated(patients: int) -> list[Note]:
    """The coded notes of a simulated hospital, with their ICD-10 diagnoses."""
    notes = [note for note in simulate_notes(patients, 3, years=(2016, 2019)) if note.codes]
    return [replace(n, codes=tuple(c for c in n.codes if c.system == "icd10cm"), evidence=()) for n in notes]


def write_corpora(study: str, notes: list[Note], seeds: int, folder: Path) -> None:
    """Writes the corpora of all seeds and shares; notes without splits are split for each seed."""
    has_splits = any(note.split for note in notes)
    for seed in range(seeds):
        for share in FRACTIONS if study == "fractions" else (1.0,):
            some = with_train_share(notes if has_splits else split_by_patient(notes, seed), share, seed)
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
    """The test metrics of a coder over all codes or some; for some, the threshold is tuned for them on dev."""
    report = arm.work / "report"
    metrics = measure(bundle, corpus, "test", report, codes=codes, tune=codes is not None).evaluation.metrics
    names = [*SHOWN, "macro_f1_low", "macro_f1_high"]
    return {name: metrics[name] for name in names if metrics.get(name) is not None}


def few(arm: Arm) -> dict:
    """A coder on all codes, and on those with few train notes."""
    corpus = Corpus.open(arm.folder / "corpus_1.0")
    bundle = trained(arm, arm.name, corpus)
    counts = {"few codes": len(few_codes(corpus)), "train notes": train_notes(corpus)}
    result = {"few": row(bundle, corpus, arm, few_codes(corpus)), "full": row(bundle, corpus, arm)} | counts
    report = bundle.provenance["found"]
    dev = report.get("forward", report).get("metrics")  # by which settings may be chosen
    return result | ({"dev": dev} if dev else {})


def few_codes(corpus: Corpus) -> set[Code]:
    """Codes with few train notes."""
    return {code for code, count in train_counts(corpus).items() if count <= FEW}


def both_rows(bundle: Bundle, corpus: Corpus, arm: Arm) -> dict[str, float]:
    """The metrics of a coder over all codes, and its macro F1 and MAP over those with few train notes."""
    return row(bundle, corpus, arm) | _of_few(row(bundle, corpus, arm, few_codes(corpus)))


def _of_few(result: dict[str, float]) -> dict[str, float]:
    return {f"few {name}": result[name] for name in ("macro_f1", "map") if name in result}


def fractions(arm: Arm) -> dict:
    """A coder with a share of the train notes."""
    share, coder = arm.name.split()
    corpus = Corpus.open(arm.folder / f"corpus_{share}")
    return row(trained(arm, coder, corpus), corpus, arm) | {"train notes": train_notes(corpus)}


def ablations(arm: Arm) -> dict:
    """PLANT without one part; equal stages before the classifier are reused."""
    corpus = Corpus.open(arm.folder / "corpus_1.0")
    return both_rows(trained(arm, "plant", corpus, [_stages(arm), *ABLATIONS[arm.name]]), corpus, arm)


def stages(arm: Arm) -> dict:
    """The nDCG of the ranker; computes the stages before the classifier for all ablations."""
    from nosology.models.plant.plant_trainer import PlantPipeline

    recipe = arm.recipe("plant", [_stages(arm)])
    learn, _, _ = train_and_dev([Corpus.open(arm.folder / "corpus_1.0")], recipe.holdout.share, recipe.seed)
    return {"nDCG": PlantPipeline.of(recipe, learn, arm.work).train_ranker(False)}


def _stages(arm: Arm) -> str:
    return f"stages={arm.folder / 'pretrained'}"


def leak(arm: Arm) -> dict:
    """PLANT whose first stages have seen the test notes, or not."""
    from nosology.reproduce.plant_runs import train_on_all_notes

    corpus = Corpus.open(arm.folder / "corpus_1.0")
    if arm.name == LEAK[0]:
        return both_rows(trained(arm, "plant", corpus), corpus, arm)
    return both_rows(train_on_all_notes(arm.recipe("plant"), corpus, arm.work / "run"), corpus, arm)


def trained(arm: Arm, coder: str, corpus: Corpus, changed: list[str] = []) -> Bundle:  # noqa: B006
    """A coder of the corpus."""
    return train(arm.recipe(coder, changed), [corpus], arm.work / "bundle")


STUDIES = {"few": few, "fractions": fractions, "ablations": ablations, "leak": leak, "stages": stages}


def run(arm: Arm) -> dict:
    """The result of an arm and the seconds it took; runs in a separate process."""
    started = time.monotonic()
    try:
        import torch
    except ImportError:  # the linear coder alone needs none
        pass
    else:
        torch.set_num_threads(arm.threads)
    arm.work.mkdir(parents=True, exist_ok=True)
    result = STUDIES[arm.study](arm)
    return result | {"seconds": round(time.monotonic() - started, 1)}


def in_parallel(arms: list[Arm], jobs: int):
    """Each arm with its result, as they end; a failure is printed, and the others continue."""
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


def is_current(coder: str, before: dict, conditions: dict) -> bool:
    """Whether earlier rows of a coder were measured under the same conditions."""

    def of_coder(conditions: dict) -> dict:
        extra = {"recipes": conditions.get("recipes", {}).get(coder)} | ({} if coder == "plant" else {"settings": None})
        return {name: conditions.get(name) for name in ("patients", "settings", "corpus", "paper", "package")} | extra

    return of_coder(before) == of_coder(conditions)


def measured_before(study: str, conditions: dict, results: dict, seeds: int) -> dict:
    """The rows of a study that need not be measured again, by arm and seed; some are shared with `few`."""
    rows: dict = {}
    seed_names = {str(seed) for seed in range(seeds)}
    few = results.get("few", {})
    for arm, coder in FEW_HAS.get(study, {}).items():
        for seed, result in few.get("by seed", {}).get(coder, {}).items() if is_current(coder, few, conditions) else ():
            more = {name: result[name] for name in ("train notes", "seconds")}
            if seed in seed_names:
                rows.setdefault(arm, {})[seed] = result["full"] | _of_few(result["few"]) | more
    before = results.get(study, {})
    for arm, result in before.get("by seed", {}).items():
        if is_current(arm.split()[-1] if study in ("few", "fractions") else "plant", before, conditions):
            rows[arm] = rows.get(arm, {}) | result
    return rows


def less_data(table: dict) -> dict[str, float | None]:
    """The number of train notes with which PLANT reaches the best score of LAAT, for P@5 and P@15; None: never."""
    result: dict[str, float | None] = {}
    for name in ("p@5", "p@15"):
        goal = table["1.0 laat"][name]
        points = sorted((part["train notes"], part[name]) for arm, part in table.items() if arm.endswith("plant"))
        result[name] = points[0][0] if points[0][1] >= goal else None
        for (n, low), (more, high) in pairwise(points):
            if result[name] is None and high >= goal:
                result[name] = n + (more - n) * (goal - low) / (high - low)
    return result


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


def write_table(study: str, conditions: dict, rows: dict, out: Path) -> dict:
    """Writes all rows with their means over the seeds so far, and returns them."""
    table = {arm: mean(list(rows[arm].values())) for arm in ARMS[study] if rows.get(arm)}
    result = conditions | {"mean": table, "by seed": rows}
    if study == "fractions" and len(table) == len(ARMS[study]):
        result["notes that PLANT needs for LAAT's best"] = less_data(table)
    results = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, results | {study: result})
    return result


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
    arguments = parser.parse_args()
    arms_to_run = arguments.arms or ARMS[arguments.study]
    if unknown := set(arms_to_run) - set(ARMS[arguments.study]):
        parser.error(f"--arms must be of {', '.join(ARMS[arguments.study])}; got {', '.join(sorted(unknown))}")
    if arguments.study == "ablations":
        arms_to_run = [
            arm
            for arm in arms_to_run
            if arm == "all of it" or changes(ABLATIONS[arm], arguments.settings, arguments.paper)
        ]
    corpus = Corpus.open(arguments.corpus) if arguments.corpus else None
    conditions = {"patients": None if corpus else arguments.patients, "settings": arguments.settings}
    conditions |= {"corpus": corpus.hash if corpus else None, "paper": arguments.paper or None, "package": __version__}
    conditions["recipes"] = {coder: recipe_hash(coder, arguments.paper) for coder in CODERS}
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    rows = measured_before(arguments.study, conditions, results, arguments.seeds)
    notes = list(corpus.notes()) if corpus else simulated(arguments.patients)
    conditions["notes"] = len(notes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(arguments.study, notes, arguments.seeds, folder)
        threads = max(1, cores() // arguments.jobs)
        missing = [
            (arm, seed) for arm in arms_to_run for seed in range(arguments.seeds) if str(seed) not in rows.get(arm, {})
        ]

        def arms(study: str, of: Iterable[tuple[str, int]]) -> list[Arm]:
            """The arms to be run, the longest first."""
            rest = (tuple(arguments.settings), threads, arguments.paper)
            return [Arm(study, arm, seed, folder / str(seed), *rest) for arm, seed in of]

        if arguments.study == "ablations":
            seeds = sorted({seed for _, seed in missing})
            for arm, result in in_parallel(arms("stages", [("stages", seed) for seed in seeds]), arguments.jobs):
                print(f"stages, seed {arm.seed}: {json.dumps(result)}", flush=True)
        for arm, result in in_parallel(arms(arguments.study, missing), arguments.jobs):
            rows.setdefault(arm.name, {})[str(arm.seed)] = result
            print(f"{arm.name}, seed {arm.seed}: {json.dumps(result)}", flush=True)
            write_table(arguments.study, conditions, rows, arguments.out)
    table = write_table(arguments.study, conditions, rows, arguments.out)["mean"]
    print(json.dumps(table, indent=2))
    if arguments.study == "fractions" and len(table) == len(ARMS["fractions"]):
        plot(table, arguments.out.with_suffix(".png"))
    if any(str(seed) not in rows.get(arm, {}) for arm in arms_to_run for seed in range(arguments.seeds)):
        sys.exit(1)


if __name__ == "__main__":
    main()
