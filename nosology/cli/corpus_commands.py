"""nosology corpus: prepare, describe, split and audit corpora, and select notes for review."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.command_group import CommandGroup, refuse_unused, workbench_packages
from nosology.cli.input_notes import ColumnOptions, parse_columns
from nosology.core import ConfigError, DataError, Note
from nosology.core.errors import printable
from nosology.core.files import check_parent_folder
from nosology.core.progress import progress

if TYPE_CHECKING:
    from nosology.corpora.audit import Audit
    from nosology.corpora.corpus import Corpus
    from nosology.corpora.prepare import CorpusRecipe

_MOST_WORKERS = 3
LEAK = 3  # exit code; 1 is an error, 2 a wrong command line

Similarity = Annotated[float, typer.Option(help="Notes are near-duplicates from this Jaccard similarity on.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes, by default one per core but at most 3: each takes memory."),
]
CorpusFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A corpus folder.")]

app = CommandGroup("Write corpus folders from datasets, split, audit and describe them; select notes for review.")


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
    column: ColumnOptions = [],  # noqa: B006
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
        refuse_unused(("lang", "system", "column", "strict"), "on reviews")
        corpus = _prepare_reviews(paths, out, rules, splits or [])
    else:
        corpus = corpora_prepare.prepare(
            kind,
            paths,
            out,
            recipe=rules,
            splits=splits or (),
            lang=lang,
            system=system,
            columns=parse_columns(column),
            strict=strict,
        )
    _print_counts(corpus.manifest)
    for name, expected, actual in corpora_prepare.compare_with_expected(corpus):
        difference = "equal" if expected == actual else f"{actual - expected:+,}"
        typer.echo(f"expected {name:5} {expected:>9,}, got {actual:>9,}: {difference}")


def _prepare_reviews(paths: list[Path], out: Path, recipe: CorpusRecipe, splits: list[Path]) -> Corpus:
    """The corpus of the reviews in a workbench. It does not contain the address, which may have a password."""
    from nosology.corpora.prepare import prepare

    if len(paths) != 1:
        raise ConfigError(f"reviews needs one store, a file or postgresql:// address; got {len(paths)}")
    address = str(paths[0])
    if address.startswith("postgres"):
        address = address.replace(":/", "://", 1)  # Path removes a slash
    elif not paths[0].is_file():
        raise DataError(f"no such store: {paths[0]}")
    with workbench_packages():
        from nosology.workbench.database import open_database
        from nosology.workbench.export import reviewed_notes

    database = open_database(address, existing=True)

    def read(*_: object) -> Iterator[Note]:
        notes = iter(reviewed_notes(database))
        if (first := next(notes, None)) is None:
            raise DataError("the store has no reviewed notes; review some in the workbench first")
        yield first
        yield from notes

    try:
        return prepare("reviews", [], out, recipe=recipe, splits=splits, reader=read)
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
    for caution in counts["cautions"]:
        typer.echo(f"caution: {caution}", err=True)


@app.command()
def stats(
    folder: CorpusFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the size of a corpus and the distribution of its codes."""
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
    words = values["words_per_note"] or {"q1": 0, "median": 0, "q3": 0}
    codes = values["codes_per_note"] or {"mean": 0, "std": 0}
    rare = values["share_of_codes_seen_under_10_times"]
    return (
        f"{name:9}{values['notes']:>9,} {values['patients']:>9,} {words['q1']:>10,.0f} {words['median']:>7,.0f} "
        f"{words['q3']:>7,.0f} {codes['mean']:>7.1f} ± {codes['std']:<4.1f} {values['distinct_codes']:>9,} "
        f"{'' if rare is None else f'{rare:.0%}':>9}"
    )


