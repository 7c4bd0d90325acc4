"""Context of words: negated, uncertain, of a family member, historical or hypothetical (after NegEx and ConText).

The trigger phrases are in data/context.tsv. A phrase may have alternatives: "is|was|has_been seen" is "is seen", "was
seen" and "has been seen", and an alternative may be empty. Phrases also match without their accents.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache, reduce
from itertools import pairwise, product
from operator import or_
from typing import NamedTuple

import numpy as np

from nosology.core import Span
from nosology.text.cleaning import clean
from nosology.text.sections import sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, function_words, rows, tokenize, words_of

CATEGORIES = ("negated", "uncertain", "family", "historical", "hypothetical")
NEGATION_PREFIX = "NOT_"
MAX_SCOPE = 40
"""The largest scope of a trigger, in words."""

SECTION_CATEGORY = {"family_history": "family"}
"""Kinds of sections whose words all have a category."""

# Problem lists and risk factors are current, although they occur in history sections.
_PAST_TITLE = re.compile(r"\b(?:past|prior|pmhx?|medical|cardiac history|antecedentes|previas?)\b", re.IGNORECASE)
# A list of past diseases ends at an empty line before text that is no list item, or at a line like a heading.
_LIST_END = re.compile(r"\n[ \t]*\n\s*(?![-*•\d\s(])|\n[ \t]*(?=[A-ZÁÉÍÓÚÑ][^:.;,\n]{2,50}:)")

_TEST = (
    r"(?:PCR|s?Ag|Ab|Ig[MG]|[RD]NA|NAAT|antigens?|antibod(?:y|ies)|tests?|screen|swab|cultures?|cx|panel"
    r"|serolog(?:y|ies))"
)
_NEGATIVE = r"(?:negative|neg|non-?reactive|not detected)\b(?!\s+for\b)"
_END = r"\s*(?=[.,;)\n\r]|$|\b[A-Za-z][\w /-]{0,30}:)"
# A sentence that is no longer about relatives.
_OTHER_TOPIC = re.compile(
    r"(?<=[.;\n])\s*(?:Here (?:for|with|today|because)|Pt|Patient|Present(?:s|ed)|Social|S(?:oc )?Hx?|PMHx?|PSHx?"
    r"|Med(?:ication)?s|Exam|ROS|Allerg\w+|Lives|Works|Retired|Tobacco|Smok\w+|Non-?smoker|Never smok\w+|Quit"
    r"|Assessment|Plan|A/P|Imp(?:ression)?)\b"
)
# Negation of the words directly before: "PE ruled out with a scan", "Fever: denies.", "influenza A and B negative".
_NEGATION_AFTER = re.compile(
    r"\s+(?:ruled out\b(?!\s+for\b)|excluded\b(?!\s+from\b)|negative\b|neg\b|descartad[oa]s?\b)"
    r"|\s*(?:, ?(?:ruled out|excluded)|\(\s*[–-]\s*\))\s*(?=[.,;)\n\r]|$)"
    rf"|\s*[:–-]\s*(?:no|n|none|nil|never|denies|denied|absent|niega|ningun[oa]|not present){_END}"
    rf"|(?:\s+(?:evaluation|eval|work-?up))?\s*(?:->|→|[:=(–-])\s*(?:ruled out|excluded|neg|negative){_END}"
    r"|(?:\s+(?:evaluation|eval|work-?up))?\s*(?:->|→|[:=(–-])\s*(?:ruled out)\b(?!\s+for\b)"
    rf"|(?:\s?/\s?[\w-]+){{0,4}}(?:\s+{_TEST}(?:/{_TEST})*)*\s*:?\s+{_NEGATIVE}"
    rf"|\s+(?:denied|imm|immune|not testable|untestable|not assessed){_END}"
    r"|\s*\(\s*(?:no|n|neg|negative|denies|denied|absent|never)\s*\)|\s?\?\s*(?:no|n|denies|negative)\b"
    r"|\s*[:=]\s*n(?=\s{2}|\s*\|)"
    r"|\s*[:?–-]?\s*(?:(?:\[ ?\]|☐)\s*y(?:es)?\s*)?(?:\[x\]|☑|☒)\s*no?\b"  # Falls: [ ] yes [x] no
    rf"|(?:\s*(?:,|/|&|\band\b|\bor\b|\by\b)\s*[A-Z0-9]{{1,2}}\b)+(?:\s+{_TEST})?\s+(?:negative|neg)\b(?!\s+for\b)"
    rf"|\s+(?:and|&)\s+(?:[\w-]+\s+){{0,2}}{_TEST}\s+{_NEGATIVE}|,?\s+r/o['’]?d\b"
    r"|\s+(?:no|absent)\s*(?=[,;)])|(?<=[a-z]{2})-(?=[,;.)]|$)",  # HIV-, HBsAg-
    re.IGNORECASE,
)
_NEGATION_INSIDE = re.compile(r"(?<=\w)[\s,;(]+(?:without|w/o|with no|not|no|sin)\b", re.IGNORECASE)
_MINUS_BEFORE = re.compile(  # "(-) fever, [ ] cough", "neg tobacco"
    r"(?:(?:^|[,;:.\n\r])\s*\(\s*[–-]\s*\)|\[ ?\]|\( ?\)|☐|(?:^|[,;:.(\n\r]\s*|\bsh |\bua |\btoday )neg(?:ative)?)\s*$",
    re.I,
)
_MINUS_END = frozenset(")]☐gGeE")  # the last characters of _MINUS_BEFORE
_QUESTION_BEFORE = re.compile(r"(?:^|[\s,;:(/#-])\?\s?$")  # "?pneumonia", "? DKA"
_MAX_QUESTION = 120  # characters before and after a mention
_YES = r"(?!\s*(?:\[?(?:patient|pt)\]?:?\s*)?(?:yes|yeah|yep|y|positive)\b)"  # the answer, also in a dialogue
_QUESTION_AFTER = re.compile(rf"[ \t]?\?{_YES}", re.IGNORECASE)
_QUESTION_END = re.compile(rf"[^.?!;\n]{{0,{_MAX_QUESTION}}}\?{_YES}", re.IGNORECASE)  # "or night sweats ?"
_QUESTION_START = re.compile(  # "[doctor] have you had any"
    r"(?:^|[.?!;:\n\]]|\b(?:so|and|okay)\b)[\s,]*"
    r"(?:any|(?:do|did|have|are|were) you|(?:has|does|did) (?:he|she))\b[^.?!;\n]*$",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\([^()\n]*\)|\[[^\[\]\n]*\]")
# What follows a denial after a comma: "no angina, on aspirin".
_NEW_CLAUSE = re.compile(
    r",(?=\s+(?:on|with|w/|s/p|is|was|were|has|had|now|currently|treated|continues?|cont|started|stable|positive|pos"
    r"|admitted|presents?|here)\b)",
    re.IGNORECASE,
)
_LIST_WORD = re.compile(r"\b(?:or|and|nor|o|y|ni)\b|/", re.IGNORECASE)
_ONE_ITEM = frozenset({"without", "w"})  # before one item, or before a list that ends with "or"
_EXCLUSION = re.compile(r"ruled out|excluded|unlikely|less likely|not likely", re.IGNORECASE)
_AS_NEEDED = frozenset({"prn", "needed", "for"})
_NEXT_DRUG = re.compile(r"[,;](?=[^,;.\n]*\d ?(?:mg|mcg|g|ml|units?|puffs?|tabs?)\b)", re.IGNORECASE)
_CLAUSE_SCOPED = ("negated", "uncertain", "historical")  # categories whose scopes end at a semicolon
_BRACKET_SCOPED = ("negated", "uncertain", "hypothetical", "historical")  # whose scopes do not leave brackets
_NEGATIVE_LIST = re.compile(  # "Negative: fever, chills"
    r"(?:^|[.;\n\r]\s*|\bpertinent\s+|\bROS\s+)(?:negatives?|neg|negativos?|not (?:found|present|seen)|excluded"
    r"|ruled out)\s*:"
    r"(?:(?!\b(?:positives?|but|except)\b)[^.;:\n\r])*$",
    re.IGNORECASE,
)
_MAX_LIST = 200  # characters before a mention that are searched for "negative:"

_ANSWERS = frozenset({"no", "never", "absent", "denied"})
_AFTER_ANSWER = frozenset(",;)")


class ContextSpan(NamedTuple):
    """The words in `scope` have a category because of the words in `trigger`."""

    category: str
    scope: Span
    trigger: Span


class Context(NamedTuple):
    """The context of a mention."""

    negated: bool
    uncertain: bool
    family: bool
    historical: bool
    hypothetical: bool


class TriggerEffect(NamedTuple):
    """One effect of a phrase: it gives up to `words` words before or after it a category, or ends other scopes."""

    category: str
    forward: bool = False
    backward: bool = False
    words: int = MAX_SCOPE
    ends: frozenset[str] = frozenset()


class TriggerMatch(NamedTuple):
    """The words first..last-1 of a note are a phrase with these effects."""

    first: int
    last: int
    effects: tuple[TriggerEffect, ...]


class _Scope(NamedTuple):
    """The words first..last-1 are in the scope of the trigger at the characters `trigger`."""

    category: str
    first: int
    last: int
    trigger: Span


def contexts(text: str) -> list[ContextSpan]:
    """All scopes of a text, in the order of their triggers."""
    return TextContexts(text).scopes()


def context_of(text: str, spans: Iterable[tuple[int, int]]) -> list[Context]:
    """The context of each span: a flag is true if any word of the span is in such a scope."""
    return TextContexts(text).of(spans)


class TextContexts:
    """The contexts of a text, analysed once for any number of spans; tokens: those of `tokenize(text)`."""

    def __init__(self, text: str, tokens: Tokens | None = None):
        self._text = text
        tokens = tokenize(text) if tokens is None else tokens
        self._scopes = _scopes(text, tokens)
        self._masks = flag_masks(_flags(self._scopes, len(tokens)))
        self._starts: list[int] = tokens.starts.tolist()
        self._ends: list[int] = tokens.ends.tolist()

    def scopes(self) -> list[ContextSpan]:
        """All scopes, in the order of their triggers."""
        return [
            ContextSpan(category, Span(self._starts[first], self._ends[last - 1]), trigger)
            for category, first, last, trigger in sorted(self._scopes, key=lambda scope: (scope.trigger, scope.first))
        ]

    def of(self, spans: Iterable[tuple[int, int]]) -> list[Context]:
        """The context of each span: a flag is true if any word of the span is in such a scope."""
        result = []
        for start, end in spans:
            words = slice(bisect_right(self._ends, start), bisect_left(self._starts, end))
            result.append(Context(*marks_of(self._masks[words])))
        return result

    def of_mention(self, start: int, end: int) -> Context:
        """The context of a mention, also by what stands next to it: "Fever: denies", "CKD?"."""
        context = self.of([(start, end)])[0]
        if context.negated and (inside := _NEGATION_INSIDE.search(self._text, start, end)):
            # "cystitis without hematuria": the words before the trigger say whether the mention is denied
            context = context._replace(negated=self.of([(start, inside.start())])[0].negated)
        denied = is_denied_by_previous_words(self._text, start) or is_denied_by_next_words(self._text, end)
        return context._replace(
            negated=context.negated or denied,
            uncertain=context.uncertain or is_questioned(self._text, start, end),
        )


def context_flags(text: str, tokens: Tokens) -> np.ndarray:
    """Whether each word is in a scope of each category: boolean (categories, words), in the order of CATEGORIES."""
    return _flags(_scopes(text, tokens), len(tokens))


def _flags(scopes: Iterable[_Scope], n_words: int) -> np.ndarray:
    flags = np.zeros((len(CATEGORIES), n_words), dtype=bool)
    for scope in scopes:
        flags[CATEGORIES.index(scope.category), scope.first : scope.last] = True
    return flags


def flag_masks(flags: np.ndarray) -> list[int]:
    """The flags of each word (categories, words) as one number: bit c is category c."""
    return ((1 << np.arange(len(CATEGORIES))) @ flags).tolist()


@cache
def _marks() -> list[tuple[bool, ...]]:
    """The flags of each mask, in the order of CATEGORIES."""
    return [tuple(bool(mask >> c & 1) for c in range(len(CATEGORIES))) for mask in range(1 << len(CATEGORIES))]


def marks_of(masks: Iterable[int]) -> tuple[bool, ...]:
    """Whether any of some words is in a scope of each category; masks: the words' flags (see `flag_masks`)."""
    return _marks()[reduce(or_, masks, 0)]


