"""Time and memory of the selection of notes: python benchmarks/speed/note_selection.py [--notes 10000] [--select 1000]

Notes of the simulated hospital; the linear coder learns from the first 300 of them. CPU seconds of scoring and choosing
the notes, without reading them, and the peak memory that this adds.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from nosology.config import load_recipe
from nosology.core.files import write_json
from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.models.note_selection import select_notes
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "speed_note_selection.json"
TRAIN = 300
SETTINGS = ["labels.min_notes=2", "fit.c=[1.0]", "fit.max_features=[1000]"]


def peak_mb() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Prints the times and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=10_000)
    parser.add_argument("--select", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        notes = simulate_notes(arguments.notes, 0, years=(2016, 2019))  # at least one note per patient
        corpus = write_corpus(islice(notes, arguments.notes), folder / "c", source={}, filters=[], counts={})
        learned = (replace(note, split="train", evidence=()) for note in islice(corpus.notes(), TRAIN))
        coded = write_corpus(learned, folder / "t", source={}, filters=[], counts={})
        model = train(load_recipe("linear", SETTINGS), [coded], folder / "b").model
        words = sum(len(note.text.split()) for note in islice(corpus.notes(), TRAIN)) / TRAIN
        before, start = peak_mb(), time.process_time()
        for _ in corpus.notes():  # reading alone
            pass
        reading, start = time.process_time() - start, time.process_time()
        chosen = select_notes(model, corpus.notes(), arguments.select)
        result = {
            "notes": len(corpus),
            "words_per_note": round(words),
            "codes": len(model.labels),
            "selected": len(chosen),
            "cpu_seconds": round(time.process_time() - start - reading, 1),
            "added_memory_mb": round(peak_mb() - before),
        }
    print(result)
    write_json(RESULT, result)


if __name__ == "__main__":
    main()
