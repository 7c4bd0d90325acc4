"""`nosology audit`: what was billed against what the notes support."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from nosology.cli.command_group import refuse_unused
from nosology.core import BundleError, ConfigError
from nosology.core.errors import printable
from nosology.core.progress import progress


def audit(
    notes: Annotated[
        Path,
        typer.Option(
            metavar="NOTES",
            help="A notes file, whose rows of the same encounter are joined; or FHIR documents (JSON, NDJSON).",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="REPORT", help="The folder of the report; an audit that was stopped continues.")
    ],
    billed: Annotated[
        Path | None,
        typer.Option(
            metavar="CODES",
            help="A CSV file with id, code, and order, poa, coder; or 837 claims (X12); or FHIR Claims, which may also"
            " be in NOTES.",
        ),
    ] = None,
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
    claim_id: Annotated[
        str,
        typer.Option(
            metavar="account|record",
            help="The id of the encounter in 837 claims: patient control number (CLM01), or medical record (REF*EA).",
        ),
    ] = "account",
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where to audit: on this machine, or on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that audit: of day-one and of lexicons, by default as many as there are cores; of Ray, 2.",
        ),
    ] = None,
    address: Annotated[str | None, typer.Option(help="ray: a running cluster; without one, this machine.")] = None,
) -> None:
    """Compare billed codes with what the notes support; write findings with evidence to a report folder.

    A notes file may have the columns encounter, setting, date, sex, age, admitted, discharged, role and disposition.
    """
    from nosology.audit.audit_folder import FINDINGS, AuditFolder
    from nosology.audit.audit_input import read_audit_input, read_bills
    from nosology.audit.auditor import audit_on_ray, load_auditor
    from nosology.audit.claims_837 import CLAIM_IDS, is_837
    from nosology.audit.encounter_audit import REFERENCES
    from nosology.audit.support_model import MANIFEST, WEIGHTS, coder_fingerprint
    from nosology.claims.drg_weights import load_drg_weights
    from nosology.core import __version__
    from nosology.core.files import exclusive_output, sha256
    from nosology.core.forked_processes import freeze_objects
    from nosology.corpora.validation import missing_file
    from nosology.models.bundle import is_day_one

    if reference not in REFERENCES:
        raise ConfigError(f"--reference must be one of {', '.join(REFERENCES)}; got {reference!r}")
    if engine not in ("local", "ray"):
        raise ConfigError(f"--engine must be local or ray; got {engine!r}")
    if engine != "ray":
        refuse_unused(("address",), "without --engine ray")
    if not notes.is_file():
        raise missing_file(notes, "notes file")
    if claim_id not in CLAIM_IDS:
        raise ConfigError(f"--claim-id must be one of {', '.join(CLAIM_IDS)}; got {claim_id!r}")
    if billed is None or (billed.is_file() and not is_837(billed)):
        refuse_unused(("claim_id",), "for bills that are no 837 claims")
    bills = read_bills(billed or notes, claim_id, has_notes=billed is None)
    weights = load_drg_weights(drg_weights or ())
    if auditor and not all((auditor / name).is_file() for name in (MANIFEST, WEIGHTS)):
        raise BundleError(f"{auditor} is no auditor: it holds no {MANIFEST} (make one with `nosology audit-fit`)")
    if min_confidence is not None and not math.isfinite(min_confidence):
        raise ConfigError("--min-confidence must be a number from 0 to 1")
    settings = {
        "package": f"nosology {__version__}",
        "notes": sha256(notes),
        "billed": sha256(billed or notes),
        "claim_id": claim_id,
        "coder": coder_fingerprint(coder),
        "auditor": [sha256(auditor / name) for name in (MANIFEST, WEIGHTS)] if auditor else [],
        "reference": reference,
        "min_confidence": min_confidence,
        "drg_weights": [sha256(path) for path in drg_weights or ()],
    }
    with exclusive_output(out):
        folder = AuditFolder(out, settings)
        given = read_audit_input(notes, bills, folder.done)
        for error in given.malformed:
            typer.echo(f"caution: {error}; the row is left out, also of an encounter with more rows", err=True)
        bundle = str(coder if is_day_one(coder) else coder.absolute())
        options = {"bundle": bundle, "reference": reference, "min_confidence": min_confidence, "weights": weights}
        options["support"] = str(auditor.absolute()) if auditor else None
        loaded = load_auditor(**options)
        if engine == "ray":
            records = audit_on_ray(given.encounters, options, workers=workers or 2, address=address)
        else:
            if (kind := loaded.coder.model.kind) != "lexicon":
                refuse_unused(("workers",), f"without --engine ray for a {kind} coder")
            if loaded.support and loaded.support.similarity:
                refuse_unused(("workers",), "for an auditor with an embedder")
            freeze_objects()
            records = loaded.audit_all(given.encounters, workers)
        for record in progress(records, "auditing", total=len(given.encounters), unit="encounters"):
            if error := record.get("error"):
                typer.echo(f"caution: {printable(str(record['id']))} is not audited: {printable(error)}", err=True)
            folder.append(record)
        summary = folder.finish(given.counts)
    found = sum(summary["kinds"].values())
    typer.echo(f"{summary['encounters']:,} encounters, {found:,} findings: {out / 'index.html'}")
    if failed := summary["not_audited"]:
        typer.echo(f"caution: {failed:,} encounters could not be audited: see error in {out / FINDINGS}", err=True)
    for name, number in given.counts.items():
        if number:
            typer.echo(f"caution: {number:,} {name.replace('_', ' ')}", err=True)
    if failed or given.malformed:
        raise typer.Exit(1)
