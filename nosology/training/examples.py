"""The notes of one or more corpora that a model learns from or is tuned on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from nosology.core import Code, DataError, Note
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.roster import kept_together


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

    def counted(self, unit: Callable[[Note], str]) -> tuple[Counter[str], Counter[str]]:
        """How many notes each unit has: of the units with a coded note, and of the others."""
        named = [(unit(note), bool(note.codes)) for note in self._notes(text=False)]
        coded = {name for name, has_codes in named if has_codes}
        with_codes = Counter(name for name, _ in named if name in coded)
        return with_codes, Counter(name for name, _ in named) - with_codes

    def _notes(self, text: bool) -> Iterator[Note]:
        for corpus in self.corpora:
            yield from filter(self.keep, corpus.notes(text=text))


def train_and_dev(corpora: list[Corpus], share: float, seed: int) -> tuple[Examples, Examples, bool]:
    """The train notes, the dev notes, and whether dev had to be carved out of train.

    Where no corpus says which notes are for what, all are train. Where there are no dev notes, `share` of the train
    notes stand in for them, chosen by hash, so that the choice is the same in any order. Notes of one patient stay
    together, and so do notes that repeat each other; where all coded notes (or, if none is coded, all notes) are one
    such group, patients are chosen in the place of groups, and where all are of one patient, notes.
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
    together = kept_together(progress(whole.notes(), "looking for repeated notes", total=len(whole)))
    for unit in (lambda note: together[_patient(note)], _patient, _id):
        counted = whole.counted(unit)
        if len(counted[0] or counted[1]) > 1:
            break
    # A share of the coded and of the others, so that few coded notes are in both parts.
    held = {name for sizes in counted for name in _share_of(sizes, share, seed)}
    return (
        Examples(corpora, lambda note: train(note) and unit(note) not in held),
        Examples(corpora, lambda note: train(note) and unit(note) in held),
        True,
    )


def _patient(note: Note) -> str:
    return note.patient or note.id


def _id(note: Note) -> str:
    return note.id


def _share_of(sizes: Counter[str], share: float, seed: int) -> list[str]:
    """Units with a share of the notes at most, chosen by hash; of two and more at least one and not all."""
    by_hash = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    room = min(max(1, round(share * sizes.total())), sizes.total() - 1)
    held = []
    for name in by_hash:
        if sizes[name] <= room:
            held.append(name)
            room -= sizes[name]
    return held or ([min(by_hash, key=sizes.get)] if len(sizes) > 1 else [])


def both(first: Examples, second: Examples) -> Examples:
    """The notes of the first and the second together, in the order of the corpora."""
    return Examples(first.corpora, lambda note: first.keep(note) or second.keep(note))
