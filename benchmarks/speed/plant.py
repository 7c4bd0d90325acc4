"""What each stage of PLANT costs: python benchmarks/speed/plant.py [--small] [--only language classifier ...]

At MIMIC's shape: 8,000 codes, notes of about 1,900 words, words of 400 numbers, three LSTM layers of 1,152.
`language`: a training step of the language model (384 streams, 80 words, 60,000 words), `language ...` the same in
other ways; `ranker`: a step of the ranker; `classifier`: a whole training step of 128 notes; `frozen`: the same where
the encoder does not learn; `kept`: where its states are kept besides; `decoder`: attention, ranker and loss alone;
`attention`: without the ranker; `large`: 16 notes of 4,000 words; `agreement`: the largest difference, relative to the
largest number, of what kernels and plain torch compute. Prints milliseconds, notes or words a second, the peak of
memory, and the arithmetic floor: what the stage's matrix products alone would take at 790 TFLOP/s, as was measured on
an H200. --small is for a CPU, where the peak is that of the whole process, python and torch included.
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

from nosology.attention import planted_attention
from nosology.encoders.tokenizers import PAD
from nosology.encoders.word_encoders import AwdLstm, DropoutRates
from nosology.models.plant import language_model
from nosology.models.plant import language_model as next_word
from nosology.models.plant.language_model import LanguageModel
from nosology.models.plant.plant_net import PlantNet, Ranker
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.ranker import Lists, RankerNet, draw_lists
from nosology.models.plant.relevance import Relevance
from nosology.models.plant.text_streams import StreamBatch
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
    """Seconds a training step, and the peak of memory in GB."""
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
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def lstm_products(told: dict) -> float:
    """Floating-point operations of the layers' products for one word, forward."""
    sizes = [told["size"], *[told["hidden"]] * (told["layers"] - 1), told["size"]]
    return sum(2 * 4 * out * (into + out) for into, out in pairwise(sizes))


def plain_loss(states, vectors, bias, targets) -> torch.Tensor:
    """All logits at once, as torch does it."""
    with autocast():
        return cross_entropy(linear(states, vectors, bias).float(), targets, ignore_index=PAD)


def language(told: dict, times: int, *, loss=next_word.next_word_loss, streams: float = 1) -> dict[str, float]:
    """A step of the language model; streams: times as many."""
    torch.manual_seed(0)
    drop = DropoutRates(0.02, 0.25, 0.2, 0.15, 0.1)
    encoder = AwdLstm(told["words"], told["size"], told["hidden"], told["layers"], drop)
    count = int(told["streams"] * streams)
    net = LanguageModel(encoder, count).to(device())
    tokens = torch.randint(2, told["words"], (count, WINDOW + 1), device=device())
    batch = StreamBatch(tokens[:, :-1], tokens[:, 1:], False)
    with mock.patch.object(language_model, "next_word_loss", loss):
        seconds, memory = timed(net, batch, times)
    words = count * WINDOW
    floor = 3 * words * (lstm_products(told) + 2 * told["size"] * told["words"]) / PEAK
    return {"words_a_second": words / seconds, "ms_a_step": 1000 * seconds, "peak_gb": memory, "floor_ms": 1000 * floor}


def layers_alone(told: dict, times: int) -> dict[str, float]:
    """The LSTM layers of the language model without its loss over words."""
    found = language(told, times, loss=lambda states, vectors, bias, targets: states.float().mean())
    floor = 3 * told["streams"] * WINDOW * lstm_products(told) / PEAK
    return found | {"floor_ms": 1000 * floor}


def telling(told: dict) -> Relevance:
    """Words that tell codes, of 500 notes drawn by chance."""
    marks = [sparse.random(500, n, 0.02, "csr", random_state=1) for n in (told["words"], told["codes"])]
    for matrix in marks:
        matrix.data[:] = 1
    return Relevance.of(*(matrix.astype(np.int8) for matrix in marks))


def small_plant(told: dict, **shape) -> tuple[PlantNet, Batch, np.ndarray]:
    """A net, a batch, and the notes' lengths."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    sizes = {name: told[name] for name in ("size", "hidden", "layers", "chunk")}
    relevance = telling(told)
    made = PlantSettings(**(sizes | {"inattention": 56, "cache_gb": 64.0} | shape))
    net = PlantNet(made, RankerSettings(), told["words"], told["codes"], relevance, False).to(device()).train()
    lengths = np.sort(np.exp(rng.normal(np.log(told["mean"]), 0.05, told["batch"])).astype(int))[::-1]
    if told.get("longest"):
        lengths = np.full(told["batch"], told["longest"])
    tokens = pad_notes([rng.zipf(1.3, n).clip(2, told["words"] - 1) for n in lengths])
    targets = (torch.rand(told["batch"], told["codes"], device=device()) < 16 / told["codes"]).float()
    return net, Batch(tokens[0].to(device()), tokens[1], None, targets), lengths


def classifier(
    told: dict, times: int, *, frozen: bool = False, kept: bool = False, alone: bool = False, **shape
) -> dict[str, float]:
    """A step; frozen: without the encoder's derivatives; kept: its states are there; alone: without it."""
    net, batch, lengths = small_plant(told, **shape)
    net.encoder.requires_grad_(not (frozen or kept or alone))
    if kept:
        batch = Batch(batch.tokens, batch.lengths, None, batch.targets, torch.arange(len(lengths)))
    if alone:
        kind = torch.bfloat16 if device() == "cuda" else torch.float32
        states = torch.randn(*batch.tokens.shape, told["size"], device=device(), dtype=kind).requires_grad_()
        net.encoder.forward = lambda tokens, state=None: (states, None)  # type: ignore[method-assign]
    seconds, memory = timed(net, batch, times)
    words, notes = int(lengths.sum()), len(lengths)
    encoder = 0 if alone or kept else words * lstm_products(told) * (1 if frozen else 3)
    decoder = words * 2 * 2 * told["size"] * told["codes"] * (2 if frozen or kept else 3)
    return {
        "ms_a_note": 1000 * seconds / notes,
        "notes_a_second": notes / seconds,
        "peak_gb": memory,
        "floor_ms_a_note": 1000 * (decoder + encoder) / PEAK / notes,
    }


