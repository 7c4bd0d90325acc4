"""Active learning: the notes whose review teaches a coder most.

Three scores of a note are added, each divided by its mean over the candidates:

uncertainty   the entropy of the coder's probabilities, in bits, summed over codes
rare_codes    sum of p / (1 + n) over codes: p the probability, n the training notes of the code
diversity     sum of 1 / (1 + m) over the distinct words: m the reviewed notes with the word

Notes are chosen one by one. Each chosen note counts as reviewed for those after it: n grows by its probabilities, m by
its words. So the second of two similar notes has a lower score than the first.
"""

from __future__ import annotations

import csv
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import Field

from nosology.core import ConfigError, DataError, Note, OutputError
from nosology.core.files import atomic_file, escape_formula
from nosology.core.model import Model
from nosology.core.settings import Settings
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.evaluation.measure import probability_blocks
from nosology.text.tokens import words_of

MIN_PROBABILITY = 0.01  # less probable codes count only for the uncertainty


COSTS = {"notes": 0.0, "words": 0.5}  # what the review of a note costs -> `SelectionWeights.words`


class SelectionWeights(Settings):
    """How much each score counts, and what a note costs."""

    uncertainty: float = 1.0
    rare_codes: float = 1.0
    diversity: float = 0.3
    words: float = Field(0.0, ge=0, le=1)  # scores are divided by this power of the number of words of a note


@dataclass(frozen=True, slots=True)
class SelectedNote:
    """A chosen note, its scores when it was chosen (1 is the mean of all candidates), and their weighted mean."""

    id: str
    score: float
    uncertainty: float
    rare_codes: float
    diversity: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What is kept of a note: columns and probabilities of its likely codes, its distinct words and its length."""

    id: str
    entropy: float
    codes: np.ndarray
    probabilities: np.ndarray
    words: np.ndarray
    length: int


def select_notes(
    model: Model,
    notes: Iterable[Note],
    count: int,
    *,
    reviewed: Iterable[Note] = (),
    weights: SelectionWeights | None = None,
) -> list[SelectedNote]:
    """The `count` notes to review next, the first one first; all of them if there are fewer.

    notes: candidates; their codes are not used. reviewed: notes that people have coded, for the words that they have.
    Texts are streamed; some kilobytes are kept of each note.
    """
    if count < 1:
        raise ConfigError(f"the number of notes must be at least 1; got {count}")
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    known = [_word_numbers(words_of(note.text), numbers) for note in reviewed]
    candidates = _candidates(model, notes, numbers)
    if not candidates:
        raise DataError("there is no note to select")
    seen = np.zeros(len(numbers))
    for words in known:
        seen[words] += 1
    return _Selection(candidates, model.train_counts, seen, weights or SelectionWeights()).choose(count)


def _word_numbers(words: Iterable[str], numbers: defaultdict[str, int]) -> np.ndarray:
    """The numbers of the distinct words, ascending; new words get the next ones."""
    return np.sort(np.fromiter({numbers[word] for word in words}, dtype=np.int32))


def _candidates(model: Model, notes: Iterable[Note], numbers: defaultdict[str, int]) -> list[_Candidate]:
    """What is kept of the candidates, in order."""
    read: list[tuple[str, np.ndarray, int]] = []

    def reading() -> Iterable[Note]:
        for note in notes:
            words = words_of(note.text)
            read.append((note.id, _word_numbers(words, numbers), len(words)))
            yield note

    scored: list[tuple[float, np.ndarray, np.ndarray]] = []
    for block in probability_blocks(model, reading()):
        for row in block:
            columns = np.flatnonzero(row >= MIN_PROBABILITY)
            scored.append((entropy(row), columns.astype(np.int32), row[columns].astype(np.float64)))
    return [_Candidate(name, *found, words, length) for (name, words, length), found in zip(read, scored, strict=True)]


def entropy(probabilities: np.ndarray) -> float:
    """The entropy of independent codes with these probabilities (L,), in bits."""
    p = probabilities[(probabilities > 0) & (probabilities < 1)].astype(np.float64)
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).sum())


class _Selection:
    """Greedy selection. Scores never grow, so that a note whose old score is not the best need not be scored again."""

    def __init__(
        self, candidates: Sequence[_Candidate], trained: np.ndarray, seen: np.ndarray, weights: SelectionWeights
    ):
        self._candidates, self._weights = candidates, weights
        self._trained, self._seen = trained.astype(np.float64), seen
        scores = np.array([self._scores(item) for item in candidates])
        means = scores.mean(axis=0)
        self._scale = np.where(means > 0, means, 1.0)
        self._mean_length = max(1.0, float(np.mean([item.length for item in candidates])))

    def _scores(self, item: _Candidate) -> tuple[float, float, float]:
        rare = float((item.probabilities / (1 + self._trained[item.codes])).sum())
        return item.entropy, rare, float((1 / (1 + self._seen[item.words])).sum())

    def _note(self, place: int) -> SelectedNote:
        item, weights = self._candidates[place], self._weights
        uncertainty, rare, diversity = (np.array(self._scores(item)) / self._scale).tolist()
        total = weights.uncertainty * uncertainty + weights.rare_codes * rare + weights.diversity * diversity
        total /= max(weights.uncertainty + weights.rare_codes + weights.diversity, 1e-9)
        total /= (max(1, item.length) / self._mean_length) ** weights.words
        return SelectedNote(item.id, total, uncertainty, rare, diversity)

    def choose(self, count: int) -> list[SelectedNote]:
        """The first `count` notes; of equal ones the first in the order of the candidates."""
        heap = [(-self._note(place).score, place) for place in range(len(self._candidates))]
        heapq.heapify(heap)
        chosen: list[SelectedNote] = []
        while heap and len(chosen) < count:
            _, place = heapq.heappop(heap)
            note = self._note(place)
            if heap and (-note.score, place) > heap[0]:
                heapq.heappush(heap, (-note.score, place))
                continue
            chosen.append(note)
            item = self._candidates[place]
            self._trained[item.codes] += item.probabilities
            self._seen[item.words] += 1
        return chosen


def check_selection_file(path: Path) -> None:
    """Raises OutputError if a file is there that is no selection."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline().rstrip()
        if first != ",".join(["order", *SelectedNote.__slots__]):
            raise OutputError(f"{path} exists and is no selection of notes; give another file")


def write_selection(chosen: Sequence[SelectedNote], path: Path) -> None:
    """Writes ids and scores as CSV, the first note first."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["order", *SelectedNote.__slots__])
        for order, item in enumerate(chosen, 1):
            scores = (f"{getattr(item, name):.4f}" for name in SelectedNote.__slots__[1:])
            writer.writerow([order, escape_formula(item.id), *scores])


def write_selected_corpus(chosen: Sequence[SelectedNote], source: Corpus, folder: Path) -> Corpus:
    """The corpus of the chosen notes in their order, written to a folder; the scores are fields of the notes.

    The chosen notes are in memory, those of the source are not.
    """
    wanted = {item.id for item in chosen}
    notes = {note.id: note for note in source.notes() if note.id in wanted}
    ordered = (
        replace(note, extra={**note.extra, "selection": {"order": order, **asdict(item)}})
        for order, item in enumerate(chosen, 1)
        for note in (notes[item.id],)
    )
    step = {"filter": "selection", "notes": len(chosen), "of": source.hash}
    return write_corpus(
        ordered, folder, source=source.manifest["source"], filters=[*source.manifest["filters"], step], counts={}
    )
