"""What notes without evidence teach: phrases that come with a code more often than chance would have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse

from nosology.core import Note
from nosology.models.lexicon.learned_phrases import Learned, packed
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.text.data import function_words
from nosology.text.phrases import PhraseIndex, TokenizedNote
from nosology.text.stems import word_keys

_MIN_NOTES = 2  # notes with phrase and code
_MIN_SHARE = 0.15  # of the notes with the phrase, those with the code
_MIN_SURPRISE = 12.0  # log-likelihood ratio (Dunning) of phrase and code
_PHRASES_A_CODE = 30


def learn_associations(
    notes: Sequence[Note], systems: Iterable[str], terms: Terms | None, gap: int, longest: int
) -> Learned:
    """Phrases of up to `longest` neighbouring content words, and terms of the classification, with the codes they tell.

    A phrase is counted once a note, and so is its code.
    """
    wanted = set(systems)
    found = [_phrases(note.text, terms, gap, longest) for note in notes]
    often = Counter(phrase for phrases in found for phrase in phrases)
    phrases = sorted(phrase for phrase, count in often.items() if count >= _MIN_NOTES)
    codes = sorted({code for note in notes for code in note.codes if code.system in wanted})
    has_phrase = _matrix([sorted(own & often.keys()) for own in found], phrases)
    has_code = _matrix([[code for code in note.codes if code.system in wanted] for note in notes], codes)
    together = (has_phrase.T @ has_code).tocoo()
    kept = _telling(together, has_phrase, has_code)
    counts: dict[tuple[str, ...], Counter] = {}
    for phrase, code, count in kept:
        counts.setdefault(phrases[phrase], Counter())[codes[code]] = count
    ordered = sorted(counts)
    seen = np.array([often[phrase] for phrase in ordered], dtype=np.int64)
    return packed(PhraseIndex.build(ordered), [counts[phrase] for phrase in ordered], seen, {}, {}, notes, wanted)


def _phrases(text: str, terms: Terms | None, gap: int, longest: int) -> set[tuple[str, ...]]:
    reading, empty = TokenizedNote.from_text(text), function_words()
    found: set[tuple[str, ...]] = set()
    run: list[str] = []
    sentence = -1
    for word, here in zip(reading.words, reading.sentence):
        if here != sentence:
            run, sentence = [], here
        if word in empty:
            continue
        run = [*run[-(longest - 1) :], word_keys(word)[0]] if longest > 1 else [word_keys(word)[0]]
        found.update(tuple(sorted(set(run[start:]))) for start in range(len(run)))
    if terms is not None:
        found.update(terms.index.phrase(hit.phrase) for hit in terms.index.find(reading, gap))
    return found


def _matrix(lists: Sequence[Sequence], columns: Sequence) -> sparse.csr_matrix:
    """0/1 (notes, columns)."""
    number = {column: i for i, column in enumerate(columns)}
    indices = [sorted({number[item] for item in items if item in number}) for items in lists]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in indices])])
    flat = np.array([column for row in indices for column in row], dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(flat)), flat, bounds), shape=(len(lists), len(columns)))


def _telling(
    together: sparse.coo_matrix, has_phrase: sparse.csr_matrix, has_code: sparse.csr_matrix
) -> list[tuple[int, int, int]]:
    """Phrase, code and notes with both, for the pairs that say something; at most some phrases a code, the best."""
    n = has_phrase.shape[0]
    both = together.data
    phrase_notes = np.asarray(has_phrase.sum(axis=0)).ravel()[together.row]
    code_notes = np.asarray(has_code.sum(axis=0)).ravel()[together.col]
    surprise = _log_likelihood(both, phrase_notes, code_notes, n)
    positive = both * n > phrase_notes * code_notes
    good = positive & (both >= _MIN_NOTES) & (both >= _MIN_SHARE * phrase_notes) & (surprise >= _MIN_SURPRISE)
    rows = np.flatnonzero(good)
    order = rows[np.lexsort((together.row[rows], -surprise[rows], together.col[rows]))]
    taken: Counter[int] = Counter()
    kept = []
    for row in order.tolist():
        code = int(together.col[row])
        if taken[code] < _PHRASES_A_CODE:
            taken[code] += 1
            kept.append((int(together.row[row]), code, int(both[row])))
    return kept


def _log_likelihood(both: np.ndarray, first: np.ndarray, second: np.ndarray, n: int) -> np.ndarray:
    """Twice the log-likelihood ratio of dependence against independence for 2 x 2 tables."""
    cells = (both, first - both, second - both, n - first - second + both)
    expected = (first * second / n, first * (n - second) / n, (n - first) * second / n, (n - first) * (n - second) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        return 2 * sum(np.where(cell > 0, cell * np.log(cell / mean), 0.0) for cell, mean in zip(cells, expected))
