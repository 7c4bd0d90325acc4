"""Numbers that tell whether a mention is coded as a code: a row of features for each pair of them."""

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
from nosology.models.lexicon.mentions import Mention, NoteMentions, surface
from nosology.text.context import CATEGORIES
from nosology.text.data import function_words
from nosology.text.stems import word_keys

NO_SOURCE = len(SOURCES)
FEATURES = (
    "source", "order", "named", "coded", "seen", "share", "any_share", "rival_share", "learned_order",
    "surface_coded", "surface_seen", "surface_share", "keys", "gap", "length", "inside", "holder_share",
    "negated", "uncertain", "family", "historical", "hypothetical", "position", "words", "prior", "category_prior",
    "code_mentions", "phrase_mentions", "chapter", "code_length", "ends_nine", "same_category", "capitals", "known",
    "key_low", "key_high", "key_mean", "word_before", "word_after", "category_affinity", "chapter_affinity",
    "occurrence", "sided", "history",
    "tag_low", "tag_mean", "tag_begin", "tag_end", "tag_before", "tag_after", "begin_within", "end_within",
    "begin_after", "end_before", "guessed",
)  # fmt: skip
_MANY = 20.0
_LIKELIEST = 3  # codes of a term that are looked at
_PADDED = len("W19.XXX")


class Pair(NamedTuple):
    """A mention (its number) and a code that it may be coded as."""

    mention: int
    code: Code


@dataclass(frozen=True)
class MentionTable:
    """N pairs and their features (N, F)."""

    pairs: list[Pair]
    rows: np.ndarray


def mention_table(
    note: NoteMentions, learned: LearnedPhrases, priors: Priors, text: str, terms: Terms | None
) -> MentionTable:
    """The pairs of a note's mentions and the codes that terms or learned phrases give them, with their features."""
    found, pairs, rows = note.mentions, [], []
    candidates = [_candidates(mention, learned, terms) for mention in found]
    shares = [_any_share(mention.learned, learned) for mention in found]
    of_code = Counter(code for own in candidates for code in own)
    of_category = Counter(code.code[:3] for own in candidates for code in own)
    of_phrase = Counter(mention.learned for mention in found)
    occurrence: Counter[str] = Counter()
    n_words = max(1, len(note.words.words))
    tags = None if learned.tagger is None else learned.tagger.probabilities(note.words, text)
    for number, mention in enumerate(found):
        if not candidates[number]:
            continue
        written = surface(note.words, mention.places)
        surface_seen, surface_codes = learned.surfaces.get(written, (0, {}))
        seen = int(learned.seen[mention.learned]) if mention.learned >= 0 else 0
        holder = max((shares[other] for other in mention.holders), default=0.0)
        total = [coded for coded, _ in candidates[number].values()]
        common = (
            mention.keys, mention.gap, mention.end - mention.start, min(mention.inside, 5), holder, *mention.marks,
            mention.places[0] / n_words, n_words,
        )  # fmt: skip
        words = [learned.keys.get(word_keys(note.words.words[place])[0]) for place in mention.places]
        told = _evidence_rates(note, mention, words, learned)
        occurrence[written] += 1
        edges = _edges(mention, tags, note.words.sentence)
        capitals = text[mention.start : mention.end].isupper()
        for code, (coded, order) in candidates[number].items():
            source, named_order = mention.named.get(_unpadded(code), (NO_SOURCE, _MANY))
            column = learned.column.get(code, -1)
            written_coded = surface_codes.get(column, 0)
            rival = max((other for i, other in enumerate(total) if i != order), default=0) if seen else 0
            rows.append((
                source, named_order, len(mention.named), coded, seen, _share(coded, seen), shares[number],
                _share(rival, seen), order, written_coded, surface_seen, _share(written_coded, surface_seen), *common,
                priors.code(code), priors.category(code), of_code[code], of_phrase[mention.learned],
                ord(code.code[0]), len(code.code), code.code[-1] == "9", of_category[code.code[:3]], capitals,
                column >= 0, *told, *_affinity(words, code), occurrence[written],
                bool(mention.side), code.code[:2] in ("Z8", "I2"), *edges, mention.guessed,
            ))  # fmt: skip
            pairs.append(Pair(number, code))
    return MentionTable(pairs, np.array(rows, dtype=np.float32).reshape(-1, len(FEATURES)))


def _candidates(mention: Mention, learned: LearnedPhrases, terms: Terms | None) -> dict[Code, tuple[int, int]]:
    """The codes of a mention, each with how often its phrase was coded so and its place in the list."""
    found: dict[Code, tuple[int, int]] = {}
    if mention.learned >= 0:
        for order, (column, coded) in enumerate(learned.entries(mention.learned)):
            code = learned.codes[column]
            if mention.side:
                sided = terms.sides.get(code.code, {}).get(mention.side) if terms else None
                if not sided:
                    continue
                code = Code(code.system, sided)
            found.setdefault(code, (coded, order))
    for code, (_, order) in mention.named.items():
        if order < _LIKELIEST:
            found.setdefault(code, (0, len(found)))
            if learned.padded and (whole := padded(code)):
                found.setdefault(whole, (0, len(found)))
    for code in list(found) if terms else ():
        if past := _history(code, mention):
            found.setdefault(past, (0, len(found)))
    return found


