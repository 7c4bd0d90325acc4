"""Notes saved by active learning: python benchmarks/quality/active_learning.py [--codiesp FOLDER] [--seeds 3]

A coder starts from a random eighth of the train notes. In rounds, notes are added up to 1/4, 3/8, 1/2 and 3/4 of them:
at random, the longest ones, or those that `nosology corpus select` chooses with the coder of the round before ("by
words": with `--cost words`). After each round a coder is trained from scratch and measured on held-out notes: micro F1.
Threshold and calibration come from a part of the notes it was trained on. `words` and `codes` are the shares of all
words and codes of the train notes that were reviewed: long notes cost more. Each seed has its own start, which all
strategies share. A run adds the strategies and seeds that the result file lacks.

The simulated hospital: notes of one site and its 50 most frequent codes, held-out patients. CodiEsp
(FOLDER/codiesp_en_train.jsonl and codiesp_en_dev.jsonl): all diagnoses, measured on dev; with --inner on 150 of the
train cases, to choose a strategy without dev.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nosology.config import load_recipe
from nosology.core import Note
from nosology.core.files import read_json, write_json
from nosology.corpora.corpus import write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.corpora.simulate import simulate_notes
from nosology.models.bundle import Bundle
from nosology.models.note_selection import SelectionWeights, select_notes
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_active_learning.json"
SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
# One setting, and codes of two notes or more: comparing settings and fitting codes of one note takes most of the time.
LINEAR = ["fit.c=[1.0]", "fit.max_features=[1000]", "labels.min_notes=2"]
SITE, FREQUENT, POOL, HELD = "harbor", 50, 480, 400
INNER = 350  # train cases of CodiEsp to select from with --inner; the others are held out
WEIGHTS = {
    "selected": SelectionWeights(),
    "by words": SelectionWeights(words=0.5),
    "uncertainty": SelectionWeights(uncertainty=1, rare_codes=0, diversity=0),
    "rare codes": SelectionWeights(uncertainty=0, rare_codes=1, diversity=0),
    "diversity": SelectionWeights(uncertainty=0, rare_codes=0, diversity=1),
}
STRATEGIES = ("random", "longest", *WEIGHTS)


def fit(notes: Sequence[Note], recipe: str) -> Bundle:
    """A coder of these notes."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(
            (replace(note, split="train") for note in notes), Path(folder) / "c", source={}, filters=[], counts={}
        )
        return train(load_recipe(recipe, LINEAR if recipe == "linear" else []), [corpus], Path(folder) / "bundle")


def micro_f1(bundle: Bundle, held: Sequence[Note]) -> float:
    """The score of a coder on held-out notes; codes that it does not know are missed."""
    labels, probabilities = bundle.model.labels, bundle.model.probabilities(held)
    true_positive = predicted = 0
    for note, row in zip(held, probabilities):
        accepted = {labels.codes[j] for j in np.flatnonzero(bundle.decision.accepted(labels, row))}
        true_positive += len(accepted & set(note.codes))
        predicted += len(accepted)
    return 2 * true_positive / (predicted + sum(len(set(note.codes)) for note in held))


def add_notes(strategy: str, bundle: Bundle, pool: Sequence[Note], done: list[int], count: int, seed: int) -> list[int]:
    """The places of the notes to review next."""
    rest = sorted(set(range(len(pool))) - set(done))
    if strategy == "random":
        return np.random.default_rng([seed, len(done)]).permutation(rest)[:count].tolist()
    if strategy == "longest":
        return sorted(rest, key=lambda place: -len(pool[place].text))[:count]
    place = {pool[i].id: i for i in rest}
    reviewed = [pool[i] for i in done]
    chosen = select_notes(bundle.model, [pool[i] for i in rest], count, reviewed=reviewed, weights=WEIGHTS[strategy])
    return [place[item.id] for item in chosen]


def grow(
    strategy: str,
    pool: Sequence[Note],
    held: Sequence[Note],
    sizes: Sequence[int],
    seed: int,
    recipe: str,
    first: Bundle,
) -> dict[str, list[float]]:
    """The scores after each round, and the shares of words and codes that were reviewed. first: of the start."""
    words = np.array([len(note.text.split()) for note in pool])
    codes = np.array([len(note.codes) for note in pool])
    done, bundle = start_places(pool, sizes, seed), first
    row: dict[str, list[float]] = {"micro_f1": [], "words": [], "codes": []}
    for size in sizes:
        if size > len(done):
            done = done + add_notes(strategy, bundle, pool, done, size - len(done), seed)
            bundle = fit([pool[i] for i in done], recipe)
        row["micro_f1"].append(micro_f1(bundle, held))
        row["words"].append(float(words[done].sum() / words.sum()))
        row["codes"].append(float(codes[done].sum() / codes.sum()))
    return row


def start_places(pool: Sequence[Note], sizes: Sequence[int], seed: int) -> list[int]:
    """The places of the notes of the first round."""
    return np.random.default_rng([seed, 5]).permutation(len(pool))[: sizes[0]].tolist()


