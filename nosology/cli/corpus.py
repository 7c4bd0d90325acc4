"""nosology corpus: datasets in, corpus folders out, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.corpus_splits import audit, split
from nosology.core import ConfigError, DataError

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus
    from nosology.corpora.recipe import CorpusRecipe

app = typer.Typer(help="Make corpus folders of datasets and look into them.", no_args_is_help=True)
app.command()(split)
app.command()(audit)


@app.command()
def prepare(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="mimic4, mimic4-radiology, mimic3, codiesp, cmc2007, table or reviews."),
    ],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="The corpus folder to write.")],
    recipe: Annotated[
        str | None, typer.Option(help="A built-in corpus recipe, such as mimic4-icd10, or a file.")
    ] = None,
    splits: Annotated[list[Path] | None, typer.Option(help="Split file with ids and split; may be repeated.")] = None,
    min_count: Annotated[int | None, typer.Option(min=1, help="Keep codes that this many notes have.")] = None,
    systems: Annotated[str | None, typer.Option(help="Keep these code systems, with commas between.")] = None,
    drop_uncoded: Annotated[bool, typer.Option("--drop-uncoded", help="Leave out notes without a code.")] = False,
    lang: Annotated[str | None, typer.Option(help="codiesp: es or en; table: that of notes without one.")] = None,
    system: Annotated[str | None, typer.Option(help="table: the system of codes that name none.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first value that would be left out.")] = False,
) -> None:
    """Read a dataset and write it as a corpus folder."""
    from nosology.corpora.prepare import compare
    from nosology.corpora.prepare import prepare as make
    from nosology.corpora.recipe import adjusted

    rules = adjusted(
        recipe,
        kind,
        min_count=min_count,
        systems=systems.replace(",", " ").split() if systems is not None else None,
        drop_uncoded=drop_uncoded or None,
    )
    if kind == "reviews":
        corpus = _reviews(paths, out, rules, splits or [])
    else:
        corpus = make(kind, paths, out, recipe=rules, splits=splits or (), lang=lang, system=system, strict=strict)
    _print_counts(corpus.manifest)
    for name, wanted, got in compare(corpus):
        verdict = "equal" if wanted == got else f"{got - wanted:+,}"
        typer.echo(f"expected {name:5} {wanted:>9,}, got {got:>9,}: {verdict}")


def _reviews(paths: list[Path], out: Path, rules: CorpusRecipe, splits: list[Path]) -> Corpus:
    """The corpus of what people decided in a workbench; its address stays out of it, for it may hold a password."""
    from nosology.corpora.prepare import prepare as make
    from nosology.workbench.database import open_database
    from nosology.workbench.export import reviewed_notes

    if len(paths) != 1:
        raise ConfigError(f"reviews needs one store, a file or postgresql:// address; got {len(paths)}")
    if not (named := str(paths[0])).startswith("postgres") and not paths[0].is_file():
        raise DataError(f"no such store: {paths[0]}")
    # A Path removes one of two slashes.
    store = open_database(named.replace(":/", "://", 1) if named.startswith("postgres") else named)
    try:
        return make("reviews", [], out, recipe=rules, splits=splits, reader=lambda *_: reviewed_notes(store))
    finally:
        store.dispose()


def _print_counts(manifest: dict[str, Any]) -> None:
    from nosology.corpora.intake import TROUBLES

    counts = manifest["counts"]
    splits = ", ".join(f"{name} {count:,}" for name, count in counts["splits"].items())
    typer.echo(f"{counts['notes']:,} notes ({splits}), {counts['notes_without_codes']:,} without codes")
    for system, found in counts["systems"].items():
        typer.echo(f"{system:9} {found['codes']:>7,} codes, {found['occurrences']:>9,} occurrences")
    for step in manifest["filters"]:
        left_out = ", ".join(f"{key.replace('_', ' ')} {step[key]:,}" for key in step if isinstance(step[key], int))
        typer.echo(f"filter {step['filter']}: {left_out}")
    for kind, found in counts["troubles"].items():
        typer.echo(f"{found['count']:,} {TROUBLES[kind].sentence}: {', '.join(found['first'])}")
    typer.echo(f"hash {manifest['hash']}")


@app.command()
def stats(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A corpus folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how large a corpus is and how its codes are spread."""
    import json

    from nosology.corpora.corpus import Corpus
    from nosology.corpora.stats import stats as measure

    found = measure(Corpus.open(folder))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    typer.echo(
        f"{'':9}{'notes':>9} {'patients':>9} {'words: q1':>10} {'median':>7} {'q3':>7} "
        f"{'codes a note':>14} {'distinct':>9} {'seen <10':>9}"
    )
    for name, part in {"all": found, **found["splits"]}.items():
        typer.echo(_row(name, part))
    typer.echo("")
    for system, part in found["systems"].items():
        typer.echo(f"{system:9}{part['distinct_codes']:>9,} codes, {part['occurrences']:,} occurrences")
    typer.echo("")
    for chapter in found["chapters"]:
        typer.echo(f"{chapter['system']:9}{chapter['occurrences']:>9,}  {chapter['chapter']}")


def _row(name: str, part: dict[str, Any]) -> str:
    words = part["words_a_note"] or {"q1": 0, "median": 0, "q3": 0}
    a_note = part["codes_a_note"] or {"mean": 0, "std": 0}
    rare = part["share_of_codes_seen_under_10_times"]
    return (
        f"{name:9}{part['notes']:>9,} {part['patients']:>9,} {words['q1']:>10,.0f} {words['median']:>7,.0f} "
        f"{words['q3']:>7,.0f} {a_note['mean']:>7.1f} ± {a_note['std']:<4.1f} {part['distinct_codes']:>9,} "
        f"{'' if rare is None else f'{rare:.0%}':>9}"
    )
