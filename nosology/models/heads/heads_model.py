"""Heads: a frozen embedder makes a vector of the note, a light head predicts its codes (Xu and Dray, 2025)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save

from nosology.core import BundleError, EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.models.evidence_spans import occlusion
from nosology.models.heads.feature_statistics import Scaler
from nosology.models.heads.heads_net import HeadNet
from nosology.models.heads.heads_settings import HeadShape
from nosology.models.neural import CalibratedNet
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling, Scaling
from nosology.training.inference import default_device, evaluating

_ROWS = 4096  # notes per forward pass


@dataclass
class Heads(CalibratedNet):
    """P(code | note) = calibration(head(scaler(embedder(note))))."""

    labels: LabelSpace
    train_counts: np.ndarray  # (L,) training notes per code
    settings: EmbedderSettings
    identity: dict[str, Any]  # of the embedder that the head was trained with
    scaler: Scaler
    net: HeadNet  # pyrefly: ignore[bad-override-mutable-attribute]  (never replaced by another module)
    calibration: Scaling = field(default_factory=PlattScaling)

    kind = "heads"
    within_versions = False

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder, loaded at first use; BundleError if it is not the one that the head was trained with."""
        embedder = Embedder.load(self.settings)
        if embedder.identity != self.identity:
            differ = sorted(name for name in self.identity if embedder.identity.get(name) != self.identity[name])
            raise BundleError(
                f"the coder was trained with another version of the embedder {self.settings.model}: "
                f"{', '.join(differ)} differ"
            )
        return embedder

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); zeros for an empty note."""
        return self.to_probabilities(self.logits([note.text for note in notes]))

    def embeddings(self, notes: Sequence[Note]) -> np.ndarray:
        """The embedding of each note (B, D)."""
        return self.embedder.embed([note.text for note in notes])

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """Logits (B, L) of notes; all `EXCLUDED_LOGIT` for an empty note."""
        return self.logits_of(self.embedder.embed(texts)) if len(texts) else np.empty((0, len(self.labels)), "f4")

    def logits_of(self, vectors: np.ndarray) -> np.ndarray:
        """Logits (B, L), float32, of vectors (B, D) of the embedder.

        The zero vector is that of an empty note: all its logits are `EXCLUDED_LOGIT`.
        """
        logits = np.empty((len(vectors), len(self.labels)), dtype=np.float32)
        with evaluating(self.net):
            for start in range(0, len(vectors), _ROWS):
                rows = torch.from_numpy(self.scaler(vectors[start : start + _ROWS])).to(self.device)
                logits[start : start + _ROWS] = self.net.logits(rows).float().cpu().numpy()
        logits[~vectors.any(axis=1)] = EXCLUDED_LOGIT
        return logits

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the sentences whose removal lowers the logit of its code most, strongest first."""
        return occlusion(note.text, self.logits, labels, limit)

    def save(self, folder: Path) -> None:
        described = {
            "codes": self.labels.to_json(),
            "embedder": self.settings.model_dump(mode="json"),
            "identity": self.identity,
            "shape": self.net.shape.model_dump(mode="json"),
            "calibration": asdict(self.calibration),
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        tensors = {f"net.{name}": value.detach().cpu().contiguous() for name, value in self.net.state_dict().items()}
        arrays = {"notes": self.train_counts.astype(np.int64), "mean": self.scaler.mean, "scale": self.scaler.scale}
        tensors |= {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        (folder / "model.safetensors").write_bytes(save(tensors))  # save_file does not raise OSError on a full disk

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> Self:
        """The model that `save` wrote. device: default is a GPU if there is one."""
        described = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
        labels = LabelSpace(described["codes"])
        scaler = Scaler(tensors["mean"].numpy(), tensors["scale"].numpy())
        net = HeadNet(HeadShape.model_validate(described["shape"]), len(scaler.mean), len(labels))
        net.load_state_dict({name[4:]: value for name, value in tensors.items() if name.startswith("net.")})
        model = cls(
            labels,
            tensors["notes"].numpy(),
            EmbedderSettings.model_validate(described["embedder"]),
            described["identity"],
            scaler,
            net.eval(),
            PlattScaling(**described["calibration"]),
        )
        return model.to(device or default_device())