def mark_negated(text: str, tokens: Tokens) -> Tokens:
    """The tokens of a text with NOT_ before each negated content word; offsets stay.

    tokens: all words of the text, from `tokenize(text)`.
    """
    negated = context_flags(text, tokens)[CATEGORIES.index("negated")].tolist()
    words = [
        NEGATION_PREFIX + word if flag and word not in function_words() and not word.isdigit() else word
        for word, flag in zip(tokens.words, negated)
    ]
    return Tokens(words, tokens.starts, tokens.ends)


def past_history_flags(text: str, tokens: Tokens) -> np.ndarray:
    """Whether each word (words,) is in a list of past diseases and not in a sentence about the present."""
    flags = np.zeros(len(tokens), dtype=bool)
    for section in sections(text):
        if section.kind == "past_medical_history" and _PAST_TITLE.search(section.title):
            body = section.body.start + len(text[section.body.start :]) - len(text[section.body.start :].lstrip())
            end = _LIST_END.search(text, body, section.body.end)
            first, last = np.searchsorted(tokens.starts, (body, end.start() if end else section.body.end)).tolist()
            flags[first:last] = True
    if flags.any():
        for first, last in _sentence_bounds(text, tokens):
            triggers = find_triggers(tokens.words, first, last) if flags[first:last].any() else ()
            if any("historical" in effect.ends for trigger in triggers for effect in trigger.effects):
                flags[first:last] = False
    return flags


