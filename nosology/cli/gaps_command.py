"""`nosology gaps`: what the notes of a department leave open, as a ranked list."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.cli.command_group import refuse_unused
from nosology.core import DataError
from nosology.core.errors import printable
from nosology.core.progress import progress

if TYPE_CHECKING:
    from nosology.claims.gap_records import PlacedNote


def gaps(
    notes: Annotated[Path, typer.Option(metavar="NOTES", help="A notes file: one encounter per row.")],
    out: Annotated[
        Path, typer.Option(metavar="REPORT", help="The folder of the report; a run that was stopped continues.")
    ],
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of a coder, or day-one.")] = Path(
        "day-one"
    ),
    drg_weights: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="CMS Table 5 of a fiscal year; may be repeated.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, for day-one and lexicons; by default as many as there are cores."),
    ] = None,
) -> None:
    """Rank what notes leave open: by specialty, what is missing, how many encounters, effect on DRG weight and risk.

    A notes file may have the columns specialty or service, and those of claims: setting, date, sex, age, admitted,
    discharged, role and disposition.
    """
    from nosology.audit.support_model import coder_fingerprint
    from nosology.claims.drg_weights import load_drg_weights
    from nosology.claims.gap_records import GapFinder
    from nosology.claims.gap_report import RECORDS, GapFolder
    from nosology.core import __version__
    from nosology.core.files import exclusive_output, sha256
    from nosology.core.forked_processes import forked_map, freeze_objects
    from nosology.core.parallel import cores
    from nosology.corpora.validation import missing_file
    from nosology.serving.coder import Coder

    if not notes.is_file():
        raise missing_file(notes, "notes file")
    weights = load_drg_weights(drg_weights or ())
    loaded = Coder.for_claims(coder, systems=["icd10cm"])
    if (kind := loaded.model.kind) != "lexicon":  # torch, if the coder has it, does not work in forked processes
        refuse_unused(("workers",), f"for a {kind} coder")
        workers = 1
    settings = {
        "package": f"nosology {__version__}",
        "notes": sha256(notes),
        "coder": coder_fingerprint(coder),
        "drg_weights": [sha256(path) for path in drg_weights or ()],
    }
    with exclusive_output(out):
        folder = GapFolder(out, settings)
        malformed: list[DataError] = []
        ids, rows = _count_ids(notes, malformed.append)
        for error in malformed:
            typer.echo(f"caution: {error}; the row is left out", err=True)
        freeze_objects()
        chooser = getattr(loaded.model, "siblings", None)  # a lexicon has one
        finder = GapFinder(lambda note: next(loaded.code_all([note])), weights, chooser)
        waiting = len(ids - folder.done)
        records = forked_map(finder, _waiting_notes(notes, set(folder.done)), workers or cores())
        for record in progress(records, "looking for gaps", total=waiting, unit="encounters"):
            if error := record.get("error"):
                typer.echo(f"caution: {printable(str(record['id']))} cannot be used: {printable(error)}", err=True)
            folder.append(record)
        summary = folder.finish({"repeated_ids": rows - len(ids), "malformed_rows": len(malformed)})
    if not rows:
        typer.echo(f"caution: {notes} has no note", err=True)
    typer.echo(f"{summary['encounters']:,} encounters, {summary['gaps']:,} gaps: {out / 'index.html'}")
    if failed := summary["not_used"]:
        typer.echo(f"caution: {failed:,} encounters could not be used: see error in {out / RECORDS}", err=True)
    if repeated := summary["repeated_ids"]:
        typer.echo(f"caution: {repeated:,} rows with the id of an earlier row were left out", err=True)
    if malformed:
        typer.echo(f"caution: {len(malformed):,} malformed rows were left out", err=True)
    if failed or malformed:
        raise typer.Exit(1)


def _count_ids(path: Path, malformed: Callable[[DataError], None]) -> tuple[set[str], int]:
    """The ids of a notes file, and the number of its rows without those that are malformed."""
    from nosology.corpora.notes_file import read_well_formed_notes

    ids, rows = set(), 0
    for _, note in read_well_formed_notes(path, malformed):
        ids.add(note.id)
        rows += 1
    return ids, rows


def _waiting_notes(path: Path, done: Container[str]) -> Iterator[PlacedNote]:
    """The first note of each id, without those that are done."""
    from nosology.claims.gap_records import PlacedNote
    from nosology.corpora.notes_file import read_well_formed_notes
    from nosology.corpora.validation import location

    seen: set[str] = set()
    for row, note in read_well_formed_notes(path, lambda _: None):  # malformed rows are counted before
        if note.id not in seen and note.id not in done:
            yield PlacedNote(note, location(path, row))
        seen.add(note.id)
