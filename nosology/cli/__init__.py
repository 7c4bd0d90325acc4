"""The command line `nosology COMMAND ...`. Commands import their packages when they run, so that --help is fast."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from contextlib import nullcontext
from typing import Annotated, Any, NoReturn

import typer

from nosology.cli import codes, corpus_commands, federate_setup, plant, workbench
from nosology.cli.audit_command import audit
from nosology.cli.audit_fit_command import audit_fit
from nosology.cli.claim import claim
from nosology.cli.coder_commands import code, import_app, train
from nosology.cli.command_group import CommandGroup, is_unicode
from nosology.cli.data_commands import embed, simulate
from nosology.cli.evaluation_commands import compare, evaluate, probe
from nosology.cli.explain import explain
from nosology.cli.gaps_command import gaps
from nosology.cli.reproduce import REMOVED, removed, reproduce
from nosology.cli.serve import serve
from nosology.core import NosologyError, __version__
from nosology.core.progress import activity

_FAILED_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
# as torch says it
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "multiplication overflow", "Storage size calc")
INTERRUPTED = 130  # exit code of typer after Ctrl-C

app = CommandGroup("ICD codes for clinical notes, with the evidence for each code.", name="nosology")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nosology {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.add_typer(codes.app, name="codes")
app.add_typer(corpus_commands.app, name="corpus")
app.command()(simulate)
app.command()(embed)
app.command()(train)
app.command()(evaluate)
app.command()(code)
app.command()(claim)
app.command()(audit)
app.command("audit-fit")(audit_fit)
app.command()(gaps)
app.command()(compare)
app.command()(reproduce)
app.command()(explain)
app.add_typer(plant.app, name="plant")
app.command()(probe)
app.command()(serve)
app.add_typer(workbench.app, name="workbench")
app.add_typer(federate_setup.app, name="federate")
app.add_typer(import_app, name="import")
_any = {"allow_extra_args": True, "ignore_unknown_options": True}
for _name in REMOVED:
    app.command(_name, hidden=True, context_settings=_any)(removed)
_GROUPS = {group.name for group in app.registered_groups}  # commands that have subcommands


# Commands that wait for others: they show no progress of their own.
_ENDLESS = {"serve", "workbench", *(f"federate {name}" for name in ("server", "site", "run", "start", "status"))}
_EXTRA_SECONDS = 5.0  # beyond the usual ones, before a command shows that it goes on: something inside of it may


def main() -> None:
    """Runs the command line. NosologyError and OSError print one sentence with exit code 1; Ctrl-C exits with 130."""
    _open_standard_streams()
    _survive_closed_pipes()
    warnings.showwarning = _show_warning
    logging.getLogger().addHandler(logging.NullHandler())  # else Python prints messages of libraries to standard error
    command = _command()
    is_shown = command not in _ENDLESS and command.partition(" ")[0] not in _ENDLESS
    shown = activity(command, spinner=False, extra_seconds=_EXTRA_SECONDS) if is_shown else nullcontext()
    try:
        with shown:
            app()
    except NosologyError as error:
        _exit_with(str(error))
    except RecursionError:
        _exit_with("an input file is nested too deeply to be read")
    except UnicodeEncodeError as error:  # its message may have text of a note
        if is_unicode(str(error.object)):
            _discard_output()
            _exit_with(f"standard output cannot write a character in {error.encoding}; set PYTHONUTF8=1")
        _exit_with("a path has bytes that are not UTF-8; rename the file or folder")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        _exit_with("there is not enough memory for these settings and notes")
    except OSError as error:
        reason = error.strerror or str(error)
        if error.filename is not None:
            _exit_with(f"cannot read or write {error.filename}: {reason}")
        if error.errno in _FAILED_WRITES:
            _discard_output()
            _exit_with(f"cannot write to standard output: {reason}")
        _exit_with(reason)
    except SystemExit as end:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click's sign that the reader has ended
            _discard_output()
            sys.exit(0)  # of a command that only prints
        if end.code == INTERRUPTED:
            print(f"nosology: interrupted; {_after_interrupt(sys.argv[1:])}", file=sys.stderr)
        raise


def _command() -> str:
    """The command as it was called, with its subcommand."""
    return " ".join(sys.argv[1 : 3 if _GROUPS & set(sys.argv[1:2]) else 2])


def _after_interrupt(words: list[str]) -> str:
    """What an interrupted command leaves behind."""
    if words[:1] in (["audit"], ["compare"], ["embed"], ["gaps"], ["reproduce"]):
        return "OUT has the results so far, and the same command continues from there"
    if words[:2] == ["corpus", "split"] and any(word.partition("=")[0] == "--k" for word in words):
        return "splits in OUT are complete, but some are missing; the same command writes all of them again"
    return f"no incomplete {'bundle' if words[:1] == ['train'] else 'output'} was left behind"


def _exit_with(message: str) -> NoReturn:
    print(f"nosology: {message}", file=sys.stderr)
    sys.exit(1)


def _open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed: a file must not get its number by chance."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 (as long as the process)


_PRINTING = {"code", "codes", "explain"}  # commands that end when nobody reads what they print


class _DurableOutput(io.FileIO):
    """Output that is discarded once its reader has ended, so that work with other results goes on."""

    lost: type[OSError] = BrokenPipeError  # after this error the output is discarded

    def write(self, data: Any, /) -> int:
        """The number of bytes written."""
        try:
            return super().write(data)
        except self.lost:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def _survive_closed_pipes() -> None:
    for name in ("stderr",) if _PRINTING & set(sys.argv[1:2]) else ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # the null device, or what a test captures
        output = _DurableOutput(stream.fileno(), "w", closefd=False)
        if name == "stderr":
            output.lost = OSError  # a full disk for the log of progress is no reason to stop
        lines = stream.line_buffering or stream.write_through
        wrapped = io.TextIOWrapper(io.BufferedWriter(output), stream.encoding, stream.errors, line_buffering=lines)
        setattr(sys, name, wrapped)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Prints a warning of ours as one line, without file and line number. Those of libraries are for developers."""
    if category.__module__.startswith("nosology."):
        print(f"nosology: {message}", file=sys.stderr)


def _discard_output() -> None:
    """Discards pending output, so that the interpreter does not fail on it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