def _sentence_bounds(text: str, tokens: Tokens) -> Iterator[tuple[int, int]]:
    """The first word and last word + 1 of each sentence."""
    starts = [sentence.start for sentence in sentences(text)]
    return pairwise([*np.searchsorted(tokens.starts, starts).tolist(), len(tokens)])


def _scopes(text: str, tokens: Tokens) -> list[_Scope]:
    """The scopes of a text, none of them empty."""
    starts, ends = tokens.starts.tolist(), tokens.ends.tolist()
    limits = _Limits(text, tokens)
    scopes = []
    for first, last in _sentence_bounds(text, tokens):
        triggers = [
            trigger
            for trigger in find_triggers(tokens.words, first, last)
            if trigger.last - trigger.first > 1
            or not _is_answer(text, starts[trigger.first], tokens.words[trigger.first])
        ]
        if not triggers:
            continue
        for category, start, stop, trigger in _sentence_scopes(triggers, first, last):
            start, stop = limits.apply(category, start, stop, trigger)
            if start < stop:
                scopes.append(_Scope(category, start, stop, Span(starts[trigger.first], ends[trigger.last - 1])))
    for section in sections(text):
        if (category := SECTION_CATEGORY.get(section.kind)) is not None:
            first, last = np.searchsorted(
                tokens.starts, (section.body.start, _end_of_topic(text, section.body))
            ).tolist()
            if first < last:
                scopes.append(_Scope(category, first, last, Span(section.span.start, section.body.start)))
    return scopes


