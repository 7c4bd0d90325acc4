"""Tokens per second of embedders: python benchmarks/speed/embedding.py [--part cpu|gpu] [--out FILE]

cpu: the built-in model on simulated discharge summaries, compared with SentenceTransformer.encode on the same windows,
in alternating runs, in processor time. gpu: a Qwen3-0.6B and an encoder of 305 million parameters with random weights
in bf16, on notes of 8,192 tokens and on notes as long as MIMIC-IV's. Prints tokens/s and the share of the card's 790
TFLOP/s (matrix products and attention of the notes' tokens, no padding). Every mode is first compared with float32.
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

from nosology.encoders.packed import PackedTransformer, PaddedTransformer, pool, transformer_layers

RESULT = Path(__file__).parents[1] / "results" / "speed_embedding.json"
PEAK = 790.0  # TFLOP/s of a large bf16 product, measured on an H200
# Lengths of MIMIC-IV's notes in tokens: 0.5% are longer than 8,192, as in Xu and Dray (2025).
MEDIAN, SPREAD, LONGEST = 3030, 0.386, 8192
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
        "initializer_range": 0.05,  # large enough for attention to change the vectors
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
# If transformers does not know gte: the same width and depth, with learned positions.
FALLBACK = {**MODELS["encoder-305M"], "model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}
RUN_MODES = ("padded", "packed", "packed, compiled", "aligned, compiled")


def build(shape: dict[str, Any], device: str) -> Any:
    """A model of this shape with random weights in bf16."""
    from transformers import AutoConfig, AutoModel

    shape = dict(shape)
    try:
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    except ValueError:
        config = AutoConfig.for_model(**FALLBACK)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=torch.bfloat16)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model.eval().requires_grad_(False)


def operations(model: Any, lengths: list[int]) -> float:
    """Floating-point operations for texts of these lengths: two per weight and token, and attention."""
    config = model.config
    layers = transformer_layers(model)
    weights = sum(part.weight.numel() for part in layers.modules() if isinstance(part, torch.nn.Linear))
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    pairs = sum(n * (n + 1) / 2 if config.model_type.startswith("qwen") else n * n for n in lengths)
    return 2.0 * weights * sum(lengths) + 4.0 * width * config.num_hidden_layers * pairs


def packs(lengths: list[int], size: int, net: torch.nn.Module) -> list[list[int]]:
    """Lengths of texts, longest first, in packs of at most `size` tokens."""
    parts: list[list[int]] = []
    total = 0
    for length in sorted(lengths, reverse=True):
        if not parts or total + net.slot_tokens(length, parts[-1][0]) > size:
            parts.append([])
            total = 0
        parts[-1].append(length)
        total += net.slot_tokens(length, parts[-1][0])
    return parts


def build_net(name: str, model: Any, size: int) -> torch.nn.Module:
    """The net that runs the model in this mode."""
    torch._dynamo.reset()
    for layer in transformer_layers(model):
        layer._compiled_call_impl = None
    if name == "padded":
        model.set_attn_implementation("sdpa")
        return PaddedTransformer(model, 0)
    net = PackedTransformer(model, aligned=name.startswith("aligned"))
    if name.endswith("compiled") and not net.compile_layers(size):
        raise RuntimeError("the layers could not be compiled") from net.compile_error
    return net


def measure(model: Any, net: torch.nn.Module, parts: list[list[int]], pooling: str) -> dict[str, float]:
    """One row of the table; the first pass over all packs is a warm-up."""
    device = next(model.parameters()).device
    longest = max(map(sum, parts))
    ids = torch.randint(4, model.config.vocab_size, (longest,), device=device)

    def run_once() -> None:
        for part in parts:
            pool(net(ids[: sum(part)], part), torch.tensor(part, device=device), (pooling,))

    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    with torch.inference_mode():
        run_once()
        wait()
        started = time.perf_counter()
        run_once()
        wait()
    seconds = time.perf_counter() - started
    lengths = [length for part in parts for length in part]
    flops = operations(model, lengths) / seconds / 1e12
    return {
        "tokens_per_second": sum(lengths) / seconds,
        "notes_per_second": len(lengths) / seconds,
        "tflops": flops,
        "share": flops / PEAK,
        "mean_tokens": float(np.mean(lengths)),
        "notes": len(lengths),
    }


def distances(model: Any, run_modes: tuple[str, ...], size: int, pooling: str) -> dict[str, float]:
    """The relative distance of the vectors of each mode from those in float32."""
    device = next(model.parameters()).device
    lengths = [1800, 1500, 700, 350, 120, 33]
    ids = torch.randint(4, model.config.vocab_size, (sum(lengths) + size,), device=device)

    def vectors(net: torch.nn.Module, fill: int) -> torch.Tensor:
        filled = [*lengths, *[512] * fill]  # more than half a pack, so that the compiled layers run
        with torch.inference_mode():
            return pool(net(ids[: sum(filled)], filled), torch.tensor(filled, device=device), (pooling,))[:6].double()

    exact = vectors(build_net("padded", model, size).float(), 0)
    model.bfloat16()
    fills = {"padded": 0, "aligned, compiled": size // 1856 - 6}
    results = {}
    for name in run_modes:
        fill = fills.get(name, (size - sum(lengths)) // 512)
        try:
            results[name] = float((vectors(build_net(name, model, size), fill) - exact).norm() / exact.norm())
        except RuntimeError:  # a mode that this machine does not support
            traceback.print_exc(limit=-3)
    return results


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
        pooling = "lasttoken" if causal else "cls"
        run_modes = RUN_MODES if causal else RUN_MODES[:3]
        parameters = sum(weight.numel() for weight in model.parameters())
        print(f"{name} ({model.config.model_type}): {parameters / 1e6:.0f}M parameters", flush=True)
        gaps = distances(model, run_modes, size, pooling)
        result["distance"][name] = gaps
        print("  relative distance from float32: " + ", ".join(f"{key} {value:.4f}" for key, value in gaps.items()))
        for kind in gaps:
            started = time.perf_counter()
            net = build_net(kind, model, size)
            ready = time.perf_counter() - started
            for shape_name, lengths in shapes.items():
                row = measure(model, net, packs(lengths, size, net), pooling)
                row["compile_seconds"] = ready
                result["rows"][f"{name}, {shape_name}, {kind}"] = row
                speed, flops = row["tokens_per_second"], row["tflops"]
                print(f"  {shape_name:>6} {kind:20} {speed:>10,.0f} tokens/s {flops:>6.0f} TFLOP/s", end="")
                print(f" {row['share']:>6.1%}", flush=True)
        if any(value > 1.5 * gaps["padded"] + 1e-3 for value in gaps.values()):
            raise SystemExit(f"the vectors of a mode are wrong: {gaps}")
        del model, net
        gc.collect()
        torch.cuda.empty_cache()
    return result | {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


def cpu(notes: int, rounds: int) -> dict[str, Any]:
    """The table of a CPU: the built-in model, nosology and sentence-transformers."""
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
    reference = SentenceTransformer(minilm_folder(), device="cpu")
    width = embedder.window - 2
    pieces = embedder._tokenizer.token_ids(texts)
    windows = [reference.tokenizer.decode(ids[i : i + width]) for ids in pieces for i in range(0, len(ids), width)]
    theirs_tokens = sum(min(256, len(ids)) for ids in reference.tokenizer(windows, verbose=False)["input_ids"])
    rates: dict[str, list[float]] = {"ours": [], "sentence_transformers": []}
    for _ in range(rounds):
        started = time.process_time()
        ours_tokens = sum(int(part.read.sum()) for part in embedder.embed_batches(texts))
        rates["ours"].append(ours_tokens / (time.process_time() - started))
        started = time.process_time()
        reference.encode(windows, show_progress_bar=False)
        rates["sentence_transformers"].append(theirs_tokens / (time.process_time() - started))
    results = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(*rates.values()))
    for name, value in results.items():
        print(f"minilm on a CPU, {name:22}{value:>8,.0f} tokens/s")
    print(f"ratio {ratio:.2f}")
    return {
        "tokens_per_second": results,
        "ratio": ratio,
        "notes": notes,
        "tokens_per_note": float(np.mean([len(ids) for ids in pieces])),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def write(path: Path, part: str, results: dict[str, Any]) -> None:
    """Writes a part; other parts of the file stay, and rows of other models of the same device, versions and packs."""
    previous = json.loads(path.read_text()) if path.exists() else {}
    before, tables = previous.get(part, {}), [name for name in ("rows", "distance") if name in results]
    if tables and all(before.get(name) == value for name, value in results.items() if name not in tables):
        results = results | {name: before.get(name, {}) | results[name] for name in tables}
    path.write_text(json.dumps({**previous, part: results}, indent=2) + "\n")


def main() -> None:
    """Prints and writes the tables; a part that is not measured keeps its last result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("cpu", "gpu"), help="default: gpu if there is one, else cpu")
    parser.add_argument("--pack", type=int, default=65_536, help="tokens per forward pass on a GPU")
    parser.add_argument("--tokens", type=int, default=800_000, help="per row on a GPU")
    parser.add_argument("--models", nargs="*", choices=list(MODELS))
    parser.add_argument("--notes", type=int, default=12, help="on a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="on a CPU")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    part = args.part or ("gpu" if torch.cuda.is_available() else "cpu")
    if part == "gpu" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    results = gpu(args.pack, args.tokens, args.models) if part == "gpu" else cpu(args.notes, args.rounds)
    write(args.out, part, results)


if __name__ == "__main__":
    main()
