"""Splits of a corpus: stratified with no patient on two sides, or as a published file says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import SPLITS, ConfigError, DataError, Note
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.duplicates import THRESHOLD, check_threshold
from nosology.corpora.filters import assign_splits
from nosology.corpora.roster import Row, group_counts, groups, read_roster
from nosology.corpora.split_files import read_splits
from nosology.corpora.stratify import stratify

RATIOS = (0.7, 0.15, 0.15)


def stratified_splits(
    roster: list[Row],
    ratios: Sequence[float] = RATIOS,
    *,
    seed: int = 0,
    k: int = 1,
    threshold: float = THRESHOLD,
) -> list[dict[str, str]]:
    """k random splits, each the split of every note id; number i is the same whatever k is.

    Notes of one patient stay together, and so do (near-)duplicates if the roster has fingerprints. Each split gets its
    ratio of the notes of every code, and of every site.
    """
    ratios = check_ratios(ratios)
    if k < 1:
        raise ConfigError(f"k must be at least 1; got {k}")
    if not roster:
        raise DataError("a corpus without notes cannot be split")
    group = groups(roster, threshold=threshold)
    counts, sizes, _ = group_counts(roster, group, within="site")
    used = np.flatnonzero(ratios)
    if len(sizes) < len(used):
        raise ConfigError(f"{len(used)} splits need as many patients (or notes without one); got {len(sizes)}")
    found = []
    for number in range(k):
        part = stratify(counts, sizes, ratios[used], np.random.default_rng([seed, number]))
        names = np.array(SPLITS)[used][part[group]]
        found.append({row.id: str(name) for row, name in zip(roster, names)})
    return found


def check_ratios(ratios: Sequence[float]) -> np.ndarray:
    """The ratios of train, dev and test as an array (3); ConfigError if they cannot be ratios."""
    array = np.array(ratios, dtype=float)
    if array.shape != (3,) or not (array >= 0).all() or abs(array.sum() - 1) > 1e-6:
        shown = ",".join(f"{ratio:g}" for ratio in ratios)
        raise ConfigError(f"ratios must be three numbers for train, dev and test that sum to 1; got {shown}")
    return array


def split_corpus(
    folder: str | Path,
    out: str | Path,
    *,
    ratios: Sequence[float] = RATIOS,
    seed: int = 0,
    k: int | None = None,
    keep_duplicates_together: bool = True,
    threshold: float = THRESHOLD,
) -> list[Corpus]:
    """The corpus in `folder` with new splits, written to `out`, or for a given k to out/split-00, out/split-01, ..."""
    corpus = Corpus.open(folder)
    check_ratios(ratios)
    check_threshold(threshold)
    roster = read_roster(reading(corpus, text=keep_duplicates_together), texts=keep_duplicates_together)
    splits = stratified_splits(roster, ratios, seed=seed, k=1 if k is None else k, threshold=threshold)
    step = {"filter": "split", "ratios": list(ratios), "seed": seed}
    step |= {"duplicates_together": threshold if keep_duplicates_together else None}
    written = []
    for number, split in enumerate(splits):
        target = Path(out) if k is None else Path(out) / f"split-{number:02d}"
        notes = (replace(note, split=split[note.id]) for note in reading(corpus))
        written.append(rewrite(corpus, notes, target, [step | {"number": number}]))
    return written


def split_by_files(folder: str | Path, out: str | Path, files: Sequence[str | Path]) -> Corpus:
    """The corpus with the splits that published files give; notes they do not name are left out and counted."""
    corpus = Corpus.open(folder)
    paths = [Path(file) for file in files]
    table = read_splits(paths)
    step: dict[str, Any] = {"filter": "splits", "files": [path.name for path in paths]}
    if not any(assign_splits(corpus.notes(text=False), table, {})):
        names = ", ".join(step["files"])
        raise DataError(f"none of the {len(table):,} ids in {names} is a note or an admission of {folder}")
    return rewrite(corpus, assign_splits(reading(corpus), table, step), out, [step])


def reading(corpus: Corpus, *, text: bool = True) -> Iterator[Note]:
    """The notes of a corpus, with a progress bar."""
    return progress(corpus.notes(text=text), f"reading {corpus.folder.name}", total=len(corpus))


def rewrite(corpus: Corpus, notes: Iterable[Note], out: str | Path, steps: list[dict[str, Any]]) -> Corpus:
    """A new corpus of changed notes; what was done, and to the corpus of which hash, is added to its filters."""
    steps[-1]["corpus"] = corpus.hash
    filters = [*corpus.manifest["filters"], *steps]
    counts = {"troubles": corpus.manifest["counts"].get("troubles", {})}
    return write_corpus(notes, out, source=corpus.manifest["source"], filters=filters, counts=counts)
