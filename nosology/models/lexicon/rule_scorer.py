"""The scorer of an untrained lexicon: rules on the source of a term, its rank among the codes, and its context."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from nosology.codes.related_codes import family_history, personal_history
from nosology.codes.terms import SOURCES
from nosology.core import Code
from nosology.models.lexicon.lexicon_settings import CodeSetSettings, ContextSettings
from nosology.models.lexicon.lexicon_terms import Resolver
from nosology.models.lexicon.mentions import Mention, Named, NoteMentions
from nosology.text.context import CATEGORIES
from nosology.text.stems import stem

# How often a term of each source is right when it names one code and stands by itself; round numbers, set by hand.
TRUST = {
    "synonym": 0.75,
    "description": 0.75,
    "inclusion": 0.6,
    "index": 0.6,
    "category": 0.35,
    "icd9": 0.4,
    "part": 0.35,
    "other": 0.25,
}
_TRUST = [TRUST[source] for source in SOURCES]
_LESS_LIKELY = 0.35  # each code that stands before this one in the list of a term
_INSIDE = 0.3  # the words belong to a longer term
_GAP = 0.85  # each foreign word between the words of a term
_GUESSED = 0.7  # each word that is spelt otherwise than in the term
_LONG, _LONG_DOUBT = 3, 0.8  # terms of so many words are seldom found by chance: doubt shrinks by this
_AGAIN = 0.9  # doubt that is left by each further mention

# Codes that say no more than pain, illness, injury, infection, bleeding: a coder of bills leaves such mentions alone.
_VAGUE_STEMS = ("R52", "R69", "R58", "B99.9", "T14.8", "T14.90", "R68.89", "T78.40", "W19", "X58")
VAGUE = frozenset(stem + end for stem in _VAGUE_STEMS for end in ("", "XA", "XXA", ".XXXA"))


# Codes in Z that a relative's state may give the patient: contact with a disease, circumstances, family history.
_OF_RELATIVES = (("Z20", "Z20"), ("Z55", "Z65"), ("Z80", "Z84"))

# Words of a sentence by which an injury is no longer at its first encounter: seventh character D or S instead of A.
_LATER = {
    "S": frozenset(stem(word) for word in ("sequela", "sequelae", "secuela", "residual")),
    "D": frozenset(stem(word) for word in ("healing", "healed", "aftercare", "followup", "revisión")),
}


class ScoredMention(NamedTuple):
    """A mention (its index), a code, and the probability that the mention is coded with it."""

    mention: int
    code: Code
    probability: float


@dataclass(frozen=True)
class MentionScores:
    """Probabilities of the (mention, code) pairs of a note, and of its codes."""

    votes: list[ScoredMention]
    codes: dict[Code, float]


@dataclass(frozen=True)
class ContextPolicy:
    """What happens to a code whose mention is negated, uncertain, historical, hypothetical or about a relative."""

    settings: ContextSettings
    codes: CodeSetSettings
    resolve: Resolver

    def __call__(self, code: Code, marks: tuple[bool, ...]) -> Code | None:
        """The code to give in such a context, None for none."""
        if self.codes.vague == "drop" and code.code in VAGUE:
            return None
        for category, marked in zip(CATEGORIES, marks):
            policy = getattr(self.settings, category)
            if not marked or policy in ("keep", "learn"):
                continue
            if policy == "drop":
                return None
            history = self._history(code, category)
            if history is None:
                return None
            code = history
        return code

    def at_encounter(self, code: Code, character: str) -> Code:
        """An injury's code with another seventh character, where the release has it; else the code itself."""
        other = code.code[:-1] + character
        injury = len(code.code) == 8 and code.code[-1] in "AB"
        return Code(code.system, other) if injury and self.resolve.table.billable(other) else code

    def _history(self, code: Code, category: str) -> Code | None:
        if code.system != "icd10cm":
            return code
        if code.code[0] == "Z":
            own = category == "historical" or any(a <= code.code[:3] <= b for a, b in _OF_RELATIVES)
            return code if own else None
        if category == "historical":
            past = personal_history(code.code)
            found = self.resolve(past) if past else code.code
        else:
            theirs = family_history(code.code)
            found = self.resolve(theirs) if theirs else None
        return Code("icd10cm", found) if found else None


def score_mentions(note: NoteMentions, policy: ContextPolicy) -> MentionScores:
    """The votes of a note's mentions, and each code's probability: its best vote's, raised by further mentions.

    A longer mention that the policy drops takes nothing from those inside it: in "type 2 diabetes, no neuropathy" the
    diabetes is not denied.
    """
    votes = []
    best: dict[Code, float] = {}
    mentions: Counter[Code] = Counter()
    later = _later_sentences(note)
    given = [_given(mention, later.get(note.words.sentence[mention.places[0]]), policy) for mention in note.mentions]
    for number, mention in enumerate(note.mentions):
        inside = any(given[holder] for holder in mention.holders)
        for code, (source, order) in given[number]:
            probability = _probability(mention, source, order, inside)
            votes.append(ScoredMention(number, code, probability))
            best[code] = max(best.get(code, 0.0), probability)
            mentions[code] += order == 0 and not inside
    codes = {code: 1 - (1 - p) * math.pow(_AGAIN, max(0, mentions[code] - 1)) for code, p in best.items()}
    return MentionScores(votes, codes)


def _given(mention: Mention, character: str | None, policy: ContextPolicy) -> list[tuple[Code, Named]]:
    """The codes that the policy leaves of those a mention names; character: the seventh of a later encounter."""
    found = []
    for named, where in mention.named.items():
        code = policy(named if character is None else policy.at_encounter(named, character), mention.marks)
        if code is not None:
            found.append((code, where))
    return found


def _later_sentences(note: NoteMentions) -> dict[int, str]:
    """The sentences that tell of a later encounter, each with the seventh character it asks for."""
    found = {}
    words = {**dict(enumerate(note.words.words)), **note.words.hyphenated}
    for place, word in words.items():
        for character, stems in _LATER.items():
            if stem(word) in stems:
                found[note.words.sentence[place]] = character
    return found


def _probability(mention: Mention, source: int, order: int, inside: bool) -> float:
    trust = _TRUST[source] * _LESS_LIKELY**order
    if mention.keys >= _LONG:
        trust = 1 - (1 - trust) * _LONG_DOUBT
    return trust * _GAP**mention.gap * _GUESSED**mention.guessed * (_INSIDE if inside else 1.0)