@app.command()
def split(
    folder: CorpusFolder,
    out: Annotated[Path, typer.Option(help="The corpus folder to write.")],
    ratios: Annotated[str, typer.Option(help="Ratios of train, dev and test.")] = "0.7,0.15,0.15",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same split.")] = 0,
    k: Annotated[int | None, typer.Option(min=1, help="Write k splits: OUT/split-00, OUT/split-01, ...")] = None,
    official: Annotated[
        list[Path] | None, typer.Option(help="A published file with ids and splits; may be repeated.")
    ] = None,
    sites: Annotated[
        int | None, typer.Option(help="Partition the notes among this many sites; splits do not change.")
    ] = None,
    skew: Annotated[str | None, typer.Option(help="How sites differ: iid, size, dirichlet or random.")] = None,
    alpha: Annotated[float, typer.Option(help="dirichlet: a smaller alpha gives more different sites.")] = 0.5,
    exponent: Annotated[
        float, typer.Option(help="size: the size of site i is proportional to (i + 1) ** -exponent.")
    ] = 1.0,
    min_notes_per_site: Annotated[
        int, typer.Option(min=0, help="Keep a code only if each site can get this many notes with it.")
    ] = 0,
    keep_duplicates_together: Annotated[
        bool, typer.Option(help="Keep (near-)duplicates in the same split or site.")
    ] = True,
    similarity: Similarity = 0.8,
    workers: Workers = None,
) -> None:
    """Split a corpus into train, dev and test, or partition it among sites. No patient is in two parts."""
    from nosology.corpora.splits import site_corpus, split_by_files, split_corpus

    if sum((bool(official), sites is not None, k is not None)) > 1:
        raise ConfigError("--official, --sites and --k exclude each other; run the command once for each")
    if sites is None:
        refuse_unused(("skew", "alpha", "exponent", "min_notes_per_site"), "without --sites")
    if skew != "dirichlet":
        refuse_unused(("alpha",), "without --skew dirichlet")
    if skew != "size":
        refuse_unused(("exponent",), "without --skew size")
    if official:
        refuse_unused(("ratios", "seed", "keep_duplicates_together", "similarity", "workers"), "with --official")
    if sites is not None:
        refuse_unused(("ratios", "workers"), "with --sites, which keeps the splits")
    if not keep_duplicates_together:
        refuse_unused(("similarity",), "with --no-keep-duplicates-together")
    options = {"seed": seed, "keep_duplicates_together": keep_duplicates_together, "threshold": similarity}
    if official:
        written = [split_by_files(folder, out, official)]
    elif sites is not None:
        skew_options = {"skew": skew or "iid", "alpha": alpha, "exponent": exponent}
        written = [site_corpus(folder, out, sites, min_notes=min_notes_per_site, **skew_options, **options)]
    else:
        shares, processes = _parse_ratios(ratios), _processes(workers)
        written = split_corpus(folder, out, ratios=shares, k=k, workers=processes, **options)
        _warn_about_ratios(written[0], shares)
    for corpus in written:
        _print_split(corpus, sites is not None)


def _processes(workers: int | None) -> int:
    """The number of processes that read a corpus."""
    from nosology.core.forked_processes import freeze_objects
    from nosology.core.parallel import check_workers, cores

    check_workers("--workers", workers or 1)
    freeze_objects()
    return workers or min(_MOST_WORKERS, cores())


def _warn_about_ratios(corpus: Corpus, ratios: list[float]) -> None:
    counts = corpus.manifest["counts"]["splits"]
    for name, ratio in zip(("train", "dev", "test"), ratios):
        share = counts.get(name, 0) / len(corpus)
        if abs(share - ratio) > 0.02:
            typer.echo(
                f"{name} got {share:.1%} of the notes instead of {ratio:.1%}: a patient with many notes is not "
                "divided, nor are patients linked by (near-)duplicates (see --no-keep-duplicates-together)",
                err=True,
            )


def _print_split(corpus: Corpus, sites: bool) -> None:
    splits = ", ".join(f"{name} {count:,}" for name, count in corpus.manifest["counts"]["splits"].items())
    typer.echo(f"{corpus.folder}: {len(corpus):,} notes ({splits})")
    for step in corpus.manifest["filters"][-2:]:
        if left_out := step.get("notes_left_out"):
            typer.echo(f"  {left_out:,} notes left out ({step['filter']})")
        if unused := step.get("entries_without_note"):
            typer.echo(f"  {unused:,} ids of the split file without a note")
    if sites:
        for site, count in sorted(Counter(note.site for note in corpus.notes(text=False)).items()):
            typer.echo(f"  {site} {count:>9,} notes")


