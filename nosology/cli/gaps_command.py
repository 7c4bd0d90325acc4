"""`nosology gaps`: what the notes of a department leave open, as a ranked list."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from nosology.core import ConfigError, DataError
from nosology.core.progress import progress


def gaps(
    notes: Annotated[Path, typer.Option(metavar="NOTES", help="A notes file: one encounter per row.")],
    out: Annotated[Path, typer.Option(metavar="REPORT", help="The folder of the report.")],
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of a coder, or day-one.")] = Path(
        "day-one"
    ),
    drg_weights: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="CMS Table 5 of a fiscal year; may be repeated.")
    ] = None,
) -> None:
    """Rank what notes leave open: by specialty, what is missing, how many encounters, effect on DRG weight and risk.

    A notes file may have the columns specialty or service, and those of claims: setting, date, sex, age, admitted,
    discharged, role and disposition.
    """
    from nosology.claims.claim import build_claim
    from nosology.claims.documentation_gaps import find_gaps
    from nosology.claims.drg_weights import load_drg_weights
    from nosology.claims.encounter import stated_fields
    from nosology.claims.gap_ranking import NOT_STATED, EncounterGap, rank_gaps, summarise_specialties
    from nosology.claims.gap_report import FILES, MARKER, write_gap_report
    from nosology.core import __version__
    from nosology.core.files import check_output_folder, sha256
    from nosology.corpora.notes_file import read_notes
    from nosology.serving.coder import Coder

    if not notes.is_file():
        raise DataError(f"no such notes file: {notes}")
    check_output_folder(out, marker=MARKER, files=FILES)
    weights = load_drg_weights(drg_weights or ())
    loaded = Coder.for_claims(coder, systems=["icd10cm"])
    gc.freeze()  # the tables stay until the end: garbage collection need not visit them again and again
    found: list[EncounterGap] = []
    specialties: Counter[str] = Counter()
    frequency: Counter[str] = Counter()
    for row, note in enumerate(progress(read_notes(notes, coded=False), "looking for gaps", unit="encounters"), 1):
        specialty = str(note.extra.get("specialty") or note.extra.get("service") or NOT_STATED).strip()
        try:
            claim = build_claim(note.id, note.text, next(loaded.code_all([note])), stated_fields(note))
        except ConfigError as error:  # a wrong field of the encounter
            raise DataError(f"{notes}: note {row}: {error}") from error
        specialties[specialty] += 1
        frequency.update(item.code for item in claim.codes)
        for gap in find_gaps(claim, weights):
            words = tuple(" ".join(text.split()) for text in claim.words(gap.evidence))
            found.append(EncounterGap(note.id, specialty, gap, words))
    ranked = rank_gaps(found, frequency)
    summary = {
        "package": f"nosology {__version__}",
        "notes": sha256(notes),
        "coder": str(coder),
        "drg_weights": [sha256(path) for path in drg_weights or ()],
        "encounters": specialties.total(),
        "specialties": summarise_specialties(found, specialties),
    }
    write_gap_report(out, ranked, found, frequency, summary)
    typer.echo(f"{specialties.total():,} encounters, {len(found):,} gaps: {out / 'index.html'}")
