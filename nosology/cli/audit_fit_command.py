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
    model = fit_auditor(coder, Corpus.open(corpus), seed)
    model.save(out)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in model.thresholds.items())
    typer.echo(f"auditor of {model.statistics.notes:,} notes: {out}; least probabilities: {shown}")
