"""A fast embedder for tests of the cache, and a program that fills a cache with it.

python -m tests.encoders.counting_embedder FOLDER START N PAUSE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from nosology.encoders.embedder import EmbeddedBatch
from nosology.encoders.embedding_cache import EmbeddingCache, text_hash

DIM = 5
KEY = "a" * 64


class Counting:
    """An embedder whose vectors are hashes of the texts, and which records the texts that it embeds."""

    key, dim, identity, name = KEY, DIM, {"model": "counting"}, "counting"

    def __init__(self, batch: int = 3, pause: float = 0.0):
        self.batch, self.pause, self.embedded = batch, pause, []

    def __call__(self) -> Counting:
        return self

    def embed_batches(self, texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), self.batch):
            time.sleep(self.pause)
            rows = np.array(order[start : start + self.batch])
            chosen = [texts[row] for row in rows]
            self.embedded += chosen
            sizes = np.array([len(text) for text in chosen])
            yield EmbeddedBatch(rows, self.expected(chosen), sizes, sizes, sizes > 0, int(sizes.sum()), 0.1)

    @staticmethod
    def expected(texts) -> np.ndarray:
        """Vectors (B, DIM) that the hash of each text decides."""
        raw = b"".join(text_hash(text)[: 4 * DIM] for text in texts)
        return np.frombuffer(raw, dtype="<u4").reshape(-1, DIM).astype(np.float32)


def opened(folder: Path) -> EmbeddingCache:
    return EmbeddingCache(folder, KEY, DIM, {"model": "counting"})


def texts(n: int, start: int = 0) -> list[str]:
    return [f"note {i} {'x' * (i % 7)}" for i in range(start, start + n)]


if __name__ == "__main__":
    folder, start, n, pause = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    opened(folder).vectors(texts(n, start), Counting(4, pause), lambda _: print("batch", flush=True))
