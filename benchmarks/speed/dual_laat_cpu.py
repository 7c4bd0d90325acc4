"""Cost of scoring one note with DualLAAT on a CPU: python benchmarks/speed/dual_laat_cpu.py [--threads 2]

Random weights of the paper's sizes, one note of 1,500 words, descriptions of 2 to 25 words that are encoded before, as
in a served model. Prints the median and the best wall-clock seconds, and CPU seconds (`work`), which depend least on
other load. GFLOP/s are those of the best run; `share` is the speed relative to a plain matrix product.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from nosology.core import Code
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import Encoding, Vocabulary, WordTokenizer
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_model import DualLaat, DualLaatNet, EncodedDescriptions
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.training.data_loader import pad_notes

CODES, WORDS, SIZE, NOTE = 26_000, 125_762, 100, 1500
SETTINGS = {"conv": DualLaatSettings(encoder="conv", width=256), "gru": DualLaatSettings(encoder="gru", width=512)}
RESULT = Path(__file__).parents[1] / "results" / "speed_dual_laat_cpu.json"


def operations(settings: DualLaatSettings, words: int, codes: int) -> float:
    """Floating-point operations for one note: encoder, keys, attention, classifier."""
    states = settings.width * (2 if settings.encoder == "gru" else 1)
    joined = settings.heads * states
    if settings.encoder == "gru":
        encoder = 2 * words * 2 * 3 * settings.width * (SIZE + settings.width)
    else:
        encoder = 2 * words * SIZE * settings.kernel * settings.width
    keys = 2 * words * states * settings.heads * settings.width
    attention = 2 * codes * settings.heads * (settings.width + states) * words
    return float(encoder + keys + attention + 2 * codes * joined * (joined + 1))


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock seconds, and CPU seconds of all threads."""
    started = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def measured(action: Callable[[], object], flop: float, runs: int) -> dict[str, float]:
    """Medians over the runs of an action, and of a plain matrix product before each."""
    a, b = torch.randn(2, 1536, 1536)
    work = 2 * 1536**3
    action()
    times, plain = [], []
    for _ in range(runs):
        plain.append(min(timed(lambda: torch.mm(a, b)) for _ in range(3)))
        times.append(timed(action))
    (wall, cpu), (_, plain_cpu) = np.median(times, axis=0).tolist(), np.median(plain, axis=0).tolist()
    best, best_plain = np.min(times, axis=0).tolist(), np.min(plain, axis=0).tolist()
    return {
        "seconds": wall,
        "best_seconds": best[0],
        "cpu_seconds": cpu,
        "gflops": flop / best[0] / 1e9,
        "matrix_gflops": work / best_plain[0] / 1e9,
        "share": (flop / cpu) / (work / plain_cpu),
    }


def usual_words(rng: np.random.Generator, n: int) -> np.ndarray:
    """Random words by Zipf's law."""
    return 2 + (np.exp(rng.random(n) * np.log(WORDS - 2)) - 1).astype(np.int32)


def coder(encoder: str, rng: np.random.Generator) -> DualLaat:
    """A model with random weights for all codes, with encoded descriptions."""
    torch.manual_seed(0)
    labels = LabelSpace(Code("icd10cm", f"X{i:05}") for i in range(CODES))
    tokenizer = WordTokenizer(Vocabulary([f"w{i}" for i in range(WORDS - 2)]), 4000)
    net = DualLaatNet(SETTINGS[encoder], WORDS, SIZE).eval()
    model = DualLaat(labels, np.ones(CODES, np.int64), tokenizer, net, SETTINGS[encoder])
    described = pad_notes([usual_words(rng, rng.integers(2, 26)) for _ in range(CODES)])[0]
    few = described[:1000] if encoder == "gru" else described  # a GRU would take long; some queries are repeated
    queries = net.all_queries(few).repeat(1, -(-CODES // len(few)), 1)[:, :CODES].contiguous()
    model._queries = EncodedDescriptions(queries, torch.ones(CODES, dtype=torch.bool))
    entries = 38 * CODES
    weights = (rng.random(entries, np.float32), (usual_words(rng, entries), rng.integers(0, CODES, entries)))
    model.retriever = CandidateRetriever(
        sparse.csr_matrix(weights, shape=(WORDS, CODES)), np.zeros(CODES, np.float32), np.ones(WORDS, np.float32), 1.0
    )
    return model


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng, rows = np.random.default_rng(0), {}
    ids = usual_words(rng, NOTE)
    encoding = Encoding(ids, np.arange(NOTE), np.arange(NOTE) + 1)

    def row(name: str, action: Callable[[], object], flop: float) -> None:
        figures = rows[name] = measured(action, flop, arguments.runs)
        best, work = figures["best_seconds"], figures["cpu_seconds"]
        seconds = f"{name:28} {figures['seconds']:7.3f} s  best {best:7.3f}  work {work:.3f}"
        rate = f"{figures['gflops']:6.1f} GFLOP/s (matrix product {figures['matrix_gflops']:.0f})"
        print(f"{seconds}  {rate}  share {figures['share']:5.2f}", flush=True)

    for encoder, settings in SETTINGS.items():
        model = coder(encoder, rng)
        row(f"{encoder}: candidates proposed", lambda m=model: m.retriever.retrieve(ids, 300), 0.0)
        for k in (300, 500):
            some, staged, flop = (
                model.retriever.retrieve(ids, k).tolist(),
                model.two_stage(k),
                operations(settings, NOTE, k),
            )
            row(f"{encoder}: {k} codes", lambda m=model, s=some: m.logits_of([encoding], s), flop)
            row(f"{encoder}: two stages, {k}", lambda m=staged: m.logits_of([encoding]), flop)
        if encoder == "conv":
            row("conv: 26,000 codes", lambda m=model: m.logits_of([encoding]), operations(settings, NOTE, CODES))
    machine = {
        "threads": arguments.threads,
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }
    write_json(arguments.out, {**machine, "load": os.getloadavg()[0], "rows": rows})


if __name__ == "__main__":
    main()
