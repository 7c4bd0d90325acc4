"""What splits, sites and the audit must know of every note, without its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from nosology.core import Code, Note
from nosology.corpora.duplicates import SHINGLE, THRESHOLD, Fingerprint, exact_pairs, fingerprint, near_pairs


@dataclass(frozen=True, slots=True)
class Row:
    """One note; `print` is None if its text was not read."""

    id: str
    patient: str | None
    site: str | None
    split: str | None
    codes: tuple[Code, ...]
    print: Fingerprint | None


def read_roster(notes: Iterable[Note], *, texts: bool = True, shingle: int = SHINGLE) -> list[Row]:
    """One row a note, sorted by id, so that nothing hangs on the order of a file.

    With `texts` it holds fingerprints, which take about 4 bytes a word.
    """
    rows = [
        Row(
            note.id,
            note.patient,
            note.site,
            note.split,
            note.codes,
            fingerprint(note.text, shingle) if texts else None,
        )
        for note in notes
    ]
    return sorted(rows, key=lambda row: row.id)


def groups(roster: list[Row], *, threshold: float = THRESHOLD) -> np.ndarray:
    """The group of each note, as integers from 0: notes of one patient, and (near-)duplicates where texts were read.

    Links chain: if a note of one patient repeats a note of another, all notes of both are one group.
    """
    first: dict[str, int] = {}
    links = [
        (position, first.setdefault(row.patient, position))
        for position, row in enumerate(roster)
        if row.patient is not None
    ]
    pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
    prints = [row.print for row in roster if row.print is not None]
    if len(prints) == len(roster):
        pairs = np.concatenate([pairs, exact_pairs(prints), near_pairs(prints, threshold)[0]])
    graph = sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(roster), len(roster)))
    return sparse.csgraph.connected_components(graph, directed=False)[1]


def kept_together(notes: Iterable[Note]) -> dict[str, str]:
    """For each patient, or the id of a note without one, the name of its group: the first of those in it."""
    roster = [replace(row, patient=row.patient or row.id) for row in read_roster(notes)]
    named = sorted(zip((row.patient for row in roster), groups(roster).tolist()))
    first: dict[int, str] = {}
    return {patient: first.setdefault(group, patient) for patient, group in named}


def group_counts(
    roster: list[Row], group: np.ndarray, *, within: str
) -> tuple[sparse.csr_matrix, np.ndarray, list[tuple[str, str]]]:
    """How many notes of each group have each label (G, L), how many notes it has (G), and the labels (L).

    Labels are the codes and, as ("site", name) or ("split", name), what notes have of the field `within`: so that a
    new division keeps its shares within each part of the other.
    """
    labels = [{*row.codes, *_field(row, within)} for row in roster]
    names = sorted(set().union(*labels))
    column = {name: position for position, name in enumerate(names)}
    where = np.array([(g, column[label]) for g, held in zip(group, labels) for label in held], dtype=np.int64)
    sizes = np.bincount(group)
    shape = (len(sizes), len(names))
    where = where.reshape(-1, 2)
    return sparse.csr_matrix((np.ones(len(where)), (where[:, 0], where[:, 1])), shape=shape), sizes, names


def _field(row: Row, name: str) -> list[tuple[str, str]]:
    value = {"site": row.site, "split": row.split}[name]
    return [] if value is None else [(name, value)]