def padded(code: Code) -> Code | None:
    """An injury without its seventh character, written with the X that holds places before it: W19.XXX of W19."""
    if code.system != "icd10cm" or code.code[0] not in "STVWX" or len(code.code) >= _PADDED:
        return None
    return Code(code.system, (code.code if "." in code.code else f"{code.code}.").ljust(_PADDED, "X"))


def _unpadded(code: Code) -> Code:
    return Code(code.system, code.code.rstrip("X").rstrip(".")) if code.code[-1] == "X" else code


def _history(code: Code, mention: Mention) -> Code | None:
    """The code for a history where the mention is past or of a relative."""
    marks = dict(zip(CATEGORIES, mention.marks))
    if code.system != "icd10cm" or not (marks["family"] or marks["historical"]):
        return None
    own = (family_history if marks["family"] else personal_history)(code.code)
    return Code("icd10cm", own) if own else None


def _any_share(phrase: int, learned: LearnedPhrases) -> float:
    if phrase < 0:
        return 0.0
    return _share(sum(coded for _, coded in learned.entries(phrase)), int(learned.seen[phrase]))


def _share(coded: float, seen: float) -> float:
    """How often of so many times, drawn a little towards seldom where there were few."""
    return coded / (seen + 0.5)


def _evidence_rates(
    note: NoteMentions, mention: Mention, words: list[KeyCounts | None], learned: LearnedPhrases
) -> tuple[float, float, float, float, float]:
    """How often a mention's words stand inside evidence: least, most, mean; and the words before and after it."""
    rates = [_rate(counts) for counts in words]
    first, last, sentence = mention.places[0], mention.places[-1], note.words.sentence[mention.places[0]]
    before, after = (_rate_at(note, place, sentence, learned) for place in (first - 1, last + 1))
    return min(rates), max(rates), sum(rates) / len(rates), before, after


def _rate(counts: KeyCounts | None) -> float:
    """How often a word stands inside evidence."""
    return 0.0 if counts is None else counts.inside / (counts.seen + 1)


def _rate_at(note: NoteMentions, place: int, sentence: int, learned: LearnedPhrases) -> float:
    """The same of the word at a place; -1 for a function word and outside the sentence."""
    words = note.words
    if not 0 <= place < len(words.words) or words.sentence[place] != sentence or words.words[place] in function_words():
        return -1.0
    return _rate(learned.keys.get(word_keys(words.words[place])[0]))


def _edges(mention: Mention, tags: np.ndarray | None, sentence: list[int]) -> tuple[float, ...]:
    """What the tagger says of a mention's words, of its ends, and of its neighbours, -1 where there are none."""
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
    """How much of the evidence that the words stand in is of the code's category, and of its chapter."""
    category = chapter = 0.0
    for counts in words:
        if counts is not None:
            total = sum(counts.categories.values()) + 1
            category += counts.categories.get(code.code[:3], 0) / total
            chapter += sum(n for name, n in counts.categories.items() if name[0] == code.code[0]) / total
    return category / len(words), chapter / len(words)


class Priors:
    """How often codes and categories are given at all."""

    def __init__(self, learned: LearnedPhrases):
        self.learned = learned
        self._category: Counter[str] = Counter()
        for code, notes in zip(learned.codes, learned.notes.tolist()):
            self._category[code.code[:3]] += notes

    def code(self, code: Code) -> int:
        """Training notes with the code."""
        column = self.learned.column.get(code)
        return int(self.learned.notes[column]) if column is not None else 0

    def category(self, code: Code) -> int:
        """Training notes with a code of its category."""
        return self._category[code.code[:3]]


CODE_FEATURES = (
    "best", "second", "sum", "none", "votes", "rank", "same_category", "overlapping", "elsewhere",
    "share", "surface_share", "source", "order", "keys", "inside", "prior", "category_prior", "words", "chapter",
    "coded",
)  # fmt: skip
_OF_BEST = [FEATURES.index(name) for name in CODE_FEATURES[9:]]


def code_table(note: NoteMentions, table: MentionTable, votes: np.ndarray) -> tuple[list[Code], np.ndarray]:
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


def _strongest(note: NoteMentions, table: MentionTable, votes: np.ndarray) -> dict[int, list[tuple[float, Code]]]:
    """At each word the two strongest votes of different codes."""
    found: dict[int, dict[Code, float]] = {}
    for pair, vote in zip(table.pairs, votes.tolist()):
        for place in note.mentions[pair.mention].places:
            here = found.setdefault(place, {})
            here[pair.code] = max(vote, here.get(pair.code, 0.0))
    return {place: sorted(((v, c) for c, v in here.items()), reverse=True)[:2] for place, here in found.items()}


def _other(strongest: list[tuple[float, Code]], code: Code) -> float:
    return next((value for value, other in strongest if other != code), 0.0)


def _apart(note: NoteMentions, table: MentionTable, rows: list[int]) -> int:
    """In how many sentences a code is mentioned."""
    return len({note.words.sentence[note.mentions[table.pairs[row].mention].places[0]] for row in rows})
