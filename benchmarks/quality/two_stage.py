"""What scoring only proposed codes costs a DualLAAT coder: python benchmarks/quality/two_stage.py [--patients 2000]

A small DualLAAT coder learns from a simulated hospital of 2016 to 2019 (ICD-10). Its test notes are then coded in full
and in two stages, with the same threshold: micro F1, MAP, the part of the true codes that was proposed (of all, and of
those that the coder finds when it scores every code), and seconds per note on the CPU. --bundle saves the coder in a
folder, or loads it from there if the folder exists.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nosology.config import load_recipe
from nosology.core import Note
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_two_stage.json"
CANDIDATES = (0, 300, 400, 500)  # 0: all codes
SMALL = (  # some minutes on two cores
    "two_stage.candidates=300",
    "model.width=64",
    "model.heads=2",
    "model.labels=384",
    "model.tie_initialization=true",
    "vectors.epochs=8",
    "vectors.max_words=1500",
    "training.epochs=5",
    "training.batch=16",
    "training.learning_rate=4e-3",
    "training.monitor='micro_f1'",
    "training.validation_notes=150",
)


def corpus_of(patients: int, folder: Path) -> Corpus:
    """The hospital's coded notes; of ten patients seven are train, one is dev and two are test."""
    notes = [note for note in simulate_notes(patients, 1, years=(2016, 2019)) if note.codes]
    order = np.random.default_rng(1).permutation(sorted({note.patient for note in notes}))
    rank = {patient: i / len(order) for i, patient in enumerate(order.tolist())}

    def split(note: Note) -> str:
        return "train" if rank[note.patient] < 0.7 else "dev" if rank[note.patient] < 0.8 else "test"

    divided = [replace(note, split=split(note)) for note in notes]
    return write_corpus(divided, folder, source={"kind": "simulated"}, filters=[], counts={})


def proposed(bundle: Bundle, notes: list[Note], k: int) -> dict[str, float]:
    """The part of the true codes that the retriever names: of all that the coder knows, and of those that it finds."""
    model = bundle.model
    gold = model.labels.encode([note.codes for note in notes]).astype(bool)
    accepted = model.two_stage(0).probabilities(list(notes)) >= bundle.decision.thresholds(model.labels)
    named = np.zeros(gold.shape, dtype=bool)
    for mine, note in zip(named, notes):
        mine[model.retriever.retrieve(model.tokenizer.tokenize(note.text).ids, k or gold.shape[1])] = True
    true = gold.toarray()
    return {"proposed": float(named[true].mean()), "found_and_proposed": float(named[true & accepted].mean())}


def row(bundle: Bundle, corpus: Corpus, k: int, folder: Path) -> dict[str, float]:
    """One row of the table: k candidates per note."""
    notes = list(corpus.notes("test"))
    timed = [note.text for note in notes[:50]]
    model = bundle.model.to("cpu").two_stage(k)
    model.probabilities([Note("", timed[0])])
    started = time.perf_counter(), time.process_time()
    for text in timed:
        model.probabilities([Note("", text)])
    seconds, work = time.perf_counter() - started[0], time.process_time() - started[1]
    if torch.cuda.is_available():
        model = bundle.model.to("cuda").two_stage(k)
    measure(replace(bundle, model=model), corpus, "test", folder)
    metrics = json.loads((folder / "metrics.json").read_text())
    return {
        "micro_f1": metrics["micro_f1"],
        "map": metrics["map"],
        **proposed(bundle, notes, k),
        "seconds_per_note": seconds / len(timed),
        "cpu_seconds_per_note": work / len(timed),
    }


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], fromfile_prefix_chars="@")
    parser.add_argument("--patients", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = corpus_of(arguments.patients, folder / "corpus")
        bundle_folder = arguments.bundle or folder / "bundle"
        if bundle_folder.exists():
            bundle = Bundle.load(bundle_folder)
        else:
            bundle = train(load_recipe("dual_laat", [*SMALL, *arguments.settings]), [corpus], bundle_folder)
        rows = {}
        for k in CANDIDATES:
            metrics = rows[str(k) if k else "all"] = row(bundle, corpus, k, folder / f"report{k}")
            print(f"{k or 'all':>5}" + "".join(f"  {key} {value:.4f}" for key, value in metrics.items()), flush=True)
    expected = {"notes": len(corpus), "codes": len(bundle.model.labels), "train": bundle.provenance["n_train"]}
    write_json(
        arguments.out,
        {**expected, "settings": [*SMALL, *arguments.settings], "threads": arguments.threads, "rows": rows},
    )


if __name__ == "__main__":
    main()
