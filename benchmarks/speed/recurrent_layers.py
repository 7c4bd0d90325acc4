"""GRU of DualLAAT and LSTM of LAAT at small batches on a GPU: python benchmarks/speed/recurrent_layers.py

One bidirectional layer of 512 units over word vectors of size 100: milliseconds of the forward and backward pass, by
cuDNN on packed notes and by our kernels (`gru_kernel.py`, `lstm_kernel.py`), both in bf16 and on the same notes, and
the largest relative distance of states and gradients from float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nosology.encoders import gru_kernel
from nosology.encoders.word_encoders import CELLS, RecurrentEncoder

RESULT = Path(__file__).parents[1] / "results" / "speed_recurrent_layers.json"
REPEATS, HIDDEN, SIZE = 5, 512, 100


class Layer:
    """An encoder with notes of different lengths and a gradient by its states."""

    def __init__(self, cell: str, notes: int, words: int):
        torch.manual_seed(0)
        self.encoder = RecurrentEncoder(SIZE, HIDDEN, cell).cuda()
        self.x = torch.randn(notes, words, SIZE, device="cuda").requires_grad_()
        self.lengths = torch.randint(words * 3 // 4, words + 1, (notes,))
        self.lengths[0] = words
        self.gradient = torch.randn(notes, words, 2 * HIDDEN, device="cuda")

    def run(self, max_notes: int, precision: torch.dtype) -> list[Tensor]:
        """States and gradients; max_notes: the largest batch for which the kernel is used."""
        gru_kernel.MAX_NOTES = max_notes
        with torch.autocast("cuda", precision, enabled=precision != torch.float32):
            states = self.encoder(self.x, self.lengths)
        leaves = [self.x, *self.encoder.parameters()]
        return [states.detach().float(), *torch.autograd.grad(states, leaves, self.gradient.to(states.dtype))]

    def milliseconds(self, max_notes: int) -> float:
        """The time of `run` in bf16."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.run(max_notes, torch.bfloat16)
        start.record()
        for _ in range(REPEATS):
            self.run(max_notes, torch.bfloat16)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / REPEATS


def compare(cell: str, notes: int, words: int) -> dict[str, Any]:
    """A row of the table."""
    layer = Layer(cell, notes, words)
    exact = layer.run(0, torch.float32)
    row: dict[str, Any] = {"cell": cell, "notes": notes, "words": words}
    for name, max_notes in (("cudnn", 0), ("kernel", notes)):
        rows = layer.run(max_notes, torch.bfloat16)
        row[f"{name}_distance"] = round(max(float((a - b).norm() / b.norm()) for a, b in zip(rows, exact)), 4)
        row[f"{name}_ms"] = round(layer.milliseconds(max_notes), 2)
    return row | {"ratio": round(row["cudnn_ms"] / row["kernel_ms"], 2)}


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=1536)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for cell in CELLS:
        for notes in arguments.batches:
            rows.append(compare(cell, notes, arguments.words))
            print(json.dumps(rows[-1]), flush=True)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
