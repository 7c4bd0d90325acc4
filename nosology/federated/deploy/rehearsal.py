"""A rehearsal: the sites connect with their real keys over TLS and train a coder, but on simulated notes.

A site in a rehearsal refuses recipes without `federation.rehearsal`, and other sites refuse recipes with it. So no real
note is used in a rehearsal, and no simulated note in a real run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from nosology.core import Note
from nosology.corpora.corpus import write_corpus
from nosology.corpora.simulate import simulate_notes

YEARS = (2016, 2019)  # ICD-10 only
CHARACTERS = 400  # of a note, so that embedding takes seconds
_SPLIT_OF_PATIENT = (*["train"] * 7, "dev", "test", "test")  # by the number of the patient


def write_rehearsal_corpus(site: str, patients: int, folder: Path) -> Path:
    """The folder of a corpus of simulated notes; each site has other patients."""
    seed = int.from_bytes(hashlib.sha256(site.encode()).digest()[:4]) % 2**31

    def notes() -> Iterator[Note]:
        for note in simulate_notes(patients, seed, years=YEARS):
            codes = tuple(code for code in note.codes if code.system == "icd10cm")
            split = _SPLIT_OF_PATIENT[int(note.patient or 0) % len(_SPLIT_OF_PATIENT)]
            text = note.text[:CHARACTERS]
            yield replace(note, id=f"{site}-{note.id}", text=text, site=site, split=split, codes=codes, evidence=())

    source = {"kind": "simulation", "patients": patients, "seed": seed, "years": list(YEARS)}
    write_corpus(notes(), folder, source=source, filters=[], counts={})
    return folder


def rehearsal_settings(sites: int, rounds: int, settings: Iterable[str] = ()) -> list[str]:
    """The settings of the recipe of a rehearsal of so many sites; those of a user may change all but that it is one."""
    pretraining = {"vector_rounds": 1, "language_rounds": 1}
    values = {"rounds": rounds, "min_sites": sites, "quorum": sites, "min_notes": 20} | pretraining
    usual = [f"federation.{name}={value}" for name, value in values.items()]
    return [*usual, *settings, "federation.rehearsal=true"]
