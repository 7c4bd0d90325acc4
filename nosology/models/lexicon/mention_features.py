"""Features of (mention, code) pairs and of codes, the inputs of the classifiers of a trained lexicon."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nosology.codes.related_codes import family_history, personal_history
from nosology.codes.terms import SOURCES
from nosology.core import Code
from nosology.models.lexicon.learned_phrases import KeyCounts, LearnedPhrases
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mentions import Mention, NoteMentions, surface_form
from nosology.text.context import CATEGORIES
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words

NO_SOURCE = len(SOURCES)
FEATURES = (
    "source", "order", "codes_of_terms", "coded", "seen", "share", "any_share", "rival_share", "learned_order",
    "form_coded", "form_seen", "form_share", "keys", "gap", "length", "inside", "containing_share",
    "negated", "uncertain", "family", "historical", "hypothetical", "position", "words", "prior", "category_prior",
    "code_mentions", "phrase_mentions", "chapter", "code_length", "ends_nine", "same_category", "capitals", "known",
    "key_low", "key_high", "key_mean", "word_before", "word_after", "category_affinity", "chapter_affinity",
    "occurrence", "sided", "history",
    "tag_low", "tag_mean", "tag_begin", "tag_end", "tag_before", "tag_after", "begin_within", "end_within",
    "begin_after", "end_before", "misspelled",
)  # fmt: skip
_NO_ORDER = 20.0  # of a code that no term names
_MAX_TERM_CODES = 3  # candidate codes of a term, the most likely ones
_PADDED = len("W19.XXX")
_FAMILY, _HISTORICAL = CATEGORIES.index("family"), CATEGORIES.index("historical")


class MentionPlace(NamedTuple):
    """The words of a mention, the sentence of the first one, and its characters start to end."""

    places: tuple[int, ...]
    sentence: int
    start: int
    end: int


@dataclass(frozen=True)
class MentionTable:
    """N pairs of a mention and a candidate code, and their features (N, F)."""

    mentions: list[MentionPlace]
    codes: list[Code]  # in the order of the pairs
    mention: np.ndarray  # (N,) into mentions
    code: np.ndarray  # (N,) into codes
    rows: np.ndarray

    @classmethod
    def from_pairs(cls, mentions: list[MentionPlace], pairs: list[tuple[int, Code]], rows: np.ndarray) -> MentionTable:
        number: dict[Code, int] = {}
        code = np.array([number.setdefault(code, len(number)) for _, code in pairs], dtype=np.int32)
        return cls(mentions, list(number), np.array([at for at, _ in pairs], dtype=np.int32), code, rows)

    def pairs(self) -> list[tuple[int, Code]]:
        """The index of the mention and the code of each pair."""
        return [(mention, self.codes[code]) for mention, code in zip(self.mention.tolist(), self.code.tolist())]


def mention_table(note: NoteMentions, learned: LearnedPhrases, text: str, terms: Terms | None) -> MentionTable:
    """All pairs of a note's mentions and the codes of their terms or learned phrases, with features."""
    pairs: list[tuple[int, Code]] = []
    rows = []
    candidates = [_candidates(mention, learned, terms) for mention in note.mentions]
    shares = [_coded_share(mention.learned, learned) for mention in note.mentions]
    code_mentions = Counter(code for codes in candidates for code in codes)
    category_mentions = Counter(code.code[:3] for codes in candidates for code in codes)
    phrase_mentions = Counter(mention.learned for mention in note.mentions)
    occurrence: Counter[str] = Counter()
    n_words = max(1, len(note.words.words))
    tags = None if learned.tagger is None else learned.tagger.probabilities(note.words, text)
    for number, mention in enumerate(note.mentions):
        if not candidates[number]:
            continue
        written = surface_form(note.words, mention.places)
        form_seen, form_codes = learned.surface_forms.get(written, (0, {}))
        seen = int(learned.seen[mention.learned]) if mention.learned >= 0 else 0
        containing_share = max((shares[other] for other in mention.containing), default=0.0)
        counts = [coded for coded, _ in candidates[number].values()]
        of_mention = (
            len(mention.places), mention.gap, mention.end - mention.start, min(len(mention.containing), 5),
            containing_share, *mention.marks, mention.places[0] / n_words, n_words,
        )  # fmt: skip
        words = [learned.keys.get(word_keys(note.words.words[place])[0]) for place in mention.places]
        rates = _evidence_rates(note, mention, words, learned)
        occurrence[written] += 1
        tag_features = _tag_features(mention, tags, note.words.sentence)
        capitals = text[mention.start : mention.end].isupper()
        for code, (coded, order) in candidates[number].items():
            source, term_order = mention.codes_of_terms.get(_unpadded(code), (NO_SOURCE, _NO_ORDER))
            column = learned.column.get(code, -1)
            form_coded = form_codes.get(column, 0)
            rival = max((other for i, other in enumerate(counts) if i != order), default=0) if seen else 0
            rows.append((
                source, term_order, len(mention.codes_of_terms), coded, seen, _share(coded, seen), shares[number],
                _share(rival, seen), order, form_coded, form_seen, _share(form_coded, form_seen),
                *of_mention, int(learned.notes[column]) if column >= 0 else 0, learned.category_notes[code.code[:3]],
                code_mentions[code], phrase_mentions[mention.learned], ord(code.code[0]), len(code.code),
                code.code[-1] == "9", category_mentions[code.code[:3]], capitals, column >= 0, *rates,
                *_affinity(words, code), occurrence[written], bool(mention.side), code.code[:2] in ("Z8", "I2"),
                *tag_features, mention.misspelled,
            ))  # fmt: skip
            pairs.append((number, code))
    sentence = note.words.sentence
    places = [MentionPlace(item.places, sentence[item.places[0]], item.start, item.end) for item in note.mentions]
    return MentionTable.from_pairs(places, pairs, np.array(rows, dtype=np.float32).reshape(-1, len(FEATURES)))


