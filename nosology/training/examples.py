"""Training data: the notes of one or more corpora, and the codes that a model learns from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np

from nosology.core import Code, DataError, Note
from nosology.core.files import json_sha256
from nosology.core.label_space import LabelSpace
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.group_splits import group_names, sample_groups
from nosology.corpora.word_cache import Cleaning, word_cache
from nosology.encoders.cached_words import CachedWords
from nosology.training.recipe_settings import LabelSettings


class Examples:
    """Selected notes of corpora. Codes are in memory; texts and words are read from disk at each use."""

    def __init__(self, corpora: Iterable[Corpus], keep: Callable[[Note], bool]):
        self.corpora = tuple(corpora)
        self.keep = keep

    @property
    def codes(self) -> list[tuple[Code, ...]]:
        """The gold codes of each note."""
        return self._selected[0]

    @cached_property
    def _selected(self) -> tuple[list[tuple[Code, ...]], list[np.ndarray]]:
        """The codes of the selected notes, and their rows in each corpus."""
        codes, rows = [], []
        for corpus in self.corpora:
            kept = [(row, note.codes) for row, note in enumerate(corpus.notes(text=False)) if self.keep(note)]
            codes += [note_codes for _, note_codes in kept]
            rows.append(np.array([row for row, _ in kept], np.int64))
        return codes, rows

    @cached_property
    def hash(self) -> str:
        """A hash of the corpora and of which of their notes are selected."""
        rows = [rows.tolist() for rows in self._selected[1]]
        return json_sha256([[corpus.hash for corpus in self.corpora], rows])

    def texts(self) -> Iterator[str]:
        """The text of each note, in the order of `codes`."""
        return (note.text for note in self._notes(text=True))

    def words(self, cleaning: Cleaning) -> CachedWords:
        """The words of the notes, in the same order, from the word caches of the corpora."""
        caches = (word_cache(corpus, cleaning) for corpus in self.corpora)
        return CachedWords(tuple(zip(caches, self._selected[1], strict=True)))

    def notes(self) -> Iterator[Note]:
        """The notes, in the same order."""
        return self._notes(text=True)

    def __len__(self) -> int:
        return len(self.codes)

    def count_by(self, key: Callable[[Note], str]) -> tuple[Counter[str], Counter[str]]:
        """Notes per key: for keys with at least one coded note, and for all other keys."""
        keys = [(key(note), bool(note.codes)) for note in self._notes(text=False)]
        coded = {name for name, has_codes in keys if has_codes}
        with_codes = Counter(name for name, _ in keys if name in coded)
        return with_codes, Counter(name for name, _ in keys) - with_codes

    def _notes(self, text: bool) -> Iterator[Note]:
        for corpus in self.corpora:
            yield from filter(self.keep, corpus.notes(text=text))


def union(first: Examples, second: Examples) -> Examples:
    """The notes of both, in the order of the corpora."""
    return Examples(first.corpora, lambda note: first.keep(note) or second.keep(note))


def train_and_dev(corpora: list[Corpus], share: float, seed: int) -> tuple[Examples, Examples, bool]:
    """The train notes, the dev notes, and whether dev was split off train.

    If no corpus has splits, all notes are train notes. If there are no dev notes, `share` of the train notes replace
    them. They are selected by hash, so the selection does not depend on the order of notes. Notes of one patient and
    near-duplicate notes stay together. If all coded notes (or all notes, if none is coded) are one such group, patients
    are selected instead; if all are of one patient, notes.
    """
    splits = {name for corpus in corpora for name in corpus.manifest["counts"]["splits"]}
    named = splits - {"none"}
    for corpus in corpora:
        if named and not named & corpus.manifest["counts"]["splits"].keys():
            raise DataError(f"{corpus.folder} has no splits while others have: `nosology corpus split` makes them")

    def is_train(note: Note) -> bool:
        return note.split == "train" or not named

    if named and "train" not in splits:
        raise DataError(f"a corpus must have train notes; got the splits {', '.join(sorted(splits))}")
    if "dev" in splits:
        return Examples(corpora, is_train), Examples(corpora, lambda note: note.split == "dev"), False

    examples = Examples(corpora, is_train)
    duplicates = group_names(progress(examples.notes(), "looking for repeated notes", total=len(examples)))
    for key in (lambda note: duplicates[_patient(note)], _patient, _id):
        counts = examples.count_by(key)
        if len(counts[0] or counts[1]) > 1:
            break
    # From coded and uncoded units separately, so that both parts get some of a few coded notes.
    dev = {name for sizes in counts for name in sample_groups(sizes, share, seed)}
    return (
        Examples(corpora, lambda note: is_train(note) and key(note) not in dev),
        Examples(corpora, lambda note: is_train(note) and key(note) in dev),
        True,
    )


def _patient(note: Note) -> str:
    return note.patient or note.id


def _id(note: Note) -> str:
    return note.id


def label_space(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> LabelSpace:
    """The codes that a model learns from these notes, sorted."""
    counts = Counter(code for note in codes for code in set(note))
    selected = [
        code
        for code, count in counts.items()
        if settings.min_notes <= count <= (settings.max_notes or count)
        and (not settings.systems or code.system in settings.systems)
    ]
    if not selected:
        filters = ", ".join(f"labels.{name} = {value}" for name, value in settings.model_dump().items() if value)
        raise DataError(f"no code is left to learn: {filters}")
    return LabelSpace(sorted(sorted(selected, key=lambda code: (-counts[code], code))[: settings.top_k]))


def codes_in_systems(settings: LabelSettings, codes: list[tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The codes of each note in the code systems of the recipe; codes of other systems do not count as misses."""
    if not settings.systems:
        return codes
    return [tuple(code for code in note if code.system in settings.systems) for note in codes]


def codes_in_labels(
    settings: LabelSettings, labels: LabelSpace, codes: list[tuple[Code, ...]]
) -> list[tuple[Code, ...]]:
    """The codes of each note that the model is evaluated on: of its systems, or of its labels if these are a subset."""
    if not settings.is_subset:
        return codes_in_systems(settings, codes)
    known = set(labels.codes)
    return [tuple(code for code in note if code in known) for note in codes]


def validation_rows(notes: int, size: int, seed: int) -> np.ndarray:
    """The rows of the dev notes that are scored after each epoch: `size` of the notes, at random; size 0: all."""
    if not size or notes <= size:
        return np.arange(notes)
    return np.sort(np.random.default_rng(seed).choice(notes, size, replace=False))
