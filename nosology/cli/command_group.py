"""Groups of commands with complete help texts, whatever versions of typer and click are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click
import typer
from click.core import ParameterSource
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from nosology.core import ConfigError
from nosology.core.errors import printable

F = TypeVar("F", bound=Callable[..., Any])


class PlainCommand(TyperCommand):
    """A command whose help describes its arguments. typer 0.20, which Flower needs, loses that text under click 8.5."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and not parameter.help:
                metadata = getattr(hints.get(parameter.name or ""), "__metadata__", ())
                parameter.help = next((item.help for item in metadata if isinstance(item, ArgumentInfo)), None)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line; ConfigError for a value that is empty or not UTF-8."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.params:
            value = given.get(parameter.name or "")
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str):
                    _check_value(parameter, text)
        return super().parse_args(ctx, args)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes nothing: typer writes the arguments together with the options."""

    def get_help(self, ctx: click.Context) -> str:
        """The help text as plain text: typer escapes brackets for rich even if it is not used."""
        return super().get_help(ctx).replace("\\[", "[")


def _check_value(parameter: click.Parameter, text: str) -> None:
    """Raises ConfigError for "", which would be the current folder as a path, and for bytes that are not UTF-8.

    Libraries and JSON files cannot have such bytes in paths. Only the names of notes may.
    """
    name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name.strip(".[]")
    if not text and parameter.default != "":
        raise ConfigError(f"{name} must not be empty")
    if parameter.name != "notes" and not is_unicode(text):
        raise ConfigError(f"{name} must be UTF-8; got {printable(text)!r}; rename the file or folder")


def is_unicode(text: str) -> bool:
    """Whether the text has no lone surrogates, which are bytes of an argument that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def refuse_unused(names: Iterable[str], reason: str) -> None:
    """Raises ConfigError if the user gave one of these options of the command: it has no effect, for that reason."""
    context = click.get_current_context(silent=True)
    if context is None:  # called as a function
        return
    for parameter in context.command.params:
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise ConfigError(f"{parameter.opts[0]} has no effect {reason}; leave it out")


@contextmanager
def workbench_packages() -> Iterator[None]:
    """Raises ConfigError, which says what to install, if an import of the workbench fails in the block."""
    try:
        yield
    except ImportError as error:
        raise ConfigError("the workbench needs more packages: pip install 'nosology[workbench]'") from error


def recipe_names(kind: str = "") -> str:
    """The names of the built-in recipes that start with `kind`, for a help text."""
    folder = Path(__file__).parent.parent / "recipes"
    return ", ".join(sorted(path.stem for path in folder.glob(f"{kind}*.toml")))


class PlainGroup(TyperGroup):
    """A group of commands whose help is plain text."""

    def get_help(self, ctx: click.Context) -> str:
        """The help text as plain text."""
        return super().get_help(ctx).replace("\\[", "[")


class CommandGroup(typer.Typer):
    """A group of commands with the same options everywhere: -h, plain help, one suggestion for a misspelt name."""

    def __init__(self, help: str, **options: Any):
        super().__init__(
            help=help,
            cls=PlainGroup,
            no_args_is_help=True,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            suggest_commands=False,  # click makes the suggestion
            context_settings={"help_option_names": ["-h", "--help"]},
            **options,
        )

    # typer lists every option by name; **options passes them on in all versions of typer.
    # typer lists every option of a command; they are passed on here.
    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        """A decorator that adds a function as a command."""
        options.setdefault("cls", PlainCommand)
        return super().command(name, **options)
