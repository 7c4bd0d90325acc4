"""What planting gives: python benchmarks/quality/plant.py few|fractions|ablations|leak [--patients 3000] [--seeds 3]

A simulated hospital of 2016 to 2019 (ICD-10 diagnoses), divided by patient (70/10/20). All coders learn from the same
train notes, choose their settings on dev and are measured on test.

few        PLANT, LAAT and the linear coder on the codes with 1 to 5 train notes: macro F1 with its interval
fractions  P@5 and P@15 of the three with a tenth, a fifth, a half and all of the train notes (paper 003, figure 4), as
           a table and a plot, and the number of notes with which PLANT reaches what LAAT reaches with all
ablations  PLANT without inattention, static attention, planted attention, discriminative rates, gradual unfreezing
           (paper 003, table 8)
leak       PLANT as the authors' program has it, whose language model and mutual information see test notes too
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.models.bundle import Bundle
from nosology.models.measure import measure
from nosology.training.examples import Examples, train_and_dev
from nosology.training.plant import train_plant
from nosology.training.run import train

RESULT = Path(__file__).parents[1] / "results" / "quality_plant.json"
CODERS = ("plant", "laat", "linear")
FRACTIONS = (0.1, 0.2, 0.5, 1.0)
ABLATIONS = {
    "all of it": [],
    "no inattention": ["model.inattention=0"],
    "no static attention": ["model.static=false"],
    "no planted attention": ["model.planted=false"],
    "one rate for all": ["rates.ranker=1.0", "rates.encoder=1.0", "rates.fall=1.0"],
    "all parts at once": ["rates.gradual=false"],
}
SHOWN = ("micro_f1", "macro_f1", "map", "p@5", "p@15")


def divided(notes: list[Note], seed: int) -> list[Note]:
    """The notes with their splits: all of a patient's in one."""
    order = np.random.default_rng([seed, 5]).permutation(sorted({note.patient for note in notes})).tolist()
    rank = {patient: i / len(order) for i, patient in enumerate(order)}
    split = {p: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for p, r in rank.items()}
    return [replace(note, split=split[note.patient]) for note in notes]


def part_of(notes: list[Note], share: float, seed: int) -> list[Note]:
    """The notes with a share of the train notes; dev and test stay whole."""
    drawn = np.random.default_rng([seed, 6]).random(len(notes))
    return [note for note, chance in zip(notes, drawn) if note.split != "train" or chance < share]


def corpus_of(notes: list[Note], folder: Path) -> Corpus:
    """The notes as a corpus."""
    return write_corpus(notes, folder, source={"kind": "benchmark"}, filters=[], counts={})


def trained(coder: str, corpus: Corpus, folder: Path, seed: int, settings: list[str]) -> Bundle:
    """A coder of the corpus."""
    changed = [f"seed={seed}", *(settings if coder == "plant" else [])]
    return train(load_recipe(coder, changed), [corpus], folder)


def row(bundle: Bundle, corpus: Corpus, folder: Path, codes: set[Code] | None = None) -> dict[str, float]:
    """How a coder does on test, over all codes or some."""
    metrics = measure(bundle, corpus, "test", folder / "report", codes=codes, tune=codes is not None).evaluation.metrics
    names = [*SHOWN, "macro_f1_low", "macro_f1_high"]
    return {name: metrics[name] for name in names if metrics.get(name) is not None}


def few(notes: list[Note], seed: int, folder: Path, settings: list[str]) -> dict:
    """Codes with 1 to 5 train notes."""
    corpus = corpus_of(notes, folder / "c")
    counts: dict[Code, int] = {}
    for note in notes:
        for code in note.codes if note.split == "train" else ():
            counts[code] = counts.get(code, 0) + 1
    rare = {code for code, count in counts.items() if count <= 5}
    found = {}
    for coder in CODERS:
        started = time.monotonic()
        bundle = trained(coder, corpus, folder / coder, seed, settings)
        found[coder] = {"few": row(bundle, corpus, folder, rare), "full": row(bundle, corpus, folder)}
        found[coder]["seconds"] = time.monotonic() - started
        print(f"seed {seed} {coder}: {json.dumps(found[coder])}", flush=True)
    return found | {"codes": len(rare)}


