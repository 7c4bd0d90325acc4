"""Label attention of CAML and LAAT: python benchmarks/speed/label_attention.py [--labels 14743] [--notes 64]

The loss of a step and its gradients, through scaled_dot_product_attention and by `fused_loss`, both in bf16 on
the same states: milliseconds, peak memory, and the largest relative difference of a gradient. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention.label_attention import LabelAttention

RESULT = Path(__file__).parents[1] / "results" / "speed_label_attention.json"
REPEATS = 5


def timed(step: Callable[[], Tensor], leaves: list[Tensor]) -> tuple[float, float, list[Tensor]]:
    """Milliseconds of a step, gigabytes at its peak, and the gradients by the leaves."""
    for repeat in range(REPEATS + 1):
        for leaf in leaves:
            leaf.grad = None
        if repeat == 1:
            torch.cuda.reset_peak_memory_stats()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
        step().backward()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / REPEATS, torch.cuda.max_memory_allocated() / 1e9, [leaf.grad for leaf in leaves]


def compare(width: int, projection: int, labels: int, notes: int, tokens: int) -> dict[str, float | int]:
    """Both ways on random states."""
    torch.manual_seed(0)
    layer = LabelAttention(width, labels, projection).cuda()
    states = torch.randn(notes, tokens, width, device="cuda", dtype=torch.bfloat16).tanh().requires_grad_()
    mask = torch.arange(tokens, device="cuda") < torch.randint(tokens // 2, tokens + 1, (notes, 1), device="cuda")
    targets = (torch.rand(notes, labels, device="cuda") < 1e-3).float()
    leaves = [states, *layer.parameters()]
    with torch.autocast("cuda", torch.bfloat16):
        logits = timed(lambda: binary_cross_entropy_with_logits(layer.logits(states, mask).float(), targets), leaves)
        fused = timed(lambda: layer.loss(states, mask, targets), leaves)
    difference = max(float((a - b).norm() / b.norm()) for a, b in zip(fused[2], logits[2]))
    return {
        "width": width,
        "projection": projection,
        "labels": labels,
        "notes": notes,
        "tokens": tokens,
        "attention_ms": round(logits[0], 2),
        "fused_ms": round(fused[0], 2),
        "ratio": round(logits[0] / fused[0], 2),
        "attention_gb": round(logits[1], 2),
        "fused_gb": round(fused[1], 2),
        "gradient_difference": round(difference, 4),
    }


def main() -> None:
    """Prints and writes a row for the width of CAML and one for that of LAAT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=14_743)
    parser.add_argument("--notes", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1_536)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    sizes = (arguments.labels, arguments.notes, arguments.tokens)
    rows = [compare(width, projection, *sizes) for width, projection in ((256, 0), (512, 512))]
    for row in rows:
        print(json.dumps(row))
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
