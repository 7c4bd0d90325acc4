"""A simulated hospital that writes the files of MIMIC-IV; docs/simulation.md describes what is realistic.

It is independent of all models, and no coder reads its word tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nosology.core import ConfigError, __version__
from nosology.core.files import atomic_folder, write_json
from nosology.core.forked_processes import forked_map
from nosology.core.parallel import parts
from nosology.core.progress import counting
from nosology.corpora.simulate.hospital import (
    EVIDENCE,
    YEARS,
    CompressedRows,
    Hospital,
    Mimic4Rows,
    Mimic4Writer,
    simulate_notes,
)

__all__ = ["LAYOUTS", "MARKER", "YEARS", "simulate", "simulate_notes"]

LAYOUTS = {"mimic4": (Mimic4Rows, Mimic4Writer)}
MARKER = "simulation.json"
MOST_PATIENTS = 100_000_000
PART_PATIENTS = 50  # whose rows are in memory, and compressed together; files depend on it


def simulate(
    patients: int,
    seed: int,
    out: str | Path,
    *,
    layout: str = "mimic4",
    years: tuple[int, int] = YEARS,
    workers: int = 1,
) -> dict[str, Any]:
    """The content of simulation.json. The hospital is written atomically to the folder `out`.

    A patient depends only on seed, years and number: a larger hospital contains the patients of a smaller one. All
    codes are ICD-10 if the first year is 2016 or later. workers: processes; the files are the same for any number.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout}")
    if not 1 <= patients <= MOST_PATIENTS:
        raise ConfigError(f"patients must be from 1 to {MOST_PATIENTS:,}; got {patients}")
    hospital = Hospital(years)
    hospital.patient(seed, 0)  # loads all tables, before processes are forked
    make_rows, writer_class = LAYOUTS[layout]
    with atomic_folder(out, marker=MARKER, files=["hosp/*.csv.gz", "note/*.csv.gz", EVIDENCE]) as folder:
        titles = make_rows()
        titles.write_titles()
        write_part = partial(_rows_of_patients, hospital, make_rows, seed)
        written = forked_map(write_part, parts(range(patients), PART_PATIENTS), workers, block=1, ahead=16)
        with writer_class(folder) as writer, counting("simulating", total=patients, unit="patients") as counter:
            writer.append(titles.compressed())
            for rows in written:
                writer.append(rows)
                counter.advance(rows.patients)
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


def _rows_of_patients(
    hospital: Hospital, make_rows: type[Mimic4Rows], seed: int, patients: Sequence[int]
) -> CompressedRows:
    """The rows of the patients with these numbers."""
    rows = make_rows()
    for index in patients:
        rows.write_patient(*hospital.patient(seed, index), seed)
    return rows.compressed()
