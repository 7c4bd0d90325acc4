"""The command line `nosology COMMAND ...`. Commands import their packages when they run, so that --help is fast."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from nosology.cli import coder_commands, codes, corpus_commands, federate, import_checkpoint, plant
from nosology.cli.compare_command import compare
from nosology.cli.embed import embed
from nosology.cli.explain import explain
from nosology.cli.probe import probe
from nosology.cli.reproduce import REMOVED, removed, reproduce
from nosology.cli.serve import serve
from nosology.cli.simulate import simulate
from nosology.core import NosologyError, __version__

INTERRUPTED = 130  # what typer makes of Ctrl-C

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


app.add_typer(codes.app, name="codes")
app.add_typer(corpus_commands.app, name="corpus")
app.command()(simulate)
app.command()(embed)
app.command("train")(coder_commands.train)
app.command("evaluate")(coder_commands.evaluate)
app.command("code")(coder_commands.code)
app.command()(compare)
app.command()(reproduce)
app.command()(explain)
app.add_typer(plant.app, name="plant")
app.command()(probe)
app.command()(serve)
app.add_typer(federate.app, name="federate")
app.add_typer(import_checkpoint.app, name="import")
_any = {"allow_extra_args": True, "ignore_unknown_options": True}
for _name in REMOVED:
    app.command(_name, hidden=True, context_settings=_any)(removed)


def main() -> None:
    """Runs the command line; an error meant for the user becomes one sentence and exit code 1, Ctrl-C becomes 130.

    Files that cannot be looked at (a forbidden folder, a name too long) and output that cannot be printed (a full disk)
    end the same way.
    """
    warnings.showwarning = _show_warning
    try:
        app()
    except NosologyError as error:
        print(f"nosology: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        _close_output()
    except OSError as error:
        place = error.filename or "standard output"
        print(f"nosology: cannot read or write {place}: {error.strerror or error}", file=sys.stderr)
        if error.filename is None:
            _close_output()
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("nosology: interrupted; nothing half-written was kept", file=sys.stderr)
        raise


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Prints a warning as one line, without the place in the source."""
    print(f"nosology: {message}", file=sys.stderr)


def _close_output() -> None:
    """Sends what is still to be printed nowhere, so that the end of the program does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
