"""Splits of a corpus into train, dev and test, and its partition among sites; no patient is in two parts.

split_corpus("corpus", "split", ratios=(0.7, 0.15, 0.15), seed=1)
site_corpus("corpus", "sites", 20, skew="dirichlet", alpha=0.1)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import SPLITS, SYSTEMS, Code, ConfigError, DataError, Note
from nosology.core.errors import RenamedWarning
from nosology.core.files import check_results_folder
from nosology.core.forked_processes import forked_map
from nosology.core.label_space import column_sums
from nosology.core.progress import activity, counting, progress
from nosology.corpora.corpus import (
    Corpus,
    EncodedNotes,
    check_corpus_folder,
    encode_notes,
    encoded_groups,
    return_memory,
    write_encoded,
)
from nosology.corpora.corpus_summary import summarize_corpus
from nosology.corpora.duplicates import THRESHOLD, check_threshold
from nosology.corpora.filters import assign_splits, frequent_codes, keep_codes, read_splits
from nosology.corpora.group_splits import NoteSummary, group_label_counts, group_numbers, stratify, summarize_notes

RATIOS = (0.7, 0.15, 0.15)
SKEWS = ("iid", "size", "dirichlet", "random")
_RENAMED_SKEWS = {"equal": "iid"}
_MIN_FAMILIES = 8
_SPLITS = "splits of --ratios"
_APART = "; see --no-keep-duplicates-together"


def stratified_splits(
    notes: list[NoteSummary],
    ratios: Sequence[float] = RATIOS,
    *,
    seed: int = 0,
    k: int = 1,
    threshold: float = THRESHOLD,
) -> list[dict[str, str]]:
    """k random splits, each as note id -> split. Split number i does not depend on k.

    Notes of a patient stay together, and so do (near-)duplicates if the notes have fingerprints. Each split gets its
    ratio of the notes of every code and of every site.
    """
    shares = check_ratios(ratios)
    if k < 1:
        raise ConfigError(f"k must be at least 1; got {k}")
    if not notes:
        raise DataError("a corpus without notes cannot be split")
    with activity("looking for near-duplicates"):
        groups = group_numbers(notes, threshold=threshold)
    has_fingerprints = _have_fingerprints(notes)
    notes = [replace(note, fingerprint=None) for note in notes]  # the fingerprints take most of the memory
    counts, sizes, _ = group_label_counts(notes, groups, within="site")
    used = np.flatnonzero(shares)
    _check_groups(len(used), len(sizes), _SPLITS, has_fingerprints)
    splits = []
    for number in range(k):
        part = stratify(counts, sizes, shares[used], np.random.default_rng([seed, number]))
        names = np.array(SPLITS)[used][part[groups]]
        splits.append({note.id: str(name) for note, name in zip(notes, names)})
    return splits


def check_ratios(ratios: Sequence[float]) -> np.ndarray:
    """The ratios of train, dev and test as an array (3). ConfigError if they do not sum to 1."""
    array = np.array(ratios, dtype=float)
    if array.shape != (3,) or not (array >= 0).all() or abs(array.sum() - 1) > 1e-6:
        values = ",".join(f"{ratio:g}" for ratio in ratios)
        raise ConfigError(f"ratios must be three numbers for train, dev and test that sum to 1; got {values}")
    return array


def _have_fingerprints(notes: list[NoteSummary]) -> bool:
    return any(note.fingerprint is not None for note in notes)


def _check_groups(parts: int, groups: int, what: str, has_fingerprints: bool) -> None:
    """Raises ConfigError unless each part gets a group of notes."""
    _check_parts(parts, what)
    if parts > groups:
        number = "1 group" if groups == 1 else f"{groups:,} groups"
        of, hint = ("patients and (near-)duplicates", _APART) if has_fingerprints else ("patients", "")
        raise ConfigError(f"the notes form {number} of {of}, fewer than the {parts} {what}{hint}")


def _check_parts(parts: int, what: str) -> None:
    if parts < 1:
        raise ConfigError(f"{what} must be at least 1; got {parts}")


def _check_patients(corpus: Corpus, notes: Iterable[Note], parts: int, what: str) -> None:
    """Raises ConfigError if there are too few patients for the parts. Fingerprints, which take long, come later."""
    _check_parts(parts, what)
    found = set()
    for note in notes:
        found.add((note.patient is None, note.patient or note.id))
        if len(found) >= parts:
            return
    number = "1 patient" if len(found) == 1 else f"{len(found):,} patients"
    raise ConfigError(
        f"the corpus {corpus.folder} has {number} (a note without a patient counts as one), fewer than the {parts}"
        f" {what}"
    )


def split_corpus(
    folder: str | Path,
    out: str | Path,
    *,
    ratios: Sequence[float] = RATIOS,
    seed: int = 0,
    k: int | None = None,
    keep_duplicates_together: bool = True,
    threshold: float = THRESHOLD,
    workers: int = 1,
) -> list[Corpus]:
    """The corpus in `folder` with new splits, written to `out`; with k to out/split-00, out/split-01, ...

    workers: processes; the corpus is the same for any number.
    """
    corpus = Corpus.open(folder)
    check_ratios(ratios)
    check_threshold(threshold)
    if k is not None:
        check_results_folder(out)
    targets = [Path(out)] if k is None else [Path(out) / f"split-{number:02d}" for number in range(k)]
    for target in targets:
        check_corpus_folder(target)
    if not len(corpus):
        raise ConfigError(f"the corpus {corpus.folder} has no notes")
    _check_patients(corpus, corpus.notes(text=False), int(np.count_nonzero(ratios)), _SPLITS)
    # No name for the summaries: they are freed before the notes are written.
    splits = stratified_splits(
        summarize_corpus(corpus, texts=keep_duplicates_together, workers=workers).notes,
        ratios,
        seed=seed,
        k=1 if k is None else k,
        threshold=threshold,
    )
    step = {"filter": "split", "ratios": list(ratios), "seed": seed}
    step |= {"duplicates_together": threshold if keep_duplicates_together else None}
    written = []
    for number, (target, split) in enumerate(zip(targets, splits)):
        groups = forked_map(partial(_encode_split, corpus, split), range(corpus.row_groups), workers, block=1, ahead=2)
        written.append(_rewrite(corpus, _shown(corpus, groups), target, [step | {"number": number}]))
    return written


def _encode_split(corpus: Corpus, split: Mapping[str, str], group: int) -> EncodedNotes:
    """The notes of a row group with their splits."""
    return_memory()
    return encode_notes(replace(note, split=split[note.id]) for note in corpus.notes(group=group))


def _shown(corpus: Corpus, groups: Iterable[EncodedNotes]) -> Iterator[EncodedNotes]:
    """The groups, with a progress bar."""
    with counting(f"reading {corpus.folder.name}", total=len(corpus)) as counter:
        for group in groups:
            yield group
            counter.advance(len(group.ids))


def split_by_files(folder: str | Path, out: str | Path, files: Sequence[str | Path]) -> Corpus:
    """The corpus with the splits of published files. Notes that the files do not list are dropped and counted."""
    corpus = Corpus.open(folder)
    _check_target(corpus, out)
    paths = [Path(file) for file in files]
    splits = read_splits(paths)
    step: dict[str, Any] = {"filter": "splits", "files": [path.name for path in paths]}
    if not any(assign_splits(corpus.notes(text=False), splits, {})):
        names = ", ".join(step["files"])
        raise DataError(f"none of the {len(splits):,} ids in {names} is a note or an admission of {folder}")
    return _rewrite(corpus, encoded_groups(assign_splits(read_corpus(corpus), splits, step)), out, [step])


def read_corpus(corpus: Corpus, *, text: bool = True) -> Iterator[Note]:
    """The notes of a corpus, with a progress bar."""
    return progress(corpus.notes(text=text), f"reading {corpus.folder.name}", total=len(corpus))


def _check_target(corpus: Corpus, out: str | Path) -> None:
    """Raises an error if `out` cannot be written, or is the corpus itself: notes that are left out would be lost."""
    if check_corpus_folder(out) == corpus.folder.resolve():
        raise ConfigError(f"--out must be another folder than the corpus {corpus.folder}, which is not changed")


def _rewrite(corpus: Corpus, groups: Iterable[EncodedNotes], out: str | Path, steps: list[dict[str, Any]]) -> Corpus:
    """A new corpus of changed notes. The steps and the hash of the old corpus are added to its filters."""
    steps[-1]["corpus"] = corpus.hash
    filters = [*corpus.manifest["filters"], *steps]
    counts = {"troubles": corpus.manifest["counts"].get("troubles", {})}
    return write_encoded(groups, out, source=corpus.manifest["source"], filters=filters, counts=counts)


def assign_sites(
    notes: list[NoteSummary],
    sites: int,
    *,
    skew: str = "iid",
    alpha: float = 0.5,
    exponent: float = 1.0,
    seed: int = 0,
    threshold: float = THRESHOLD,
) -> dict[str, str]:
    """note id -> site: site-00, site-01, ...

    skew: how sites differ. "iid": equal sizes and the same distribution of codes. "size": the same distribution of
    codes; the size of site i is proportional to (i + 1) ** -exponent. "dirichlet": equal sizes; each family of codes
    is divided in proportions drawn from a symmetric Dirichlet(alpha), as far as notes with codes of several families
    allow. The smaller alpha, the fewer sites see a family. Existing splits keep their shares within each site.
    "random": equal sizes; each note is drawn alone, so that a patient can be at several sites.
    """
    skew = check_skew(skew, alpha, exponent)
    width = max(2, len(str(sites - 1)))
    if skew == "random":
        _check_parts(sites, "sites")
        if sites > len(notes):
            raise ConfigError(f"sites must be at most the number of notes, {len(notes):,}; got {sites}")
        drawn = np.random.default_rng([seed, sites]).permutation(len(notes)) % sites
        return {note.id: f"site-{site:0{width}d}" for note, site in zip(notes, drawn.tolist())}
    groups = group_numbers(notes, threshold=threshold)
    counts, sizes, labels = group_label_counts(notes, groups, within="split")
    _check_groups(sites, len(sizes), "sites", _have_fingerprints(notes))
    rng = np.random.default_rng([seed, sites])
    shares = np.arange(1.0, sites + 1) ** -exponent if skew == "size" else np.ones(sites)
    shares = shares / shares.sum()
    targets = None
    if skew == "dirichlet":
        targets = _dirichlet_targets(labels, column_sums(counts), sites, alpha, rng)
    part = stratify(counts, sizes, shares, rng, targets=targets)
    return {note.id: f"site-{site:0{width}d}" for note, site in zip(notes, part[groups])}


def check_skew(skew: str, alpha: float = 1.0, exponent: float = 1.0) -> str:
    """The skew under its present name. ConfigError if it is unknown or a parameter is not positive."""
    if skew in _RENAMED_SKEWS:
        warnings.warn(f"the skew {skew} is now named {_RENAMED_SKEWS[skew]}", RenamedWarning, stacklevel=2)
        skew = _RENAMED_SKEWS[skew]
    if skew not in SKEWS:
        raise ConfigError(f"skew must be one of {', '.join(SKEWS)}; got {skew!r}")
    for name, value in (("alpha", alpha), ("exponent", exponent)):
        if not 0 < value < np.inf:
            raise ConfigError(f"{name} must be positive; got {value:g}")
    return skew


def _dirichlet_targets(
    labels: list[tuple[str, str]], totals: np.ndarray, sites: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """The number of notes with each label that a site should get (P sites, L labels). Splits are divided equally.

    Sites get about the same number of codes (iterative proportional fitting), so that label skew is not size skew.
    """
    family = np.array(_code_families(labels))
    shares = np.maximum(rng.dirichlet(np.full(sites, alpha), size=int(family.max(initial=0)) + 1).T, 1e-9)
    targets = np.where(family < 0, 1 / sites, shares[:, family]) * totals
    for _ in range(50):
        targets *= targets.sum() / sites / targets.sum(axis=1, keepdims=True)
        targets *= totals / targets.sum(axis=0)
    return targets


def _code_families(labels: list[tuple[str, str]]) -> list[int]:
    """The family of each label, -1 for labels that are no codes: codes with the same first character, about a chapter.

    A note has many codes. If each code had its own proportions, they would cancel out. With fewer than eight families,
    a family is the first three characters; if these are also too few, each code is a family.
    """
    names: list[tuple[str, str] | None] = []
    number: dict[tuple[str, str], int] = {}
    for length in (1, 3, None):
        names = [(system, code[:length]) if system in SYSTEMS else None for system, code in labels]
        number = {name: position for position, name in enumerate(dict.fromkeys(filter(None, names)))}
        if len(number) >= _MIN_FAMILIES:
            break
    return [-1 if name is None else number[name] for name in names]


def site_corpus(
    folder: str | Path,
    out: str | Path,
    sites: int,
    *,
    skew: str = "iid",
    alpha: float = 0.5,
    exponent: float = 1.0,
    seed: int = 0,
    min_notes: int = 0,
    keep_duplicates_together: bool = True,
    threshold: float = THRESHOLD,
) -> Corpus:
    """The corpus with a site for each note, written to `out`.

    min_notes: keep only the codes of at least sites * min_notes notes, so that every site can get min_notes of them.
    """
    corpus = Corpus.open(folder)
    _check_target(corpus, out)
    skew = check_skew(skew, alpha, exponent)
    check_threshold(threshold)
    steps: list[dict[str, Any]] = []
    keep: Callable[[Code], bool] = lambda code: True  # noqa: E731
    if min_notes > 0:
        keep = frequent_codes(corpus.notes(text=False), sites * min_notes).__contains__
        steps.append({"filter": "min_count", "min_count": sites * min_notes, "sites": sites, "min_notes": min_notes})
    if not len(corpus):
        raise ConfigError(f"the corpus {corpus.folder} has no notes")
    if not any(keep_codes(corpus.notes(text=False), keep, {})):
        raise ConfigError(f"no note is left for {sites} sites: no code has {sites * min_notes} notes")
    _check_patients(corpus, keep_codes(corpus.notes(text=False), keep, {}), sites, "sites")
    candidates = keep_codes(read_corpus(corpus, text=keep_duplicates_together), keep, {})
    summaries = summarize_notes(candidates, texts=keep_duplicates_together)
    site = assign_sites(summaries, sites, skew=skew, alpha=alpha, exponent=exponent, seed=seed, threshold=threshold)
    steps.append({"filter": "sites", "sites": sites, "skew": skew, "seed": seed})
    steps[-1] |= {"size": {"exponent": exponent}, "dirichlet": {"alpha": alpha}}.get(skew, {})
    steps[-1] |= {"duplicates_together": threshold if keep_duplicates_together else None}
    notes = keep_codes(read_corpus(corpus), keep, steps[0] if min_notes > 0 else {})
    placed = (replace(note, site=site[note.id]) for note in notes)
    return _rewrite(corpus, encoded_groups(placed), out, steps)