def _candidates(mention: Mention, learned: LearnedPhrases, terms: Terms | None) -> dict[Code, tuple[int, int]]:
    """The candidate codes of a mention: how often its phrase was coded so, and the rank of the code."""
    candidates: dict[Code, tuple[int, int]] = {}
    if mention.learned >= 0:
        for order, (column, coded) in enumerate(learned.entries(mention.learned)):
            code = learned.codes[column]
            if mention.side:
                sided = terms.sides.get(code.code, {}).get(mention.side) if terms else None
                if not sided:
                    continue
                code = Code(code.system, sided)
            candidates.setdefault(code, (coded, order))
    for code, (_, order) in mention.codes_of_terms.items():
        if order < _MAX_TERM_CODES:
            candidates.setdefault(code, (0, len(candidates)))
            if learned.padded and (with_x := padded(code)):
                candidates.setdefault(with_x, (0, len(candidates)))
    for code in list(candidates) if terms else ():
        if history := _history(code, mention):
            candidates.setdefault(history, (0, len(candidates)))
    return candidates


def padded(code: Code) -> Code | None:
    """The code of an injury without seventh character, filled up with X: W19.XXX for W19. None for other codes."""
    if code.system != "icd10cm" or code.code[0] not in "STVWX" or len(code.code) >= _PADDED:
        return None
    return Code(code.system, (code.code if "." in code.code else f"{code.code}.").ljust(_PADDED, "X"))


def _unpadded(code: Code) -> Code:
    return Code(code.system, code.code.rstrip("X").rstrip(".")) if code.code[-1] == "X" else code


def _history(code: Code, mention: Mention) -> Code | None:
    """The history code if the mention is historical or about a relative."""
    family = mention.marks[_FAMILY]
    if code.system != "icd10cm" or not (family or mention.marks[_HISTORICAL]):
        return None
    history = (family_history if family else personal_history)(code.code)
    return Code("icd10cm", history) if history else None


def _coded_share(phrase: int, learned: LearnedPhrases) -> float:
    """The share of the occurrences of a learned phrase that were coded at all."""
    if phrase < 0:
        return 0.0
    return _share(sum(coded for _, coded in learned.entries(phrase)), int(learned.seen[phrase]))


def _share(coded: float, seen: float) -> float:
    """The share of occurrences that were coded, smoothed towards 0."""
    return coded / (seen + 0.5)


def _evidence_rates(
    note: NoteMentions, mention: Mention, words: list[KeyCounts | None], learned: LearnedPhrases
) -> tuple[float, float, float, float, float]:
    """How often words are inside evidence: minimum, maximum and mean over the mention, word before, word after.

    -1 for a neighbour that is a function word or in another sentence.
    """

    def neighbour_rate(place: int) -> float:
        tokens = note.words
        is_inside = 0 <= place < len(tokens.words) and tokens.sentence[place] == tokens.sentence[mention.places[0]]
        if not is_inside or tokens.words[place] in function_words():
            return -1.0
        return _rate(learned.keys.get(word_keys(tokens.words[place])[0]))

    rates = [_rate(counts) for counts in words]
    before, after = neighbour_rate(mention.places[0] - 1), neighbour_rate(mention.places[-1] + 1)
    return min(rates), max(rates), sum(rates) / len(rates), before, after


def _rate(counts: KeyCounts | None) -> float:
    """How often a word is inside evidence."""
    return 0.0 if counts is None else counts.inside / (counts.seen + 1)


