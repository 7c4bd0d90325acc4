"""nosology probe: measure what a coder reveals about its training notes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def probe(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, of kind heads.")],
    corpus: Annotated[Path, typer.Option(help="The corpus folder that the coder was trained on.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    cache: Annotated[Path | None, typer.Option(help="A folder of vectors of `nosology embed`.")] = None,
    notes: Annotated[int, typer.Option(min=20, help="Largest number of seen and of unseen notes.")] = 2000,
) -> None:
    """Guess which notes a coder was trained on: a membership-inference attack."""
    from nosology.core.files import write_json
    from nosology.corpora.corpus import Corpus
    from nosology.federated.privacy.membership import probe_bundle
    from nosology.models.bundle import Bundle

    report, cautions = probe_bundle(Bundle.load(bundle), Corpus.open(corpus), cache, notes)
    write_json(out, report.to_json() | {"bundle": str(bundle), "cautions": cautions})
    typer.echo(f"{'attack':<26}{'AUC':>7}  {'95% interval':<16}  seen notes found at 1% false alarms")
    rows = report.attacks | ({"control: dev against test": report.control} if report.control else {})
    for name, attack in rows.items():
        interval = f"{attack.auc_low:.3f} to {attack.auc_high:.3f}"
        typer.echo(f"{name:<26}{attack.auc:>7.3f}  {interval:<16}  {attack.hits:.1%}")
    typer.echo(report.sentence)
    for caution in cautions:
        typer.echo(f"caution: {caution}", err=True)