@app.command()
def audit(
    folder: CorpusFolder,
    similarity: Similarity = 0.8,
    shingle: Annotated[int, typer.Option(help="Number of words of a shingle.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    workers: Workers = None,
) -> None:
    """Check a corpus for leaks between splits. The exit code is 3 if there is one."""
    from nosology.corpora.audit import audit as audit_corpus

    result = audit_corpus(folder, threshold=similarity, shingle=shingle, workers=_processes(workers))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    else:
        _print_audit(result)
    if result.leaks:
        raise typer.Exit(LEAK)


def _print_audit(result: Audit) -> None:
    splits = ", ".join(f"{name} {count:,}" for name, count in result.splits.items())
    typer.echo(f"{result.folder}: {result.notes:,} notes ({splits})")
    for finding in result.results:
        share = f"{finding.count / finding.of:.2%} of {finding.of:,}" if finding.of else ""
        typer.echo(f"{finding.status:8} {finding.check:36} {finding.count:>9,} {finding.what:11} {share}".rstrip())
        if finding.count and finding.examples:
            more = " ..." if finding.count > len(finding.examples) else ""
            typer.echo(f"{'':8}   {printable(', '.join(finding.examples))}{more}")


@app.command()
def select(
    corpus: Annotated[Path, typer.Option(metavar="DIR", help="A corpus folder with notes that are not reviewed yet.")],
    coder: Annotated[Path, typer.Option(metavar="BUNDLE", help="The bundle folder of the coder to be improved.")],
    notes: Annotated[int, typer.Option(min=1, help="How many notes to select.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE|DIR", help="A .csv file of ids and scores, or a corpus folder of the notes.")
    ],
    reviewed: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Corpus of notes that are reviewed; may be repeated.")
    ] = None,
    cost: Annotated[
        str, typer.Option(metavar="notes|words", help="What review costs; words: prefer shorter notes.")
    ] = "notes",
) -> None:
    """Select the notes whose review teaches a coder most: uncertain ones, with rare codes and new words."""
    from nosology.corpora.corpus import Corpus, check_corpus_folder
    from nosology.models.bundle import Bundle
    from nosology.models.note_selection import (
        COSTS,
        SelectionWeights,
        check_selection_file,
        select_notes,
        write_selected_corpus,
        write_selection,
    )

    if cost not in COSTS:
        raise ConfigError(f"--cost must be one of {', '.join(COSTS)}; got {cost!r}")
    is_table = out.suffix.lower() == ".csv"
    if out.resolve() in {folder.resolve() for folder in (corpus, *(reviewed or ()))}:
        raise ConfigError(f"--out must be another folder than the corpora that are read; got {out}")
    if is_table:
        check_parent_folder(out)
        check_selection_file(out)
    else:
        check_corpus_folder(out)
    source, known = Corpus.open(corpus), [Corpus.open(folder) for folder in reviewed or ()]
    done = {note.id for other in known for note in other.notes(text=False)}
    candidates = (note for note in source.notes() if note.id not in done)
    chosen = select_notes(
        Bundle.load(coder).model,
        progress(candidates, "scoring notes", total=sum(note.id not in done for note in source.notes(text=False))),
        notes,
        reviewed=(note for other in known for note in other.notes()),
        weights=SelectionWeights(words=COSTS[cost]),
    )
    if is_table:
        write_selection(chosen, out)
    else:
        write_selected_corpus(chosen, source, out)
    typer.echo(f"{len(chosen):,} of {len(source):,} notes: {out}")


def _parse_ratios(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"ratios must be numbers separated by commas, such as 0.7,0.15,0.15; got {text!r}") from error
