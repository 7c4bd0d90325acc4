"""nosology simulate: write a simulated hospital in the file format of MIMIC-IV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    patients: Annotated[int, typer.Option(help="Number of patients; each has about 1.8 admissions.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same patients.")] = 0,
    layout: Annotated[str, typer.Option(help="File format: mimic4.")] = "mimic4",
    years: Annotated[
        str, typer.Option(help="FIRST-LAST; admissions since October 2015 have ICD-10 codes.")
    ] = "2008-2019",
) -> None:
    """Simulate a hospital: patients, admissions, codes, discharge summaries, radiology reports, gold evidence."""
    from nosology.core import ConfigError
    from nosology.corpora.simulate import simulate as simulate_hospital

    first, _, last = years.partition("-")
    if not (first.isdigit() and last.isdigit()):
        raise ConfigError(f"--years must be two years such as 2008-2019; got {years}")
    about = simulate_hospital(patients, seed, out, layout=layout, years=(int(first), int(last)))
    rows = about["rows"]
    typer.echo(
        f"{out}: {patients:,} patients, {rows['hosp/admissions']:,} admissions, "
        f"{rows['note/discharge']:,} discharge summaries, {rows.get('note/radiology', 0):,} radiology reports"
    )
