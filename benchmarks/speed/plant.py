"""Cost of each stage of PLANT: python benchmarks/speed/plant.py [--small] [--only language classifier ...]

Sizes of MIMIC: 8,000 codes, notes of about 1,900 words, word vectors of 400 numbers, three LSTM layers of 1,152.
`language`: a training step of the language model (384 streams, 80 words, 60,000 words), `language ...`: variants;
`ranker`: a step of the ranker; `classifier`: a training step of 128 notes; `frozen`: the same with a frozen encoder;
`cached`: with cached states of the frozen encoder; `decoder`: only attention, ranker and loss; `attention`: without the
ranker; `large`: 16 notes of 4,000 words; `agreement`: the largest relative difference between kernels and plain torch.
Prints milliseconds, notes or words per second, peak memory, and the floor: the time of the matrix products alone at 790
TFLOP/s, as measured on an H200. --small is for a CPU; the peak memory is then that of the whole process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from scipy import sparse
from torch.nn.functional import cross_entropy, linear

from nosology.attention import kernels
from nosology.encoders.tokenizers import PAD
from nosology.encoders.word_encoders import AwdLstm
from nosology.models.plant import language_model
from nosology.models.plant.language_model import LanguageModel, StreamBatch, next_word_loss
from nosology.models.plant.plant_model import PlantNet
from nosology.models.plant.plant_settings import LanguageSettings, PlantSettings, RankerSettings
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.ranker_trainer import RankerNet, WordLists, draw_lists
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch, pad_notes

RESULT = Path(__file__).parents[1] / "results" / "speed_plant.json"
PEAK = 790e12  # FLOP/s of bf16 products, measured on an H200
WINDOW = 80
_NAMES = ("words", "codes", "size", "hidden", "layers", "batch", "streams", "mean", "chunk")
LARGE = dict(zip(_NAMES, (60_000, 8_000, 400, 1152, 3, 128, 384, 1900, 4)))
SMALL = dict(zip(_NAMES, (3_000, 200, 50, 64, 2, 8, 16, 300, 4)))


def device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def autocast() -> torch.autocast:
    """bf16 on a GPU."""
    return torch.autocast(device(), torch.bfloat16, enabled=device() == "cuda")


def timed(net: torch.nn.Module, batch: Batch | StreamBatch, times: int) -> tuple[float, float]:
    """Seconds per training step, and peak memory in GB."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], fused=device() == "cuda")

    def step() -> None:
        with autocast():
            loss = net(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    synchronise = torch.cuda.synchronize if device() == "cuda" else (lambda: None)
    for _ in range(2):
        step()
    synchronise()
    if device() == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for _ in range(times):
        step()
    synchronise()
    seconds = (time.perf_counter() - started) / times
    return seconds, torch.cuda.max_memory_allocated() / 1e9 if device() == "cuda" else peak()


def peak() -> float:
    """The peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def lstm_products(workload: dict) -> float:
    """Floating-point operations of the LSTM layers for one word, forward."""
    sizes = [workload["size"], *[workload["hidden"]] * (workload["layers"] - 1), workload["size"]]
    return sum(2 * 4 * out * (into + out) for into, out in pairwise(sizes))


def plain_loss(states, vectors, bias, targets) -> torch.Tensor:
    """All logits at once, as torch does it."""
    with autocast():
        return cross_entropy(linear(states, vectors, bias).float(), targets, ignore_index=PAD)


def language(workload: dict, times: int, *, loss=next_word_loss, streams: float = 1) -> dict[str, float]:
    """A step of the language model; streams: factor of their number."""
    torch.manual_seed(0)
    sizes = [workload[name] for name in ("words", "size", "hidden", "layers")]
    encoder = AwdLstm(*sizes, LanguageSettings().dropout)
    count = int(workload["streams"] * streams)
    net = LanguageModel(encoder, count).to(device())
    tokens = torch.randint(2, workload["words"], (count, WINDOW + 1), device=device())
    batch = StreamBatch(tokens[:, :-1], tokens[:, 1:], False)
    with mock.patch.object(language_model, "next_word_loss", loss):
        seconds, memory = timed(net, batch, times)
    words = count * WINDOW
    floor = 3 * words * (lstm_products(workload) + 2 * workload["size"] * workload["words"]) / PEAK
    return {
        "words_per_second": words / seconds,
        "ms_per_step": 1000 * seconds,
        "peak_gb": memory,
        "floor_ms": 1000 * floor,
    }


def layers_alone(workload: dict, times: int) -> dict[str, float]:
    """The LSTM layers of the language model without its loss over words."""
    row = language(workload, times, loss=lambda states, vectors, bias, targets: states.float().mean())
    floor = 3 * workload["streams"] * WINDOW * lstm_products(workload) / PEAK
    return row | {"floor_ms": 1000 * floor}


def random_relevance(workload: dict) -> Relevance:
    """The relevance of words in 500 random notes."""
    marks = [sparse.random(500, n, 0.02, "csr", random_state=1) for n in (workload["words"], workload["codes"])]
    for matrix in marks:
        matrix.data[:] = 1
    return Relevance.of(*(matrix.astype(np.int8) for matrix in marks))


def small_plant(workload: dict, **shape) -> tuple[PlantNet, Batch, np.ndarray]:
    """A net, a batch, and the notes' lengths."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    sizes = {name: workload[name] for name in ("size", "hidden", "layers", "chunk")}
    relevance = random_relevance(workload)
    settings = PlantSettings(**(sizes | {"inattention": 56, "cache_gb": 64.0} | shape))
    net = (
        PlantNet(settings, RankerSettings(), workload["words"], workload["codes"], relevance, False)
        .to(device())
        .train()
    )
    lengths = np.sort(np.exp(rng.normal(np.log(workload["mean"]), 0.05, workload["batch"])).astype(int))[::-1]
    if workload.get("longest"):
        lengths = np.full(workload["batch"], workload["longest"])
    tokens = pad_notes([rng.zipf(1.3, n).clip(2, workload["words"] - 1) for n in lengths])
    targets = (torch.rand(workload["batch"], workload["codes"], device=device()) < 16 / workload["codes"]).float()
    return net, Batch(tokens[0].to(device()), tokens[1], None, targets), lengths


def classifier(
    workload: dict, times: int, *, frozen: bool = False, cached: bool = False, alone: bool = False, **shape
) -> dict[str, float]:
    """A step; frozen: with a frozen encoder; cached: with its cached states; alone: without encoder."""
    net, batch, lengths = small_plant(workload, **shape)
    net.encoder.requires_grad_(not (frozen or cached or alone))
    if cached:
        batch = Batch(batch.tokens, batch.lengths, None, batch.targets, torch.arange(len(lengths)))
    if alone:
        kind = torch.bfloat16 if device() == "cuda" else torch.float32
        states = torch.randn(*batch.tokens.shape, workload["size"], device=device(), dtype=kind).requires_grad_()
        net.encoder.forward = lambda tokens, state=None: (states, None)  # type: ignore[method-assign]
    seconds, memory = timed(net, batch, times)
    words, notes = int(lengths.sum()), len(lengths)
    encoder = 0 if alone or cached else words * lstm_products(workload) * (1 if frozen else 3)
    decoder = words * 2 * 2 * workload["size"] * workload["codes"] * (2 if frozen or cached else 3)
    return {
        "ms_per_note": 1000 * seconds / notes,
        "notes_per_second": notes / seconds,
        "peak_gb": memory,
        "floor_ms_per_note": 1000 * (decoder + encoder) / PEAK / notes,
    }


def ranker(workload: dict, times: int) -> dict[str, float]:
    """A step of the ranker, 64 codes with lists of 128 words; lists are sampled in another thread."""
    settings, rng = RankerSettings(), np.random.default_rng(0)
    relevance, vectors = random_relevance(workload), torch.randn(workload["words"], workload["size"])
    net = RankerNet(Ranker(settings, workload["size"], workload["words"], workload["codes"]), vectors, settings.k).to(
        device()
    )
    started = time.perf_counter()
    for _ in range(times):
        lists = draw_lists(
            relevance, rng.integers(0, workload["codes"], settings.batch), settings, workload["words"], rng
        )
    list_seconds = (time.perf_counter() - started) / times
    seconds, memory = timed(net, WordLists(*map(torch.from_numpy, lists)).to(device()), times)
    floor = 3 * settings.batch * settings.list * 2 * workload["size"] * settings.hidden / PEAK
    return {
        "codes_per_second": settings.batch / max(seconds, list_seconds),
        "ms_per_step": 1000 * seconds,
        "ms_of_lists": 1000 * list_seconds,
        "peak_gb": memory,
        "floor_ms": 1000 * floor,
    }


def large(workload: dict, times: int, **how) -> dict[str, float]:
    """16 notes of 4,000 words, or twice the mean of a small workload."""
    longest = 4000 if workload is LARGE else 2 * workload["mean"]
    return classifier(workload | {"batch": min(16, workload["batch"]), "longest": longest}, times, **how)


def agreement(workload: dict, times: int) -> dict[str, float]:
    """The largest relative differences between kernels and plain torch; 0 on a CPU."""
    net, batch, _ = small_plant(
        workload | {"batch": 8, "chunk": 4}, dropout=dict.fromkeys(type(PlantSettings().dropout).model_fields, 0.0)
    )
    results = []
    for plain in (False, True):
        with mock.patch.object(kernels, "AVAILABLE", not plain and kernels.AVAILABLE):
            with autocast():
                loss = net(batch)
            loss.backward()
        results.append(
            {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None} | {"loss": loss}
        )
        net.zero_grad(set_to_none=True)
    plain = results[1]
    difference = {
        name: (plain[name] - x).abs().max() / x.abs().max().clamp(min=1e-30) for name, x in results[0].items()
    }
    names = ("loss", "queries", "weights", "bias", "ranker.labels", "ranker.weights", "encoder.encoder.weight")
    return {name: float(difference[name].detach()) for name in names} | {"next word": next_word_agreement(workload)}


def next_word_agreement(workload: dict) -> float:
    """The same for the loss of the language model and its gradients by states and words."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if device() == "cuda" else torch.float32
    states = torch.randn(300, workload["size"], device=device(), dtype=kind, requires_grad=True)
    vectors = (0.1 * torch.randn(workload["words"], workload["size"], device=device())).requires_grad_()
    bias, targets = (
        torch.zeros(workload["words"], device=device()),
        torch.randint(2, workload["words"], (300,), device=device()),
    )
    results = []
    for plain in (False, True):
        with mock.patch.object(kernels, "AVAILABLE", not plain and kernels.AVAILABLE):
            loss = next_word_loss(states, vectors, bias, targets)
        results.append([loss.detach(), *torch.autograd.grad(loss, [states, vectors])])
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*results))


CHUNKS = (2048, 32_768)
STAGES = {
    "agreement": agreement,
    "language": language,
    "language plain": partial(language, loss=plain_loss),
    **{f"language, {n} at once": partial(language, loss=partial(next_word_loss, chunk=n)) for n in CHUNKS},
    "language, 768 streams": partial(language, streams=2),
    "language, layers alone": layers_alone,
    "ranker": ranker,
    "classifier": classifier,
    "classifier, twice the notes": lambda workload, times: classifier(
        workload | {"batch": 2 * workload["batch"]}, times
    ),
    "frozen": partial(classifier, frozen=True),
    "cached": partial(classifier, cached=True),
    "decoder": partial(classifier, alone=True),
    "decoder, 8 at once": partial(classifier, alone=True, chunk=8),
    "decoder, 16 at once": partial(classifier, alone=True, chunk=16),
    "attention": partial(classifier, alone=True, planted=False),
    "large": large,
    "large decoder": partial(large, alone=True),
}


def run(name: str, small: bool, times: int) -> dict[str, float]:
    """The row of a stage."""
    return STAGES[name](SMALL if small else LARGE, times)


def measured(name: str, small: bool, times: int) -> dict[str, float]:
    """The row of a stage; on a CPU in a separate process, so that peak memory is that of the stage."""
    if device() == "cuda":
        row = run(name, small, times)
        torch.cuda.empty_cache()
        return row
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, name, small, times).result()


def write(path: Path, name: str, row: dict[str, float], small: bool) -> None:
    """Writes the row of a stage; the other rows of this device and shape, and those of others, stay."""
    where = (torch.cuda.get_device_name() if device() == "cuda" else "CPU") + (", small" if small else "")
    results = json.loads(path.read_text()) if path.exists() else {}
    results.setdefault(where, {}).update({"torch": torch.__version__, "shape": SMALL if small else LARGE})
    results[where].setdefault("rows", {})[name] = row
    path.write_text(json.dumps(results, indent=2) + "\n")


def main() -> None:
    """Prints one row per stage and writes all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    for name in arguments.only:
        row = measured(name, arguments.small, arguments.times)
        print(f"{name:24}" + "".join(f"  {key} {value:,.4g}" for key, value in row.items()), flush=True)
        write(arguments.out, name, row, arguments.small)


if __name__ == "__main__":
    main()
