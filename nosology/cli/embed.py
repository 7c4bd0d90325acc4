"""nosology embed: the vectors of a corpus's notes, made once and kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nosology.corpora.corpus import Corpus
    from nosology.encoders.embedder import Embedded

_QUIET = 30.0  # seconds between lines where there is no terminal
_WORTH_COMPILING = 30_000_000  # characters, about 10 million tokens


def embed(
    corpus: Annotated[list[Path], typer.Option(help="A corpus folder; may be given several times.")],
    out: Annotated[Path, typer.Option(help="The cache folder; what it holds already is not made again.")],
    model: Annotated[
        str, typer.Option(help="minilm (in the package), a name from docs/embedding.md, a Hugging Face name, a folder.")
    ] = "minilm",
    split: Annotated[str, typer.Option(help="train, dev, test, or all.")] = "all",
    max_tokens: Annotated[int, typer.Option(min=0, help="Tokens of a note that are read; 0: all.")] = 8192,
    window: Annotated[int, typer.Option(min=0, help="Tokens read at once; 0: what the model was made for.")] = 0,
    prompt: Annotated[str, typer.Option(help="Set before each note, in the place of the model's own.")] = "",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of a Hugging Face name.")] = "",
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run programs that come with the model. They can do anything.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the GPU where there is one.")] = None,
) -> None:
    """Turn notes into vectors with a pretrained model, once; heads are trained on them."""
    from nosology.corpora.corpus import Corpus

    settings = _settings(
        model=model,
        revision=revision,
        max_tokens=max_tokens,
        window=window,
        prompt=prompt,
        precision=precision,
        trust_remote_code=trust_remote_code,
    )
    notes = _Notes([Corpus.open(folder) for folder in corpus], split)
    from nosology.encoders.embedder import Embedder
    from nosology.encoders.embedding_cache import EmbeddingCache
    from nosology.encoders.embedding_report import summarise, write_report

    embedder = Embedder.load(settings, device)
    cache = EmbeddingCache.of(out, embedder)
    new, characters = cache.missing(notes.texts())
    if characters > _WORTH_COMPILING:
        embedder.compile()
    watch = _Watch(f"embedding ({embedder.name})", new, characters)
    try:
        rows = cache.rows(notes.texts(), lambda: embedder, watch)
    finally:
        watch.close()
    page = write_report(out, cache, summarise(cache, rows, embedder, new))
    typer.echo(
        f"{cache.folder}: {len(rows):,} notes, {new:,} new, {embedder.dim} numbers each, {embedder.name} on "
        f"{embedder.device}{f', {watch.rate():,.0f} tokens/s' if new else ''}"
    )
    typer.echo(f"report: {page}")


def _settings(**given: Any) -> Any:
    from pydantic import ValidationError

    from nosology.core import ConfigError
    from nosology.encoders.embedder_settings import EmbedderSettings

    try:
        return EmbedderSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{first['loc'][0]}".replace("_", "-")
        raise ConfigError(f"{option}: {first['msg'].lower()}; got {first['input']!r}") from error


class _Notes:
    """The texts of a split of corpora, streamed anew each time they are asked for."""

    def __init__(self, corpora: list[Corpus], split: str):
        from nosology.core import SPLITS, DataError

        if split not in (*SPLITS, "all"):
            raise DataError(f"split must be one of {', '.join(SPLITS)} or all; got {split!r}")
        self.corpora, self.split = corpora, None if split == "all" else split

    def texts(self) -> Iterator[str]:
        return (note.text for corpus in self.corpora for note in corpus.notes(self.split))


class _Watch:
    """Says on standard error how far it is: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self, title: str, notes: int, characters: int):
        self.title, self.notes, self.characters = title, notes, characters
        self.done, self.seen, self.tokens = 0, 0, 0
        self.started = self.said = time.monotonic()
        self._bar: Any = None
        if notes and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn())
            text = progress.TextColumn("{task.fields[says]}")
            self._bar = progress.Progress(*columns, text, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=characters, says=f"0/{notes:,} notes")
            self._bar.start()

    def __call__(self, part: Embedded) -> None:
        self.done += len(part.rows)
        self.seen += part.characters
        self.tokens += int(part.read.sum())
        now = time.monotonic()
        # By characters, because a pool's longest notes come first and notes alone would promise too much.
        left = (now - self.started) / max(1, self.seen) * (self.characters - self.seen)
        says = f"{self.done:,}/{self.notes:,} notes  {self.rate():,.0f} tokens/s  {timedelta(seconds=round(left))} left"
        if self._bar:
            self._bar.update(self._task, completed=self.seen, says=says)
        elif now - self.said >= _QUIET:
            self.said = now
            print(f"{self.title}: {says}", file=sys.stderr, flush=True)

    def rate(self) -> float:
        """Tokens a second so far, tokenising and storing included."""
        return self.tokens / max(1e-9, time.monotonic() - self.started)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