def ranker(told: dict, times: int) -> dict[str, float]:
    """A step of the ranker, 64 codes with lists of 128 words; the lists are drawn in a thread beside it."""
    settings, rng = RankerSettings(), np.random.default_rng(0)
    relevance, vectors = telling(told), torch.randn(told["words"], told["size"])
    net = RankerNet(Ranker(settings, told["size"], told["words"], told["codes"]), vectors, settings.k).to(device())
    started = time.perf_counter()
    for _ in range(times):
        drawn = draw_lists(relevance, rng.integers(0, told["codes"], settings.batch), settings, told["words"], rng)
    lists = (time.perf_counter() - started) / times
    seconds, memory = timed(net, Lists(*map(torch.from_numpy, drawn)).to(device()), times)
    floor = 3 * settings.batch * settings.list * 2 * told["size"] * settings.hidden / PEAK
    return {
        "codes_a_second": settings.batch / max(seconds, lists),
        "ms_a_step": 1000 * seconds,
        "ms_of_lists": 1000 * lists,
        "peak_gb": memory,
        "floor_ms": 1000 * floor,
    }


def large(told: dict, times: int, **how) -> dict[str, float]:
    """16 notes of 4,000 words, or of some more than the mean."""
    longest = 4000 if told is LARGE else 2 * told["mean"]
    return classifier(told | {"batch": min(16, told["batch"]), "longest": longest}, times, **how)


def agreement(told: dict, times: int) -> dict[str, float]:
    """How far kernels and plain torch are apart, over the largest number of each result; nothing on a CPU."""
    net, batch, _ = small_plant(
        told | {"batch": 8, "chunk": 4}, drop=dict.fromkeys(type(PlantSettings().drop).model_fields, 0.0)
    )
    found = []
    for plain in (False, True):
        fused = None if plain else planted_attention.fused
        with mock.patch.object(planted_attention, "fused", fused):
            with autocast():
                loss = net(batch)
            loss.backward()
        found.append(
            {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None} | {"loss": loss}
        )
        net.zero_grad(set_to_none=True)
    apart = {name: (found[1][name] - x).abs().max() / x.abs().max().clamp(min=1e-30) for name, x in found[0].items()}
    names = ("loss", "queries", "weights", "bias", "ranker.labels", "ranker.weights", "encoder.encoder.weight")
    return {name: float(apart[name].detach()) for name in names} | {"next word": next_word_agreement(told)}


def next_word_agreement(told: dict) -> float:
    """The same for the next word's loss, by states and by words."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if device() == "cuda" else torch.float32
    states = torch.randn(300, told["size"], device=device(), dtype=kind, requires_grad=True)
    vectors = (0.1 * torch.randn(told["words"], told["size"], device=device())).requires_grad_()
    bias, targets = (
        torch.zeros(told["words"], device=device()),
        torch.randint(2, told["words"], (300,), device=device()),
    )
    found = []
    for plain in (False, True):
        with mock.patch.object(next_word, "fused", None if plain else next_word.fused):
            loss = next_word.next_word_loss(states, vectors, bias, targets)
        found.append([loss.detach(), *torch.autograd.grad(loss, [states, vectors])])
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found))


CHUNKS = (2048, 32_768)
STAGES = {
    "agreement": agreement,
    "language": language,
    "language plain": partial(language, loss=plain_loss),
    **{f"language, {n} at once": partial(language, loss=partial(next_word.next_word_loss, chunk=n)) for n in CHUNKS},
    "language, 768 streams": partial(language, streams=2),
    "language, layers alone": layers_alone,
    "ranker": ranker,
    "classifier": classifier,
    "classifier, twice the notes": lambda told, times: classifier(told | {"batch": 2 * told["batch"]}, times),
    "frozen": partial(classifier, frozen=True),
    "kept": partial(classifier, kept=True),
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
    """The row of a stage; on a CPU in a process of its own, whose peak of memory is then the stage's."""
    if device() == "cuda":
        row = run(name, small, times)
        torch.cuda.empty_cache()
        return row
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, name, small, times).result()


def main() -> None:
    """Prints a row a stage and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    where = torch.cuda.get_device_name() if device() == "cuda" else "CPU"
    for name in asked.only:
        row = measured(name, asked.small, asked.times)
        print(f"{name:24}" + "".join(f"  {key} {value:,.4g}" for key, value in row.items()), flush=True)
        results = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        results.setdefault(where, {}).update({"torch": torch.__version__, "shape": SMALL if asked.small else LARGE})
        results[where].setdefault("rows", {})[name] = row
        asked.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
