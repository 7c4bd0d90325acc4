"""The scorer of a trained lexicon: learned phrases, a mention classifier and a code classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nosology.core import Code
from nosology.models.lexicon.learned_phrases import KeyCounts, LearnedPhrases
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mention_features import MentionTable, Priors, code_table, mention_table
from nosology.models.lexicon.mentions import NoteMentions
from nosology.models.lexicon.rule_scorer import MentionScores, ScoredMention
from nosology.models.lexicon.tagger import Tagger
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from nosology.text.phrases import PhraseIndex

UNMENTIONED = 1e-3  # the probability of a code that every training note has and this note does not mention
_ARRAYS = ("bounds", "entry_code", "coded", "seen", "notes")

Context = Callable[[Code, tuple[bool, ...]], Code | None]


@dataclass(frozen=True)
class TrainedScorer:
    """P(mention is coded so) = mentions(its features); P(note has the code) = codes(what its mentions say)."""

    learned: LearnedPhrases
    mentions: TreeEnsemble
    codes: Trees
    evidence_from: float  # mentions of a lower probability are no evidence

    @cached_property
    def _priors(self) -> Priors:
        return Priors(self.learned)

    @cached_property
    def _unmentioned(self) -> dict[Code, float]:
        """The codes of the training notes for notes that mention none of their words: far below any threshold."""
        shares = (self.learned.notes / max(1, self.learned.n_notes)).tolist()
        return {code: UNMENTIONED * share for code, share in zip(self.learned.codes, shares)}

    def score(self, note: NoteMentions, text: str, terms: Terms | None, context: Context) -> MentionScores:
        """The votes of a note's mentions, each code's probability, and, far below, the codes that have no mention."""
        table = allowed(mention_table(note, self.learned, self._priors, text, terms), note, context)
        if not table.pairs:
            return MentionScores([], dict(self._unmentioned))
        votes = self.mentions.probabilities(table.rows)
        codes, rows = code_table(note, table, votes)
        found = zip(codes, np.maximum(self.codes.probabilities(rows), UNMENTIONED).tolist())
        listed = [ScoredMention(pair.mention, pair.code, vote) for pair, vote in zip(table.pairs, votes.tolist())]
        return MentionScores(listed, self._unmentioned | dict(found))

    def arrays(self) -> dict[str, np.ndarray]:
        """What goes into a safetensors file."""
        own = {f"learned.{name}": getattr(self.learned, name) for name in _ARRAYS}
        own |= {"phrases.bounds": self.learned.index.bounds, "phrases.keys": self.learned.index.keys}
        if (tagger := self.learned.tagger) is not None:
            own |= {"tagger.weights": tagger.weights, "tagger.bias": tagger.bias}
        return own | self.mentions.arrays("mentions") | self.codes.arrays("codes")

    def to_json(self) -> dict[str, Any]:
        """The rest."""
        return {
            "vocabulary": self.learned.index.vocabulary,
            "codes": [list(code) for code in self.learned.codes],
            "surfaces": {text: [n, list(own.items())] for text, (n, own) in self.learned.surfaces.items()},
            "keys": self.learned.keys,
            "n_notes": self.learned.n_notes,
            "evidence_from": self.evidence_from,
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, np.ndarray], rest: dict[str, Any]) -> TrainedScorer:
        """What `arrays` and `to_json` gave."""
        index = PhraseIndex(rest["vocabulary"], stored["phrases.bounds"], stored["phrases.keys"])
        arrays = {name: stored[f"learned.{name}"] for name in _ARRAYS}
        surfaces = {text: (n, dict(own)) for text, (n, own) in rest["surfaces"].items()}
        learned = LearnedPhrases(
            index=index,
            codes=[Code(*code) for code in rest["codes"]],
            surfaces=surfaces,
            keys={key: KeyCounts(*counts) for key, counts in rest["keys"].items()},
            n_notes=rest["n_notes"],
            tagger=Tagger(stored["tagger.weights"], stored["tagger.bias"]) if "tagger.weights" in stored else None,
            **arrays,
        )
        mentions, codes = TreeEnsemble.from_arrays(stored, "mentions"), Trees.from_arrays(stored, "codes")
        return cls(learned, mentions, codes, rest["evidence_from"])


def allowed(table: MentionTable, note: NoteMentions, context: Context) -> MentionTable:
    """The pairs whose code stays what it is in the context of their mention."""
    marks = (note.mentions[pair.mention].marks for pair in table.pairs)
    kept = [row for row, (pair, own) in enumerate(zip(table.pairs, marks)) if context(pair.code, own) == pair.code]
    return (
        table if len(kept) == len(table.pairs) else MentionTable([table.pairs[row] for row in kept], table.rows[kept])
    )