def _end_of_topic(text: str, body: Span) -> int:
    """Where a section about relatives ends: at an empty line, or at a line like a heading for another topic."""
    start = body.start + len(text[body.start : body.end]) - len(text[body.start : body.end].lstrip())
    if other := _OTHER_TOPIC.search(text, start, body.end):
        body = Span(body.start, other.start())
    for match in _LIST_END.finditer(text, start, body.end):
        line = text[match.end() :].split("\n", 1)[0].split(":", 1)[0]
        if not any(
            effect.category == "family"
            for words in [words_of(line)]
            for trigger in find_triggers(words, 0, len(words))
            for effect in trigger.effects
        ):
            return match.start()
    return body.end


class _Limits:
    """Brackets and semicolons, as word numbers: a scope does not leave the brackets of its trigger or its clause."""

    def __init__(self, text: str, tokens: Tokens):
        self._text, self._tokens = text, tokens
        self._clauses = np.searchsorted(tokens.starts, [match.start() for match in re.finditer(";", text)]).tolist()
        clauses = [match.start() for match in _NEW_CLAUSE.finditer(text)]
        self._new_clauses = np.searchsorted(tokens.starts, clauses).tolist()
        brackets = [match.span() for match in _BRACKETS.finditer(text)]
        self._brackets = np.searchsorted(tokens.starts, np.array(brackets, dtype=np.int64).reshape(-1, 2)).tolist()
        self._opened = [first for first, _ in self._brackets]

    def apply(self, category: str, start: int, stop: int, trigger: TriggerMatch) -> tuple[int, int]:
        """The part of the words start..stop-1 that is in the same brackets and clause as the trigger."""
        if category in _CLAUSE_SCOPED:
            at = bisect_right(self._clauses, trigger.first)
            if at and start < trigger.first:
                start = max(start, self._clauses[at - 1])
            if at < len(self._clauses) and stop > trigger.last:
                stop = min(stop, max(trigger.last, self._clauses[at]))
        if category == "negated":
            start, stop = self._within_commas(start, stop, trigger)
        if category == "hypothetical" and stop > trigger.last and self._tokens.words[trigger.last - 1] in _AS_NEEDED:
            dose = _NEXT_DRUG.search(
                self._text, int(self._tokens.starts[trigger.last]), int(self._tokens.ends[stop - 1])
            )
            stop = int(np.searchsorted(self._tokens.starts, dose.start())) if dose else stop
        if category == "hypothetical" and start < trigger.first:  # "obesity, screening colonoscopy"
            before = self._text[int(self._tokens.starts[start]) : int(self._tokens.starts[trigger.first])]
            comma = max(before.rfind(","), before.rfind(";"))
            if comma >= 0 and not _LIST_WORD.search(before, comma):
                start = int(np.searchsorted(self._tokens.starts, int(self._tokens.starts[start]) + comma))
        if category in _BRACKET_SCOPED:
            at = bisect_right(self._opened, trigger.first) - 1
            first, last = self._brackets[at] if at >= 0 else (0, 0)
            if first <= trigger.first < last:
                stop = min(stop, last)
                start = max(start, first) if first < trigger.first else start  # "PE (ruled out)" is about the PE
        return start, stop

    def _within_commas(self, start: int, stop: int, trigger: TriggerMatch) -> tuple[int, int]:
        """The scope of a denial up to a comma that ends it."""
        text, starts, ends = self._text, self._tokens.starts, self._tokens.ends
        if stop > trigger.last:
            at = bisect_right(self._new_clauses, trigger.last)
            if at < len(self._new_clauses):
                stop = min(stop, self._new_clauses[at])
            if self._tokens.words[trigger.first] in _ONE_ITEM and stop > trigger.last:
                scope = text[int(starts[trigger.last]) : int(ends[stop - 1])]
                comma = scope.find(",")
                items = scope.split(",")[1:]
                is_list = _LIST_WORD.search(scope) or (len(items) > 1 and all(len(item.split()) <= 2 for item in items))
                if comma >= 0 and not is_list:
                    stop = int(np.searchsorted(starts, int(starts[trigger.last]) + comma))
        elif start < trigger.first and _EXCLUSION.search(
            text[int(starts[trigger.first]) : int(ends[trigger.last - 1])]
        ):
            scope = text[int(starts[start]) : int(starts[trigger.first])]
            comma = scope.rfind(",")
            last = scope[comma + 1 :]
            if comma >= 0 and any(character.isalpha() for character in last) and not _LIST_WORD.search(last):
                start = max(start, int(np.searchsorted(starts, int(starts[start]) + comma)))
        return start, stop


