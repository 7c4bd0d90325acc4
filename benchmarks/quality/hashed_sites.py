"""Sites of a simulated hospital whose notes are vectors of hashed words, for benchmarks of federated rounds.

Rules of aggregation are compared over many runs, so the vectors must be cheap: log counts of words and pairs of words,
hashed to a fixed width, need no training and no exchange between sites. A head learns more from them than from the
built-in embedder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer

from nosology.core import SPLITS
from nosology.core.note import Note
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.models.heads.heads_net import CodedVectors

WIDTH = 512
IDENTITY = {"model": "hashed words and pairs of words", "dim": WIDTH}


def hash_notes(notes: Sequence[Note]) -> np.ndarray:
    """Vectors (notes, WIDTH) of unit length."""
    counts = HashingVectorizer(n_features=WIDTH, ngram_range=(1, 2), norm=None).transform(note.text for note in notes)
    counts.data = np.sign(counts.data) * np.log1p(np.abs(counts.data))
    vectors = counts.toarray()
    return (vectors / np.maximum(1e-9, np.linalg.norm(vectors, axis=1, keepdims=True))).astype(np.float32)


def hashed_sites(notes: Sequence[Note], vectors: np.ndarray, site_of: Mapping[str, str]) -> list[HeadsSite]:
    """One site per name; vectors: of the notes."""
    sites = []
    for name in sorted(set(site_of.values())):
        parts = {}
        for split in SPLITS:
            rows = [row for row, note in enumerate(notes) if site_of[note.id] == name and note.split == split]
            parts[split] = CodedVectors(vectors[rows], [notes[row].codes for row in rows])
        sites.append(HeadsSite(name, IDENTITY, embedder_key(IDENTITY), parts))
    return sites
