"""Tokens a second of embedders: python benchmarks/speed/embedding.py [--part cpu|gpu] [--out FILE]

cpu: the built-in model on made discharge summaries, against SentenceTransformer.encode on the same windows, in turns,
in processor time. gpu: a Qwen3-0.6B and an encoder of 305 million parameters with random weights in bf16, on notes of
8,192 tokens and on notes as long as MIMIC-IV's; beside tokens/s the share of the card's 790 TFLOP/s that the arithmetic
of the model makes (matrices and attention of the notes' own tokens, nothing for pads). First every way is held against
float32.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.encoders.packed import PackedTransformer, PaddedTransformer
from nosology.encoders.pooling import pool

RESULT = Path(__file__).parents[1] / "results" / "speed_embedding.json"
PEAK = 790.0  # TFLOP/s of a large bf16 product, measured on an H200
MEDIAN, SPREAD, LONGEST = (
    3030,
    0.386,
    8192,
)  # of MIMIC-IV's notes in tokens: 0.5% are longer than 8,192, as in the paper
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "vocab_size": 151_669,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": True,
        "initializer_range": 0.05,  # so large that what attention gives is seen in the vectors
    },
    "encoder-305M": {  # gte-multilingual-base, arctic-m-v2
        "model_type": "gte",
        "vocab_size": 250_048,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        "initializer_range": 0.05,
    },
}
# Where transformers is older than gte: as wide and deep, with places that are learned.
INSTEAD = {**MODELS["encoder-305M"], "model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}
WAYS = ("padded", "packed", "packed, compiled", "aligned, compiled")


def build(shape: dict[str, Any], device: str) -> Any:
    """A model of this shape with random weights in bf16."""
    from transformers import AutoConfig, AutoModel

    shape = dict(shape)
    try:
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    except ValueError:
        config = AutoConfig.for_model(**INSTEAD)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=torch.bfloat16)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model.eval().requires_grad_(False)


def operations(model: Any, lengths: list[int]) -> float:
    """Floating-point operations of texts of these lengths: two a weight and token, and attention."""
    config = model.config
    layers = getattr(model, "layers", None) or model.encoder.layer
    weights = sum(part.weight.numel() for part in layers.modules() if isinstance(part, torch.nn.Linear))
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    pairs = sum(n * (n + 1) / 2 if config.model_type.startswith("qwen") else n * n for n in lengths)
    return 2.0 * weights * sum(lengths) + 4.0 * width * config.num_hidden_layers * pairs


def packs(lengths: list[int], size: int, net: torch.nn.Module) -> list[list[int]]:
    """Texts, longest first, in parts that take at most `size` tokens."""
    parts: list[list[int]] = []
    total = 0
    for length in sorted(lengths, reverse=True):
        if not parts or total + net.room(length, parts[-1][0]) > size:
            parts.append([])
            total = 0
        parts[-1].append(length)
        total += net.room(length, parts[-1][0])
    return parts


def way(name: str, model: Any, size: int) -> torch.nn.Module:
    """The net that runs the model this way."""
    torch._dynamo.reset()
    for layer in getattr(model, "layers", None) or model.encoder.layer:
        layer._compiled_call_impl = None
    if name == "padded":
        model.set_attn_implementation("sdpa")
        return PaddedTransformer(model, 0)
    net = PackedTransformer(model, aligned=name.startswith("aligned"))
    if name.endswith("compiled") and not net.compile_layers(size):
        raise RuntimeError("the layers could not be compiled") from net.failure
    return net


def measure(model: Any, net: torch.nn.Module, parts: list[list[int]], mode: str) -> dict[str, float]:
    """One row of the table; the first pass over all parts warms up."""
    device = next(model.parameters()).device
    most = max(map(sum, parts))
    ids = torch.randint(4, model.config.vocab_size, (most,), device=device)

    def once() -> None:
        for part in parts:
            pool(net(ids[: sum(part)], part), torch.tensor(part, device=device), (mode,))

    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    with torch.inference_mode():
        once()
        wait()
        started = time.perf_counter()
        once()
        wait()
    seconds = time.perf_counter() - started
    lengths = [length for part in parts for length in part]
    flops = operations(model, lengths) / seconds / 1e12
    return {
        "tokens_a_second": sum(lengths) / seconds,
        "notes_a_second": len(lengths) / seconds,
        "tflops": flops,
        "share": flops / PEAK,
        "mean_tokens": float(np.mean(lengths)),
        "notes": len(lengths),
    }


def distances(model: Any, ways: tuple[str, ...], size: int, mode: str) -> dict[str, float]:
    """How far the vectors of each way lie from float32's, relative to their size."""
    device = next(model.parameters()).device
    lengths = [1800, 1500, 700, 350, 120, 33]
    ids = torch.randint(4, model.config.vocab_size, (sum(lengths) + size,), device=device)

    def vectors(net: torch.nn.Module, fill: int) -> torch.Tensor:
        every = [*lengths, *[512] * fill]  # a pack more than half full, so that the compiled layers are run
        with torch.inference_mode():
            return pool(net(ids[: sum(every)], every), torch.tensor(every, device=device), (mode,))[:6].double()

    exact = vectors(way("padded", model, size).float(), 0)
    model.bfloat16()
    fills = {"padded": 0, "aligned, compiled": size // 1856 - 6}
    found = {}
    for name in ways:
        fill = fills.get(name, (size - sum(lengths)) // 512)
        try:
            found[name] = float((vectors(way(name, model, size), fill) - exact).norm() / exact.norm())
        except RuntimeError:  # one way that this machine does not have leaves the others
            traceback.print_exc(limit=-3)
    return found


def gpu(size: int, tokens: int, only: list[str] | None) -> dict[str, Any]:
    """The table of a GPU."""
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.normal(np.log(MEDIAN), SPREAD, 10 * tokens // MEDIAN)).clip(50, LONGEST).astype(int)
    shapes = {
        "8192": [LONGEST] * (tokens // LONGEST),
        "mimic": drawn[np.cumsum(drawn) <= tokens].tolist(),
    }
    result: dict[str, Any] = {"pack_tokens": size, "rows": {}, "distance": {}}
    for name, shape in MODELS.items():
        if only and name not in only:
            continue
        model = build(shape, "cuda")
        causal = model.config.model_type.startswith("qwen")
        mode = "lasttoken" if causal else "cls"
        ways = WAYS if causal else WAYS[:3]
        parameters = sum(weight.numel() for weight in model.parameters())
        print(f"{name} ({model.config.model_type}): {parameters / 1e6:.0f}M parameters", flush=True)
        checked = distances(model, ways, size, mode)
        result["distance"][name] = checked
        print("  relative distance from float32: " + ", ".join(f"{key} {value:.4f}" for key, value in checked.items()))
        for kind in checked:
            started = time.perf_counter()
            net = way(kind, model, size)
            ready = time.perf_counter() - started
            for shape_name, lengths in shapes.items():
                row = measure(model, net, packs(lengths, size, net), mode)
                row["compile_seconds"] = ready
                result["rows"][f"{name}, {shape_name}, {kind}"] = row
                speed, flops = row["tokens_a_second"], row["tflops"]
                print(f"  {shape_name:>6} {kind:20} {speed:>10,.0f} tokens/s {flops:>6.0f} TFLOP/s", end="")
                print(f" {row['share']:>6.1%}", flush=True)
        if any(value > 1.5 * checked["padded"] + 1e-3 for value in checked.values()):
            raise SystemExit(f"the vectors of some way are wrong: {checked}")
        del model, net
        gc.collect()
        torch.cuda.empty_cache()
    return result | {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


def cpu(notes: int, rounds: int) -> dict[str, Any]:
    """The table of a CPU: the built-in model, ours against sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    from nosology.encoders.embedder import Embedder
    from nosology.encoders.embedder_config import EmbedderSettings
    from nosology.encoders.transformer import minilm_folder

    sys.path.insert(0, str(Path(__file__).parent))
    from text import note

    rng, generator = np.random.default_rng(0), random.Random(0)
    words = np.exp(rng.normal(np.log(1492), SPREAD, notes)).clip(50, 4000).astype(int)
    texts = [note(generator, int(n)) for n in words]
    embedder = Embedder.load(EmbedderSettings(), "cpu")
    other = SentenceTransformer(minilm_folder(), device="cpu")
    width = embedder.window - 2
    pieces = embedder._tokenizer.token_ids(texts)
    windows = [other.tokenizer.decode(ids[i : i + width]) for ids in pieces for i in range(0, len(ids), width)]
    theirs_tokens = sum(min(256, len(ids)) for ids in other.tokenizer(windows, verbose=False)["input_ids"])
    rates: dict[str, list[float]] = {"ours": [], "sentence_transformers": []}
    for _ in range(rounds):
        started = time.process_time()
        ours_tokens = sum(int(part.read.sum()) for part in embedder.embed_batches(texts))
        rates["ours"].append(ours_tokens / (time.process_time() - started))
        started = time.process_time()
        other.encode(windows, show_progress_bar=False)
        rates["sentence_transformers"].append(theirs_tokens / (time.process_time() - started))
    found = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(*rates.values()))
    for name, value in found.items():
        print(f"minilm on a CPU, {name:22}{value:>8,.0f} tokens/s")
    print(f"ratio {ratio:.2f}")
    return {
        "tokens_a_second": found,
        "ratio": ratio,
        "notes": notes,
        "tokens_a_note": float(np.mean([len(ids) for ids in pieces])),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Prints the tables and writes them; a part that is not measured keeps its last result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("cpu", "gpu"), help="default: gpu where there is one, else cpu")
    parser.add_argument("--pack", type=int, default=65_536, help="tokens that a GPU runs at once")
    parser.add_argument("--tokens", type=int, default=800_000, help="of each row on a GPU")
    parser.add_argument("--models", nargs="*", choices=list(MODELS))
    parser.add_argument("--notes", type=int, default=12, help="on a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="on a CPU")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    part = asked.part or ("gpu" if torch.cuda.is_available() else "cpu")
    if part == "gpu" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    found = gpu(asked.pack, asked.tokens, asked.models) if part == "gpu" else cpu(asked.notes, asked.rounds)
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    asked.out.write_text(json.dumps({**before, part: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
