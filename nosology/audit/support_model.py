"""The support model: how likely a billed code is wrong, and a suggested code is missing on the bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from nosology.audit.bill_context import CONTEXT, context_rows
from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.description_similarity import SIMILARITIES, DescriptionSimilarity
from nosology.audit.support_features import FEATURES, NoteFeatures
from nosology.core import BundleError, ConfigError, Suggestion
from nosology.core.files import atomic_folder, json_sha256, read_json, write_json
from nosology.models.bundle import DAY_ONE, is_day_one, read_manifest
from nosology.models.stacked.stacker import Stacker

CLASSIFIERS = {"unsupported": "foreign", "other_code": "sibling", "not_billed": "dropped"}
"""Kinds of findings with a classifier, and the planted errors that each learns to find."""
FIRST = "first"
"""The classifier whose probabilities that billed codes are foreign give the features of bill_context."""
MANIFEST, WEIGHTS = "auditor.json", "auditor.safetensors"
_STATISTICS, _SIMILARITY = "statistics", "similarity"  # names of arrays
_MAX_DENIED = 0.02  # share of right codes that the notes deny or call over, up to which such codes are errors
_ALL_FEATURES = FEATURES + SIMILARITIES + CONTEXT
_LEAST_PROBABILITY, _MAX_CANDIDATES = 0.01, 60  # of a suggested code that may be missing


@dataclass(frozen=True)
class Judgement:
    """Probabilities that billed codes are unsupported or stand for another code, and that codes are missing."""

    unsupported: dict[str, float]
    other_code: dict[str, float]
    not_billed: dict[str, float]
    thresholds: dict[str, float]
    denied_counts: bool = False  # whether a code that the note denies or calls over is an error

    def is_found(self, kind: str, code: str) -> bool:
        """Whether the probability of a finding reaches the threshold of its kind."""
        return getattr(self, kind).get(code, 0.0) >= self.thresholds[kind]


@dataclass(frozen=True)
class SupportModel:
    """Classifiers over features of note, coder and bill, and a threshold for each kind of finding.

    Codes are called unsupported after two looks: the second one knows what the first said about the rest of the bill.
    """

    statistics: BillStatistics
    classifiers: dict[str, Stacker]  # of CLASSIFIERS, and FIRST
    thresholds: dict[str, float]
    coder: str  # fingerprint of the coder whose suggestions it was trained on
    similarity: DescriptionSimilarity | None = None
    measured: dict[str, dict[str, float]] = field(default_factory=dict)  # by kind of planted error, out of fold

    @property
    def denied_counts(self) -> bool:
        """Whether a code that the note denies or calls over is an error: not if the corpus has many such ones."""
        return self.measured.get("untouched", {}).get("denied_or_over", 1.0) <= _MAX_DENIED

    def judge(self, text: str, bill: Sequence[str], suggestions: Sequence[Suggestion]) -> Judgement:
        """The probabilities for the ICD-10-CM codes of a bill; suggestions: up to MAX_SUGGESTIONS of the coder."""
        features = NoteFeatures(text, suggestions, self.statistics, self.similarity)
        missing = candidates(features, bill)
        rows, more = features.rows(bill, bill), features.rows(missing, bill)
        first = self.classifiers[FIRST].probabilities(rows)
        in_context = np.hstack([rows, context_rows(first, self.statistics.affinities(bill))])

        def probabilities(kind: str, codes: Sequence[str], of_codes: np.ndarray) -> dict[str, float]:
            return dict(zip(codes, self.classifiers[kind].probabilities(of_codes).tolist()))

        return Judgement(
            probabilities("unsupported", bill, in_context),
            probabilities("other_code", bill, rows),
            probabilities("not_billed", missing, more),
            self.thresholds,
            self.denied_counts,
        )

    def save(self, folder: str | Path) -> None:
        """Writes auditor.json and auditor.safetensors."""
        with atomic_folder(folder, marker=MANIFEST, files=[WEIGHTS]) as temporary:
            parts = {name: classifier.arrays() for name, classifier in self.classifiers.items()}
            parts[_STATISTICS] = self.statistics.arrays()
            if self.similarity:
                parts[_SIMILARITY] = self.similarity.arrays()
            arrays = {
                f"{name}.{key}": np.ascontiguousarray(array)
                for name, part in parts.items()
                for key, array in part.items()
            }
            (temporary / WEIGHTS).write_bytes(save(arrays))
            described = {
                "features": _ALL_FEATURES,
                "thresholds": self.thresholds,
                "coder": self.coder,
                "measured": self.measured,
            }
            described["embedder"] = self.similarity.embedder if self.similarity else ""
            write_json(temporary / MANIFEST, described | {"names": self.statistics.names()})

    @classmethod
    def for_coder(cls, folder: str | Path, coder: str | Path) -> SupportModel:
        """The model in a folder; ConfigError if it was fitted for another coder."""
        model = cls.load(folder)
        if model.coder != coder_fingerprint(coder):
            raise ConfigError(f"the auditor {folder} was fitted for another coder than {coder}")
        return model

    @classmethod
    def load(cls, folder: str | Path) -> SupportModel:
        """The model in a folder; BundleError if it is missing, damaged or of another version."""
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise BundleError(f"{folder} is no auditor: it holds no {MANIFEST} (make one with `nosology audit-fit`)")
        try:
            stored: Mapping = read_json(path)
            if tuple(stored["features"]) != _ALL_FEATURES:
                raise BundleError(f"{path} is of another version of nosology: make it again with `nosology audit-fit`")
            arrays = load_file(path.with_name(WEIGHTS))

            def part(name: str) -> dict[str, np.ndarray]:
                start = f"{name}."
                return {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}

            classifiers = {name: Stacker.from_arrays(part(name)) for name in (FIRST, *CLASSIFIERS)}
            thresholds = {name: float(stored["thresholds"][name]) for name in CLASSIFIERS}
            statistics = BillStatistics.from_arrays(stored["names"], part(_STATISTICS))
            embedder = stored["embedder"]
            similarity = DescriptionSimilarity.from_arrays(embedder, part(_SIMILARITY)) if embedder else None
            return cls(statistics, classifiers, thresholds, stored["coder"], similarity, stored["measured"])
        except (ValueError, LookupError, TypeError, OSError, SafetensorError) as error:
            raise BundleError(f"the auditor {folder} cannot be read: {type(error).__name__}") from error


def coder_fingerprint(coder: str | Path) -> str:
    """A hash of the manifest of a bundle; its name for day-one."""
    return DAY_ONE if is_day_one(coder) else json_sha256(read_manifest(coder))


def candidates(features: NoteFeatures, bill: Sequence[str]) -> list[str]:
    """The codes that may be missing: suggested with evidence, not billed, the most probable ones."""
    likely = (code for code, it in features.suggested.items() if it.evidence and it.probability >= _LEAST_PROBABILITY)
    return [code for code in likely if code not in bill][:_MAX_CANDIDATES]
