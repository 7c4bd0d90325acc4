"""Phrases associated with codes: counts without a fold, against the plain definition."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, Note
from nosology.models.lexicon import phrase_associations
from nosology.models.lexicon.phrase_associations import NotePhrases, _distinct, _row_numbers, collect_phrases
from nosology.text.phrases import TokenizedNote
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

WORDS = ["gribble", "wobble", "snark", "the", "of", "tove", "borogove", "wabe."]
CODES = [Code("icd10cm", name) for name in ("A00", "B00", "C00")] + [Code("icd10pcs", "0DTJ4ZZ")]
LONGEST = 3


def random_notes(seed, n=60):
    """Notes of a few words; a code often stands beside its own word."""
    rng = np.random.default_rng(seed)
    notes = []
    for i in range(n):
        words = rng.choice(WORDS, rng.integers(0, 12)).tolist()
        codes = [code for word, code in zip(WORDS, CODES) if (word in words) == (rng.random() < 0.9)]
        notes.append(Note(f"n{i}", " ".join(words), patient=f"p{i}", codes=tuple(codes)))
    return notes, rng.integers(0, 3, n)


def plain_phrases(text):
    """The definition: all runs of content words of a sentence, as sets of keys."""
    note = TokenizedNote.from_text(text)
    content = [
        (word_keys(word)[0], number) for word, number in zip(note.words, note.sentence) if word not in function_words()
    ]
    phrases = set()
    for start in range(len(content)):
        for end in range(start + 1, min(len(content), start + LONGEST) + 1):
            if content[start][1] == content[end - 1][1]:
                phrases.add(tuple(sorted({key for key, _ in content[start:end]})))
    return phrases


def plain_g2(both, first, second, n):
    table = [[both, first - both], [second - both, n - first - second + both]]
    total = 0.0
    for row in table:
        for j, cell in enumerate(row):
            expected = sum(row) * (table[0][j] + table[1][j]) / n
            total += cell * np.log(cell / expected) if cell > 0 else 0.0
    return 2 * total


def plain_associations(notes):
    """(phrase, code) -> notes with both, for associated pairs; the best phrases of each code."""
    phrases = [plain_phrases(note.text) for note in notes]
    codes = [{code for code in note.codes if code.system == "icd10cm"} for note in notes]
    with_phrase, with_code = Counter(p for ps in phrases for p in ps), Counter(c for cs in codes for c in cs)
    together = Counter((p, c) for ps, cs in zip(phrases, codes) for p in ps for c in cs)
    n, best = len(notes), {}
    for (phrase, code), both in together.items():
        g2 = plain_g2(both, with_phrase[phrase], with_code[code], n)
        is_positive = both * n > with_phrase[phrase] * with_code[code]
        if is_positive and both >= 2 and both >= 0.15 * with_phrase[phrase] and g2 >= 12.0:
            best.setdefault(code, []).append((-round(g2, 9), phrase, both))
    limit = phrase_associations._MAX_PHRASES
    return {(phrase, code): both for code, items in best.items() for _, phrase, both in sorted(items)[:limit]}


def associations(learned):
    pairs = {}
    for phrase in range(len(learned.index)):
        for column, both in learned.entries(phrase):
            pairs[learned.index.phrase(phrase), learned.codes[column]] = both
    return pairs


def collected(notes, folds, part, workers=1):
    texts = [[note.text for note in notes[start : start + part]] for start in range(0, len(notes), part)]
    rows = [collect_phrases(part, None, 2, LONGEST) for part in texts]
    return NotePhrases.collect(notes, ["icd10cm"], folds, 3, rows, None, workers).learned()


@pytest.mark.parametrize(("part", "block", "limit"), [(60, 1 << 23, 30), (7, 1 << 23, 30), (7, 50, 3)])
def test_associations_are_those_of_the_definition(monkeypatch, part, block, limit):
    monkeypatch.setattr(phrase_associations, "_BLOCK", block)
    monkeypatch.setattr(phrase_associations, "_MAX_PHRASES", limit)
    found = 0
    for seed in range(3):
        notes, folds = random_notes(seed)
        for fold, learned in enumerate(collected(notes, folds, part)):
            outside = [note for note, its_fold in zip(notes, folds) if its_fold != fold]
            expected = plain_associations(outside)
            assert associations(learned) == expected
            seen = Counter(phrase for note in outside for phrase in plain_phrases(note.text))
            coded = Counter()  # a phrase with several codes counts once for each
            for (phrase, _), both in expected.items():
                coded[phrase] += both
            phrases = [learned.index.phrase(i) for i in range(len(learned.index))]
            assert learned.seen.tolist() == [max(seen[phrase], coded[phrase]) for phrase in phrases]
            assert learned.n_notes == len(outside)
            found += len(expected)
    assert found > 20


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), max_size=12), st.booleans())
def test_distinct_rows_are_sets_of_keys(rows, large):
    step = 2_000_000_000 if large else 1  # the product of three such numbers does not fit into 64 bits
    array = np.array([[value * step if value > 0 else value for value in row] for row in rows], dtype=np.int64)
    array = array.reshape(-1, 3)
    expected = {tuple(sorted({value for value in row if value >= 0})) for row in array.tolist()}
    found = [tuple(value for value in row if value >= 0) for row in _distinct(array).tolist()]
    assert sorted(found) == sorted(expected)
    numbers = _row_numbers(array).tolist()
    for (one, first), (other, second) in pairwise(zip(numbers, array.tolist())):
        assert (one == other) == (first == second)
