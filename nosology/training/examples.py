"""The notes of one or more corpora that a model learns from or is tuned on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from nosology.core import Code, DataError, Note
from nosology.corpora.corpus import Corpus


class Examples:
    """Some notes of corpora: codes are held, texts are streamed anew each time they are asked for."""

    def __init__(self, corpora: Iterable[Corpus], keep: Callable[[Note], bool]):
        self.corpora = tuple(corpora)
        self.keep = keep

    @cached_property
    def codes(self) -> list[tuple[Code, ...]]:
        """The gold codes of each note."""
        return [note.codes for note in self._notes(text=False)]

    def texts(self) -> Iterator[str]:
        """The text of each note, in the order of `codes`."""
        return (note.text for note in self._notes(text=True))

    def notes(self) -> Iterator[Note]:
        """The notes themselves, in the same order."""
        return self._notes(text=True)

    def __len__(self) -> int:
        return len(self.codes)

    def distinct(self, name: Callable[[Note], str], *, coded: bool = False) -> set[str]:
        """The names of all notes, or of those with a code."""
        return {name(note) for note in self._notes(text=False) if note.codes or not coded}

    def _notes(self, text: bool) -> Iterator[Note]:
        for corpus in self.corpora:
            yield from filter(self.keep, corpus.notes(text=text))


def train_and_dev(corpora: list[Corpus], share: float, seed: int) -> tuple[Examples, Examples, bool]:
    """The train notes, the dev notes, and whether dev had to be carved out of train.

    Where no corpus says which notes are for what, all are train. Where there are no dev notes, `share` of the train
    patients (or notes without one) stand in for them, chosen by hash, so that the choice is the same in any order.
    Where all coded notes are of one patient, notes are chosen in the place of patients.
    """
    splits = {name for corpus in corpora for name in corpus.manifest["counts"]["splits"]}
    named = splits - {"none"}
    for corpus in corpora:
        if named and not named & corpus.manifest["counts"]["splits"].keys():
            raise DataError(f"{corpus.folder} has no splits while others have: `nosology corpus split` makes them")

    def train(note: Note) -> bool:
        return note.split == "train" or not named

    if named and "train" not in splits:
        raise DataError(f"no corpus has train notes; splits found: {', '.join(sorted(splits))}")
    if "dev" in splits:
        return Examples(corpora, train), Examples(corpora, lambda note: note.split == "dev"), False

    whole = Examples(corpora, train)
    unit = _patient if len(whole.distinct(_patient, coded=True)) > 1 else _id
    coded = whole.distinct(unit, coded=True)
    groups = (coded, whole.distinct(unit) - coded)  # a share of each, so that few coded notes are in both parts
    held = {name for group in groups for name in _share_of(group, share, seed)}
    return (
        Examples(corpora, lambda note: train(note) and unit(note) not in held),
        Examples(corpora, lambda note: train(note) and unit(note) in held),
        True,
    )


def _patient(note: Note) -> str:
    return note.patient or note.id


def _id(note: Note) -> str:
    return note.id


def _share_of(names: set[str], share: float, seed: int) -> list[str]:
    """A share of the names, chosen by hash; of two and more at least one and not all."""
    by_hash = sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return by_hash[: min(max(1, round(share * len(names))), len(names) - 1)]


def both(first: Examples, second: Examples) -> Examples:
    """The notes of the first and the second together, in the order of the corpora."""
    return Examples(first.corpora, lambda note: first.keep(note) or second.keep(note))
