"""nosology explain: what a coder looks at in a note, and which words tell a code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import read_given
from nosology.core import Code, CodeError, ConfigError, Note

if TYPE_CHECKING:
    from nosology.core.label_space import LabelSpace
    from nosology.core.model import Model
    from nosology.models.bundle import Bundle


def explain(
    bundle: Annotated[Path, typer.Argument(help="The bundle folder.")],
    notes: Annotated[
        list[str] | None, typer.Argument(metavar="[NOTE...]", help="Text files, notes files, or - .")
    ] = None,
    code: Annotated[
        list[str],
        typer.Option(
            help="Explain this code (I50.9, i509; icd9cm:V45.8 if two systems have it); may be given several times."
        ),
    ] = [],  # noqa: B006
    system: Annotated[
        list[str],
        typer.Option(
            help="Without --code: explain accepted codes of this system; may be given several times. Not named, those"
            " that `nosology code` would suggest."
        ),
    ] = [],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=1, help="Words a code.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    method: Annotated[
        list[str],
        typer.Option(
            help="How to weigh the words: attention, category (HMHAN's upper level), contributions (linear coder),"
            " occlusion or lime; may be given several times. Without it, each kind of coder has its own way."
        ),
    ] = [],  # noqa: B006
    samples: Annotated[int, typer.Option(min=10, help="Notes with words left out that LIME looks at.")] = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Write a page a note and a picture an explanation to this folder.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Measure how good each method's explanations are on notes of this corpus.")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the corpus: train, dev, test, or all.")] = "test",
    limit: Annotated[int, typer.Option(min=1, help="Notes of the corpus.")] = 20,
) -> None:
    """Show the words of notes that each code attends to; without a note, the words that tell a code."""
    from nosology.models.bundle import Bundle

    loaded = Bundle.load(bundle)
    columns = [_column(loaded.model.labels, name) for name in code]
    silent = not getattr(getattr(loaded.model, "net", None), "adds", True)
    if silent and (notes or corpus) and (not method or {"attention", "category"} & set(method)):
        typer.echo("caution: this coder's net adds nothing to what words say: its attention explains nothing", err=True)
    if corpus is not None:
        _measure(loaded, corpus, split, method, limit, samples, as_json)
        return
    if notes and (method or out):
        _weigh(loaded, list(read_given(notes)), columns, system, method, samples, out, tokens, as_json)
        return
    if not notes:
        if not columns:
            raise ConfigError("explain needs a note, or --code for the words that tell a code")
        for column in columns:
            _show(_told(loaded.model, column, tokens), as_json)
        return
    from nosology.explanation.explanation_report import accepted_labels

    for note in read_given(notes):
        for row in _attended(loaded.model, note, columns or accepted_labels(loaded, note, system), tokens):
            _show({"note": note.id} | row, as_json)


def _weigh(
    bundle: Bundle,
    notes: list[Note],
    columns: list[int],
    systems: list[str],
    methods: list[str],
    samples: int,
    out: Path | None,
    limit: int,
    as_json: bool,
) -> None:
    """Prints each explanation, and draws it where a folder is named."""
    from nosology.explanation.explanation_report import explain_note, write_explanations

    if out is not None:
        for row in write_explanations(bundle, notes, columns, methods, out, samples=samples, systems=systems):
            _show_weighed(row | {"words": [(word, weight) for word, _, _, weight in row["words"][:limit]]}, as_json)
        typer.echo(f"{out}: pages and pictures", err=as_json)
        return
    for note in notes:
        for found, about in explain_note(bundle, note, columns, methods, samples=samples, systems=systems):
            words = [(found.words.words[i], float(found.weights[i])) for i in found.best(limit)]
            _show_weighed({"note": note.id, **about, "words": words}, as_json)


def _show_weighed(row: dict[str, Any], as_json: bool) -> None:
    _show(row, as_json)
    if not as_json and "comprehensiveness" in row:
        typer.echo(
            f"{'':18}{row['method']}: comprehensiveness {row['comprehensiveness']:.3f}, sufficiency"
            f" {row['sufficiency']:.3f}, {row['seconds']:.1f} s"
        )


def _measure(
    bundle: Bundle, corpus: Path, split: str, methods: list[str], limit: int, samples: int, as_json: bool
) -> None:
    """Prints how good each method's explanations are."""
    from nosology.corpora.corpus import Corpus
    from nosology.explanation.explanation_report import measure_explanations

    found = measure_explanations(bundle, Corpus.open(corpus), split, methods, limit=limit, samples=samples)
    if as_json:
        typer.echo(json.dumps(found))
        return
    names = ("explanations", "comprehensiveness", "sufficiency", "with_evidence", "token_f1", "iou", "seconds")
    typer.echo(f"{'method':<14}" + "".join(f"{name:>19}" for name in names))
    for method, values in found.items():
        shown = ("-" if (v := values[n]) is None else f"{v:.3f}" if isinstance(v, float) else str(v) for n in names)
        typer.echo(f"{method:<14}" + "".join(f"{value:>19}" for value in shown))


def _column(labels: LabelSpace, name: str) -> int:
    """The column of the one code that a user names, in any spelling: I50.9, i509, icd10cm:I50.9."""
    system, colon, raw = name.rpartition(":")
    systems = (system.lower(),) if colon else labels.systems
    found = [code for code in labels.codes if code.system in systems and code.code.lower() == raw.lower()]
    candidates = (_normalised(raw, system) for system in systems)
    found = found or [code for code in candidates if code is not None and code in labels]
    if not found:
        raise ConfigError(f"code must be one that the coder knows ({len(labels):,} of them); got {name!r}")
    if len(found) > 1:
        raise ConfigError(f"code must say its system: {' or '.join(map(str, found))}; got {name!r}")
    return labels.column(found[0])


def _normalised(raw: str, system: str) -> Code | None:
    from nosology.codes import normalise

    try:
        return normalise(raw, system)
    except CodeError:
        return None


def _told(model: Model, column: int, limit: int) -> dict[str, Any]:
    """The words that tell a code."""
    from nosology.core.model import RelevantWords

    if not isinstance(model, RelevantWords):
        raise ConfigError(f"a coder of kind {model.kind} stores no informative words per code; plant does")
    return _about(model, column) | {"words": model.relevant_words(column, limit)}


def _attended(model: Model, note: Note, columns: list[int], limit: int) -> list[dict[str, Any]]:
    """For each code its probability, and the words it attends to."""
    from nosology.explanation.attribution import top_words

    probabilities = model.probabilities([note])[0]
    found = top_words(model, note, columns, limit)
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
    typer.echo(f"{note}{row['code']:<9}{chance}{row['description']} ({row['system']})")
    words = [f"{' '.join(word.split())} {score:.3f}" for word, score in row["words"]]
    typer.echo(f"{'':18}{', '.join(words) or '(none)'}")
