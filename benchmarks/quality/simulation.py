"""How hard the simulated hospital is, and how like MIMIC-IV: the linear coder and look-up of descriptions on it.

    python benchmarks/quality/simulation.py --notes 20000 [--folder DIR] [--set labels.min_notes=5]

Simulates ICD-10 admissions, splits them by patient (70/15/15), trains the linear recipe and measures on test; a true
code outside the label space counts as a miss.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nosology.codes import describe
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import write_json
from nosology.corpora.prepare import prepare
from nosology.corpora.simulate import simulate
from nosology.corpora.splits import split_corpus
from nosology.evaluation.measure import measure
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_simulation.json"
YEARS = (2016, 2019)
NOTES_A_PATIENT = 1.585
VAGUE = re.compile(r", (initial|subsequent) encounter.*|, sequela|,? ?\bunspecified\b|\bother specified\b|\bother\b")


def shape(notes: Iterable[Note]) -> dict[str, float]:
    """Lengths, codes per note and the tail of a corpus."""
    words, codes, counts = [], [], Counter[Code]()
    for note in notes:
        words.append(len(note.text.split()))
        codes.append(len(note.codes))
        counts.update(note.codes)
    quartiles = np.percentile(words, [25, 50, 75])
    return {
        "notes": len(words),
        "words_quartile_1": quartiles[0],
        "words_median": quartiles[1],
        "words_quartile_3": quartiles[2],
        "codes_per_note": float(np.mean(codes)),
        "codes_per_note_std": float(np.std(codes)),
        "distinct_codes": len(counts),
        "share_of_codes_seen_fewer_than_10_times": sum(n < 10 for n in counts.values()) / len(counts),
    }


def look_up(notes: Iterable[Note], codes: Iterable[Code], *, trimmed: bool) -> float:
    """Micro F1 of giving a note every code whose description stands in it word for word.

    trimmed: "unspecified", "other" and the encounter are left out of the description first.
    """
    wanted: dict[tuple[str, ...], list[Code]] = defaultdict(list)
    for code in codes:
        text = describe(code).lower()
        wanted[_words(VAGUE.sub("", text) if trimmed else text)].append(code)
    wanted.pop((), None)
    by_first: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for words in wanted:
        by_first[words[0]].append(words)
    right = predicted = true = 0
    for note in notes:
        words = _words(note.text.lower())
        matches = {
            code
            for place, word in enumerate(words)
            for candidate in by_first.get(word, ())
            if words[place : place + len(candidate)] == candidate
            for code in wanted[candidate]
        }
        right += len(matches.intersection(note.codes))
        predicted += len(matches)
        true += len(note.codes)
    return 2 * right / (predicted + true)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text))


def run(notes: int, seed: int, folder: Path, settings: list[str]) -> dict[str, float]:
    """Everything in one table; the folder keeps the simulation, the corpus, the bundle and the report."""
    simulate(round(notes / NOTES_A_PATIENT), seed, folder / "hospital", years=YEARS)
    prepared = prepare("mimic4", [folder / "hospital"], folder / "whole")
    corpus = split_corpus(prepared.folder, folder / "corpus", seed=seed)[0]
    table = shape(corpus.notes())
    started = time.monotonic()
    bundle = train(load_recipe("linear", settings), [corpus], folder / "bundle")
    table["linear_training_seconds"] = time.monotonic() - started
    metrics = measure(bundle, corpus, "test", folder / "report").evaluation.metrics
    wanted = ("micro_f1", "macro_f1", "macro_f1_all", "micro_precision", "micro_recall", "map", "p@8")
    table |= {f"linear_{name}": metrics[name] for name in wanted if name in metrics}
    codes = {code for note in corpus.notes(text=False) for code in note.codes}
    for trimmed in (False, True):
        table[f"look_up{'_trimmed' * trimmed}_micro_f1"] = look_up(corpus.notes("test"), codes, trimmed=trimmed)
    return table


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="save the hospital and the corpora here (default: a temporary folder)"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], help="a setting of the linear recipe")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        table = run(arguments.notes, arguments.seed, arguments.folder or Path(temporary), arguments.settings)
    for name, value in table.items():
        print(f"{name:42} {value:12,.3f}")
    numbers = {name: round(float(value), 4) for name, value in table.items()}
    write_json(arguments.out, {"seed": arguments.seed, "settings": arguments.settings, **numbers})


if __name__ == "__main__":
    main()
