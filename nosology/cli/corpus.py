"""nosology corpus: write corpus folders from datasets, and describe them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.corpus_splits import audit, split
from nosology.core import ConfigError, DataError

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus
    from nosology.corpora.prepare import CorpusRecipe

app = typer.Typer(help="Write corpus folders from datasets, split, audit and describe them.", no_args_is_help=True)
app.command()(split)
app.command()(audit)


@app.command()
def prepare(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="mimic4, mimic4-radiology, mimic3, codiesp, cmc2007, table or reviews."),
    ],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or folders with the files.")],
    out: Annotated[Path, typer.Option(help="The corpus folder to write.")],
    recipe: Annotated[
        str | None, typer.Option(help="A built-in corpus recipe, such as mimic4-icd10, or a TOML file.")
    ] = None,
    splits: Annotated[list[Path] | None, typer.Option(help="File with ids and splits; may be repeated.")] = None,
    min_count: Annotated[int | None, typer.Option(min=1, help="Keep codes with at least this many notes.")] = None,
    systems: Annotated[str | None, typer.Option(help="Keep these code systems, separated by commas.")] = None,
    drop_uncoded: Annotated[bool, typer.Option("--drop-uncoded", help="Drop notes without a code.")] = False,
    lang: Annotated[str | None, typer.Option(help="codiesp: es or en; table: language of notes without one.")] = None,
    system: Annotated[str | None, typer.Option(help="table: the system of codes without one.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first value that would be dropped.")] = False,
) -> None:
    """Read a dataset and write it as a corpus folder."""
    from nosology.corpora import prepare as corpora_prepare

    rules = corpora_prepare.override_recipe(
        recipe,
        kind,
        min_count=min_count,
        systems=systems.replace(",", " ").split() if systems is not None else None,
        drop_uncoded=drop_uncoded or None,
    )
    if kind == "reviews":
        corpus = _prepare_reviews(paths, out, rules, splits or [])
    else:
        corpus = corpora_prepare.prepare(
            kind, paths, out, recipe=rules, splits=splits or (), lang=lang, system=system, strict=strict
        )
    _print_counts(corpus.manifest)
    for name, expected, actual in corpora_prepare.compare_with_expected(corpus):
        difference = "equal" if expected == actual else f"{actual - expected:+,}"
        typer.echo(f"expected {name:5} {expected:>9,}, got {actual:>9,}: {difference}")


def _prepare_reviews(paths: list[Path], out: Path, recipe: CorpusRecipe, splits: list[Path]) -> Corpus:
    """The corpus of the reviews in a workbench. It does not contain the address, which may have a password."""
    from nosology.corpora.prepare import prepare
    from nosology.workbench.database import open_database
    from nosology.workbench.export import reviewed_notes

    if len(paths) != 1:
        raise ConfigError(f"reviews needs one store, a file or postgresql:// address; got {len(paths)}")
    address = str(paths[0])
    if address.startswith("postgres"):
        address = address.replace(":/", "://", 1)  # Path removes a slash
    elif not paths[0].is_file():
        raise DataError(f"no such store: {paths[0]}")
    database = open_database(address)
    try:
        return prepare("reviews", [], out, recipe=recipe, splits=splits, reader=lambda *_: reviewed_notes(database))
    finally:
        database.dispose()


def _print_counts(manifest: dict[str, Any]) -> None:
    from nosology.corpora.validation import ISSUES

    counts = manifest["counts"]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["splits"].items())
    typer.echo(f"{counts['notes']:,} notes ({splits}), {counts['notes_without_codes']:,} without codes")
    for system, system_counts in counts["systems"].items():
        codes, occurrences = system_counts["codes"], system_counts["occurrences"]
        typer.echo(f"{system:9} {codes:>7,} codes, {occurrences:>9,} occurrences")
    for step in manifest["filters"]:
        left_out = ", ".join(f"{key.replace('_', ' ')} {step[key]:,}" for key in step if isinstance(step[key], int))
        typer.echo(f"filter {step['filter']}: {left_out}")
    for kind, issue in counts["troubles"].items():
        typer.echo(f"{issue['count']:,} {ISSUES[kind].description}: {', '.join(issue['first'])}")
    typer.echo(f"hash {manifest['hash']}")


@app.command()
def stats(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A corpus folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the size of a corpus and the distribution of its codes."""
    import json

    from nosology.corpora.corpus import Corpus
    from nosology.corpora.corpus_stats import corpus_stats

    values = corpus_stats(Corpus.open(folder))
    if as_json:
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    typer.echo(
        f"{'':9}{'notes':>9} {'patients':>9} {'words: q1':>10} {'median':>7} {'q3':>7} "
        f"{'codes per note':>14} {'distinct':>9} {'seen <10':>9}"
    )
    for name, split_values in {"all": values, **values["splits"]}.items():
        typer.echo(_stats_row(name, split_values))
    typer.echo("")
    for system, system_values in values["systems"].items():
        distinct, occurrences = system_values["distinct_codes"], system_values["occurrences"]
        typer.echo(f"{system:9}{distinct:>9,} codes, {occurrences:,} occurrences")
    typer.echo("")
    for chapter in values["chapters"]:
        typer.echo(f"{chapter['system']:9}{chapter['occurrences']:>9,}  {chapter['chapter']}")


def _stats_row(name: str, values: dict[str, Any]) -> str:
    words = values["words_a_note"] or {"q1": 0, "median": 0, "q3": 0}
    codes = values["codes_a_note"] or {"mean": 0, "std": 0}
    rare = values["share_of_codes_seen_under_10_times"]
    return (
        f"{name:9}{values['notes']:>9,} {values['patients']:>9,} {words['q1']:>10,.0f} {words['median']:>7,.0f} "
        f"{words['q3']:>7,.0f} {codes['mean']:>7.1f} ± {codes['std']:<4.1f} {values['distinct_codes']:>9,} "
        f"{'' if rare is None else f'{rare:.0%}':>9}"
    )
