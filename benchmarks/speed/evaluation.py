"""Cost of evaluating and of coding notes with a neural coder, stage by stage, on a GPU or a CPU.

python benchmarks/speed/evaluation.py --notes 2400 --codes 14000 --recipe dual_laat-paper

The coder has the sizes of the recipe and random weights: speed does not depend on what was learned. Notes are as long
as those of MIMIC-IV (median 1,492 words). `old` is the way of version 0.2: float32, batches of at most 131,072 tokens
among 256 notes (64 for coding), reading and scoring in turn, a second pass of the net for the evidence of each note. It
is timed on fewer notes in the same run. Scores of the stream are compared with those of single notes: more than 1e-3
apart, or another decision that is no tie, is an error. The result file has an entry for each recipe with its settings,
notes, codes, candidates and device; other entries stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from nosology.attention import dual_attention
from nosology.codes import table
from nosology.codes.lookup import label_description
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import read_json, write_json
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.evaluation import examine
from nosology.evaluation.decision import Decision
from nosology.evaluation.measure import measure, probability_blocks
from nosology.evaluation.report import write_report
from nosology.models.bundle import Bundle
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_model import DualLaat, DualLaatNet
from nosology.models.laat.laat_model import Caml, Laat, WordEncoderNet
from nosology.models.neural import NeuralModel
from nosology.serving.coder import Coder
from nosology.text.tokens import words_of
from nosology.training.data_loader import Batch, pad_notes
from nosology.training.inference import by_length, default_device

RESULT = Path(__file__).parents[1] / "results" / "speed_evaluation.json"
RECIPES = ("dual_laat", "dual_laat-paper", "dual_laat-paper-cnn", "laat", "laat-paper", "caml", "caml-paper")
WORDS, MEDIAN, SPREAD, LONGEST = 120_000, 1492, 0.386, 4000
CODES_PER_NOTE = 15.7
MANY = 100_000  # train notes, for the sizes that depend on them
OLD_TOKENS = {"cpu": 16_384, "cuda": 131_072}
TOLERANCE = 1e-3

T = TypeVar("T")


def vocabulary(rng: np.random.Generator, descriptions: Sequence[str]) -> list[str]:
    """Words of the descriptions and random words of 3 to 10 letters."""
    words = dict.fromkeys(word for text in descriptions for word in words_of(text))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    while len(words) < WORDS:
        words["".join(rng.choice(letters, rng.integers(3, 11)))] = None
    return list(words)


def make_notes(n: int, words: Sequence[str], codes: Sequence[Code], rng: np.random.Generator) -> Iterator[Note]:
    """Notes of words by Zipf's law in lines of twelve, with codes of a long tail."""
    rate = 1 / np.arange(1, len(codes) + 1)
    rate = np.minimum(rate * CODES_PER_NOTE / rate.sum(), 0.5)
    for number in range(n):
        length = int(np.clip(np.exp(rng.normal(np.log(MEDIAN), SPREAD)), 50, LONGEST))
        drawn = [words[i] for i in (np.exp(rng.random(length) * np.log(len(words))) - 1).astype(int)]
        lines = (" ".join(drawn[start : start + 12]) for start in range(0, length, 12))
        true = np.flatnonzero(rng.random(len(codes)) < rate)
        gold = tuple(codes[j] for j in true) or (codes[0],)
        yield Note(f"n{number}", ".\n".join(lines), split="test", codes=gold)


def with_candidates(model: NeuralModel, notes: Sequence[Note], candidates: int) -> NeuralModel:
    """The coder in two stages, with a retriever that is fitted on the notes."""
    if not isinstance(model, DualLaat):
        raise SystemExit(f"--candidates must be 0 for a coder of kind {model.kind}")
    ids = [model.tokenize(note).ids for note in notes]
    gold = model.labels.encode([note.codes for note in notes])
    model.retriever = CandidateRetriever.fit(ids, gold, model.description_ids(model.descriptions).numpy())
    return model.two_stage(candidates)


def make_model(recipe: Any, labels: LabelSpace, words: Sequence[str]) -> NeuralModel:
    """A coder of the recipe's sizes with random weights."""
    torch.manual_seed(0)
    settings, vectors = recipe.model.resolved(MANY), recipe.vectors
    tokenizer = WordTokenizer(Vocabulary(words), vectors.max_words, benchmark=vectors.cleaning == "benchmark")
    size, counts = len(tokenizer.vocabulary), np.ones(len(labels), np.int64)
    if recipe.kind == "dual_laat":
        descriptions = [label_description(code) for code in labels.codes]
        net = DualLaatNet(settings, size, vectors.size).eval()
        return DualLaat(labels, counts, tokenizer, net, settings, descriptions=descriptions)
    net = WordEncoderNet(settings, size, vectors.size, len(labels)).eval()
    return (Caml if recipe.kind == "caml" else Laat)(labels, counts, tokenizer, net, settings)