def fractions(notes: list[Note], seed: int, folder: Path, settings: list[str]) -> dict:
    """Less and less train notes."""
    found: dict = {}
    for share in FRACTIONS:
        some = part_of(notes, share, seed)
        corpus = corpus_of(some, folder / f"c{share}")
        found[str(share)] = {"train notes": sum(note.split == "train" for note in some)}
        for coder in CODERS:
            bundle = trained(coder, corpus, folder / f"{coder}{share}", seed, settings)
            found[str(share)][coder] = row(bundle, corpus, folder)
            print(f"seed {seed} {share} {coder}: {json.dumps(found[str(share)][coder])}", flush=True)
    return found


def ablations(notes: list[Note], seed: int, folder: Path, settings: list[str]) -> dict:
    """PLANT without its parts."""
    corpus, found = corpus_of(notes, folder / "c"), {}
    for name, changed in ABLATIONS.items():
        found[name] = row(trained("plant", corpus, folder / name, seed, [*settings, *changed]), corpus, folder)
        print(f"seed {seed} {name}: {json.dumps(found[name])}", flush=True)
    return found


def leak(notes: list[Note], seed: int, folder: Path, settings: list[str]) -> dict:
    """PLANT that has seen the test notes, beside PLANT that has not."""
    corpus, found = corpus_of(notes, folder / "c"), {}
    recipe = load_recipe("plant", [f"seed={seed}", *settings])
    learn, dev, _ = train_and_dev([corpus], recipe.holdout.share, recipe.seed)
    for name, more in (
        ("train notes alone", None),
        ("all notes", Examples([corpus], lambda note: note.split != "train")),
    ):
        model, decision, made = train_plant(recipe, learn, dev, False, folder / name, more)
        bundle = Bundle(model, decision, recipe.model_dump(mode="json"), {"found": made})
        found[name] = row(bundle, corpus, folder)
        print(f"seed {seed} {name}: {json.dumps(found[name])}", flush=True)
    return found


STUDIES = {"few": few, "fractions": fractions, "ablations": ablations, "leak": leak}


def mean(values: list) -> dict | float:
    """The mean of numbers, or of each entry of dictionaries."""
    if isinstance(values[0], dict):
        return {key: mean([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


def less_data(table: dict) -> dict[str, float | None]:
    """The number of train notes with which PLANT reaches LAAT's best, for P@5 and P@15; None: not at all."""
    found: dict[str, float | None] = {}
    for name in ("p@5", "p@15"):
        wanted = table["1.0"]["laat"][name]
        points = sorted((part["train notes"], part["plant"][name]) for part in table.values())
        found[name] = None
        for (n, low), (more, high) in pairwise(points):
            if low >= wanted or high >= wanted:
                found[name] = n if low >= wanted else n + (more - n) * (wanted - low) / (high - low)
                break
    return found


def plot(table: dict, path: Path) -> None:
    """P@5 and P@15 against the number of train notes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, 2), ("p@5", "p@15")):
        for coder in CODERS:
            axes.plot(
                [p["train notes"] for p in table.values()], [p[coder][name] for p in table.values()], "o-", label=coder
            )
        axes.set(xlabel="train notes", ylabel=name.upper(), xscale="log")
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Prints the table of a study and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--patients", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of PLANT, as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    made = [note for note in simulate_notes(asked.patients, 3, years=(2016, 2019)) if note.codes]
    notes = [replace(n, codes=tuple(c for c in n.codes if c.system == "icd10cm"), evidence=()) for n in made]
    found = []
    with tempfile.TemporaryDirectory() as name:
        for seed in range(asked.seeds):
            folder = Path(name) / str(seed)
            folder.mkdir()
            found.append(STUDIES[asked.study](divided(notes, seed), seed, folder, asked.settings))
    table = mean(found)
    if asked.study == "fractions":
        plot(table, asked.out.with_suffix(".png"))
        table = table | {"notes that PLANT needs for LAAT's best": less_data(table)}
    print(json.dumps(table, indent=2))
    results = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    told = {"patients": asked.patients, "notes": len(notes), "seeds": asked.seeds, "settings": asked.settings}
    write_json(asked.out, results | {asked.study: told | {"mean": table, "by seed": found}})


if __name__ == "__main__":
    main()
