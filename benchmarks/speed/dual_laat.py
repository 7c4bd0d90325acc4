"""Cost of a training step of DualLAAT on a GPU: python benchmarks/speed/dual_laat.py [--only ROW ...] [--out FILE]

Notes as long as those of MIMIC-IV (quartiles 1,147, 1,492 and 1,931 words, cut at 4,000) in batches of similar length,
8,192 codes with descriptions of 2 to 25 words, 4 heads, the paper's sizes. A step includes word vectors, both encoders,
attention, classifier, loss, gradients and AdamW. Prints milliseconds per note, notes/s, TFLOP/s of attention and
classifier, and peak memory. The fused kernels are first compared with float64.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from nosology.attention import kernels
from nosology.attention.dual_attention import DualHead, dual_loss
from nosology.models.dual_laat.dual_laat_model import DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatSettings
from nosology.training.data_loader import Batch, pad_notes

LABELS, WORDS, SIZE = 8192, 125_762, 100
MEDIAN, SPREAD, LONGEST = 1492, 0.386, 4000
SETTINGS = {
    "gru": DualLaatSettings(encoder="gru", width=512, dropout=0.3),
    "conv": DualLaatSettings(encoder="conv", width=256, dropout=0.2),
}
RUNS = (  # encoder, notes per step, tokens per micro-batch, notes per chunk of attention
    ("gru", 512, 620_000, 8),
    ("gru", 256, 620_000, 8),
    ("gru", 512, 420_000, 4),
    ("conv", 256, 960_000, 16),
    ("conv", 256, 960_000, 32),
    ("gru", 32, 620_000, 8),
    ("gru", 64, 620_000, 8),
)


def lengths(batch: int, batches: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Lengths of the notes of each batch, similar within a batch: pools of 50 batches are sorted."""
    drawn = np.exp(rng.normal(np.log(MEDIAN), SPREAD, batch * 50)).clip(50, LONGEST).astype(int)
    every = np.sort(drawn)[::-1].reshape(50, batch)
    return list(every[((np.arange(batches) + 0.5) * 50 / batches).astype(int)])  # evenly over the lengths


def operations(settings: DualLaatSettings, words: np.ndarray) -> float:
    """Floating-point operations of a forward pass over notes of these lengths, only attention and classifier."""
    states = settings.width * (2 if settings.encoder == "gru" else 1)
    joined = settings.heads * states
    attention = 2 * LABELS * settings.heads * (settings.width + states) * words.sum()
    return float(attention + 2 * LABELS * joined * (joined + 1) * len(words))


def micro_batches(words: np.ndarray, tokens: int) -> list[np.ndarray]:
    """The notes of a step, longest first, in parts that fit."""
    parts, start = [], 0
    while start < len(words):
        size = max(1, tokens // int(words[start]))
        parts.append(words[start : start + size])
        start += size
    return parts


def run(encoder: str, batch: int, tokens: int, chunk: int, batches: int, device: str) -> dict[str, float]:
    """One row of the table."""
    rng = np.random.default_rng(0)
    settings = SETTINGS[encoder].model_copy(update={"chunk": chunk})
    torch.manual_seed(0)
    net = DualLaatNet(settings, WORDS, SIZE).to(device)
    described = [rng.integers(1, WORDS, rng.integers(2, 26)) for _ in range(LABELS)]
    net.descriptions = pad_notes(described)[0]
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=1e-3, fused=device == "cuda")
    labels = torch.arange(LABELS)

    def step(words: np.ndarray) -> None:
        for part in micro_batches(words, tokens):
            ids, sizes = pad_notes([rng.integers(1, WORDS, n) for n in part])
            targets = (torch.rand(len(part), LABELS, device=device) < 15.7 / LABELS).float()
            with torch.autocast(device, torch.bfloat16):
                loss = net(Batch(ids, sizes, labels, targets).to(device))
            (loss * (len(part) / len(words))).backward()
        optimiser.step()
        optimiser.zero_grad()

    every = lengths(batch, batches, rng)
    for words in (every[0], every[len(every) // 2]):
        step(words)
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    synchronise()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for words in every:
        step(words)
    synchronise()
    seconds = time.perf_counter() - started
    notes = sum(map(len, every))
    memory = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0
    return {
        "ms_per_note": 1000 * seconds / notes,
        "notes_per_second": notes / seconds,
        "tflops": 3 * sum(operations(settings, words) for words in every) / seconds / 1e12,
        "peak_gb": memory,
        "mean_words": float(np.concatenate(every).mean()),
    }


def check(notes: int = 4, words: int = 700, labels: int = 500) -> dict[str, float]:
    """The relative distance of loss and gradients in bf16 from float64, with and without the fused kernels."""
    torch.manual_seed(0)
    heads, wide, projected = 4, 256, 256
    sizes = [
        (heads * projected, wide),
        (heads * projected,),
        (heads * wide,) * 2,
        (heads * wide,),
        (heads * wide,),
        (1,),
    ]
    states = torch.randn(notes, words, wide, device="cuda")
    queries = (0.2 * torch.randn(heads, labels, projected, device="cuda")).tanh()
    head = [0.05 * torch.randn(size, device="cuda") for size in sizes]
    lengths = torch.tensor([words, words // 2, 7, 0])[:notes]
    targets = (torch.rand(notes, labels, device="cuda") < 0.1).float()

    def compute(kind: torch.dtype) -> list[torch.Tensor]:
        inputs = [x.to(torch.bfloat16).to(kind).requires_grad_() for x in (states, queries, *head)]
        loss = dual_loss(inputs[0], lengths, inputs[1], targets, DualHead(*inputs[2:]), 2)
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    fused, exact = compute(torch.bfloat16), compute(torch.float64)
    kernels.AVAILABLE = False
    plain = compute(torch.bfloat16)
    kernels.AVAILABLE = True
    gaps = {
        name: max(float((a.double() - b).norm() / b.norm()) for a, b in zip(rows, exact))
        for name, rows in (("fused", fused), ("plain", plain))
    }
    if not gaps["fused"] < 1.5 * gaps["plain"] + 1e-3:
        raise SystemExit(f"the fused kernels are wrong: {gaps}")
    return gaps


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=25, help="steps that are timed")
    parser.add_argument("--only", type=int, nargs="*", help="rows to run; the others keep their results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "speed_dual_laat.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this measures a training step on a GPU, and there is none here")
    gaps = check()
    print(f"largest relative distance from float64: fused {gaps['fused']:.3f}, plain bf16 {gaps['plain']:.3f}")
    same = arguments.only and arguments.out.exists()
    before = json.loads(arguments.out.read_text()) if same else {}
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if any(before.get(name, value) != value for name, value in machine.items()):
        raise SystemExit(f"{arguments.out} is of another GPU or torch: give another --out")
    rows = before.get("rows", {})
    for number, (encoder, batch, tokens, chunk) in enumerate(RUNS):
        if arguments.only and number not in arguments.only:
            continue
        name = f"{encoder}, batch {batch}, {tokens} tokens, chunk {chunk}"
        torch.cuda.empty_cache()
        rows[name] = row = run(encoder, batch, tokens, chunk, arguments.batches, "cuda")
        print(f"{name:42}" + "".join(f"  {key} {value:,.2f}" for key, value in row.items()), flush=True)
    result = {**machine, "distance": gaps, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
