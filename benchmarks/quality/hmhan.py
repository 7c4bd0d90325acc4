"""HMHAN on simulated radiology: python benchmarks/quality/hmhan.py [--patients 500] [--seeds 5] [--part table|leakage]

A simulated hospital of 2016 to 2019, its radiology reports with the ICD-10 diagnoses of their admissions, the ten most
frequent codes, split by patient (70/15/15). All neural models have the same frozen encoder (the built-in MiniLM,
with cached states), head, loss and data; they differ only in what their names say. Settings are those of hmhan-paper
with a higher learning rate for few reports. They are compared over seeds: paired t-tests, bootstrap over patients.

table     HMHAN, single attention, no attention (Sasikala et al. 2025, Table 4), HMHAN without SMOTE, without focal
          loss, with plain cross entropy, without the correction of logits, with one calibration for all codes in place
          of one per code where that is better; the recipes reports and linear. --rows: only some of them, and HMHAN
leakage   the protocols of `nosology reproduce hmhan leakage`, with 95% intervals of their differences over seeds
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import torch

from nosology.config import load_recipe
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus
from nosology.corpora.prepare import CorpusRecipe, prepare
from nosology.corpora.simulate import simulate
from nosology.corpora.splits import split_corpus
from nosology.evaluation import paired_t_test
from nosology.models.compare import METRICS, Variant, compare
from nosology.models.train import train
from nosology.reproduce.hmhan_leakage import PROTOCOLS, protocol_metrics

RESULT = Path(__file__).parents[1] / "results" / "quality_hmhan.json"
SMALL = ["training.learning_rate=5e-4", "training.epochs=30", "labels.top_k=10"]
VARIANTS: dict[str, list[str]] = {
    "HMHAN": [],
    "single attention": ["model.attention=single"],
    "no attention": ["model.attention=none"],
    "HMHAN without SMOTE": ["smote.ratio=0.0"],
    "HMHAN without focal loss": ["loss.focal=0.0"],
    "HMHAN, plain cross entropy": ["smote.ratio=0.0", "loss.focal=0.0", "loss.weighted=false"],
    "HMHAN, logits not corrected": ["loss.corrected=false"],
    "HMHAN, one calibration": ["calibration=global"],
}


def reports(patients: int, folder: Path) -> Corpus:
    """The radiology reports of a simulated hospital, without splits."""
    simulate(patients, 11, folder / "hospital", years=(2016, 2019))
    rules = CorpusRecipe(kind="mimic4-radiology", systems=["icd10cm"], drop_uncoded=True)
    return prepare("mimic4-radiology", [folder / "hospital"], folder / "notes", recipe=rules)


def train_in_parallel(variants: list[Variant], corpus: Corpus, out: Path, seeds: int, jobs: int) -> None:
    """Trains the bundles that `compare` then reads; the first run is alone, because it fills the cache of states."""
    every = [(v.seeded(number), out / f"{v.name}-{number}") for v in variants for number in range(seeds)]
    runs = [(recipe, folder) for recipe, folder in every if not folder.exists()]
    if not runs:
        return
    train(runs[0][0], [corpus], runs[0][1])
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(train, recipe, [corpus], folder) for recipe, folder in runs[1:]]:
            future.result()


def table(corpus: Corpus, folder: Path, seeds: int, encoder: str, jobs: int, rows: list[str]) -> dict:
    """The variants of `rows` over seeds, on the corpus split by patient; HMHAN is always one."""
    [split] = split_corpus(corpus.folder, folder / "corpus")
    shared = [*SMALL, f"model.encoder='{encoder}'", f"states.cache='{folder / 'states'}'"]
    variants = [Variant(n, load_recipe("hmhan-paper", [*shared, *settings])) for n, settings in VARIANTS.items()]
    reports_settings = [setting for setting in shared if not setting.startswith("training.")]
    variants.append(Variant("reports", load_recipe("reports", reports_settings)))
    variants.append(Variant("linear", load_recipe("linear", ["labels.top_k=10"])))
    variants = variants[:1] + [variant for variant in variants[1:] if variant.name in rows]
    if jobs > 1:
        train_in_parallel(variants, split, folder / "compared", seeds, jobs)
    comparison = compare(variants, split, folder / "compared", seeds=seeds, report=lambda line: print(line, flush=True))
    print(f"\n{'':<28}" + "".join(f"{name:>18}" for name in METRICS))
    for name, row in comparison.rows.items():
        cells = [f"{row[m]['mean']:.3f} ({row[m]['std'] or 0:.3f})" for m in METRICS]
        print(f"{name:<28}" + "".join(f"{cell:>18}" for cell in cells))
        row["best_epochs"] = best_epochs([folder / "compared" / f"{name}-{number}" for number in range(seeds)])
        print(f"{'':<28}best epochs {row['best_epochs']}")
    for name, tests in comparison.tests.items():
        line = f"HMHAN - {name}: first seeds {tests['bootstrap']['value']:+.4f}, p {tests['bootstrap']['p']:.3f}"
        if tests["t_test"]:
            line += f"; over seeds {tests['t_test']['value']:+.4f}, p {tests['t_test']['p']}"
        print(line)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return asdict(comparison) | {"notes": split.manifest["counts"]["splits"], "device": machine}


def best_epochs(bundles: list[Path]) -> list[int]:
    """The epoch that was chosen on dev for each net of the bundles; none for coders without epochs."""
    found = [json.loads((bundle / "bundle.json").read_text())["provenance"]["found"] for bundle in bundles]
    return [net["best_epoch"] for report in found for net in report.get("members", [])]


def leaks(corpus: Corpus, folder: Path, seeds: int, encoder: str, jobs: int) -> dict:
    """The metrics of each protocol over seeds, and their means."""
    shared = [*SMALL, f"model.encoder='{encoder}'", f"states.cache='{folder / 'states'}'"]
    recipes = [load_recipe("hmhan-paper", [*shared, "smote.ratio=3.0", f"seed={seed}"]) for seed in range(seeds)]
    every = [
        (recipe, corpus, protocol, folder / "leaks" / f"{protocol}-{recipe.seed}")
        for protocol in PROTOCOLS
        for recipe in recipes
    ]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        first = pool.submit(protocol_metrics, *every[0]).result()  # alone, because it fills the cache of states
        results = [first, *pool.map(protocol_metrics, *zip(*every[1:]))]
    rows: dict[str, dict] = {}
    for number, protocol in enumerate(PROTOCOLS):
        runs = results[number * seeds : (number + 1) * seeds]
        rows[protocol] = {
            name: {"mean": fmean(run[name] for run in runs), "values": [r[name] for r in runs]} for name in runs[0]
        }
        for name in ("micro_f1", "density", "shared_patients", "real.micro_f1"):
            print(f"{protocol:<36} {name} {rows[protocol][name]['mean']:.3f}", flush=True)
        for name in ("micro_f1", "real.micro_f1") if seeds > 1 and protocol != PROTOCOLS[0] else ():
            test = paired_t_test(rows[protocol][name]["values"], rows[PROTOCOLS[0]]["micro_f1"]["values"])
            rows[protocol][name]["minus_by_patient"] = asdict(test)
            print(f"{protocol:<36} {name} minus by patient {test.value:+.3f} ({test.low:+.3f} to {test.high:+.3f})")
    return rows


def main() -> None:
    """Measures, prints and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="number of models to train in parallel")
    parser.add_argument("--part", choices=("table", "leakage", "both"), default="both")
    names = [*VARIANTS, "reports", "linear"]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW", help="rows of the table")
    parser.add_argument("--encoder", default="minilm", help="a folder or a Hugging Face name in its place")
    parser.add_argument("--folder", type=Path, help="keep corpora, states and bundles here, and resume from them")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        corpus = reports(arguments.patients, folder)
        shared = (corpus, folder, arguments.seeds, arguments.encoder)
        if arguments.part != "leakage":
            results["table"] = table(*shared, arguments.jobs, arguments.rows) | {"patients": arguments.patients}
            write_json(arguments.out, results)
        if arguments.part != "table":
            results["leakage"] = leaks(*shared, arguments.jobs) | {"patients": arguments.patients}
            write_json(arguments.out, results)


if __name__ == "__main__":
    main()
