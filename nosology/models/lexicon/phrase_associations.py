"""Phrases associated with codes in notes without evidence, by the log-likelihood ratio (G2, Dunning 1993).

The phrases of all notes are collected once. From them the associations are computed for all notes, and for all notes
but those of one fold, for each fold: counts without a fold are the counts of all notes minus those of the fold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

from nosology.core import Code, Note
from nosology.core.label_space import column_sums
from nosology.core.parallel import parallel_map
from nosology.core.progress import progress
from nosology.models.lexicon.learned_phrases import LearnedPhrases, count_codes, pack_counts
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.text.phrases import PhraseIndex, TokenizedNote
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

_MIN_NOTES = 2  # notes with phrase and code
_MIN_SHARE = 0.15  # of the notes with the phrase, those with the code
_MIN_G2 = 12.0  # log-likelihood ratio of phrase and code
_MAX_PHRASES = 30  # of a code
_BLOCK = 1 << 23  # products of phrases and codes that are counted together
_NONE = -1


class PhraseRows(NamedTuple):
    """The distinct phrases of some notes, note by note.

    A phrase is a row of `longest` key numbers, ascending, after as many times -1 as it has fewer keys. A term with more
    keys is given by its number in the index of terms.
    """

    keys: list[str]
    rows: np.ndarray  # (phrases, longest) into keys
    row_counts: np.ndarray  # (notes,)
    terms: np.ndarray  # numbers of longer terms
    term_counts: np.ndarray  # (notes,)


def collect_phrases(texts: Sequence[str], terms: Terms | None, gap: int, longest: int) -> PhraseRows:
    """The phrases of up to `longest` neighbouring content words of a sentence, and the terms, in each note."""
    number: dict[str, int] = {}
    note_rows, note_terms = [], []
    for text in texts:
        tokenized = TokenizedNote.from_text(text)
        functions = function_words()
        content = [i for i, word in enumerate(tokenized.words) if word not in functions]
        keys = [number.setdefault(word_keys(tokenized.words[i])[0], len(number)) for i in content]
        windows = _windows(np.array(keys, dtype=np.int32), np.array(tokenized.sentence)[content], longest)
        matched = {match.phrase for match in terms.index.find(tokenized, gap)} if terms is not None else ()
        phrases = {phrase: terms.index.phrase(phrase) for phrase in sorted(matched)} if terms is not None else {}
        short = [keys for keys in phrases.values() if len(keys) <= longest]
        named = np.full((len(short), longest), _NONE, dtype=np.int32)
        for row, keys in zip(named, short):
            row[: len(keys)] = [number.setdefault(key, len(number)) for key in keys]
        note_rows.append(_distinct(np.concatenate([windows, named])))
        note_terms.append([phrase for phrase, keys in phrases.items() if len(keys) > longest])
    return PhraseRows(
        list(number),
        np.concatenate(note_rows),
        np.array([len(rows) for rows in note_rows]),
        np.array([phrase for of_note in note_terms for phrase in of_note], dtype=np.int64),
        np.array([len(of_note) for of_note in note_terms]),
    )


def _windows(keys: np.ndarray, sentence: np.ndarray, longest: int) -> np.ndarray:
    """All runs of 1 to `longest` neighbouring keys (T,) of one sentence, as rows (runs, longest) filled with -1."""
    windows = []
    for length in range(1, longest + 1):
        n = max(0, len(keys) - length + 1)
        rows = np.full((n, longest), _NONE, dtype=np.int32)
        for offset in range(length):
            rows[:, offset] = keys[offset : offset + n]
        windows.append(rows[sentence[:n] == sentence[len(keys) - n :]])
    return np.concatenate(windows)


def _as_sets(rows: np.ndarray) -> np.ndarray:
    """The rows sorted, each key once; -1 comes first."""
    rows = np.sort(rows, axis=1)
    repeated = rows[:, 1:] == rows[:, :-1]
    if (repeated & (rows[:, 1:] != _NONE)).any():
        rows[:, 1:][repeated] = _NONE
        rows = np.sort(rows, axis=1)
    return rows


def _distinct(rows: np.ndarray) -> np.ndarray:
    """The different sets of keys among rows."""
    rows = _as_sets(rows)
    return rows[np.unique(_row_numbers(rows), return_index=True)[1]]


def _row_numbers(rows: np.ndarray) -> np.ndarray:
    """Numbers (N,) that are equal for equal rows (N, columns) and different for different ones; entries from -1 on."""
    base = int(rows.max(initial=0)) + 2
    numbers, limit = rows[:, 0].astype(np.int64) + 1, base
    for column in rows.T[1:]:
        if limit * base > np.iinfo(np.int64).max:
            numbers = np.unique(numbers, return_inverse=True)[1]
            limit = len(rows)
        numbers = numbers * base + column + 1
        limit *= base
    return numbers


class AssociatedPairs(NamedTuple):
    """Associated phrases and codes, as numbers; `both`: notes with both. `seen`: notes with the phrase."""

    phrase: np.ndarray
    code: np.ndarray
    both: np.ndarray
    seen: np.ndarray
    g2: np.ndarray

    def best(self, *, ties: bool, order: np.ndarray | None = None) -> AssociatedPairs:
        """The best phrases of each code; ties: and all as good as the last of them. order: of equally good ones."""
        sort = np.lexsort((self.phrase if order is None else order, -self.g2, self.code))
        code, g2 = self.code[sort], self.g2[sort]
        first = np.searchsorted(code, code)
        kept = np.arange(len(sort)) - first < _MAX_PHRASES
        if ties:
            last = np.minimum(first + _MAX_PHRASES, np.searchsorted(code, code, "right")) - 1
            kept |= g2 == g2[last]
        return AssociatedPairs(*(values[sort[kept]] for values in self))


@dataclass(frozen=True)
class NotePhrases:
    """The phrases and codes of notes, as numbers, and the fold of each note."""

    notes: Sequence[Note]
    systems: frozenset[str]
    folds: np.ndarray  # (notes,)
    n_folds: int
    terms: Terms | None
    keys: list[str]
    phrases: np.ndarray  # (P, longest) into keys, then numbers of long terms in the last column
    has_phrase: sparse.csc_matrix  # 0/1 (notes, P)
    workers: int

    @classmethod
    def collect(
        cls,
        notes: Sequence[Note],
        systems: Iterable[str],
        folds: np.ndarray,
        n_folds: int,
        collected: Iterable[PhraseRows],
        terms: Terms | None = None,
        workers: int = 1,
    ) -> NotePhrases:
        """The phrases that occur in two notes or more; collected: the results of `collect_phrases`, in order."""
        number: dict[str, int] = {}
        rows, row_counts, long, long_counts = [], [], [], []
        for part in collected:
            places = np.array([number.setdefault(key, len(number)) for key in part.keys] + [_NONE], dtype=np.int32)
            rows.append(np.sort(places[part.rows], axis=1))
            row_counts.append(part.row_counts)
            long.append(part.terms)
            long_counts.append(part.term_counts)
        stacked, note = np.concatenate(rows), np.repeat(np.arange(len(notes)), np.concatenate(row_counts))
        ids = _row_numbers(stacked)
        _, first, column, count = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
        terms_found, term_column = np.unique(np.concatenate(long), return_inverse=True)
        phrases = np.full((len(first) + len(terms_found), stacked.shape[1] + 1), _NONE, dtype=np.int32)
        phrases[: len(first), :-1], phrases[len(first) :, -1] = stacked[first], terms_found
        note = np.concatenate([note, np.repeat(np.arange(len(notes)), np.concatenate(long_counts))])
        column = np.concatenate([column, term_column + len(first)])
        count = np.bincount(column, minlength=len(phrases))
        kept = count >= _MIN_NOTES
        mine = kept[column]
        column = (np.cumsum(kept) - 1)[column[mine]]
        shape = (len(notes), int(kept.sum()))
        has_phrase = sparse.csc_matrix((np.ones(len(column), dtype=np.int32), (note[mine], column)), shape=shape)
        return cls(notes, frozenset(systems), folds, n_folds, terms, list(number), phrases[kept], has_phrase, workers)

    def learned(self) -> list[LearnedPhrases]:
        """What is learned from the notes outside of each fold, and last from all notes."""
        codes = [{code for code in note.codes if code.system in self.systems} for note in self.notes]
        ordered = sorted(set().union(*codes))
        pairs = self._associated(_indicators(codes, ordered, self.folds, self.n_folds), len(ordered))
        names = self._names(np.unique(np.concatenate([part.phrase for part in pairs])))
        rank = {phrase: i for i, phrase in enumerate(sorted(names, key=names.__getitem__))}
        learned = []
        for fold, part in enumerate(progress(pairs, "indexing phrases", unit="folds")):
            order = np.array([rank[phrase] for phrase in part.phrase.tolist()], dtype=np.int64)
            notes = [note for note, its_fold in zip(self.notes, self.folds) if its_fold != fold]
            code_notes = count_codes(notes, self.systems)
            learned.append(learned_phrases(part.best(ties=False, order=order), names, ordered, code_notes, len(notes)))
        return learned

    def _names(self, phrases: np.ndarray) -> dict[int, tuple[str, ...]]:
        """The sorted keys of phrases."""
        names = {}
        for phrase, (*keys, term) in zip(phrases.tolist(), self.phrases[phrases].tolist()):
            if self.terms is not None and term != _NONE:
                names[phrase] = self.terms.index.phrase(term)
            else:
                names[phrase] = tuple(sorted(self.keys[key] for key in keys if key != _NONE))
        return names

    def _associated(self, has_code: sparse.csr_matrix, n_codes: int) -> list[AssociatedPairs]:
        """The associated pairs without each fold and of all notes, of each code the best ones with ties."""
        products = self.has_phrase.T @ np.diff(has_code.indptr)
        block = (np.cumsum(products) // _BLOCK).astype(np.int64)
        bounds = [*np.flatnonzero(np.diff(block, prepend=-1)).tolist(), len(block)]
        sizes = np.bincount(self.folds, minlength=self.n_folds)
        folds = sparse.csr_matrix(np.eye(self.n_folds, dtype=np.int32)[self.folds])
        phrases = self.has_phrase.T.tocsr()
        arguments = [(phrases[start:end], start, has_code, folds, sizes, n_codes) for start, end in pairwise(bounds)]
        results = parallel_map(_associated_in_block, arguments, self.workers)
        blocks = list(progress(results, "associating phrases with codes", total=len(arguments), unit="blocks"))
        return [
            AssociatedPairs(*map(np.concatenate, zip(*(part[fold] for part in blocks)))).best(ties=True)
            for fold in range(self.n_folds + 1)
        ]


def _indicators(sets: Sequence[set[Code]], codes: Sequence[Code], folds: np.ndarray, n_folds: int) -> sparse.csr_matrix:
    """0/1 (notes, codes x folds): the codes of each note, at its fold."""
    number = {code: i * n_folds for i, code in enumerate(codes)}
    rows = [sorted(number[code] + fold for code in items) for items, fold in zip(sets, folds.tolist())]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    flat = np.array([column for row in rows for column in row], dtype=np.int64)
    shape = (len(sets), len(codes) * n_folds)
    return sparse.csr_matrix((np.ones(len(flat), dtype=np.int32), flat, bounds), shape=shape)


def _associated_in_block(
    has_phrase: sparse.csr_matrix,
    first_phrase: int,
    has_code: sparse.csr_matrix,
    folds: sparse.csr_matrix,
    sizes: np.ndarray,
    n_codes: int,
) -> list[AssociatedPairs]:
    """The associated pairs of some phrases; has_phrase: (phrases, notes), has_code: (notes, codes x folds)."""
    n_folds = len(sizes)
    together = has_phrase @ has_code
    together.sort_indices()
    together = together.tocoo()
    pair = together.row.astype(np.int64) * n_codes + together.col // n_folds
    is_first = np.diff(pair, prepend=-1) > 0
    phrase, code = np.divmod(pair[is_first], n_codes)
    both = np.zeros((len(phrase), n_folds + 1))  # in each fold; the last column stays 0
    both[np.cumsum(is_first) - 1, together.col % n_folds] = together.data
    seen = np.zeros((has_phrase.shape[0], n_folds + 1))
    seen[:, :-1] = (has_phrase @ folds).toarray()
    coded = np.zeros((n_codes, n_folds + 1))
    coded[:, :-1] = column_sums(has_code).reshape(n_codes, n_folds)
    frequent = both.sum(axis=1) >= _MIN_NOTES
    phrase, code, both = phrase[frequent], code[frequent], both[frequent]
    total_both, total_seen, total_coded = both.sum(axis=1), seen.sum(axis=1), coded.sum(axis=1)
    result = []
    for fold in range(n_folds + 1):
        n = float(sizes.sum() - (sizes[fold] if fold < n_folds else 0))
        outside = total_both - both[:, fold]
        with_phrase = (total_seen - seen[:, fold])[phrase]
        with_code = (total_coded - coded[:, fold])[code]
        rows, g2 = associated(outside, with_phrase, with_code, n)
        counts = (outside[rows].astype(np.int64), with_phrase[rows].astype(np.int64))
        result.append(AssociatedPairs(phrase[rows] + first_phrase, code[rows], *counts, g2).best(ties=True))
    return result


def associated(
    both: np.ndarray, with_phrase: np.ndarray, with_code: np.ndarray, n: float
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of pairs (N,) whose phrase and code are associated, and their G2; counts of n notes."""
    good = (both * n > with_phrase * with_code) & (both >= _MIN_NOTES) & (both >= _MIN_SHARE * with_phrase)
    rows = np.flatnonzero(good)
    g2 = _log_likelihood_ratio(both[rows], with_phrase[rows], with_code[rows], n)
    return rows[g2 >= _MIN_G2], g2[g2 >= _MIN_G2]


