"""nosology explain: the words of a note that support each code, and the informative words of a code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.command_group import refuse_unused
from nosology.cli.input_notes import NOTES_HELP, ColumnOptions, InputNotes, parse_columns
from nosology.core import Code, CodeError, ConfigError, Note
from nosology.core.errors import printable

if TYPE_CHECKING:
    from nosology.core.label_space import LabelSpace
    from nosology.core.model import Model
    from nosology.models.bundle import Bundle

Columns = list[int]


def explain(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder, or day-one.")],
    notes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NOTE...]", help=NOTES_HELP),
    ] = None,
    code: Annotated[
        list[str],
        typer.Option(help="Explain this code (I50.9, i509; icd9cm:V45.8 if two systems have it); may be repeated."),
    ] = [],  # noqa: B006
    system: Annotated[
        list[str],
        typer.Option(
            help="Without --code: explain accepted codes of this system; may be repeated. Default: the systems that"
            " `nosology code` suggests."
        ),
    ] = [],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=1, help="Words per code.")] = 5,
    note_columns: ColumnOptions = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    method: Annotated[
        list[str],
        typer.Option(
            help="attention, category (HMHAN, attention of the category), contributions (linear coder), occlusion or"
            " lime; may be repeated. Default: the evidence of the coder; with --out or --corpus, every method that it"
            " supports (lime, if it is installed)."
        ),
    ] = [],  # noqa: B006
    samples: Annotated[int, typer.Option(min=10, help="Variants of a note that LIME scores.")] = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Write a page per note and a picture per explanation to this folder.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Measure the quality of explanations on notes of this corpus.")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the corpus: train, dev, test, or all.")] = "test",
    limit: Annotated[int, typer.Option(min=1, help="Number of notes of the corpus.")] = 20,
) -> None:
    """Show the words of notes that support each code; without a note, the most informative words of a code."""
    from nosology.explanation.attribution import check_methods
    from nosology.models.bundle import Bundle

    _refuse_unused_options(bool(notes), bool(code), bool(corpus), method, out)
    loaded, method = Bundle.load(bundle), list(dict.fromkeys(method))
    columns = list(dict.fromkeys(_column(loaded.model.labels, name) for name in code))
    check_methods(loaded.model, method)
    if notes or corpus:
        _warn_about_attention(loaded.model, method)
    if corpus is not None:
        _print_quality(loaded, corpus, split, method, limit, samples, as_json)
    elif not notes:
        if not columns:
            raise ConfigError("explain needs a note, or --code for the most informative words of a code")
        for column in columns:
            _print_row(_informative_words(loaded.model, column, tokens), as_json)
    else:
        read = InputNotes(notes, "explain BUNDLE", parse_columns(note_columns))
        if method or out:
            rows = _attributions(loaded, read.usable(), columns, system, method, samples, tokens, out)
        else:
            rows = _evidence(loaded, read.usable(), columns, system, tokens)
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007 (used below)
            _print_row(row, as_json)
        if not count:
            typer.echo("no code is accepted for these notes; --code explains a code that is not accepted", err=True)
        if out is not None:
            typer.echo(f"{out}: pages and pictures", err=as_json)
        read.exit_if_failed()


def _refuse_unused_options(notes: bool, code: bool, corpus: bool, method: list[str], out: Path | None) -> None:
    """ConfigError if an option was given that the others make meaningless."""
    if corpus:
        refuse_unused(("notes", "code", "system", "tokens", "out", "note_columns"), "with --corpus")
    else:
        refuse_unused(("split", "limit"), "without --corpus")
        if not notes:
            refuse_unused(("system", "method", "samples", "out", "note_columns"), "without a note")
        if code:
            refuse_unused(("system",), "with --code")
        if not method and out is None:
            refuse_unused(("samples",), "without --method lime")
    if method and "lime" not in method:
        refuse_unused(("samples",), "without --method lime")


def _warn_about_attention(model: Model, methods: list[str]) -> None:
    from nosology.core.model import NetWeight

    if isinstance(model, NetWeight) and not model.has_net_weight and not {"occlusion", "lime"} >= set(methods or [""]):
        typer.echo("caution: the net of this coder has weight 0: its attention explains nothing", err=True)


def _attributions(
    bundle: Bundle,
    notes: Iterator[Note],
    columns: Columns,
    systems: list[str],
    methods: list[str],
    samples: int,
    limit: int,
    out: Path | None,
) -> Iterator[dict[str, Any]]:
    """One row per explanation; its words are (word, weight) pairs. With `out`, pages and pictures are written."""
    from nosology.explanation.explanation_report import explain_note, write_explanations

    if out is not None:
        for row in write_explanations(
            bundle, list(notes), columns, methods, out, samples=samples, systems=systems, words=max(limit, 10)
        ):
            yield row | {"words": [(word, weight) for word, _, _, weight in row["words"][:limit]]}
        return
    for note in notes:
        for attribution, row in explain_note(bundle, note, columns, methods, samples=samples, systems=systems):
            best = attribution.best(limit)
            words = [(attribution.words.words[i], float(attribution.weights[i])) for i in best]
            yield {"note": note.id, **row, "words": words}


def _evidence(
    bundle: Bundle, notes: Iterator[Note], columns: Columns, systems: list[str], limit: int
) -> Iterator[dict[str, Any]]:
    """One row per note and code: the probability, and the words with the most attention."""
    from nosology.explanation.attribution import top_words
    from nosology.explanation.explanation_report import accepted_labels

    for note in notes:
        labels = columns or accepted_labels(bundle, note, systems)
        probabilities = bundle.model.probabilities([note])[0]
        for label, spans in zip(labels, top_words(bundle.model, note, labels, limit)):
            row = {"note": note.id, **_describe(bundle.model, label), "probability": float(probabilities[label])}
            row["words"] = [(span.text, span.score) for span in spans]
            yield row | {"spans": [(span.start, span.end) for span in spans]}


def _print_quality(
    bundle: Bundle, corpus: Path, split: str, methods: list[str], limit: int, samples: int, as_json: bool
) -> None:
    """Print the quality of the explanations of each method."""
    from nosology.corpora.corpus import Corpus
    from nosology.explanation.explanation_report import measure_explanations

    quality = measure_explanations(bundle, Corpus.open(corpus), split, methods, limit=limit, samples=samples)
    if as_json:
        typer.echo(json.dumps(quality))
        return
    names = ("explanations", "comprehensiveness", "sufficiency", "with_evidence", "token_f1", "iou", "seconds")
    typer.echo(f"{'method':<14}" + "".join(f"{name:>19}" for name in names))
    for method, values in quality.items():
        shown = ("-" if (v := values[n]) is None else f"{v:.3f}" if isinstance(v, float) else str(v) for n in names)
        typer.echo(f"{method:<14}" + "".join(f"{value:>19}" for value in shown))


def _column(labels: LabelSpace, name: str) -> int:
    """The column of a code in any spelling: I50.9, i509, icd10cm:I50.9."""
    system, colon, raw = name.rpartition(":")
    systems = (system.lower(),) if colon else labels.systems
    matches = [code for code in labels.codes if code.system in systems and code.code.lower() == raw.lower()]
    if not matches:
        matches = [code for system in systems if (code := _normalise(raw, system)) in labels and code]
    if not matches:
        raise ConfigError(f"code must be one that the coder knows ({len(labels):,} of them); got {name!r}")
    if len(matches) > 1:
        raise ConfigError(f"code must name its system: {' or '.join(map(str, matches))}; got {name!r}")
    return labels.column(matches[0])


def _normalise(raw: str, system: str) -> Code | None:
    from nosology.codes import normalise

    try:
        return normalise(raw, system)
    except CodeError:
        return None


def _informative_words(model: Model, column: int, limit: int) -> dict[str, Any]:
    from nosology.core.model import RelevantWords

    if not isinstance(model, RelevantWords):
        raise ConfigError(f"a coder of kind {model.kind} stores no informative words per code; plant does")
    return _describe(model, column) | {"words": model.relevant_words(column, limit)}


def _describe(model: Model, column: int) -> dict[str, Any]:
    from nosology.codes import describe

    code = model.labels.codes[column]
    return {"system": code.system, "code": code.code, "description": describe(code)}


def _print_row(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    probability = f"{row['probability']:5.2f}  " if "probability" in row else ""
    note = printable(f"{row['note']}: ") if "note" in row else ""
    typer.echo(f"{note}{row['code']:<9}{probability}{row['description']} ({row['system']})")
    words = [f"{' '.join(word.split())} {score:.3f}" for word, score in row["words"]]
    typer.echo(f"{'':18}{printable(', '.join(words)) or '(none)'}")
    if "comprehensiveness" in row:
        typer.echo(
            f"{'':18}{row['method']}: comprehensiveness {row['comprehensiveness']:.3f}, sufficiency"
            f" {row['sufficiency']:.3f}, {row['seconds']:.1f} s"
        )