def _is_answer(text: str, start: int, word: str) -> bool:
    """Whether a negation of one word answers what is before it, and has no scope: "HTN: no, DM: yes"."""
    following = text[start + len(word) : start + len(word) + 2].lstrip(" ")[:1]
    return word in _ANSWERS and (following in _AFTER_ANSWER or (following == ":" and text[:start].rstrip()[-1:] == "?"))


def _sentence_scopes(
    triggers: list[TriggerMatch], start: int, end: int
) -> Iterator[tuple[str, int, int, TriggerMatch]]:
    """Category, first word, last word + 1 and trigger of the scopes in the sentence of words start..end-1."""
    lower = dict.fromkeys(CATEGORIES, start)
    for trigger in triggers:
        for effect in trigger.effects:
            if effect.backward:
                first = max(trigger.first - effect.words, lower[effect.category])
                yield effect.category, first, trigger.first, trigger
        for category in (category for effect in trigger.effects for category in effect.ends):
            lower[category] = trigger.last
    upper = dict.fromkeys(CATEGORIES, end)
    for trigger in reversed(triggers):
        for effect in trigger.effects:
            if effect.forward:
                yield effect.category, trigger.last, min(trigger.last + effect.words, upper[effect.category]), trigger
        for category in (category for effect in trigger.effects for category in effect.ends):
            upper[category] = trigger.first


