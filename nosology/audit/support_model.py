"""The support model: how likely a billed code is wrong, and a suggested code is missing on the bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.support_features import FEATURES, NoteFeatures
from nosology.core import BundleError, ConfigError, Suggestion
from nosology.core.files import atomic_folder, json_sha256, read_json, write_json
from nosology.models.bundle import DAY_ONE, is_day_one, read_manifest
from nosology.models.stacked.stacker import Stacker

CLASSIFIERS = {"unsupported": "foreign", "other_code": "sibling", "not_billed": "dropped"}
"""Kinds of findings with a classifier, and the planted errors that each learns to find."""
MANIFEST, WEIGHTS = "auditor.json", "auditor.safetensors"
_LEAST_PROBABILITY, _MAX_CANDIDATES = 0.01, 60  # of a suggested code that may be missing


@dataclass(frozen=True)
class Judgement:
    """Probabilities that billed codes are unsupported or stand for another code, and that codes are missing."""

    unsupported: dict[str, float]
    other_code: dict[str, float]
    not_billed: dict[str, float]
    thresholds: dict[str, float]

    def is_found(self, kind: str, code: str) -> bool:
        """Whether the probability of a finding reaches the threshold of its kind."""
        return getattr(self, kind).get(code, 0.0) >= self.thresholds[kind]


@dataclass(frozen=True)
class SupportModel:
    """Classifiers over features of note, coder and bill, and a threshold for each kind of finding."""

    statistics: BillStatistics
    classifiers: dict[str, Stacker]
    thresholds: dict[str, float]
    coder: str  # fingerprint of the coder whose suggestions it was trained on

    def judge(self, text: str, bill: Sequence[str], suggestions: Sequence[Suggestion]) -> Judgement:
        """The probabilities for the ICD-10-CM codes of a bill; suggestions: up to MAX_SUGGESTIONS of the coder."""
        features = NoteFeatures(text, suggestions, self.statistics)
        missing = candidates(features, bill)
        rows, more = features.rows(bill, bill), features.rows(missing, bill)
        found = {
            name: dict(zip(missing, classifier.probabilities(more).tolist()))
            if name == "not_billed"
            else dict(zip(bill, classifier.probabilities(rows).tolist()))
            for name, classifier in self.classifiers.items()
        }
        return Judgement(**found, thresholds=self.thresholds)

    def save(self, folder: str | Path) -> None:
        """Writes auditor.json and auditor.safetensors."""
        with atomic_folder(folder, marker=MANIFEST, files=[WEIGHTS]) as temporary:
            arrays = {
                f"{name}.{key}": np.ascontiguousarray(array)
                for name, classifier in self.classifiers.items()
                for key, array in classifier.arrays().items()
            }
            (temporary / WEIGHTS).write_bytes(save(arrays))
            described = {"features": FEATURES, "thresholds": self.thresholds, "coder": self.coder}
            write_json(temporary / MANIFEST, described | {"statistics": self.statistics.to_json()})

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
            if tuple(stored["features"]) != FEATURES:
                raise BundleError(f"{path} is of another version of nosology: make it again with `nosology audit-fit`")
            arrays = load_file(path.with_name(WEIGHTS))
            classifiers = {
                name: Stacker.from_arrays({key.removeprefix(f"{name}."): array for key, array in arrays.items()})
                for name in CLASSIFIERS
            }
            thresholds = {name: float(stored["thresholds"][name]) for name in CLASSIFIERS}
            return cls(BillStatistics.from_json(stored["statistics"]), classifiers, thresholds, stored["coder"])
        except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
            raise BundleError(f"the auditor {folder} cannot be read: {type(error).__name__}") from error


def coder_fingerprint(coder: str | Path) -> str:
    """A hash of the manifest of a bundle; its name for day-one."""
    return DAY_ONE if is_day_one(coder) else json_sha256(read_manifest(coder))


def candidates(features: NoteFeatures, bill: Sequence[str]) -> list[str]:
    """The codes that may be missing: suggested with evidence, not billed, the most probable ones."""
    likely = (code for code, it in features.suggested.items() if it.evidence and it.probability >= _LEAST_PROBABILITY)
    return [code for code in likely if code not in bill][:_MAX_CANDIDATES]
