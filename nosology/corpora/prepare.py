"""From the files of a dataset to a corpus folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nosology.core import SYSTEMS, ConfigError, DataError, Note
from nosology.core.progress import progress
from nosology.corpora import cmc2007, codiesp, mimic3, mimic4, mimic4_radiology, table
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.filters import assign_splits, drop_uncoded, frequent_codes, keep_codes
from nosology.corpora.intake import Intake
from nosology.corpora.recipe import CorpusRecipe, load_recipe
from nosology.corpora.split_files import read_splits

Reader = Callable[[Sequence[Path], Intake], Iterator[Note]]

KINDS: dict[str, Callable[..., Iterator[Note]]] = {
    "mimic4": mimic4.read,
    "mimic4-radiology": mimic4_radiology.read,
    "mimic3": mimic3.read,
    "codiesp": codiesp.read,
    "cmc2007": cmc2007.read,
    "table": table.read,
}


def prepare(
    kind: str,
    paths: Sequence[Path],
    out: Path,
    *,
    recipe: CorpusRecipe | str | Path | None = None,
    splits: Sequence[Path] = (),
    lang: str | None = None,
    system: str | None = None,
    strict: bool = False,
    reader: Reader | None = None,
) -> Corpus:
    """The corpus made of the dataset's files and written to `out`.

    reader: what reads a kind that is not among KINDS, such as the reviews of a workbench.

    Filters that need counts over the whole dataset read it twice, so that nothing but one block of notes is ever held.
    """
    paths, splits = [Path(path) for path in paths], [Path(path) for path in splits]
    read = partial(reader or _reader(kind, lang, system), paths)
    _check_reachable([*paths, *splits])
    rules = recipe if isinstance(recipe, CorpusRecipe) else load_recipe(recipe) if recipe else CorpusRecipe(kind=kind)
    if rules.kind != kind:
        raise ConfigError(f"the recipe is for kind {rules.kind}; got kind {kind}")
    steps = _steps(rules, splits, read(Intake(strict=strict)))
    intake = Intake(strict=strict, check_codes=True)
    notes = read(intake)
    for step in steps:
        notes = step.apply(notes, record=step.record)
    source = {
        "kind": kind,
        "paths": [str(path) for path in paths],
        "recipe": rules.model_dump(mode="json", exclude_none=True),
    }
    return write_corpus(
        progress(_at_least_one(notes, paths), "preparing"),
        out,
        source=source,
        filters=[step.record for step in steps],
        counts={"troubles": intake.troubles},
    )


def _check_reachable(paths: Sequence[Path]) -> None:
    """Raises DataError for a path that cannot even be looked at; one that is not there is named by its reader."""
    for path in paths:
        try:
            path.exists()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error


class _Step(NamedTuple):
    """A filter, and what corpus.json says of it: its settings, and later what it left out."""

    record: dict[str, Any]
    apply: Callable[..., Iterator[Note]]


def _steps(rules: CorpusRecipe, splits: Sequence[Path], notes: Iterator[Note]) -> list[_Step]:
    """The filters of a recipe in their order; `notes` are drawn only if codes must be counted first."""
    steps = []
    if set(rules.systems) != set(SYSTEMS):
        select = partial(keep_codes, keep=lambda code: code.system in rules.systems)
        steps.append(_Step({"filter": "systems", "keep": rules.systems}, select))
        notes = select(notes, record={})
    if rules.min_count > 1:
        frequent = frequent_codes(progress(notes, "counting codes"), rules.min_count)
        record = {"filter": "min_count", "min_count": rules.min_count}
        steps.append(_Step(record, partial(keep_codes, keep=frequent.__contains__)))
    if rules.drop_uncoded:
        steps.append(_Step({"filter": "drop_uncoded"}, drop_uncoded))
    if splits:
        record = {"filter": "splits", "files": [path.name for path in splits]}
        steps.append(_Step(record, partial(assign_splits, splits=read_splits(splits))))
    return steps


def _at_least_one(notes: Iterator[Note], paths: Sequence[Path]) -> Iterator[Note]:
    first = next(notes, None)
    if first is None:
        raise DataError(f"{', '.join(map(str, paths))}: no note is left after reading and filtering")
    yield first
    yield from notes


def _reader(kind: str, lang: str | None, system: str | None) -> Reader:
    """The reader of a kind with the options that apply to it; ConfigError if one does not."""
    if kind not in KINDS:
        raise ConfigError(f"KIND must be one of {', '.join(KINDS)}; got {kind!r}")
    if system is not None and system not in SYSTEMS:
        raise ConfigError(f"--system must be one of {', '.join(SYSTEMS)}; got {system!r}")
    if lang is not None and kind not in ("codiesp", "table"):
        raise ConfigError(f"--lang applies to codiesp and table; got kind {kind}")
    if system is not None and kind != "table":
        raise ConfigError(f"--system applies to table; got kind {kind}")
    options = {name: value for name, value in (("lang", lang), ("system", system)) if value is not None}
    return partial(KINDS[kind], **options)


def compare(corpus: Corpus) -> list[tuple[str, int, int]]:
    """(what, expected, got) for each count that the corpus's recipe expects; splits only if there are some."""
    counts = corpus.manifest["counts"]
    got = {
        "notes": counts["notes"],
        "codes": sum(system["codes"] for system in counts["systems"].values()),
        **{name: count for name, count in counts["splits"].items() if name != "none"},
    }
    return [
        (name, wanted, got[name])
        for name, wanted in corpus.manifest["source"]["recipe"]["expected"].items()
        if name in got
    ]