def find_triggers(words: Sequence[str], start: int, end: int) -> Iterator[TriggerMatch]:
    """The trigger phrases among words start..end-1, from left to right; of overlapping ones the first and longest."""
    index, done = _trigger_index(), start
    for first in range(start, end):
        if words[first] not in index or first < done:
            continue
        lengths, phrases = index[words[first]]
        for length in lengths:
            done = first + length
            effects = phrases.get(tuple(words[first:done])) if done <= end else None
            if effects is not None:
                yield TriggerMatch(first, done, effects)
                break
        else:
            done = first + 1


def is_negated_inside_phrase(words: Sequence[str], position: int) -> bool:
    """Whether a word is negated by the word before it although both are in one phrase, which has no scope.

    "No difficulty" is no trigger, but it negates "difficulty in walking". "Chronic pancreatitis, no acute process"
    does not mention an acute pancreatitis.
    """
    if not position or words[position - 1] not in _trigger_index():
        return False
    lengths, phrases = _trigger_index()[words[position - 1]]
    alone = phrases.get((words[position - 1],), ())
    if not any(effect.forward and effect.category == "negated" for effect in alone):
        return False
    longer = (phrases.get(tuple(words[position - 1 : position - 1 + length])) for length in lengths if length > 1)
    return any(effects and {effect.category for effect in effects} <= {"pseudo", "negated"} for effects in longer)


def is_denied_by_next_words(text: str, end: int) -> bool:
    """Whether a mention that ends at a character is negated directly behind it, as in "Fever: denies"."""
    return _NEGATION_AFTER.match(text, end) is not None


def is_questioned(text: str, start: int, end: int) -> bool:
    """Whether a mention is asked for: "?pneumonia", "CKD?", "any fever or chills ?", unless the answer is yes."""
    return (
        _QUESTION_AFTER.match(text, end) is not None
        or _QUESTION_BEFORE.search(text[max(0, start - 3) : start]) is not None
        or (
            "?" in text[end : end + _MAX_QUESTION]
            and _QUESTION_END.match(text, end) is not None
            and _QUESTION_START.search(text[max(0, start - _MAX_QUESTION) : start]) is not None
        )
    )


def is_denied_by_previous_words(text: str, start: int) -> bool:
    """Whether a mention that starts at a character is negated by a minus in brackets or "negative:" before a list."""
    # Before nearly all mentions, the last character or a missing "neg" decides without a slow regular expression.
    before = text[max(0, start - 16) : start]
    if before.rstrip()[-1:] in _MINUS_END and _MINUS_BEFORE.search(before) is not None:
        return True
    before = text[max(0, start - _MAX_LIST) : start]
    return ":" in before and "neg" in before.lower() and _NEGATIVE_LIST.search(before) is not None


def phrase_variants(phrase: str) -> set[tuple[str, ...]]:
    """Each spelling of a phrase of the table, as words in lower case."""
    choices = product(*(part.replace("_", " ").split("|") for part in phrase.split(" ")))
    variants = {" ".join(choice) for choice in choices}
    variants |= {clean(variant, ["fold_accents"]).text for variant in variants if not variant.isascii()}
    return {tuple(words_of(variant)) for variant in variants}


# First word -> lengths of the phrases that start with it (longest first), and the effects of each phrase.
_TriggerIndex = dict[str, tuple[list[int], dict[tuple[str, ...], tuple[TriggerEffect, ...]]]]


@lru_cache(maxsize=1)
def _trigger_index() -> _TriggerIndex:
    phrases: dict[tuple[str, ...], dict[TriggerEffect, None]] = {}
    for row in rows("context.tsv"):
        direction, ends = row["direction"], row["ends"]
        effect = TriggerEffect(
            row["category"],
            forward=direction in ("forward", "both"),
            backward=direction in ("backward", "both"),
            words=int(row["words"] or MAX_SCOPE),
            ends=frozenset(CATEGORIES if ends == "all" else ends.split(",") if ends else ()),
        )
        for phrase in phrase_variants(row["phrase"]):
            phrases.setdefault(phrase, {})[effect] = None
    index: _TriggerIndex = {}
    for phrase in sorted(phrases, key=lambda phrase: (-len(phrase), phrase)):
        lengths, effects = index.setdefault(phrase[0], ([], {}))
        effects[phrase] = tuple(phrases[phrase])
        if len(phrase) not in lengths:
            lengths.append(len(phrase))
    return index
