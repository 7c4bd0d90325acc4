"""nosology explain: what a coder looks at in a note, and which words tell a code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.train import read_texts
from nosology.core import ConfigError

if TYPE_CHECKING:
    from nosology.models.bundle import Bundle, Model


def explain(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder.")],
    notes: Annotated[
        list[str] | None, typer.Argument(metavar="[NOTE...]", help="Text files, notes files, or - .")
    ] = None,
    code: Annotated[list[str], typer.Option(help="Explain this code; may be given several times.")] = [],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=1, help="Words a code.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show the words of notes that each code attends to; without a note, the words that tell a code."""
    from nosology.models.bundle import Bundle

    loaded = Bundle.load(bundle)
    columns = [_column(loaded.model, name) for name in code]
    if not notes:
        if not columns:
            raise ConfigError("explain needs a note, or --code for the words that tell a code")
        for column in columns:
            _show(_told(loaded.model, column, tokens), as_json)
        return
    for name, text in read_texts(notes):
        for row in _attended(loaded, text, columns, tokens):
            _show({"note": name} | row, as_json)


def _column(model: Model, name: str) -> int:
    found = [j for j, code in enumerate(model.labels.codes) if code.code.lower() == name.lower()]
    if not found:
        raise ConfigError(f"code must be one that the coder knows ({len(model.labels):,} of them); got {name!r}")
    return found[0]


def _told(model: Model, column: int, limit: int) -> dict[str, Any]:
    """The words that tell a code."""
    if not hasattr(model, "words"):
        raise ConfigError(f"a coder of kind {model.kind} keeps no list of words that tell a code; plant does")
    return _about(model, column) | {"words": model.words(column, limit)}


def _attended(bundle: Bundle, text: str, columns: list[int], limit: int) -> list[dict[str, Any]]:
    """For each code, all that are accepted where none is named: probability, and the words it attends to."""
    model = bundle.model
    probabilities = model.probabilities([text])[0]
    if not columns:
        accepted = bundle.decision.accepted(model.labels, probabilities)
        columns = [int(j) for j in (-probabilities).argsort(kind="stable") if accepted[j]]
    look = getattr(model, "top_tokens", model.evidence)  # a coder without attention has its evidence
    found = look(text, columns, limit)
    return [
        _about(model, column)
        | {"probability": float(probabilities[column]), "words": [(span.text, span.score) for span in spans]}
        | {"spans": [(span.start, span.end) for span in spans]}
        for column, spans in zip(columns, found)
    ]


def _about(model: Model, column: int) -> dict[str, Any]:
    from nosology.codes import describe

    code = model.labels.codes[column]
    return {"system": code.system, "code": code.code, "description": describe(code)}


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    chance = f"{row['probability']:5.2f}  " if "probability" in row else ""
    note = f"{row['note']}: " if "note" in row else ""
    typer.echo(f"{note}{row['code']:<9}{chance}{row['description']}")
    words = [f"{' '.join(word.split())} {score:.3f}" for word, score in row["words"]]
    typer.echo(f"{'':18}{', '.join(words) or '(none)'}")