@contextmanager
def old_chunks() -> Iterator[None]:
    """A context with the sizes of chunks of version 0.2."""
    now = dual_attention._MAX_CELLS, dual_attention._GPU_LABELS
    dual_attention._MAX_CELLS, dual_attention._GPU_LABELS = 1 << 25, 512
    try:
        yield
    finally:
        dual_attention._MAX_CELLS, dual_attention._GPU_LABELS = now


def old_probabilities(model: NeuralModel, notes: Sequence[Note]) -> np.ndarray:
    """The probabilities (B, L) of notes in float32, batch by batch, as version 0.2 computed them."""
    encodings = [model.tokenize(note) for note in notes]
    logits = np.empty((len(encodings), len(model.labels)), np.float32)
    with model.inference(), old_chunks():
        for rows in by_length(np.array([len(encoding) for encoding in encodings]), OLD_TOKENS[model.device.type], 256):
            batch = Batch(*pad_notes([encodings[row].ids for row in rows])).to(model.device)
            logits[rows] = model.batch_logits(batch).float().cpu().numpy()
    return model.to_probabilities(logits)


def old_coding(coder: Coder, model: NeuralModel, notes: Sequence[Note]) -> None:
    """Suggestions as in version 0.2: the evidence of each note by a pass of its own."""
    for start in range(0, len(notes), 64):
        block = notes[start : start + 64]
        for note, row in zip(block, old_probabilities(model, block)):
            ranked, columns = coder._choose(row, None)
            coder._suggest(ranked, model.evidence(note, columns))


def compare(model: NeuralModel, notes: Sequence[Note], stream: np.ndarray, threshold: float) -> dict[str, float]:
    """Distances of the scores of a stream from those of single notes, and from float32."""
    alone = np.concatenate([model.probabilities([note]) for note in notes])
    distance = np.abs(stream - alone)
    changed = (stream >= threshold) != (alone >= threshold)
    if distance.max() > TOLERANCE or (np.abs(alone[changed] - threshold) > TOLERANCE).any():
        raise SystemExit(f"the scores of a stream are not those of single notes: {distance.max():.2g} apart")
    single = replace(model, precision="fp32")
    single.weights_changed()
    exact = single.probabilities(list(notes))
    return {
        "to_single_notes": float(distance.max()),
        "decisions_other_than_single_notes": float(changed.mean()),
        "to_float32": float(np.abs(stream - exact).max()),
        "decisions_other_than_float32": float(((stream >= threshold) != (exact >= threshold)).mean()),
        "accepted": float((exact >= threshold).mean()),
    }


class Stages:
    """The wall-clock and CPU seconds of each stage."""

    def __init__(self, device: torch.device):
        self.rows: dict[str, dict[str, float]] = {}
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def run(self, name: str, notes: int, call: Callable[[], T]) -> T:
        """What the call returns; its time is printed."""
        self._wait()
        start, busy = time.perf_counter(), time.process_time()
        result = call()
        self._wait()
        wall, cpu = time.perf_counter() - start, time.process_time() - busy
        self.rows[name] = {"seconds": wall, "cpu_seconds": cpu, "notes": notes, "notes_per_second": notes / wall}
        rate = f"{notes / wall:10.1f} notes/s" if notes else ""
        print(f"{name:<44}{wall:9.2f} s{cpu:9.2f} s of CPU{rate}", flush=True)
        return result


