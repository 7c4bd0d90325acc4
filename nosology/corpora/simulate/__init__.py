"""A simulated hospital that writes the files of MIMIC-IV; docs/simulation.md describes what is realistic.

It is independent of all models, and no coder reads its word tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nosology.core import ConfigError, __version__
from nosology.core.files import atomic_folder, write_json
from nosology.core.progress import progress
from nosology.corpora.simulate.hospital import EVIDENCE, YEARS, Hospital, Mimic4Writer, simulate_notes

__all__ = ["LAYOUTS", "MARKER", "YEARS", "simulate", "simulate_notes"]

LAYOUTS = {"mimic4": Mimic4Writer}
MARKER = "simulation.json"
MOST_PATIENTS = 100_000_000


def simulate(
    patients: int, seed: int, out: str | Path, *, layout: str = "mimic4", years: tuple[int, int] = YEARS
) -> dict[str, Any]:
    """The content of simulation.json. The hospital is written atomically to the folder `out`.

    A patient depends only on seed, years and number: a larger hospital contains the patients of a smaller one. All
    codes are ICD-10 if the first year is 2016 or later.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout}")
    if not 1 <= patients <= MOST_PATIENTS:
        raise ConfigError(f"patients must be from 1 to {MOST_PATIENTS:,}; got {patients}")
    hospital = Hospital(years)
    with atomic_folder(out, marker=MARKER, files=["hosp/*.csv.gz", "note/*.csv.gz", EVIDENCE]) as folder:
        with LAYOUTS[layout](folder) as writer:
            writer.write_titles()
            for index in progress(range(patients), "simulating", unit="patients"):
                writer.write_patient(*hospital.patient(seed, index), seed)
        about = {
            "layout": layout,
            "patients": patients,
            "seed": seed,
            "years": list(years),
            "nosology": __version__,
            "rows": dict(sorted(writer.counts.items())),
        }
        write_json(folder / MARKER, about)
    return about
