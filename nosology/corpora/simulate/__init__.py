"""A simulated hospital that writes the files MIMIC-IV ships; docs/simulation.md says what it resembles and what not.

It knows nothing of any model, and no coder reads its tables of words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nosology.core import ConfigError, __version__
from nosology.core.files import atomic_folder, write_json
from nosology.core.progress import progress
from nosology.corpora.simulate.hospital import YEARS, Hospital, simulate_notes
from nosology.corpora.simulate.mimic4_files import Mimic4Files

__all__ = ["LAYOUTS", "MARKER", "YEARS", "simulate", "simulate_notes"]

LAYOUTS = {"mimic4": Mimic4Files}
MARKER = "simulation.json"


def simulate(
    patients: int, seed: int, out: str | Path, *, layout: str = "mimic4", years: tuple[int, int] = YEARS
) -> dict[str, Any]:
    """Writes a hospital with that many patients to the folder `out`, whole or not at all; what simulation.json holds.

    A patient hangs on seed, years and number alone: more patients keep the ones before. Years from 2016 on are ICD-10
    only.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout}")
    if patients < 1:
        raise ConfigError(f"patients must be at least 1; got {patients}")
    hospital = Hospital(years)
    with atomic_folder(out, marker=MARKER) as folder:
        with LAYOUTS[layout](folder) as files:
            files.titles()
            for index in progress(range(patients), "simulating", unit="patients"):
                files.patient(*hospital.patient(seed, index), seed)
        about = {
            "layout": layout,
            "patients": patients,
            "seed": seed,
            "years": list(years),
            "nosology": __version__,
            "rows": dict(sorted(files.counts.items())),
        }
        write_json(folder / MARKER, about)
    return about
