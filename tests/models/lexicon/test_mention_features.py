"""Features of codes, against the plain definition of each."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code
from nosology.models.lexicon.mention_features import (
    _OF_BEST,
    CODE_FEATURES,
    FEATURES,
    MentionPlace,
    MentionTable,
    code_table,
)

CODES = [Code("icd10cm", name) for name in ("A00.0", "A00.1", "A00.9", "B01", "B02.1")]


def random_table(seed, n):
    """A table of n pairs; some probabilities are equal."""
    rng = np.random.default_rng(seed)
    mentions = []
    for _ in range(6):
        first = int(rng.integers(0, 8))
        places = tuple(sorted({first, *rng.integers(0, 8, 2).tolist()}))
        mentions.append(MentionPlace(places, places[0] // 3, places[0], places[-1] + 1))
    pairs = [(int(rng.integers(6)), CODES[rng.integers(len(CODES))]) for _ in range(n)]
    rows = rng.normal(size=(n, len(FEATURES))).astype(np.float32)
    return MentionTable.from_pairs(mentions, pairs, rows), rng.choice([0.1, 0.25, 0.5, 0.9, rng.random()], n)


def plain_features(table, mention_scores):
    """The features of each code, one by one."""
    pairs = table.pairs()
    best = {code: max(v for (_, other), v in zip(pairs, mention_scores) if other == code) for code in table.codes}
    features = []
    for code in table.codes:
        rows = [row for row, (_, other) in enumerate(pairs) if other == code]
        own = sorted((mention_scores[row] for row in rows), reverse=True)
        best_row = next(row for row in rows if mention_scores[row] == own[0])
        places = table.mentions[pairs[best_row][0]].places
        features.append([
            own[0], own[1] if len(own) > 1 else 0.0, sum(own), np.prod([1 - score for score in own]), len(own),
            sum(value > own[0] for value in best.values()),
            max((v for other, v in best.items() if other != code and other.code[:3] == code.code[:3]), default=0.0),
            max((
                score for (number, other), score in zip(pairs, mention_scores)
                if other != code and set(places) & set(table.mentions[number].places)
            ), default=0.0),
            min(5, len({table.mentions[pairs[row][0]].sentence for row in rows})),
            *table.rows[best_row][_OF_BEST],
        ])  # fmt: skip
    return np.array(features, dtype=np.float32).reshape(-1, len(CODE_FEATURES))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 100_000), n=st.integers(0, 25))
def test_code_features_are_those_of_the_definition(seed, n):
    table, mention_scores = random_table(seed, n)
    np.testing.assert_allclose(
        code_table(table, mention_scores), plain_features(table, mention_scores.tolist()), rtol=1e-6
    )