def curves(
    pool: Sequence[Note], held: Sequence[Note], result: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The result after each strategy and seed that it lacked."""
    head = {"train_notes": len(pool), "held_out": len(held), "shares": arguments.shares}
    if any(result.get(name, value) != value for name, value in head.items()):
        raise SystemExit("the stored results are of other notes or shares; give another --out")
    result = {"strategies": {}} | result | head
    result["all"] = result.get("all") or micro_f1(fit(pool, arguments.recipe), held)
    print(f"{len(pool)} train notes, {len(held)} held out; all notes: {result['all']:.4f}", flush=True)
    sizes = [round(share * len(pool)) for share in arguments.shares]
    for seed in range(arguments.seeds):
        first = None
        for name in arguments.strategies:
            rows = result["strategies"].setdefault(name, {"micro_f1": [], "words": [], "codes": []})
            if len(rows["micro_f1"]) > seed:
                continue
            first = first or fit([pool[i] for i in start_places(pool, sizes, seed)], arguments.recipe)
            for what, values in grow(name, pool, held, sizes, seed, arguments.recipe, first).items():
                rows[what].append(values)
            print(f"  seed {seed} {name:12}", " ".join(f"{score:.4f}" for score in rows["micro_f1"][-1]), flush=True)
            yield result


def show(title: str, result: dict[str, Any]) -> None:
    """Prints the means over seeds."""
    print(f"{title}: all {result['train_notes']} notes {result['all']:.3f}")
    for name, row in result["strategies"].items():
        for what, values in row.items():
            means, sd = np.mean(values, axis=0), np.std(values, axis=0)
            print(f"  {name:12} {what:9}", "  ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(means, sd)))


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws the means over seeds against the shares of notes (left) and of words (right), one row per corpus."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(results), 2, figsize=(9, 3.4 * len(results)), squeeze=False, sharey="row")
    for (title, result), (left, right) in zip(results.items(), axes):
        for name, row in result["strategies"].items():
            scores = np.mean(row["micro_f1"], axis=0)
            style = {"marker": "o", "label": name, "color": f"C{STRATEGIES.index(name)}"}
            left.plot(result["shares"], scores, **style)
            right.plot(np.mean(row["words"], axis=0), scores, **style)
        for axis, what in ((left, "notes"), (right, "words")):
            axis.axhline(result["all"], color="grey", linestyle="--", linewidth=1, label="all notes")
            axis.set(xlabel=f"share of {what} reviewed", title=title)
        left.set_ylabel("micro F1")
        left.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def hospital() -> tuple[list[Note], list[Note]]:
    """Train notes and held-out notes of one site of the simulated hospital, with its frequent codes."""
    notes = [note for note in simulate_notes(2_500, 0, years=(2016, 2019)) if note.site == SITE and note.codes]
    pool, patients = notes[:POOL], {note.patient for note in notes[:POOL]}
    counts = Counter(code for note in pool for code in note.codes)
    wanted = {code for code, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FREQUENT]}
    held = [note for note in notes[POOL:] if note.patient not in patients][:HELD]
    return [_only(note, wanted) for note in pool], [_only(note, wanted) for note in held]


def codiesp(folder: Path, inner: bool = False) -> tuple[list[Note], list[Note]]:
    """Train and dev notes of CodiEsp English with their diagnoses; inner: two parts of the train notes."""
    train_notes, dev = (list(read_notes(folder / f"codiesp_en_{split}.jsonl")) for split in ("train", "dev"))
    if inner:
        places = np.random.default_rng(INNER).permutation(len(train_notes))
        train_notes, dev = ([train_notes[i] for i in sorted(part)] for part in (places[:INNER], places[INNER:]))
    wanted = {code for note in (*train_notes, *dev) for code in note.codes if code.system == "icd10cm"}
    return [_only(note, wanted) for note in train_notes], [_only(note, wanted) for note in dev]


def _only(note: Note, codes: set) -> Note:
    return replace(note, codes=tuple(code for code in note.codes if code in codes), evidence=())


def main() -> None:
    """Prints the curves and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codiesp", type=Path, help="a folder with CodiEsp; without it the simulated hospital")
    parser.add_argument("--recipe", choices=["linear", "lexicon"], default="linear")
    parser.add_argument("--inner", action="store_true", help="CodiEsp: measure on a part of the train cases")
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES), help="of the notes, the start first")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["random", "selected", "longest"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    pool, held = codiesp(arguments.codiesp, arguments.inner) if arguments.codiesp else hospital()
    corpus = f"CodiEsp English{' train' if arguments.inner else ''}" if arguments.codiesp else "simulated hospital"
    title = f"{corpus}, {arguments.recipe}"
    known = read_json(arguments.out) if arguments.out.exists() else {}
    for result in curves(pool, held, known.get(title, {}), arguments):
        write_json(arguments.out, known := known | {title: result})
    show(title, known[title])
    plot(known, arguments.out.with_suffix(".png"))
    print(f"CPU seconds {time.process_time():.0f}")


if __name__ == "__main__":
    main()
