"""Groups of notes that a split must not separate, and their partition into folds, splits or sites.

A group is all notes of a patient, and notes that are (near-)duplicates. `group_folds` partitions groups by size or by
hash; `stratify` also gives every part its share of every label.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from nosology.core import Code, Note
from nosology.core.label_space import column_sums
from nosology.core.progress import ProgressCounter, counting
from nosology.corpora.duplicates import SHINGLE, THRESHOLD, Fingerprint, exact_pairs, near_pairs, shingle_fingerprint


@dataclass(frozen=True, slots=True)
class NoteSummary:
    """A note without its text; `fingerprint` is None if the text was not read."""

    id: str
    patient: str | None
    site: str | None
    split: str | None
    codes: tuple[Code, ...]
    fingerprint: Fingerprint | None


def summarize_notes(notes: Iterable[Note], *, texts: bool = True, shingle: int = SHINGLE) -> list[NoteSummary]:
    """One summary per note, sorted by id, so that results do not depend on the order of a file.

    texts: with fingerprints, which take about 4 bytes per word.
    """
    summaries = [
        NoteSummary(
            note.id,
            note.patient,
            note.site,
            note.split,
            note.codes,
            shingle_fingerprint(note.text, shingle) if texts else None,
        )
        for note in notes
    ]
    return sorted(summaries, key=lambda note: note.id)


def group_numbers(notes: list[NoteSummary], *, threshold: float = THRESHOLD) -> np.ndarray:
    """The group of each note, as integers from 0. Fingerprints link (near-)duplicates.

    Links are transitive: if a note of one patient repeats a note of another, all notes of both are one group.
    """
    first: dict[str, int] = {}
    links = [
        (position, first.setdefault(note.patient, position))
        for position, note in enumerate(notes)
        if note.patient is not None
    ]
    pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
    prints = [note.fingerprint for note in notes if note.fingerprint is not None]
    if len(prints) == len(notes):
        pairs = np.concatenate([pairs, exact_pairs(prints), near_pairs(prints, threshold)[0]])
    graph = sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(notes), len(notes)))
    return sparse.csgraph.connected_components(graph, directed=False)[1]


def group_names(notes: Iterable[Note]) -> dict[str, str]:
    """patient -> name of the group; the key of a note without a patient is its id.

    The name is the first key of the group in alphabetical order.
    """
    summaries = [replace(note, patient=note.patient or note.id) for note in summarize_notes(notes)]
    keys = [note.patient or note.id for note in summaries]
    first: dict[int, str] = {}
    return {key: first.setdefault(group, key) for key, group in sorted(zip(keys, group_numbers(summaries).tolist()))}


def hash_group(name: str, seed: int) -> bytes:
    """A pseudo-random value of a group that does not depend on the other groups."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def group_folds(groups: Sequence[str], folds: int, seed: int, *, balanced: bool = True) -> np.ndarray:
    """The fold (N,) of each note, given the group of each note. Notes of a group are in the same fold.

    balanced: groups go, the largest first, to the fold with the fewest notes. Otherwise the hash of a group selects
    its fold, so that new groups never move old ones.
    """
    sizes = Counter(groups)
    fold_of: dict[str, int] = {}
    if balanced:
        fold_sizes = [0] * folds
        for name in sorted(sizes, key=lambda name: (-sizes[name], hash_group(name, seed))):
            fold_of[name] = fold_sizes.index(min(fold_sizes))
            fold_sizes[fold_of[name]] += sizes[name]
    else:
        fold_of = {name: int.from_bytes(hash_group(name, seed)[:8], "big") % folds for name in sizes}
    return np.array([fold_of[name] for name in groups])


def sample_groups(sizes: Counter[str], share: float, seed: int) -> list[str]:
    """Groups with at most a share of the notes, selected by hash; of two or more groups at least one and not all."""
    by_hash = sorted(sizes, key=lambda name: hash_group(name, seed))
    left = min(max(1, round(share * sizes.total())), sizes.total() - 1)
    sample = []
    for name in by_hash:
        if sizes[name] <= left:
            sample.append(name)
            left -= sizes[name]
    return sample or ([min(by_hash, key=lambda name: sizes[name])] if len(sizes) > 1 else [])


def group_label_counts(
    notes: list[NoteSummary], groups: np.ndarray, *, within: str
) -> tuple[sparse.csr_matrix, np.ndarray, list[tuple[str, str]]]:
    """The number of notes per group and label (G, L), of notes per group (G), and the labels (L).

    Labels are the codes, and ("site", name) or ("split", name) for the field `within`: a new partition then keeps its
    shares within each site or split.
    """
    labels: list[set[tuple[str, str]]] = [{*note.codes, *_field_label(note, within)} for note in notes]
    names = sorted(set().union(*labels))
    column = {name: position for position, name in enumerate(names)}
    cells = [(group, column[label]) for group, note_labels in zip(groups, labels) for label in note_labels]
    where = np.array(cells, dtype=np.int64).reshape(-1, 2)
    sizes = np.bincount(groups)
    shape = (len(sizes), len(names))
    return sparse.csr_matrix((np.ones(len(where)), (where[:, 0], where[:, 1])), shape=shape), sizes, names


