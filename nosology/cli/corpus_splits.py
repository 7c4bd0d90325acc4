"""nosology corpus split and audit: divide a corpus, and check how it is divided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nosology.corpora.audit import Audit
    from nosology.corpora.corpus import Corpus

LEAK = 3  # 1 is an error, 2 a wrong command line


def split(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The corpus folder to divide.")],
    out: Annotated[Path, typer.Option(help="The corpus folder to write.")],
    ratios: Annotated[str, typer.Option(help="Shares of train, dev and test.")] = "0.7,0.15,0.15",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same division.")] = 0,
    k: Annotated[int | None, typer.Option(min=1, help="Write so many splits: OUT/split-00, OUT/split-01, ...")] = None,
    official: Annotated[
        list[Path] | None, typer.Option(help="A published file of ids and splits; may be repeated.")
    ] = None,
    sites: Annotated[int | None, typer.Option(help="Deal the notes to so many sites; splits stay as they are.")] = None,
    skew: Annotated[str | None, typer.Option(help="How sites differ: equal, size or dirichlet.")] = None,
    alpha: Annotated[float, typer.Option(help="dirichlet: the smaller, the more sites differ.")] = 0.5,
    exponent: Annotated[float, typer.Option(help="size: site i has a share of (i + 1) ** -exponent.")] = 1.0,
    min_notes_per_site: Annotated[
        int, typer.Option(min=0, help="Keep a code only if each site can get so many notes of it.")
    ] = 0,
    keep_duplicates_together: Annotated[bool, typer.Option(help="Put (near-)duplicates on one side.")] = True,
    similarity: Annotated[float, typer.Option(help="From which Jaccard similarity notes are near-duplicates.")] = 0.8,
) -> None:
    """Divide a corpus into train, dev and test, or among sites; no patient is on two sides."""
    from nosology.core import ConfigError
    from nosology.corpora.sites import site_corpus
    from nosology.corpora.splits import split_by_files, split_corpus

    if sum((bool(official), sites is not None, k is not None)) > 1:
        raise ConfigError("--official, --sites and --k exclude each other: divide one way, then divide the result")
    if sites is None and (skew is not None or min_notes_per_site):
        raise ConfigError("--skew and --min-notes-per-site need --sites")
    if official:
        written = [split_by_files(folder, out, official)]
    elif sites is not None:
        written = [
            site_corpus(
                folder,
                out,
                sites,
                skew=skew or "equal",
                alpha=alpha,
                exponent=exponent,
                seed=seed,
                min_notes=min_notes_per_site,
                keep_duplicates_together=keep_duplicates_together,
                threshold=similarity,
            )
        ]
    else:
        written = split_corpus(
            folder,
            out,
            ratios=_numbers(ratios),
            seed=seed,
            k=k,
            keep_duplicates_together=keep_duplicates_together,
            threshold=similarity,
        )
        _warn_of_ratios(written[0], _numbers(ratios))
    for corpus in written:
        _print_division(corpus, sites is not None)


def _warn_of_ratios(corpus: Corpus, ratios: list[float]) -> None:
    counts = corpus.manifest["counts"]["splits"]
    for name, ratio in zip(("train", "dev", "test"), ratios):
        share = counts.get(name, 0) / len(corpus)
        if abs(share - ratio) > 0.02:
            typer.echo(
                f"{name} got {share:.1%} of the notes instead of {ratio:.1%}: patients with many notes, or linked by "
                "(near-)duplicates (--no-keep-duplicates-together parts those), cannot be divided",
                err=True,
            )


def _print_division(corpus: Corpus, sites: bool) -> None:
    splits = ", ".join(f"{name} {count:,}" for name, count in corpus.manifest["counts"]["splits"].items())
    typer.echo(f"{corpus.folder}: {len(corpus):,} notes ({splits})")
    for step in corpus.manifest["filters"][-2:]:
        if left_out := step.get("notes_left_out"):
            typer.echo(f"  {left_out:,} notes left out ({step['filter']})")
        if unused := step.get("entries_without_note"):
            typer.echo(f"  {unused:,} ids of the split file without a note")
    if sites:
        from collections import Counter

        for site, count in sorted(Counter(note.site for note in corpus.notes(text=False)).items()):
            typer.echo(f"  {site} {count:>9,} notes")


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The corpus folder to check.")],
    similarity: Annotated[float, typer.Option(help="From which Jaccard similarity notes are near-duplicates.")] = 0.8,
    shingle: Annotated[int, typer.Option(help="Of how many words the runs are that are compared.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look for what leaks from one split into another; exit with 3 if something does."""
    from nosology.corpora.audit import audit as run

    result = run(folder, threshold=similarity, shingle=shingle)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
    else:
        _print(result)
    if result.leaks:
        raise typer.Exit(LEAK)


def _print(result: Audit) -> None:
    splits = ", ".join(f"{name} {count:,}" for name, count in result.splits.items())
    typer.echo(f"{result.folder}: {result.notes:,} notes ({splits})")
    for finding in result.findings:
        share = f"{finding.count / finding.of:.2%} of {finding.of:,}" if finding.of else ""
        typer.echo(f"{finding.status:8} {finding.check:36} {finding.count:>9,} {finding.what:11} {share}".rstrip())
        if finding.count and finding.examples:
            more = " ..." if finding.count > len(finding.examples) else ""
            typer.echo(f"{'':8}   {', '.join(finding.examples)}{more}")


def _numbers(text: str) -> list[float]:
    from nosology.core import ConfigError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"ratios must be numbers with commas between, such as 0.7,0.15,0.15; got {text!r}") from error
