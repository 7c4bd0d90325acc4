"""nosology reproduce: the tables of four papers, with the papers' numbers and ours."""

from __future__ import annotations

import shlex
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.coder_commands import Overrides

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus

REMOVED = {"grid": "nosology reproduce federated-heads", "leakage": "nosology reproduce hmhan leakage"}


def reproduce(
    paper: Annotated[str, typer.Argument(help="federated-heads, dual-laat, hmhan or plant.")],
    table: Annotated[str | None, typer.Argument(help="A table of the paper; default: all tables.")] = None,
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be repeated.")] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The folder of results; what it has is not run again.")] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Small settings and, without --corpus, a simulated hospital: minutes.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per row; default: as in the paper.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    cache: Annotated[Path | None, typer.Option(help="A folder of embeddings and states; default: OUT/cache.")] = None,
    keep_bundles: Annotated[bool, typer.Option("--keep-bundles", help="Keep every coder in OUT/work.")] = False,
    settings: Overrides = [],  # noqa: B006
) -> None:
    """Train and measure all that a table of a paper compares; without options, list the tables.

    A study that was stopped goes on when you give the same command again. The exit code is 1 while a run is missing.
    """
    from nosology.config import override, parse_settings
    from nosology.core import ConfigError
    from nosology.core.files import check_results_folder, exclusive_output
    from nosology.corpora.corpus import Corpus
    from nosology.encoders.append_only_store import check_cache_folder
    from nosology.reproduce import PAPERS
    from nosology.reproduce.result_page import StudyCall, check_paper, write_page
    from nosology.reproduce.result_tables import missing, write_tables
    from nosology.reproduce.runner import Runner

    paper, table = paper.replace("_", "-"), table and table.replace("_", "-")
    if paper not in PAPERS:
        raise ConfigError(f"PAPER must be one of {', '.join(PAPERS)}; got {paper!r}")
    module: Any = import_module(PAPERS[paper])
    if table is not None and table not in module.TABLES:
        raise ConfigError(f"TABLE of {paper} must be one of {', '.join(module.TABLES)}; got {table!r}")
    if not (table or corpus or small or out):
        typer.echo("\n".join([module.TITLE, *(f"  {name:<10} {title}" for name, title in module.TABLES.items())]))
        return
    if out is None or not (corpus or small):
        raise ConfigError("--out and --corpus must be given; with --small, a simulated hospital replaces the corpus")
    check_results_folder(out)
    check_paper(out, module.TITLE)
    if cache is not None:
        check_cache_folder(cache)
    values = override(deepcopy(module.SMALL) if small else {}, settings)
    study = parse_settings(module.STUDY, values | ({"seeds": seeds} if seeds else {}), paper)
    wanted = [table] if table else list(module.TABLES)
    study.check_tables(wanted)
    corpora = [Corpus.open(folder) for folder in corpus]
    if len({opened.hash for opened in corpora}) < len(corpora):
        raise ConfigError("each corpus must be given once; two of them have the same notes")
    with exclusive_output(out, f"another reproduction is running in {out}"):
        corpora = corpora or _simulated(module, study, out)
        line = _command_line(paper, table, corpus, out, small, seeds, settings)
        call = StudyCall(module.TITLE, module.TABLES, line, study.model_dump(mode="json"), corpora, not corpus)
        tables = module.tables(study, corpora, out, wanted)
        tables = [each.with_first_rows(study.rows) for each in tables]
        runs = {key: run for each in tables for key, run in each.runs.items()}
        runner = Runner(out, cache or out / "cache", jobs, keep_bundles)
        try:
            runner.work(list(runs.values()), typer.echo)
        finally:  # the results so far are written, however it ended
            results, failed = runner.results(runs.values()), runner.failures(runs.values())
            tables = [each.with_fixed_remarks(results) for each in tables]
            written = write_tables(out, tables, results, failed)
            page = write_page(out, call, tables, results, failed)
    for path in written:
        typer.echo(f"\n{path.read_text(encoding='utf-8')}\nwritten: {path}")
    typer.echo(f"written: {page}")
    if len(results) < len(runs):
        typer.echo(missing(runs, results, failed), err=True)
        raise typer.Exit(1)


def _simulated(module: Any, study: Any, out: Path) -> list[Corpus]:
    """The corpora of a simulated hospital, which has train, dev and test notes."""
    from nosology.reproduce.runner import check_splits, enough_patients

    corpora = module.simulate(study, out / "simulated")
    with enough_patients(study.patients):
        for corpus in corpora:
            check_splits(corpus)
    return corpora


def _command_line(
    paper: str, table: str | None, corpora: list[Path], out: Path, small: bool, seeds: int | None, settings: list[str]
) -> str:
    """The command that gives the same numbers; without options that change none."""
    words = ["nosology", "reproduce", paper, *([table] if table else [])]
    words += [word for corpus in corpora for word in ("--corpus", str(corpus))]
    words += [*(["--small"] if small else []), *(["--seeds", str(seeds)] if seeds else [])]
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting)), "--out", str(out)])


def removed(context: typer.Context) -> None:
    """Names the command that replaces a removed one."""
    typer.echo(f"nosology: {context.info_name} is now: {REMOVED[str(context.info_name)]}", err=True)
    raise typer.Exit(2)
