"""`nosology audit`: what was billed against what the notes support."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nosology.core import ConfigError, DataError
from nosology.core.progress import progress

if TYPE_CHECKING:
    from nosology.core import Note


def audit(
    notes: Annotated[Path, typer.Option(metavar="NOTES", help="A notes file: one encounter per row.")],
    billed: Annotated[Path, typer.Option(metavar="CODES", help="A CSV file with id, code, and order, poa, coder.")],
    out: Annotated[
        Path, typer.Option(metavar="REPORT", help="The folder of the report; an audit that was stopped continues.")
    ],
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of a coder, or day-one.")] = Path(
        "day-one"
    ),
    reference: Annotated[
        str,
        typer.Option(metavar="claim|coder", help="Audit against the claim, or against the codes the coder accepts."),
    ] = "claim",
    auditor: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of `nosology audit-fit`: it decides about codes.")
    ] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Of a finding; default: 0.5, or the probabilities that the auditor chose."),
    ] = None,
    drg_weights: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="CMS Table 5 of a fiscal year; may be repeated.")
    ] = None,
) -> None:
    """Compare billed codes with what the notes support; write findings with evidence to a report folder.

    A notes file may have the columns setting, date, sex, age, admitted, discharged, role and disposition.
    """
    from nosology.audit.audit_folder import AuditFolder
    from nosology.audit.billed_codes import read_billed_codes
    from nosology.audit.encounter_audit import REFERENCES, audit_encounter
    from nosology.audit.support_features import MAX_SUGGESTIONS
    from nosology.audit.support_model import SupportModel
    from nosology.claims.drg_weights import load_drg_weights
    from nosology.claims.encounter import stated_fields
    from nosology.core import __version__
    from nosology.core.files import sha256
    from nosology.serving.coder import Coder

    if reference not in REFERENCES:
        raise ConfigError(f"--reference must be one of {', '.join(REFERENCES)}; got {reference!r}")
    if not notes.is_file():
        raise DataError(f"no such notes file: {notes}")
    bills, weights = read_billed_codes(billed), load_drg_weights(drg_weights or ())
    folder = AuditFolder(
        out,
        {
            "package": f"nosology {__version__}",
            "notes": sha256(notes),
            "billed": sha256(billed),
            "coder": str(coder),
            "auditor": str(auditor or ""),
            "reference": reference,
            "min_confidence": min_confidence,
            "drg_weights": [sha256(path) for path in drg_weights or ()],
        },
    )
    loaded = Coder.for_claims(coder, systems=["icd10cm"])
    support = SupportModel.for_coder(auditor, coder) if auditor else None
    gc.freeze()  # the tables stay until the end: garbage collection need not visit them again and again
    seen: set[str] = set()
    for note in progress(_each_once(notes, seen), "auditing", total=len(bills), unit="encounters"):
        bill = bills.get(note.id)
        if bill is None or note.id in folder.done:
            continue
        suggestions = next(loaded.code_all([note], MAX_SUGGESTIONS if support else None))
        names = [item.code.code for item in bill.codes if item.code.system == "icd10cm"]
        try:
            result = audit_encounter(
                note.id,
                note.text,
                bill.codes,
                suggestions,
                stated_fields(note),
                reference=reference,
                weights=weights,
                min_confidence=min_confidence,
                judgement=support.judge(note.text, names, suggestions) if support else None,
            )
        except ConfigError as error:  # a wrong field of the encounter
            raise DataError(f"{notes}: note {len(seen)}: {error}") from error
        folder.append(result.to_json() | {"coder": bill.coder})
    counts = {"notes_without_bill": len(seen - bills.keys()), "bills_without_note": len(bills.keys() - seen)}
    summary = folder.finish(counts)
    found = sum(summary["kinds"].values())
    typer.echo(f"{summary['encounters']:,} encounters, {found:,} findings: {out / 'index.html'}")
    for name, number in counts.items():
        if number:
            typer.echo(f"caution: {number:,} {name.replace('_', ' ')}", err=True)


def _each_once(path: Path, seen: set[str]) -> Iterator[Note]:
    """The notes of a file; DataError if an id is there twice. seen: gets the ids."""
    from nosology.corpora.notes_file import read_notes

    for row, note in enumerate(read_notes(path, coded=False), 1):
        if note.id in seen:
            raise DataError(f"{path}: note {row} has the id of an earlier note; give each encounter one row")
        seen.add(note.id)
        yield note
