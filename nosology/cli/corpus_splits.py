"""nosology corpus split and audit: split a corpus, and check a split for leaks."""

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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The corpus folder to split.")],
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
    skew: Annotated[str | None, typer.Option(help="How sites differ: iid, size or dirichlet.")] = None,
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
    similarity: Annotated[float, typer.Option(help="Notes are near-duplicates from this Jaccard similarity on.")] = 0.8,
) -> None:
    """Split a corpus into train, dev and test, or partition it among sites. No patient is in two parts."""
    from nosology.core import ConfigError
    from nosology.corpora.splits import site_corpus, split_by_files, split_corpus

    if sum((bool(official), sites is not None, k is not None)) > 1:
        raise ConfigError("--official, --sites and --k exclude each other; run the command once for each")
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
                skew=skew or "iid",
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
            ratios=_parse_ratios(ratios),
            seed=seed,
            k=k,
            keep_duplicates_together=keep_duplicates_together,
            threshold=similarity,
        )
        _warn_about_ratios(written[0], _parse_ratios(ratios))
    for corpus in written:
        _print_split(corpus, sites is not None)


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
        from collections import Counter

        for site, count in sorted(Counter(note.site for note in corpus.notes(text=False)).items()):
            typer.echo(f"  {site} {count:>9,} notes")


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The corpus folder to check.")],
    similarity: Annotated[float, typer.Option(help="Notes are near-duplicates from this Jaccard similarity on.")] = 0.8,
    shingle: Annotated[int, typer.Option(help="Number of words of a shingle.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check a corpus for leaks between splits. The exit code is 3 if there is one."""
    from nosology.corpora.audit import audit as audit_corpus

    result = audit_corpus(folder, threshold=similarity, shingle=shingle)
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
            typer.echo(f"{'':8}   {', '.join(finding.examples)}{more}")


def _parse_ratios(text: str) -> list[float]:
    from nosology.core import ConfigError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"ratios must be numbers separated by commas, such as 0.7,0.15,0.15; got {text!r}") from error
