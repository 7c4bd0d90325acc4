"""`nosology audit-fit`: an auditor, which learns from coded notes what a wrong bill looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit_fit(
    corpus: Annotated[Path, typer.Option(metavar="DIR", help="A corpus folder with coded notes.")],
    out: Annotated[Path, typer.Option(metavar="AUDITOR", help="The folder to write.")],
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of a coder, or day-one.")] = Path(
        "day-one"
    ),
    embedder: Annotated[
        str,
        typer.Option(metavar="NAME", help="minilm: compares words by meaning, too. Finds more, takes longer."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the planted errors.")] = 0,
) -> None:
    """Fit an auditor for `nosology audit --auditor`: errors are planted into the codes of the corpus's train notes.

    A lexicon may have been trained on the same notes; they are then scored by lexicons of the other folds.
    """
    from nosology.audit.support_model import MANIFEST
    from nosology.audit.support_training import fit_auditor
    from nosology.core.files import check_output_folder
    from nosology.corpora.corpus import Corpus

    check_output_folder(out, marker=MANIFEST, files=["auditor.safetensors"])
    model = fit_auditor(coder, Corpus.open(corpus), seed, embedder)
    model.save(out)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in model.thresholds.items())
    typer.echo(f"auditor of {model.statistics.notes:,} notes: {out}; least probabilities: {shown}")
    typer.echo("planted errors, found out of fold:")
    for kind, values in model.measured.items():
        typer.echo(f"  {kind:<10} " + "  ".join(f"{name} {value}" for name, value in values.items()))
