"""The linear coder: TF-IDF vectors and one linear SVM per code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save
from scipy import sparse

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.models.linear.tfidf import Tfidf
from nosology.models.spans import best_spans
from nosology.training.calibration import ScoreCalibration


@dataclass
class Linear:
    """score = x . w + b with x the note's TF-IDF vector; probability = calibration(score)."""

    labels: LabelSpace
    train_counts: np.ndarray  # (L,) training notes of each code
    tfidf: Tfidf
    weights: sparse.csr_matrix  # (features, L)
    bias: np.ndarray  # (L,)
    calibration: ScoreCalibration | None = None

    kind = "linear"
    within_versions = False

    def scores(self, vectors: sparse.csr_matrix) -> np.ndarray:
        """Scores (B, L) of vectors (B, features)."""
        return (vectors @ self.weights).toarray() + self.bias

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); zeros for a note without a known word."""
        return self.vector_probabilities(self.tfidf.transform(note.text for note in notes))

    def vector_probabilities(self, vectors: sparse.csr_matrix) -> np.ndarray:
        """The same (B, L) of vectors (B, features)."""
        found = self.to_probabilities(self.scores(vectors))
        found[np.diff(vectors.indptr) == 0] = 0
        return found

    def to_probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L)."""
        if self.calibration is None:
            raise ValueError("the model must be calibrated before it gives probabilities")
        return self.calibration(scores, self.train_counts)

    def word_contributions(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """How much each token adds to the score of each label.

        A word's part is shared among its occurrences, a pair's part between its two words; over all tokens the parts
        add up to score - bias.
        """
        found = self.tfidf.occurrences(note.text)
        vector = self.tfidf.transform([note.text])
        value = np.zeros(len(self.tfidf), dtype=np.float32)
        value[vector.indices] = vector.data
        times = np.bincount(found.features, minlength=len(self.tfidf))[found.features]
        parts = self.weights[found.features][:, labels].toarray() * (value[found.features] / times)[:, None]
        total = np.zeros((len(found.tokens), len(labels)))
        for offset in (0, 1):  # a pair's second token
            covers = found.length > offset
            np.add.at(total, found.first[covers] + offset, parts[covers] / found.length[covers, None])
        return WordWeights(found.tokens.starts, found.tokens.ends, total.T)

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the note that add most to its score, strongest first."""
        words = self.word_contributions(note, labels)
        return [best_spans(note.text, row, words.starts, words.ends, limit) for row in words.weights]

    def save(self, folder: Path) -> None:
        """Writes model.json and model.safetensors."""
        described = {
            "codes": self.labels.to_json(),
            "words": self.tfidf.words,
            "shortest": self.tfidf.shortest,
            "calibration": self.calibration.to_json() if self.calibration else None,
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        arrays = {
            "notes": self.train_counts,
            "pairs": self.tfidf.pairs,
            "scale": self.tfidf.scale,
            "bias": self.bias,
            "weights.data": self.weights.data,
            "weights.indices": self.weights.indices,
            "weights.indptr": self.weights.indptr,
        }
        packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        (folder / "model.safetensors").write_bytes(packed)  # save_file would not say OSError when the disk is full

    @classmethod
    def load(cls, folder: Path) -> Linear:
        """The model that `save` wrote."""
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / "model.safetensors")
        labels = LabelSpace(described["codes"])
        tfidf = Tfidf(described["words"], arrays["pairs"], arrays["scale"], described["shortest"])
        weights = sparse.csr_matrix(
            tuple(arrays[f"weights.{part}"] for part in ("data", "indices", "indptr")), shape=(len(tfidf), len(labels))
        )
        calibration = ScoreCalibration(**described["calibration"]) if described["calibration"] else None
        return cls(labels, arrays["notes"], tfidf, weights, arrays["bias"], calibration)

    def calibrated(self, scores: np.ndarray, gold: sparse.csr_matrix) -> Linear:
        """This model with its calibration fitted on scores (B, L) of notes that it was not trained on."""
        return replace(self, calibration=ScoreCalibration.fit(scores, gold, self.train_counts))
