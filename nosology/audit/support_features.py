"""Features of billed codes and of codes that may be missing: note, scores of the coder, and the rest of the bill."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nosology.audit.bill_statistics import BillStatistics, code_names, name_group
from nosology.audit.description_similarity import DescriptionSimilarity
from nosology.core import Suggestion
from nosology.models.lexicon.lexicon_settings import MatchSettings
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mentions import find_mentions
from nosology.text.phrases import tokenized_note
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

FEATURES = (
    # the coder: of the code, of other codes of its category and chapter
    "logit", "rank", "suggested", "category_logit", "unbilled_logit", "category_billed", "chapter_logit", "margin",
    "category_size", "span_score", "spans",
    # the text: words of its names in one sentence and in the note, mentions of its terms, words typical for it
    "sentence_words", "note_words", "rarest_word", "name_words", "named", "named_in_context", "name_order", "topic",
    "name_topic", "name_topic_max",
    # the bill: how often the code occurs with the others
    "affinity_max", "affinity_mean", "affinity_sum", "affinity_min", "code_affinity_max", "code_affinity_mean",
    "same_category", "same_chapter", "code_notes", "category_notes", "shared_prefix",
    "billed", "words", "expected", "accepted", "billed_accepted", "billed_mean", "unexplained", "density",
    # the evidence: what other codes have it, too
    "billed_overlap", "unbilled_overlap", "overlap_margin", "covered", "covering", "unbilled_rank", "chapter", "length",
)  # fmt: skip
MAX_SUGGESTIONS = 300  # of a coder, for these features
_LEAST = 1e-4  # probabilities are clipped to [_LEAST, 1 - _LEAST] before the logit
_NO_ORDER = 20  # of a code that no term names
_SPANS = 3  # of each code that are compared with those of others


def logit(probability: float) -> float:
    """The logit of a clipped probability."""
    clipped = min(max(probability, _LEAST), 1 - _LEAST)
    return math.log(clipped / (1 - clipped))


def shared_start(one: str, other: str) -> int:
    """The number of characters at the start that two codes share."""
    return next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))


def note_keys(text: str) -> dict[str, set[int]]:
    """The keys of the words of a note without function words, and the sentences that each is in."""
    note, sentences = tokenized_note(text), dict[str, set[int]]()
    for word, sentence in zip(note.words, note.sentence):
        if word not in function_words():
            for key in word_keys(word):
                sentences.setdefault(key, set()).add(sentence)
    return sentences


class NoteFeatures:
    """A note with the suggestions of a coder, the most probable first; it gives the features of codes of any bill."""

    def __init__(
        self,
        text: str,
        suggestions: Sequence[Suggestion],
        statistics: BillStatistics,
        similarity: DescriptionSimilarity | None = None,
    ):
        """similarity: its features follow those of FEATURES."""
        self._statistics, self._similarity = statistics, similarity
        self._vectors = similarity.of_note(text) if similarity else None
        self.suggested = {it.code: it for it in suggestions[:MAX_SUGGESTIONS] if it.system == "icd10cm"}
        self._keys = note_keys(text)
        self._n_words = max(1, len(tokenized_note(text).words))
        self._places = {code: [(e.start, e.end) for e in it.evidence[:_SPANS]] for code, it in self.suggested.items()}
        self._by_category: dict[str, list[str]] = {}
        self._by_chapter: dict[str, list[str]] = {}
        for code in self.suggested:
            self._by_category.setdefault(code[:3], []).append(code)
            self._by_chapter.setdefault(code[0], []).append(code)
        self._named: dict[str, list[tuple[bool, int]]] = {}
        for mention in find_mentions(text, Terms.open(), None, MatchSettings().gap).mentions:
            for name, entry in mention.codes_of_terms.items():
                self._named.setdefault(name.code, []).append((any(mention.marks), entry.order))
        self._of_text: dict[str, tuple[float, ...]] = {}
        self._topics: dict[str, float] = {}

    def probability(self, code: str) -> float:
        """The probability of the coder for a code; 0 if it is not suggested."""
        found = self.suggested.get(code)
        return found.probability if found else 0.0

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {code: rank for rank, code in enumerate(self.suggested)}

    @cached_property
    def _overlapping(self) -> dict[str, list[str]]:
        """For each suggested code, the others with evidence at the same words, the most probable first."""
        codes = [code for code, places in self._places.items() if places]
        return {
            code: [
                other
                for other in codes
                if other != code and any(a < d and c < b for a, b in self._places[code] for c, d in self._places[other])
            ]
            for code in codes
        }

    def rows(self, codes: Sequence[str], bill: Sequence[str]) -> np.ndarray:
        """The features (N, F) of some codes, beside the other codes of the bill; F has those of the similarity, too."""
        of_bill = self._bill_features(bill)
        rows = [
            (
                *self._score_features(code, set(bill)),
                *self._text_features(code),
                *self._affinities(code, [other for other in bill if other != code]),
                *of_bill,
                *self._overlap_features(code, set(bill)),
            )
            for code in codes
        ]
        features = np.array(rows, dtype=np.float32).reshape(-1, len(FEATURES))
        if self._similarity is None or self._vectors is None:
            return features
        return np.hstack([features, self._similarity.rows(self._vectors, codes, bill)])

    def _score_features(self, code: str, bill: set[str]) -> tuple[float, ...]:
        """Of the coder, for the code and for others of its category and chapter."""
        rivals = [other for other in self._by_category.get(code[:3], ()) if other != code]
        unbilled = next((self.probability(other) for other in rivals if other not in bill), 0.0)
        chapter = next((other for other in self._by_chapter.get(code[0], ()) if other[:3] != code[:3]), "")
        own, found = self.probability(code), self.suggested.get(code)
        spans = found.evidence if found else ()
        return (
            logit(own),
            math.log1p(self._rank.get(code, MAX_SUGGESTIONS)),
            found is not None,
            logit(self.probability(rivals[0]) if rivals else 0.0),
            logit(unbilled),
            bool(rivals) and rivals[0] in bill,
            logit(self.probability(chapter)),
            logit(own) - logit(unbilled),
            len(rivals),
            max((span.score for span in spans), default=0.0),
            len(spans),
        )

    def _text_features(self, code: str) -> tuple[float, ...]:
        """Of the words of the note and the names of the code."""
        if (known := self._of_text.get(code)) is not None:
            return known
        best = (0.0, 0.0, 0.0, 0.0)
        for keys in code_names(code):
            weight = {key: self._statistics.rarity(key) for key in keys}
            total = sum(weight.values()) or 1.0
            here = [key for key in keys if key in self._keys]
            by_sentence: defaultdict[int, float] = defaultdict(float)
            for key in here:
                for sentence in self._keys[key]:
                    by_sentence[sentence] += weight[key]
            together = max(by_sentence.values(), default=0.0) / total
            anywhere = sum(weight[key] for key in here) / total
            best = max(best, (together, anywhere, max((weight[key] for key in here), default=0.0), float(len(keys))))
        mentions = self._named.get(code, ())
        marked = sum(is_marked for is_marked, _ in mentions)
        order = min((order for _, order in mentions), default=_NO_ORDER)
        by_name = [self._topic(name_group(key)) for name in code_names(code)[:1] for key in name] or [0.0]
        topics = self._topic(code[:3]), sum(by_name) / len(by_name), max(by_name)
        self._of_text[code] = (*best, len(mentions) - marked, marked, order, *topics)
        return self._of_text[code]

    def _topic(self, group: str) -> float:
        if group not in self._topics:
            self._topics[group] = self._statistics.topic(self._keys, group)
        return self._topics[group]

    def _affinities(self, code: str, others: Sequence[str]) -> tuple[float, ...]:
        """Of the code with the other codes of the bill, in the train notes."""
        known, category = self._statistics, code[:3]
        by_category = [known.category_affinity(category, other[:3]) for other in others if other[:3] != category] or [0]
        by_code = [known.code_affinity(code, other) for other in others] or [0.0]
        return (
            max(by_category),
            sum(by_category) / len(by_category),
            sum(by_category),
            min(by_category),
            max(by_code),
            sum(by_code) / len(by_code),
            sum(other[:3] == category for other in others),
            sum(other[0] == code[0] for other in others) / max(1, len(others)),
            math.log1p(known.codes[code]),
            math.log1p(known.categories[category]),
            max((shared_start(code, other) for other in others), default=0),
        )

    def _bill_features(self, bill: Sequence[str]) -> tuple[float, ...]:
        """Of the whole bill: its length, and how much of it the coder finds."""
        expected = sum(it.probability for it in self.suggested.values())
        found = sum(it.accepted for code, it in self.suggested.items() if code in bill)
        return (
            len(bill),
            self._n_words,
            expected,
            sum(it.accepted for it in self.suggested.values()),
            found / max(1, len(bill)),
            sum(map(self.probability, bill)) / max(1, len(bill)),
            expected - len(bill),
            len(bill) / self._n_words,
        )

    def _overlap_features(self, code: str, bill: set[str]) -> tuple[float, ...]:
        """Of the other codes that have the evidence of the code, too."""
        overlapping = self._overlapping.get(code, ())
        billed = next((self.probability(other) for other in overlapping if other in bill), 0.0)
        unbilled = next((self.probability(other) for other in overlapping if other not in bill), 0.0)
        own = self._places.get(code, ())
        taken = [place for other in overlapping if other in bill for place in self._places[other]]
        covered = sum(any(a < d and c < b for c, d in taken) for a, b in own) / max(1, len(own))
        rank = self._rank.get(code, MAX_SUGGESTIONS)
        return (
            billed,
            unbilled,
            self.probability(code) - unbilled,
            covered,
            sum(other in bill for other in overlapping),
            sum(self._rank[other] < rank for other in self.suggested if other not in bill),
            ord(code[0]),
            len(code),
        )
