"""nosology simulate and embed: a simulated hospital, cached embeddings of notes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nosology.cli.command_group import refuse_unused
from nosology.core import SPLITS, ConfigError, DataError

if TYPE_CHECKING:
    from nosology.encoders.embedder import EmbeddedBatch

_LOG_SECONDS = 30.0  # between lines where there is no terminal
_MIN_COMPILE_CHARACTERS = 30_000_000  # about 10 million tokens; below, compiling does not pay off


def simulate(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    patients: Annotated[int, typer.Option(help="Number of patients; each has about 1.8 admissions.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same patients.")] = 0,
    layout: Annotated[str, typer.Option(help="File format: mimic4.")] = "mimic4",
    years: Annotated[
        str, typer.Option(help="FIRST-LAST; admissions since October 2015 have ICD-10 codes.")
    ] = "2008-2019",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, by default as many as there are cores; the files are the same."),
    ] = None,
) -> None:
    """Simulate a hospital: patients, admissions, codes, discharge summaries, radiology reports, gold evidence."""
    from nosology.core.forked_processes import freeze_objects
    from nosology.core.parallel import check_workers, cores
    from nosology.corpora.simulate import simulate as simulate_hospital

    first, _, last = years.partition("-")
    if not all(re.fullmatch("[0-9]{4}", year) for year in (first, last)):
        raise ConfigError(f"--years must be two years such as 2008-2019; got {years[:40]}")
    processes = workers or cores()
    check_workers("--workers", processes)
    span = (int(first), int(last))
    freeze_objects()
    about = simulate_hospital(patients, seed, out, layout=layout, years=span, workers=processes)
    rows = about["rows"]
    typer.echo(
        f"{out}: {patients:,} patients, {rows['hosp/admissions']:,} admissions, "
        f"{rows['note/discharge']:,} discharge summaries, {rows.get('note/radiology', 0):,} radiology reports"
    )


def embed(
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The cache folder; cached notes are not embedded again.")],
    model: Annotated[
        str, typer.Option(help="minilm (in the package), a name from docs/embedding.md, a Hugging Face name, a folder.")
    ] = "minilm",
    split: Annotated[str, typer.Option(help="train, dev, test, or all.")] = "all",
    max_tokens: Annotated[int, typer.Option(min=0, help="Maximum tokens per note; 0: all.")] = 8192,
    window: Annotated[int, typer.Option(min=0, help="Tokens per forward pass; 0: the maximum of the model.")] = 0,
    prompt: Annotated[str, typer.Option(help="Text before each note; default: the model's own prompt.")] = "",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of a Hugging Face name.")] = "",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model, with all your permissions.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the GPU if there is one.")] = None,
) -> None:
    """Embed notes with a pretrained model and cache the vectors, for training heads."""
    from pydantic import ValidationError

    from nosology.corpora.corpus import Corpus
    from nosology.encoders.append_only_store import check_cache_folder
    from nosology.encoders.embedder_config import EmbedderSettings

    try:
        options = {"model": model, "revision": revision, "max_tokens": max_tokens, "window": window, "prompt": prompt}
        options |= {"precision": precision, "trust_remote_code": trust_remote_code}
        settings = EmbedderSettings.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{first['loc'][0]}".replace("_", "-")
        allowed = first["msg"].lower().removeprefix("value error, ")
        raise ConfigError(f"{option}: {allowed}; got {first['input']!r}") from error
    if model == "minilm" or Path(model).is_dir():
        refuse_unused(("revision",), "on a model that is not fetched from Hugging Face")
    check_cache_folder(out)
    corpora = [Corpus.open(folder) for folder in corpus]
    if split not in (*SPLITS, "all"):
        raise DataError(f"split must be one of {', '.join(SPLITS)} or all; got {split!r}")
    if split != "all" and not any(split in each.manifest["counts"]["splits"] for each in corpora):
        raise DataError(f"{', '.join(map(str, corpus))}: no {split} notes to embed")

    def texts() -> Iterator[str]:
        return (note.text for each in corpora for note in each.notes(None if split == "all" else split))

    from nosology.encoders.embedder import Embedder
    from nosology.encoders.embedding_cache import EmbeddingCache
    from nosology.encoders.embedding_report import summarise, write_report

    embedder = Embedder.load(settings, device)
    cache = EmbeddingCache.for_embedder(out, embedder)
    new, characters = cache.missing(texts())
    if characters > _MIN_COMPILE_CHARACTERS:
        embedder.compile()
    progress = _EmbeddingProgress(f"embedding ({embedder.name})", new, characters)
    try:
        rows = cache.rows(texts(), lambda: embedder, progress)
    finally:
        progress.close()
    page = write_report(out, cache, summarise(cache, rows, embedder, new))
    typer.echo(
        f"{cache.folder}: {len(rows):,} notes, {new:,} new, {embedder.dim} dimensions, {embedder.name} on "
        f"{embedder.device}{f', {progress.rate():,.0f} tokens/s' if new else ''}"
    )
    typer.echo(f"report: {page}")


class _EmbeddingProgress:
    """Progress on standard error: a bar on a terminal, otherwise a line every 30 seconds."""

    def __init__(self, title: str, notes: int, characters: int):
        self.title, self.notes, self.characters = title, notes, characters
        self.done_notes, self.done_characters, self.done_tokens = 0, 0, 0
        self.started = self.logged = time.monotonic()
        self._bar: Any = None
        if notes and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn())
            text = progress.TextColumn("{task.fields[status]}")
            self._bar = progress.Progress(*columns, text, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=characters, status=f"0/{notes:,} notes")
            self._bar.start()

    def __call__(self, batch: EmbeddedBatch) -> None:
        self.done_notes += len(batch.rows)
        self.done_characters += batch.characters
        self.done_tokens += int(batch.read.sum())
        now = time.monotonic()
        # Estimated by characters: the longest notes come first.
        left = (now - self.started) / max(1, self.done_characters) * (self.characters - self.done_characters)
        notes = f"{self.done_notes:,}/{self.notes:,} notes"
        status = f"{notes}  {self.rate():,.0f} tokens/s  {timedelta(seconds=round(left))} left"
        if self._bar:
            self._bar.update(self._task, completed=self.done_characters, status=status)
        elif now - self.logged >= _LOG_SECONDS:
            self.logged = now
            print(f"{self.title}: {status}", file=sys.stderr, flush=True)

    def rate(self) -> float:
        """Tokens per second so far, including tokenization and storage."""
        return self.done_tokens / max(1e-9, time.monotonic() - self.started)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
