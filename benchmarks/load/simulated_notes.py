"""Notes of simulated patients, and a coder trained on others of them, for the load benchmarks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from nosology.config import load_recipe
from nosology.core import Note, __version__
from nosology.core.files import cache_folder
from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate.hospital import Hospital, subject_id
from nosology.models.train import train

YEARS = (2023, 2025)
TRAINING_PATIENTS = 2_000
MIN_CODE_COUNT = 20  # training notes that a code needs
SYSTEMS = ("icd10cm", "icd10pcs")


def trained_bundle() -> Path:
    """The bundle of a coder trained on simulated patients, cached."""
    folder = cache_folder() / f"load-{__version__}-{TRAINING_PATIENTS}"
    bundle = folder / "bundle"
    if not (bundle / "bundle.json").is_file():
        corpus = write_corpus(_training_notes(), folder / "corpus", source={"kind": "simulated"}, filters=[], counts={})
        train(load_recipe("linear", ["fit.c=[1.0]", "fit.max_features=[4000]"]), [corpus], bundle)
    return bundle


def _training_notes() -> list[Note]:
    """Notes with a split: three of four patients train, the others dev. Rare codes are removed, for speed."""
    every = simulated_notes(TRAINING_PATIENTS, first=0)
    counts = Counter(code for note in every for code in note.codes)
    return [
        replace(
            note,
            split="dev" if int(note.patient or 0) % 4 == 3 else "train",
            codes=tuple(code for code in note.codes if counts[code] >= MIN_CODE_COUNT),
            site=None,
            lang=None,
            extra={},
        )
        for note in every
    ]


def simulated_notes(patients: int, first: int = TRAINING_PATIENTS, seed: int = 8) -> list[Note]:
    """Notes of simulated patients with codes, and with date, sex and age in `extra`."""
    hospital, result = Hospital(YEARS), []
    for index in range(first, first + patients):
        patient, stays = hospital.patient(seed, index, radiology=False)
        for stay in stays:
            if stay.text is None:
                continue
            extra: dict[str, Any] = {
                "date": date.fromordinal(stay.admission.day + stay.admission.nights).isoformat(),
                "sex": patient.sex,
                "age": patient.age(stay.admission.day),
                "kind": "inpatient",
            }
            if stay.admission.died:
                extra["died"] = True
            note = Note(
                f"{subject_id(patient)}-DS-{stay.admission.number + 1}",
                stay.text,
                patient=str(subject_id(patient)),
                site=stay.admission.site.name,
                lang="en",
                codes=tuple(code for code in stay.codes if code.system in SYSTEMS),
                extra=extra,
            )
            result.append(note)
    return result
