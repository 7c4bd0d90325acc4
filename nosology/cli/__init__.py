"""The command line: `nosology VERB ...`. Verbs import their room when they run, so that --help is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from nosology import __version__
from nosology.cli import train
from nosology.core import NosologyError

app = typer.Typer(
    name="nosology",
    help="ICD codes for clinical notes, with the words each code rests on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nosology {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


app.command("train")(train.train)
app.command("evaluate")(train.evaluate)
app.command("code")(train.code)


def main() -> None:
    """Runs the command line; an error meant for the user becomes one sentence and exit code 1, Ctrl-C becomes 130."""
    try:
        app()
    except NosologyError as error:
        print(f"nosology: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("nosology: interrupted; nothing half-written was kept", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
