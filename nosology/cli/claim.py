"""`nosology claim`: the code set of each note in billing order."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import repeat, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.input_notes import ColumnOptions, InputNotes, NoteArguments, SplitOption, parse_columns
from nosology.core import ConfigError
from nosology.core.errors import printable
from nosology.core.progress import progress

if TYPE_CHECKING:
    from nosology.claims.claim import Claim, ClaimCode


def claim(
    notes: NoteArguments,
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of a coder, or day-one.")] = Path(
        "day-one"
    ),
    setting: Annotated[
        str | None,
        typer.Option(
            metavar="inpatient|outpatient|emergency", help="Where the patient was; default: read from the note."
        ),
    ] = None,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Of the discharge or visit; default: the newest code set.")
    ] = None,
    sex: Annotated[str | None, typer.Option(metavar="F|M", help="Of the patient; default: read from the note.")] = None,
    age: Annotated[
        float | None, typer.Option(min=0, max=130, help="Of the patient, in years; default: read from the note.")
    ] = None,
    system: Annotated[
        str,
        typer.Option(
            metavar="icd10cm|icd9cm|icd10pcs",
            help="Of the claim's codes; icd9cm: for notes from before October 2015; icd10pcs: the procedures.",
        ),
    ] = "icd10cm",
    split: SplitOption = None,
    column: ColumnOptions = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per note.")] = False,
) -> None:
    """Assign the code set of each note: final codes in billing order, what was left out and why, open questions.

    A notes file may have the columns setting, date, sex, age, admitted, discharged and role; they take precedence.
    """
    from nosology.claims.claim import SYSTEMS, build_claim
    from nosology.claims.encounter import stated_fields
    from nosology.core.forked_processes import freeze_objects
    from nosology.serving.coder import Coder

    if system not in SYSTEMS:
        raise ConfigError(f"--system must be one of {', '.join(SYSTEMS)}; got {system!r}")
    stated = {"setting": setting, "date": date, "sex": sex, "age": age}
    _check_options(stated, system)
    loaded = None if system == "icd10pcs" else Coder.for_claims(coder, systems=["icd10cm"])
    freeze_objects()
    read = InputNotes(notes, "claim", parse_columns(column), split)
    to_read = iter(read) if sys.stdout.isatty() else progress(read, "coding")  # a terminal shows the claims themselves
    for_encounters, to_code = tee(to_read) if loaded else (to_read, iter(()))
    # Procedures are read from the text.
    all_suggestions = loaded.code_all(item.note for item in to_code) if loaded else repeat(())
    chooser = getattr(loaded.model, "siblings", None) if loaded else None  # a lexicon has one
    for item, suggestions in zip(for_encounters, all_suggestions):
        note, error, result = item.note, item.error, None
        if not error:
            fields = stated | stated_fields(note)
            try:
                result = build_claim(note.id, note.text, suggestions, fields, system=system, chooser=chooser)
            except ConfigError as wrong_field:
                error = read.refuse(item, str(wrong_field), "has no claim").error
        if as_json:
            line = result.to_json() if result else {"id": note.id, "error": error}
            typer.echo(json.dumps(line, ensure_ascii=False))
        elif result:
            _print_claim(result)
    read.exit_if_failed()


def _check_options(stated: Mapping[str, Any], system: str) -> None:
    """Raises ConfigError for a value that no encounter can have, before any note is coded.

    The message has the value: an option, unlike a column of a notes file, has no text of a note.
    """
    from nosology.claims.encounter import Encounter

    for name, value in stated.items():
        try:
            Encounter.of("", {name: value}, system)
        except ConfigError as error:
            given = "" if name == "age" else f"; got {value!r}"  # that of the age is shown already
            raise ConfigError(f"{error}{given}") from error


def _print_claim(result: Claim) -> None:
    count = len(result.codes)
    typer.echo(f"{printable(result.id)}: {count} code{'' if count == 1 else 's'}, {result.encounter.setting}")
    _print_codes(result, result.codes)
    if result.procedures:
        typer.echo("  procedures:")
        _print_codes(result, result.procedures)
    if groups := _groups_line(result):
        typer.echo(f"  {groups}")
    for item in result.left_out:
        typer.echo(f"  not {item.code:<9} {item.reason} [{item.rule}]")
    for query in result.queries:
        typer.echo(f"  ask: {query.question} [{query.rule}]")
    for issue in result.conflicts:
        typer.echo(f"  {issue.level}: {issue.message}")


def _print_codes(result: Claim, codes: Sequence[ClaimCode]) -> None:
    for number, item in enumerate(codes, 1):
        words = ", ".join(dict.fromkeys(printable(" ".join(text.split())) for text in result.words(item.evidence)))
        typer.echo(f"  {number:2}. {item.code:<9}{item.poa:<2} {item.description}")
        typer.echo(f"{'':18}{words}{f' [{item.rule}]' if item.rule else ''}")


def _groups_line(result: Claim) -> str:
    """DRG, CC and MCC, HCC and risk score in one line; empty if they are not known."""
    if (groups := result.groups) is None:
        return ""
    parts = [f"DRG {groups.drg:03} {groups.drg_title}"] if groups.drg else []
    for title, by_code in (("", groups.severity), ("HCC ", groups.hcc)):
        for name in dict.fromkeys(by_code.values()):
            parts.append(f"{title}{name}: {' '.join(code.code for code, value in by_code.items() if value == name)}")
    return "; ".join([*parts, f"risk {groups.risk:.2f}"] if groups.risk is not None and groups.hcc else parts)
