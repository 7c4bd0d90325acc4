"""nosology import: bundles from checkpoints of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Import a coder that another program has trained.", no_args_is_help=True)


@app.callback()
def _options() -> None:
    pass  # with it, the one command below keeps its name


@app.command("dual-laat")
def dual_laat(
    folder: Annotated[Path, typer.Argument(help="The folder with config.json, token2id.json, pytorch_model.bin.")],
    codes: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The codes to suggest: a CSV file with a column code and, if wanted, description and system.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The bundle folder to write.")],
    threshold: Annotated[float, typer.Option(min=0, max=1, help="From which probability on a code is accepted.")] = 0.5,
) -> None:
    """Write a bundle from a DualLAAT checkpoint of its authors."""
    from nosology.cli.coder_commands import caution_unread
    from nosology.codes.code_list import read_code_list
    from nosology.core.model import OpenVocabulary
    from nosology.models.dual_laat.dual_laat_import import import_bundle

    bundle = import_bundle(folder, read_code_list(codes), threshold)
    bundle.save(out)
    typer.echo(f"{out}: dual_laat coder, {len(bundle.model.labels):,} codes, threshold {threshold:.3f}")
    caution_unread(bundle.model.unreadable_codes() if isinstance(bundle.model, OpenVocabulary) else [], codes)