def run_stages(bundle: Bundle, model: NeuralModel, corpus: Corpus, old: int, folder: Path) -> dict[str, Any]:
    """Times of all stages, ratios to the old way, and distances of scores."""
    notes = list(corpus.notes())
    n, few, stages = len(notes), notes[:old], Stages(model.device)
    if isinstance(model, DualLaat) and not model.candidates:
        stages.run("encoding the descriptions, once", 0, lambda: model.queries)
    stages.run("first note", 1, lambda: model.probabilities(notes[:1]))
    model.probabilities(notes[:64])  # warm-up
    stages.run("tokenizing with offsets", n, lambda: [model.tokenize(note) for note in notes])
    encodings = stages.run("tokenizing", n, lambda: model.token_ids(notes))
    stages.run("forward pass of tokenized notes", n, lambda: model.logits_of(encodings))
    probabilities = stages.run(
        "reading and forward pass", n, lambda: np.concatenate(list(probability_blocks(model, corpus.notes())))
    )
    threshold = float(np.quantile(probabilities[:200], 1 - CODES_PER_NOTE / probabilities.shape[1]))
    bundle = replace(bundle, decision=Decision(threshold))
    gold = [note.codes for note in notes]
    evaluation = stages.run("metrics with intervals", n, lambda: examine(model.labels, gold, probabilities, threshold))
    stages.run("report", n, lambda: write_report(folder / "parts", evaluation, train_counts={}))
    stages.run("nosology evaluate, all of it", n, lambda: measure(bundle, corpus, "all", folder / "report"))
    coder = Coder(bundle)
    stages.run("nosology code --json", n, lambda: coded_as_json(coder, corpus.notes()))
    singles = notes[: min(n, 9)]
    stages.run("nosology code, note by note", len(singles), lambda: [coder.code(note.text) for note in singles])
    distances = compare(model, notes[:32], probabilities[:32], threshold)
    print("  ".join(f"{name} {value:.2g}" for name, value in distances.items()))
    result: dict[str, Any] = {"stages": stages.rows, "distances": distances}
    if few and not (isinstance(model, DualLaat) and model.candidates):
        result["ratio_to_old"] = time_old_way(stages, coder, model, few)
    return result


def time_old_way(stages: Stages, coder: Coder, model: NeuralModel, few: Sequence[Note]) -> dict[str, float]:
    """How many times as fast as the old way the stages are."""
    single = replace(model, precision="fp32")
    single.weights_changed()
    old_probabilities(single, few[:64])  # warm-up
    blocks = [few[start : start + 256] for start in range(0, len(few), 256)]
    stages.run("old: reading and forward pass", len(few), lambda: [old_probabilities(single, b) for b in blocks])
    half = few[: max(1, len(few) // 4)]
    stages.run("old: suggestions", len(half), lambda: old_coding(coder, single, half))
    # On a CPU, CPU seconds depend less on other load.
    seconds = "seconds" if model.device.type == "cuda" else "cpu_seconds"
    cost = {name: row[seconds] / max(1, row["notes"]) for name, row in stages.rows.items()}
    ratios = {
        "evaluate": cost["old: reading and forward pass"] / cost["reading and forward pass"],
        "code": cost["old: suggestions"] / cost["nosology code --json"],
    }
    print("  ".join(f"{name} {value:.1f} times as fast as old" for name, value in ratios.items()))
    return ratios


def coded_as_json(coder: Coder, notes: Iterator[Note]) -> None:
    """Codes the notes as `nosology code --json` does."""
    for suggestions in coder.code_all(notes):
        json.dumps([item.to_json() for item in suggestions], ensure_ascii=False)


def entry(recipe: str, sizes: dict[str, int], settings: Sequence[str], device: str) -> str:
    """The name of a measurement in the result file."""
    counts = [f"{sizes[name]:,} {name}" for name in ("notes", "codes", "candidates") if sizes[name]]
    return ", ".join([" ".join([recipe, *settings]), *counts, device])


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notes", type=int, default=2400)
    parser.add_argument("--codes", type=int, default=14_000)
    parser.add_argument("--recipe", choices=RECIPES, nargs="+", default=["dual_laat-paper"])
    parser.add_argument("--candidates", type=int, default=0, help="of DualLAAT in two stages; 0: all codes are scored")
    parser.add_argument("--old-notes", type=int, default=512, help="that the old way scores; 0: none")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    device = default_device()
    codes = [Code("icd10cm", code) for code in table("icd10cm").codes()][: arguments.codes]
    machine = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }
    sizes = {name: getattr(arguments, name) for name in ("notes", "candidates", "old_notes")} | {"codes": len(codes)}
    for name in arguments.recipe:
        rng, recipe = np.random.default_rng(0), load_recipe(name, arguments.settings)
        words = vocabulary(rng, [label_description(code) for code in codes])
        model = make_model(recipe, LabelSpace(codes), words).to(device)
        print(f"{name}, {arguments.notes:,} notes, {len(codes):,} codes, {device}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            notes = make_notes(arguments.notes, words, codes, rng)
            corpus = write_corpus(notes, folder / "corpus", source={"kind": "random"}, filters=[], counts={})
            if arguments.candidates:
                model = with_candidates(model, list(corpus.notes()), arguments.candidates)
            bundle = Bundle(model, Decision(0.5), recipe.model_dump(mode="json"), {})
            measured = run_stages(bundle, model, corpus, arguments.old_notes, folder)
        measured = {**machine, **sizes, "recipe": name, "settings": arguments.settings, **measured}
        results = read_json(arguments.out) if arguments.out.exists() else {}
        results[entry(name, sizes, arguments.settings, machine["device"])] = measured
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
