"""Numbers that tell whether a note is coded with a code: what its mentions say, and what they say of other codes."""

from __future__ import annotations

import numpy as np

from nosology.core import Code
from nosology.models.lexicon.mention_features import FEATURES, Table
from nosology.models.lexicon.mentions import NoteMentions

CODE_FEATURES = (
    "best", "second", "sum", "none", "votes", "rank", "same_category", "overlapping", "elsewhere",
    "share", "surface_share", "source", "order", "keys", "inside", "prior", "category_prior", "words", "chapter",
    "coded",
)  # fmt: skip
_OF_BEST = [FEATURES.index(name) for name in CODE_FEATURES[9:]]


def code_table(note: NoteMentions, table: Table, votes: np.ndarray) -> tuple[list[Code], np.ndarray]:
    """The codes that mentions of a note speak for, and their features (codes, F); votes: (N,) of the table's pairs."""
    rows_of: dict[Code, list[int]] = {}
    for row, pair in enumerate(table.pairs):
        rows_of.setdefault(pair.code, []).append(row)
    best = {code: float(votes[rows].max()) for code, rows in rows_of.items()}
    ranked = np.sort(list(best.values()))
    at_word = _strongest(note, table, votes)
    in_category: dict[str, list[tuple[float, Code]]] = {}
    for code, value in best.items():
        in_category.setdefault(code.code[:3], []).append((value, code))
    features = []
    for code, rows in rows_of.items():
        own = np.sort(votes[rows])[::-1]
        strongest = rows[int(np.argmax(votes[rows]))]
        mention = note.mentions[table.pairs[strongest].mention]
        features.append((
            own[0], own[1] if len(own) > 1 else 0.0, own.sum(), np.prod(1 - own), len(own),
            len(ranked) - np.searchsorted(ranked, own[0], "right"),
            max((value for value, other in in_category[code.code[:3]] if other != code), default=0.0),
            max(_other(at_word[place], code) for place in mention.places),
            min(_apart(note, table, rows), 5),
            *table.rows[strongest, _OF_BEST],
        ))  # fmt: skip
    return list(rows_of), np.array(features, dtype=np.float32).reshape(-1, len(CODE_FEATURES))


def _strongest(note: NoteMentions, table: Table, votes: np.ndarray) -> dict[int, list[tuple[float, Code]]]:
    """At each word the two strongest votes of different codes."""
    found: dict[int, dict[Code, float]] = {}
    for pair, vote in zip(table.pairs, votes.tolist()):
        for place in note.mentions[pair.mention].places:
            here = found.setdefault(place, {})
            here[pair.code] = max(vote, here.get(pair.code, 0.0))
    return {place: sorted(((v, c) for c, v in here.items()), reverse=True)[:2] for place, here in found.items()}


def _other(strongest: list[tuple[float, Code]], code: Code) -> float:
    return next((value for value, other in strongest if other != code), 0.0)


def _apart(note: NoteMentions, table: Table, rows: list[int]) -> int:
    """In how many sentences a code is mentioned."""
    return len({note.words.sentence[note.mentions[table.pairs[row].mention].places[0]] for row in rows})