def _field_label(note: NoteSummary, name: str) -> list[tuple[str, str]]:
    value = {"site": note.site, "split": note.split}[name]
    return [] if value is None else [(name, value)]


# The weight, in each pass, of the size of a part and of its number of labels, relative to the labels of a note.
# Without these terms, rare labels pull notes with many labels into the largest part, the only one that can take them.
# With a large weight from the start, no note could move.
_SIZE_WEIGHTS = (0.5, 1, 2, 4)


def stratify(
    counts: sparse.csr_matrix,
    sizes: np.ndarray,
    shares: np.ndarray,
    rng: np.random.Generator,
    *,
    targets: np.ndarray | None = None,
) -> np.ndarray:
    """The part of each group, as integers (G groups). No part is empty if there are at least as many groups as parts.

    First iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011) over groups: the label with the fewest
    notes left is next, and each of its groups goes to the part that lacks most notes of it. Then passes over all
    groups, each moved to where chi-squared is smallest, because the greedy method cannot correct early choices.

    counts: (G, L labels) notes of a group with a label. sizes: (G) notes of a group.

    shares: (P parts) share of all notes that a part should get.

    targets: (P, L) number of notes with a label that a part should get; by default its share of them. With targets,
    frequent labels come first, because the rare ones would decide everything.
    """
    # Two more columns: the number of labels of a group, and its number of notes.
    whole = np.column_stack([np.asarray(counts.sum(axis=1)).ravel(), sizes])
    counts = sparse.csr_matrix(sparse.hstack([counts, whole]), dtype=float)
    counts.sort_indices()
    totals = column_sums(counts)
    missing = np.outer(shares, totals)
    if targets is not None:
        missing[:, :-2] = targets
    passes = 1 + len(_SIZE_WEIGHTS)
    with counting("dividing the notes", total=passes * len(sizes), unit="assignments") as counter:
        part = _assign_greedily(counts, sizes, missing, rng, counter, rarest_first=targets is None)
        for size_weight in _SIZE_WEIGHTS:
            weights = 1 / np.maximum(totals, 1)
            weights[-2:] *= size_weight * max(totals[-2] / max(totals[-1], 1), 1)
            _move_groups(counts, missing, weights, shares, part, rng.permutation(len(sizes)), counter)
    _fill_empty_parts(part, sizes, len(shares))
    return part


def _fill_empty_parts(part: np.ndarray, sizes: np.ndarray, parts: int) -> None:
    """Give each empty part the smallest group of the part with most groups, if that has at least two."""
    for empty in np.setdiff1d(np.arange(parts), part):
        largest = np.flatnonzero(part == np.bincount(part).argmax())
        if len(largest) > 1:
            part[largest[sizes[largest].argmin()]] = empty


def _assign_greedily(
    counts: sparse.csr_matrix,
    sizes: np.ndarray,
    missing: np.ndarray,
    rng: np.random.Generator,
    counter: ProgressCounter,
    *,
    rarest_first: bool,
) -> np.ndarray:
    """The part of each group (G); `missing` is updated. Groups without labels are assigned by size."""
    groups, labels = counts.shape
    part = np.full(groups, -1)
    by_label = counts.tocsc()
    left = column_sums(counts)
    sign = 1 if rarest_first else -1
    # Of the groups of a label the largest is first, while every part can take it; equal ones are in random order.
    rank = np.lexsort((rng.random(groups), -sizes)).argsort()
    while True:
        has_notes = left[:-2] > 0
        label = int(np.where(has_notes, sign * left[:-2], np.inf).argmin()) if has_notes.any() else labels - 1
        members = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        members = members[part[members] < 0]
        for group in members[rank[members].argsort()]:
            row = slice(counts.indptr[group], counts.indptr[group + 1])
            part[group] = chosen = _neediest_part(missing[:, label], missing[:, -1], rng)
            missing[chosen, counts.indices[row]] -= counts.data[row]
            left[counts.indices[row]] -= counts.data[row]
        counter.advance(len(members))
        if label == labels - 1:
            return part


def _neediest_part(label: np.ndarray, size: np.ndarray, rng: np.random.Generator) -> int:
    """The part that misses most of the label; of equals, most notes; of equals, a random one."""
    best = np.flatnonzero(label == label.max())
    if len(best) > 1:
        best = best[size[best] == size[best].max()]
    return int(best[0]) if len(best) == 1 else int(rng.choice(best))


def _move_groups(
    counts: sparse.csr_matrix,
    missing: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
    part: np.ndarray,
    order: np.ndarray,
    counter: ProgressCounter,
) -> None:
    """Move each group in turn to the part that minimizes sum(weights * missing**2 / shares)."""
    for group in order:
        row = slice(counts.indptr[group], counts.indptr[group + 1])
        labels, notes = counts.indices[row], counts.data[row]
        old = part[group]
        missing[old, labels] += notes
        weighted = weights[labels] * notes
        cost = (weighted @ notes - 2 * (missing[:, labels] @ weighted)) / shares
        best = int(cost.argmin())
        if cost[best] < cost[old] - 1e-9:
            part[group] = best
        missing[part[group], labels] -= notes
        counter.advance()