def _tag_features(mention: Mention, tags: np.ndarray | None, sentence: list[int]) -> tuple[float, ...]:
    """The tagger's probabilities (TAGS, T) at the words of a mention, its ends and its neighbours; -1 for none."""
    if tags is None:
        return (0.0,) * 10
    inside, begin, end = tags
    places, first, last = list(mention.places), mention.places[0], mention.places[-1]
    before = first - 1 if first and sentence[first - 1] == sentence[first] else None
    after = last + 1 if last + 1 < len(sentence) and sentence[last + 1] == sentence[last] else None
    within = inside[places]
    return (
        within.min(), within.mean(), begin[first], end[last],
        -1.0 if before is None else inside[before], -1.0 if after is None else inside[after],
        begin[places[1:]].max(initial=-1.0), end[places[:-1]].max(initial=-1.0),
        -1.0 if after is None else begin[after], -1.0 if before is None else end[before],
    )  # fmt: skip


def _affinity(words: list[KeyCounts | None], code: Code) -> tuple[float, float]:
    """The share of the words' evidence that is of the category of the code, and of its chapter."""
    category = chapter = 0.0
    for counts in words:
        if counts is not None:
            total = sum(counts.categories.values()) + 1
            category += counts.categories.get(code.code[:3], 0) / total
            chapter += sum(n for name, n in counts.categories.items() if name[0] == code.code[0]) / total
    return category / len(words), chapter / len(words)


CODE_FEATURES = (
    "best", "second", "sum", "none", "pairs", "rank", "same_category", "overlapping", "elsewhere",
    "share", "form_share", "source", "order", "keys", "inside", "prior", "category_prior", "words", "chapter",
    "coded",
)  # fmt: skip
_OF_BEST = [FEATURES.index(name) for name in CODE_FEATURES[9:]]  # features of the best mention of a code


def code_table(table: MentionTable, mention_scores: np.ndarray) -> np.ndarray:
    """The features (codes, F) of the codes of a note; mention_scores: (N,) the probability of each pair."""
    n = len(table.codes)
    if not n:
        return np.zeros((0, len(CODE_FEATURES)), dtype=np.float32)
    order = np.lexsort((-mention_scores, table.code))  # code by code, the best pair first
    counts = np.bincount(table.code, minlength=n)
    first = np.cumsum(counts) - counts
    ordered, best_row = mention_scores[order], order[first]
    best = ordered[first]
    second = np.where(counts > 1, ordered[np.minimum(first + 1, len(order) - 1)], 0.0)
    category = np.unique([code.code[:3] for code in table.codes], return_inverse=True)[1]
    sentence = np.array([mention.sentence for mention in table.mentions])[table.mention]
    sentences = np.unique(np.stack([table.code, sentence]), axis=1)[0]
    same_category = _best_two(category, np.arange(n), best).other(category, np.arange(n))
    features = (
        best, second, np.add.reduceat(ordered, first), np.multiply.reduceat(1 - ordered, first), counts,
        n - np.searchsorted(np.sort(best), best, "right"), same_category,
        _overlapping(table, mention_scores, best_row), np.minimum(np.bincount(sentences, minlength=n), 5),
    )  # fmt: skip
    return np.column_stack([*features, table.rows[best_row][:, _OF_BEST]]).astype(np.float32)


@dataclass(frozen=True)
class _BestTwo:
    """Of each group, the best value, its code, and the best value of another code; 0 for none."""

    code: np.ndarray
    value: np.ndarray
    second: np.ndarray

    def other(self, group: np.ndarray, code: np.ndarray) -> np.ndarray:
        """The best value of another code than this one, in each of some groups."""
        return np.where(self.code[group] == code, self.second[group], self.value[group])


def _best_two(group: np.ndarray, code: np.ndarray, value: np.ndarray) -> _BestTwo:
    """The best two codes of each group; group, code and value are of the same length."""
    order = np.lexsort((-value, group))
    group, code, value = group[order], code[order], value[order]
    n = int(group[-1]) + 1
    first = np.searchsorted(group, np.arange(n))
    is_filled = np.bincount(group, minlength=n) > 0
    first = np.minimum(first, len(group) - 1)
    best_code, best_value = np.where(is_filled, code[first], -1), np.where(is_filled, value[first], 0.0)
    second = np.zeros(n)
    others = code != best_code[group]
    np.maximum.at(second, group[others], value[others])
    return _BestTwo(best_code, best_value, second)


def _overlapping(table: MentionTable, mention_scores: np.ndarray, best_row: np.ndarray) -> np.ndarray:
    """For each code, the best probability of another code at a word of its best mention."""
    lengths = np.array([len(mention.places) for mention in table.mentions])
    flat = np.array([place for mention in table.mentions for place in mention.places])
    starts = np.cumsum(lengths) - lengths

    def words(mention: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The words of mentions, one after the other, and the position of the mention that each is of."""
        counts = lengths[mention]
        of = np.repeat(np.arange(len(mention)), counts)
        within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        return flat[starts[mention][of] + within], of

    word, of = words(table.mention)
    best = _best_two(word, table.code[of], mention_scores[of])
    word, code = words(table.mention[best_row])
    result = np.zeros(len(best_row))
    np.maximum.at(result, code, best.other(word, code))
    return result
