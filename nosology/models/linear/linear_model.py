"""The linear coder: TF-IDF vectors and one linear SVM per code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save
from scipy import sparse

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.core.model import WordWeights
from nosology.models.evidence_spans import best_spans
from nosology.models.linear.tfidf import Tfidf
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
        vectors = self.tfidf.transform(note.text for note in notes)
        probabilities = self.to_probabilities(self.scores(vectors))
        probabilities[np.diff(vectors.indptr) == 0] = 0
        return probabilities

    def to_probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L)."""
        if self.calibration is None:
            raise ValueError("the model must be calibrated before it gives probabilities")
        return self.calibration(scores, self.train_counts)

    def word_contributions(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """How much each token adds to the score of each label.

        The contribution of a feature is divided among its occurrences, that of a pair between its two words. The sum
        over all tokens is score - bias.
        """
        features, first, length, tokens = self.tfidf.occurrences(note.text)
        value = self.tfidf.transform([note.text]).toarray()[0, features]
        count = np.bincount(features, minlength=1)[features]
        parts = self.weights[features][:, labels].toarray() * (value / count / length)[:, None]
        total = np.zeros((len(tokens), len(labels)))
        for offset in (0, 1):
            np.add.at(total, (first + offset)[length > offset], parts[length > offset])
        return WordWeights(tokens.starts, tokens.ends, total.T)

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the note that add most to its score, strongest first."""
        words = self.word_contributions(note, labels)
        return best_spans(note.text, words.weights, words.starts, words.ends, limit)

    def save(self, folder: Path) -> None:
        described = {
            "codes": self.labels.to_json(),
            "words": self.tfidf.words,
            "shortest": self.tfidf.shortest,
            "calibration": asdict(self.calibration) if self.calibration else None,
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
        (folder / "model.safetensors").write_bytes(packed)  # save_file does not raise OSError on a full disk

    @classmethod
    def load(cls, folder: Path) -> Linear:
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / "model.safetensors")
        labels = LabelSpace(described["codes"])
        tfidf = Tfidf(described["words"], arrays["pairs"], arrays["scale"], described["shortest"])
        weights = sparse.csr_matrix(
            tuple(arrays[f"weights.{part}"] for part in ("data", "indices", "indptr")), shape=(len(tfidf), len(labels))
        )
        weights.check_format(full_check=True)  # compiled code does not check indices
        calibration = ScoreCalibration(**described["calibration"]) if described["calibration"] else None
        return cls(labels, arrays["notes"], tfidf, weights, arrays["bias"], calibration)

    def calibrated(self, scores: np.ndarray, gold: sparse.csr_matrix) -> Linear:
        """This model with its calibration fitted on scores (B, L) of notes that it was not trained on."""
        return replace(self, calibration=ScoreCalibration.fit(scores, gold, self.train_counts))