def learned_phrases(
    pairs: AssociatedPairs,
    names: Mapping[int, tuple[str, ...]],
    codes: Sequence[Code],
    code_notes: Mapping[Code, int],
    n_notes: int,
) -> LearnedPhrases:
    """What is learned from associated pairs; names: the keys of each phrase. code_notes: notes of each code."""
    counts: dict[tuple[str, ...], Counter[Code]] = {}
    seen: dict[tuple[str, ...], int] = {}
    for phrase, code, both, n in zip(*(values.tolist() for values in pairs[:4])):
        counts.setdefault(names[phrase], Counter())[codes[code]] = both
        seen[names[phrase]] = n
    phrases = sorted(counts)
    seen_of = np.array([seen[phrase] for phrase in phrases], dtype=np.int64)
    ordered = [counts[phrase] for phrase in phrases]
    return pack_counts(PhraseIndex.build(phrases), ordered, seen_of, {}, {}, code_notes, n_notes)


def _log_likelihood_ratio(both: np.ndarray, first: np.ndarray, second: np.ndarray, n: float) -> np.ndarray:
    """G2, twice the log-likelihood ratio of dependence against independence, of 2 x 2 tables."""
    cells = (both, first - both, second - both, n - first - second + both)
    expected = (first * second / n, first * (n - second) / n, (n - first) * second / n, (n - first) * (n - second) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [np.where(cell > 0, cell * np.log(cell / mean), 0.0) for cell, mean in zip(cells, expected)]
    return 2 * np.sum(terms, axis=0)
