"""What each stage of PLANT costs: python benchmarks/speed/plant.py [--small] [--only language classifier ...]

At MIMIC's shape: 8,000 codes, notes of about 1,900 words, words of 400 numbers, three LSTM layers of 1,152.
`language`: a training step of the language model (384 streams, 80 words, 60,000 words); `classifier`: a whole
training step; `frozen`: the same where the encoder does not learn; `decoder`: attention and loss alone. Prints
milliseconds, notes or words a second, the peak of memory, and the arithmetic floor: what the stage's products alone
would take at 790 TFLOP/s, as was measured on an H200. --small is for a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from nosology.encoders.awd_lstm import AwdLstm, Dropouts
from nosology.models.batch import Batch, rectangle
from nosology.models.language_model import LanguageModel
from nosology.models.plant_net import PlantNet
from nosology.models.plant_settings import PlantShape, RankerSettings
from nosology.models.relevance import Relevance
from nosology.training.stream import StreamBatch

RESULT = Path(__file__).parents[1] / "results" / "speed_plant.json"
PEAK = 790e12  # FLOP/s of bf16 products, measured on an H200
_NAMES = ("words", "codes", "size", "hidden", "layers", "batch", "streams", "mean")
LARGE = dict(zip(_NAMES, (60_000, 8_000, 400, 1152, 3, 128, 384, 1900)))
SMALL = dict(zip(_NAMES, (3_000, 200, 50, 64, 2, 8, 16, 300)))


def device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def timed(net: torch.nn.Module, batch: Batch | StreamBatch, times: int) -> tuple[float, float]:
    """Seconds a training step, and the peak of memory in GB."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], fused=device() == "cuda")

    def step() -> None:
        with torch.autocast(device(), torch.bfloat16, enabled=device() == "cuda"):
            net(batch).backward()
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
    memory = torch.cuda.max_memory_allocated() / 1e9 if device() == "cuda" else 0.0
    return (time.perf_counter() - started) / times, memory


def lstm_products(told: dict) -> float:
    """Floating-point operations of the layers' products for one word, forward."""
    sizes = [told["size"], *[told["hidden"]] * (told["layers"] - 1), told["size"]]
    return sum(2 * 4 * out * (into + out) for into, out in pairwise(sizes))


def language(told: dict, times: int) -> dict[str, float]:
    """A step of the language model."""
    encoder = AwdLstm(told["words"], told["size"], told["hidden"], told["layers"], Dropouts(0.02, 0.25, 0.2, 0.15, 0.1))
    net = LanguageModel(encoder, told["streams"]).to(device())
    tokens = torch.randint(2, told["words"], (told["streams"], 81), device=device())
    batch = StreamBatch(tokens[:, :-1], tokens[:, 1:], False)
    seconds, memory = timed(net, batch, times)
    words = told["streams"] * 80
    floor = 3 * words * (lstm_products(told) + 2 * told["size"] * told["words"]) / PEAK
    return {"words_a_second": words / seconds, "ms_a_step": 1000 * seconds, "peak_gb": memory, "floor_ms": 1000 * floor}


def classifier(told: dict, times: int, *, frozen: bool = False, alone: bool = False) -> dict[str, float]:
    """A step of the classifier; frozen: without the encoder's derivatives; alone: without the encoder."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    shape = PlantShape(size=told["size"], hidden=told["hidden"], layers=told["layers"], inattention=56)
    marks = [sparse.random(500, n, 0.02, "csr", random_state=1) for n in (told["words"], told["codes"])]
    for matrix in marks:
        matrix.data[:] = 1
    relevance = Relevance.of(*(matrix.astype(np.int8) for matrix in marks))
    net = PlantNet(shape, RankerSettings(), told["words"], told["codes"], relevance, False).to(device()).train()
    net.encoder.requires_grad_(not (frozen or alone))
    lengths = np.sort(np.exp(rng.normal(np.log(told["mean"]), 0.05, told["batch"])).astype(int))[::-1]
    batch = Batch(*rectangle([rng.zipf(1.3, n).clip(2, told["words"] - 1) for n in lengths]), None, None)
    targets = (torch.rand(told["batch"], told["codes"], device=device()) < 16 / told["codes"]).float()
    batch = Batch(batch.tokens.to(device()), batch.lengths, None, targets)
    if alone:
        states = torch.randn(*batch.tokens.shape, told["size"], device=device())
        net.encoder.forward = lambda tokens, state=None: (states.requires_grad_(), None)  # type: ignore[method-assign]
    seconds, memory = timed(net, batch, times)
    words, notes = int(lengths.sum()), told["batch"]
    encoder = 0 if alone else words * lstm_products(told) * (1 if frozen else 3)
    floor = (3 * words * 2 * 2 * told["size"] * told["codes"] + encoder) / PEAK
    return {
        "ms_a_note": 1000 * seconds / notes,
        "notes_a_second": notes / seconds,
        "peak_gb": memory,
        "floor_ms_a_note": 1000 * floor / notes,
    }


STAGES = {
    "language": language,
    "classifier": classifier,
    "frozen": lambda *a: classifier(*a, frozen=True),
    "decoder": lambda *a: classifier(*a, alone=True),
}


def main() -> None:
    """Prints a row a stage and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    told, rows = SMALL if asked.small else LARGE, {}
    for name in asked.only:
        rows[name] = STAGES[name](told, asked.times)
        print(f"{name:12}" + "".join(f"  {key} {value:,.3f}" for key, value in rows[name].items()), flush=True)
    results = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    where = torch.cuda.get_device_name() if device() == "cuda" else "CPU"
    results[where] = {"torch": torch.__version__, "shape": told, "rows": rows}
    asked.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
