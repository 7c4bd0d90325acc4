"""The stacked coder: trained parts, and a stacker that turns their scores into probabilities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from nosology.core import EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.models.bundle import Bundle
from nosology.models.stacked.candidate_cells import PartScorer, fill_scores
from nosology.models.stacked.stacker import Stacker

BATCH = 256  # notes whose scores of all parts are in memory together; the lexicon codes so many on all cores
_PARTS = "parts"  # subfolder of a bundle with one bundle per part


@dataclass(frozen=True)
class Stacked:
    """P(code | note) = stacker(scores of the parts). A code that one part knows is known."""

    parts: dict[str, Bundle]
    stacker: Stacker
    candidates: int  # codes per note and part that the stacker scores

    kind = "stacked"

    @cached_property
    def scorer(self) -> PartScorer:
        """The parts with their joint label space."""
        return PartScorer(list(self.parts.values()), self.candidates)

    @property
    def labels(self) -> LabelSpace:
        """The codes that some part knows, sorted."""
        return self.scorer.labels

    @property
    def train_counts(self) -> np.ndarray:
        """The number of training notes of each label (L,)."""
        return self.scorer.train_counts

    @cached_property
    def within_versions(self) -> bool:
        """Whether a part chooses only among codes of the ICD version of a note."""
        return any(part.model.within_versions for part in self.parts.values())

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L). Codes that no part ranks among its candidates are below all candidates of a note."""
        probabilities = np.zeros((len(notes), len(self.labels)), dtype=np.float32)
        for start in range(0, len(notes), BATCH):
            probabilities[start : start + BATCH] = self._batch_probabilities(notes[start : start + BATCH])
        return probabilities

    def _batch_probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        of_parts = self.scorer.probabilities(notes)
        cells, probabilities = self.scorer.cells(of_parts), self.scorer.means(of_parts)
        fill_scores(probabilities, cells.rows, cells.labels, self.stacker.probabilities(cells.features))
        return probabilities

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the spans of the part with the highest probability for it; of the next one if it has none."""
        spans: list[list[EvidenceSpan]] = [[] for _ in labels]
        if not len(labels):
            return spans
        chosen = np.asarray(labels)
        columns = np.stack([column_of[chosen] for column_of in self.scorer.column_of])  # (P, labels)
        scores = [block[0] for block in self.scorer.probabilities([note])]
        values = np.stack([np.where(at >= 0, row[at], -1) for row, at in zip(scores, columns)])
        for order in np.argsort(-values, axis=0, kind="stable"):
            for number, part in enumerate(self.parts.values()):
                asked = [
                    i for i in range(len(chosen)) if order[i] == number and columns[number, i] >= 0 and not spans[i]
                ]
                if asked:
                    found = part.model.evidence(note, columns[number, asked].tolist(), limit)
                    for i, its_spans in zip(asked, found):
                        spans[i] = its_spans
        return spans

    def save(self, folder: Path) -> None:
        """Writes model.json, model.safetensors, and each part as a bundle of its own in parts/NAME."""
        described = {"parts": list(self.parts), "candidates": self.candidates}
        (folder / "model.json").write_text(json.dumps(described), encoding="utf-8")
        arrays = {name: np.ascontiguousarray(array) for name, array in self.stacker.arrays().items()}
        (folder / "model.safetensors").write_bytes(save(arrays))  # save_file raises no OSError on a full disk
        for name, part in self.parts.items():
            part.save(folder / _PARTS / name)

    @classmethod
    def load(cls, folder: Path) -> Stacked:
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        stacker = Stacker.from_arrays(load_file(folder / "model.safetensors"))
        if unsafe := [name for name in described["parts"] if name in ("", "..") or Path(name).name != name]:
            raise ValueError(f"a part must be a subfolder of the bundle; got {unsafe[0]!r}")
        parts = {name: Bundle.load(folder / _PARTS / name) for name in described["parts"]}
        return cls(parts, stacker, described["candidates"])
