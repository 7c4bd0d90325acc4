"""Scores of mentions and codes: by rules in an untrained lexicon, by classifiers in a trained one."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from nosology.codes.related_codes import family_history, personal_history
from nosology.codes.terms import SOURCES
from nosology.core import Code
from nosology.models.lexicon.learned_phrases import KeyCounts, LearnedPhrases
from nosology.models.lexicon.lexicon_settings import CodeSetSettings, ContextSettings
from nosology.models.lexicon.lexicon_terms import Resolver, Terms
from nosology.models.lexicon.mention_features import MentionTable, code_table, mention_table
from nosology.models.lexicon.mentions import Mention, NoteMentions, TermEntry
from nosology.models.lexicon.tagger import Tagger
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from nosology.text.context import CATEGORIES
from nosology.text.phrases import PhraseIndex
from nosology.text.stems import stem

# The probability of the first code of a term, by the source of the term; round numbers, set by hand.
_SOURCE_PROBABILITY = {
    "synonym": 0.75,
    "description": 0.75,
    "inclusion": 0.6,
    "index": 0.6,
    "category": 0.35,
    "icd9": 0.4,
    "part": 0.35,
    "other": 0.25,
}
_BY_SOURCE = [_SOURCE_PROBABILITY[source] for source in SOURCES]
_NEXT_CODE = 0.35  # factor for each code that comes before this one in the list of a term
_INSIDE = 0.3  # factor if the words belong to a longer term
_GAP = 0.85  # factor for each other word between the words of a term
_MISSPELLED = 0.7  # factor for each misspelled word
_LONG, _LONG_DOUBT = 3, 0.8  # terms of this many words rarely occur by chance: factor of 1 - probability
_NEXT_MENTION = 0.9  # factor of 1 - probability for each further mention

# Codes that mean only pain, illness, injury, infection or bleeding; they are hardly ever billed.
_VAGUE_PREFIXES = ("R52", "R69", "R58", "B99.9", "T14.8", "T14.90", "R68.89", "T78.40", "W19", "X58")
VAGUE = frozenset(prefix + end for prefix in _VAGUE_PREFIXES for end in ("", "XA", "XXA", ".XXXA"))

# Z codes that a patient can have because of a relative: contact with a disease, circumstances, family history.
_OF_RELATIVES = (("Z20", "Z20"), ("Z55", "Z65"), ("Z80", "Z84"))

# Words that mean a later encounter for an injury: the seventh character is D or S instead of A.
# A fracture that does not heal has another one, and an open fracture yet another. The first in the table has priority.
_LATER = {
    **dict.fromkeys(map(stem, ("sequela", "sequelae", "secuela", "residual")), "S"),
    **dict.fromkeys(map(stem, ("nonunion",)), "K"),
    **dict.fromkeys(map(stem, ("malunion", "malunited")), "P"),
    **dict.fromkeys(map(stem, ("healing", "healed", "aftercare", "followup", "revisión")), "D"),
}
_LATER_PAIRS = {("delayed", "healing"): "G", ("delayed", "union"): "G", ("subsequent", "encounter"): "D"}
_LATER_OPEN = {"D": "E", "G": "H", "K": "M", "P": "Q"}
_LATER_RANK = "SKPGD"

UNMENTIONED = 1e-3  # the probability of a code that all train notes have, in a note without a mention of it
_ARRAYS = ("bounds", "entry_code", "coded", "seen", "notes")


class ScoredMention(NamedTuple):
    """A mention (its index), a code, and the probability that the mention is coded with it."""

    mention: int
    code: Code
    probability: float


@dataclass(frozen=True)
class MentionScores:
    """Probabilities of the (mention, code) pairs of a note, and of the codes that it mentions."""

    mentions: list[ScoredMention]
    codes: dict[Code, float]


@dataclass(frozen=True)
class ContextPolicy:
    """What happens to a code whose mention is negated, uncertain, historical, hypothetical or about a relative."""

    settings: ContextSettings
    codes: CodeSetSettings
    resolve: Resolver

    def __call__(self, code: Code, marks: tuple[bool, ...]) -> Code | None:
        """The code of a mention with these context marks; None: the mention is not coded."""
        if self.codes.vague == "drop" and code.code in VAGUE:
            return None
        for category in compress(CATEGORIES, marks):
            policy = getattr(self.settings, category)
            if policy in ("keep", "learn"):
                continue
            history = self._history(code, category) if policy == "history" else None
            if history is None:
                return None
            code = history
        return code

    def with_seventh(self, code: Code, character: str) -> Code:
        """The code of an injury with another seventh character, if the release has it; else the code itself."""
        if len(code.code) != 8 or code.code[-1] not in "AB" or code.code.startswith("T8"):  # a complication is treated
            return code
        is_open = code.code[-1] == "B"
        for last in (_LATER_OPEN.get(character, character) if is_open else character, character, "D"):
            if self.resolve.table.billable(other := code.code[:-1] + last):
                return Code(code.system, other)
        return code

    def _history(self, code: Code, category: str) -> Code | None:
        if code.system != "icd10cm":
            return code
        if code.code[0] == "Z":
            stays = category == "historical" or any(a <= code.code[:3] <= b for a, b in _OF_RELATIVES)
            return code if stays else None
        if category == "historical" and "in remission" in self.resolve.table.description(code.code):
            return code
        if category == "historical":
            personal = personal_history(code.code)
            history = self.resolve(personal) if personal else code.code
        else:
            family = family_history(code.code)
            history = self.resolve(family) if family else None
        return Code("icd10cm", history) if history else None


def score_mentions(note: NoteMentions, policy: ContextPolicy) -> MentionScores:
    """Scores by rules. The probability of a code is that of its best mention, raised by further mentions.

    A longer mention that the policy drops does not lower the mentions inside it: in "type 2 diabetes, no neuropathy"
    the diabetes is not denied.
    """
    scored = []
    best: dict[Code, float] = {}
    mentions: Counter[Code] = Counter()
    later = _later_sentences(note)
    allowed = [
        _allowed(mention, later.get(note.words.sentence[mention.places[0]]), policy) for mention in note.mentions
    ]
    crossing = _crossing(note, allowed)
    for number, mention in enumerate(note.mentions):
        containing = (longer for longer in mention.containing if longer not in crossing)
        inside = number in crossing or any(allowed[longer] for longer in containing)
        for code, (source, order) in allowed[number]:
            probability = _probability(mention, source, order, inside)
            scored.append(ScoredMention(number, code, probability))
            best[code] = max(best.get(code, 0.0), probability)
            mentions[code] += order == 0 and not inside
    codes = {code: 1 - (1 - p) * math.pow(_NEXT_MENTION, max(0, mentions[code] - 1)) for code, p in best.items()}
    return MentionScores(scored, codes)


def _crossing(note: NoteMentions, allowed: Sequence[Sequence[object]]) -> set[int]:
    """The mentions whose words belong to several mentions of a list.

    They start in one mention and end with the last word of another one ("renal transplant and urinary tract infection"
    is no infection of the transplant), another symptom stands between their words ("seizures, cough, fever"), or they
    are the last word of one and the first word of the next ("ischemic disease and cerebral atrophy").
    """
    clause = note.words.clause
    whole = [mention for mention, codes in zip(note.mentions, allowed) if codes and not mention.gap]
    by_last: dict[int, list[Mention]] = {}
    for mention in whole:
        by_last.setdefault(mention.places[-1], []).append(mention)
    ends = {place: mention.places[-1] for mention in whole for place in mention.places if len(mention.places) > 1}
    last_places = sorted(by_last)
    starts = {mention.places[0] for mention in whole if len(mention.places) > 1}
    stops = {mention.places[-1] for mention in whole if len(mention.places) > 1}

    def is_crossing(mention: Mention) -> bool:
        first, last = mention.places[0], mention.places[-1]
        joined = (
            len(other.places) > 1
            and first < other.places[0]
            and not set(other.places) <= set(mention.places)
            and ends.get(first, other.places[0]) < other.places[0]
            for other in by_last.get(last, ())
        )
        if any(joined):
            return True
        between = last_places[bisect_right(last_places, first) : bisect_left(last_places, last)]
        is_symptom = any(code.code[0] == "R" for code in mention.codes_of_terms)
        return is_symptom and any(clause[first] < clause[place] < clause[last] for place in between)

    def is_joint(places: tuple[int, ...]) -> bool:
        return len(places) == 2 and places[1] - places[0] == 2 and places[0] in stops and places[1] in starts

    return {
        number
        for number, mention in enumerate(note.mentions)
        if is_joint(mention.places) or (mention.gap and is_crossing(mention))
    }


def _allowed(mention: Mention, seventh: str | None, policy: ContextPolicy) -> list[tuple[Code, TermEntry]]:
    """The codes of a mention under the policy; seventh: the seventh character of a later encounter."""
    codes = (
        (policy(code if seventh is None else policy.with_seventh(code, seventh), mention.marks), entry)
        for code, entry in mention.codes_of_terms.items()
    )
    return [(code, entry) for code, entry in codes if code is not None]


def _later_sentences(note: NoteMentions) -> dict[int, str]:
    """The sentences about a later encounter, with its seventh character."""
    words = {**dict(enumerate(note.words.words)), **note.words.hyphenated}
    characters = {word: _LATER[stem(word)] for word in set(words.values()) if stem(word) in _LATER}
    found = [(characters[word], place) for place, word in words.items() if word in characters]
    pairs = zip(note.words.words, note.words.words[1:])
    found += [(_LATER_PAIRS[pair], place) for place, pair in enumerate(pairs) if pair in _LATER_PAIRS]
    later: dict[int, str] = {}
    for character, place in sorted(found, key=lambda item: _LATER_RANK.index(item[0])):
        later.setdefault(note.words.sentence[place], character)
    return later


def _probability(mention: Mention, source: int, order: int, inside: bool) -> float:
    probability = _BY_SOURCE[source] * _NEXT_CODE**order
    if len(mention.places) >= _LONG:
        probability = 1 - (1 - probability) * _LONG_DOUBT
    return probability * _GAP**mention.gap * _MISSPELLED**mention.misspelled * (_INSIDE if inside else 1.0)


@dataclass(frozen=True)
class TrainedScorer:
    """Learned phrases, a classifier of (mention, code) pairs, and a classifier of codes over the pairs' scores."""

    learned: LearnedPhrases
    mentions: TreeEnsemble
    codes: Trees
    evidence_from: float  # least probability of a mention that is shown as evidence

    def unmentioned(self) -> dict[Code, float]:
        """Probabilities, far below any threshold, of codes of the train notes that a note does not mention."""
        shares = (self.learned.notes / max(1, self.learned.n_notes)).tolist()
        return {code: UNMENTIONED * share for code, share in zip(self.learned.codes, shares)}

    def score(self, note: NoteMentions, text: str, terms: Terms | None, policy: ContextPolicy) -> MentionScores:
        """Scores by the classifiers, of pairs whose code the policy does not change."""
        table = mention_table(note, self.learned, text, terms)
        pairs = table.pairs()
        rows = [row for row, (number, code) in enumerate(pairs) if policy(code, note.mentions[number].marks) == code]
        if not rows:
            return MentionScores([], {})
        if len(rows) < len(pairs):
            pairs = [pairs[row] for row in rows]
            table = MentionTable.from_pairs(table.mentions, pairs, table.rows[rows])
        mention_scores = self.mentions.probabilities(table.rows)
        probabilities = np.maximum(self.codes.probabilities(code_table(table, mention_scores)), UNMENTIONED).tolist()
        scored = [ScoredMention(*pair, score) for pair, score in zip(pairs, mention_scores.tolist())]
        return MentionScores(scored, dict(zip(table.codes, probabilities)))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the state, for a safetensors file."""
        learned, tagger = self.learned, self.learned.tagger
        arrays = {f"learned.{name}": getattr(learned, name) for name in _ARRAYS}
        arrays |= {"phrases.bounds": learned.index.bounds, "phrases.keys": learned.index.keys}
        if tagger is not None:
            arrays |= {"tagger.weights": tagger.weights, "tagger.bias": tagger.bias}
        return arrays | self.mentions.arrays("mentions") | self.codes.arrays("codes")

    def to_json(self) -> dict[str, Any]:
        learned = self.learned
        return {
            "vocabulary": learned.index.vocabulary,
            "codes": [list(code) for code in learned.codes],
            "surfaces": {text: [n, list(codes.items())] for text, (n, codes) in learned.surface_forms.items()},
            "keys": learned.keys,
            "n_notes": learned.n_notes,
            "evidence_from": self.evidence_from,
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, np.ndarray], rest: dict[str, Any]) -> TrainedScorer:
        """The scorer with the state of `arrays` and `to_json`."""
        learned = LearnedPhrases(
            index=PhraseIndex(rest["vocabulary"], stored["phrases.bounds"], stored["phrases.keys"]),
            codes=[Code(*code) for code in rest["codes"]],
            surface_forms={text: (n, dict(codes)) for text, (n, codes) in rest["surfaces"].items()},
            keys={key: KeyCounts(*counts) for key, counts in rest["keys"].items()},
            n_notes=rest["n_notes"],
            tagger=Tagger(stored["tagger.weights"], stored["tagger.bias"]) if "tagger.weights" in stored else None,
            **{name: stored[f"learned.{name}"] for name in _ARRAYS},
        )
        mentions, codes = TreeEnsemble.from_arrays(stored, "mentions"), Trees.from_arrays(stored, "codes")
        return cls(learned, mentions, codes, rest["evidence_from"])
