"""The code set while the rules work on it: which codes are in it, why, and what was left out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from nosology.claims.assessment import Assessment
from nosology.claims.encounter import Encounter, is_newborn_note
from nosology.claims.loss_of_consciousness import loss_of_consciousness
from nosology.codes import in_release, table
from nosology.codes.table import CodeTable
from nosology.codes.tabular import CodeReference
from nosology.core import Code, Span, Suggestion
from nosology.text.context import Context, ContextSpan, TextContexts
from nosology.text.phrases import TokenizedNote, tokenized_note
from nosology.text.sections import Section, sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens

_TRIMESTER = re.compile(r"\b(first|second|third|1st|2nd|3rd)[ -]trimester", re.IGNORECASE)
_WEEKS = re.compile(
    r"(?:@|\b(?:IUP at|pregnan\w+,? (?:at )?|gestation\w*:? (?:of |at )?|GA:?|EGA:?|G\d+P\d+,? (?:at )?))\s*"
    r"(?P<before>[4-9]|[1-3]\d|4[0-2])\s?(?:w|\+|wk|week|\d/7)"
    r"|\b(?P<after>[4-9]|[1-3]\d|4[0-2])\s?(?:w\d?d?|wks?|weeks?)(?:\s?\d\s?(?:d|days?)|\+\d|\s\d/7)?[ ,]*"
    r"(?:pregnant|gestation|gestational|pregnancy|GA\b|EGA|IUP|G\dP\d)"
    r"|\b(?P<days>[4-9]|[1-3]\d|4[0-2])\s?(?:w\s?\d\s?d?\b|weeks? (?:and )?\d days?|(?<=\s)\d/7\b)"
    r"|(?<!x )(?<!x)\b(?P<alone>[89]|[1-3]\d|4[0-2])\s?w\b(?!/)",
    re.IGNORECASE,
)

_OBSTETRIC = re.compile(
    r"\b(?:G\d+ ?P\d|pregnan|IUP\b|labor\b|deliver(?:y|ed)\b|gestation|P?PROM\b|LTCS\b|N?SVD\b|c-?section|cesarean"
    r"|fetal"
    r"|twins?\b|placenta|\w*eclampsia|gravid|liveborn|abortion|amnio|HELLP|GDM\b|IUFD|IUGR|stillb)",
    re.IGNORECASE,
)

WEAK_EVIDENCE = "weak-evidence"  # the rule of codes without evidence, or with too little of it
RULE_PROBABILITY = 0.8  # of a code that a rule reads from words of the note


@dataclass(frozen=True, slots=True)
class Entry:
    """A code of the set: its probability, its evidence, and the rule that added it ("" if it was mentioned)."""

    code: str
    probability: float
    evidence: tuple[Span, ...] = ()
    rule: str = ""

    @property
    def start(self) -> int:
        """The first character of the evidence."""
        return min((span.start for span in self.evidence), default=0)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A code that is not in the set, the reason in a sentence, and the rule."""

    code: str
    reason: str
    rule: str
    evidence: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """A question to the physician, with the words of the note that raise it."""

    question: str
    rule: str
    evidence: tuple[Span, ...] = ()


@dataclass
class Draft:
    """The code set of one note; rules add, drop and replace codes."""

    text: str
    encounter: Encounter
    suggestions: Sequence[Suggestion] = ()
    system: str = "icd10cm"  # of the claim; the codes of a draft are always ICD-10-CM
    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    fired: set[str] = field(default_factory=set)
    ruled_out: frozenset[str] | None = None  # patterns of the codes that the note rules out
    pregnant: bool | None = None  # whether the patient is pregnant or has just given birth
    resolved: frozenset[str] | None = None  # patterns of the codes that a report calls resolved
    regex_matches: dict[str, list[re.Match[str]]] = field(default_factory=dict)  # by regular expression

    @cached_property
    def table(self) -> CodeTable:
        """ICD-10-CM of the encounter's date."""
        return table("icd10cm", self.encounter.release)

    @cached_property
    def sections(self) -> list[Section]:
        """The sections of the note."""
        return sections(self.text)

    @cached_property
    def assessment(self) -> Assessment:
        """The assessment of the visit and the titles of its problems."""
        accepted = (suggestion for suggestion in self.suggestions if suggestion.accepted)
        return Assessment(
            self.text, self.sections, [Span(it.start, it.end) for them in accepted for it in them.evidence]
        )

    @cached_property
    def sentences(self) -> list[Span]:
        """The sentences of the note."""
        return sentences(self.text)

    @cached_property
    def _sentence_starts(self) -> list[int]:
        return [span.start for span in self.sentences]

    @cached_property
    def note(self) -> TokenizedNote:
        """The words of the note with abbreviations expanded, as coders read them."""
        return tokenized_note(self.text)

    @cached_property
    def tokens(self) -> Tokens:
        """The words of the note."""
        return self.note.written

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Where each word of the note starts."""
        found: dict[str, list[int]] = {}
        for word, start in zip(self.tokens.words, self.tokens.starts.tolist()):
            found.setdefault(word, []).append(start)
        return found

    @cached_property
    def _section_starts(self) -> list[int]:
        return [section.span.start for section in self.sections]

    @cached_property
    def _text_contexts(self) -> TextContexts:
        return TextContexts(self.text, self.tokens)

    @cached_property
    def _contexts(self) -> dict[Span, Context]:
        return {}

    def context(self, span: Span) -> Context:
        """The context of a span: negated, uncertain, of a relative, historical, hypothetical."""
        if span not in self._contexts:
            self._contexts[span] = self._text_contexts.of_mention(*span)
        return self._contexts[span]

    @cached_property
    def _uncertain(self) -> list[ContextSpan]:
        return [item for item in self._text_contexts.scopes() if item.category == "uncertain"]

    def uncertain_triggers(self, span: Span) -> list[str]:
        """The words that make a span uncertain."""
        scopes = [item for item in self._uncertain if item.scope.start < span.end and span.start < item.scope.end]
        return [self.text[item.trigger.start : item.trigger.end] for item in scopes]

    def section_body(self, position: int) -> int:
        """Where the text of the section around a character starts."""
        at = bisect_right(self._section_starts, position) - 1
        return self.sections[at].body.start + 1 if at >= 0 else 0

    def section_title(self, position: int) -> str:
        """The heading of the section around a character."""
        at = bisect_right(self._section_starts, position) - 1
        return self.sections[at].title if at >= 0 else ""

    def sentence(self, position: int) -> Span:
        """The sentence around a character."""
        starts = self._sentence_starts
        return self.sentences[max(0, bisect_right(starts, position) - 1)] if starts else Span(0, len(self.text))

    def section_kind(self, position: int) -> str:
        """The kind of the section around a character."""
        at = bisect_right(self._section_starts, position) - 1
        return self.sections[at].kind if at >= 0 else "start"

    @cached_property
    def is_newborn(self) -> bool:
        """Whether the patient is a newborn, and not the mother."""
        age = self.encounter.age
        return (age is None or age < 1) and is_newborn_note(self.text)

    @cached_property
    def trimester(self) -> str:
        """The trimester of the pregnancy, 1 to 3, by the note's words or weeks; "" if it does not say."""
        if word := _TRIMESTER.search(self.text):
            return {"f": "1", "s": "2", "t": "3"}.get(word[1][0].lower(), word[1][0])
        if (weeks := _WEEKS.search(self.text)) and (not weeks["alone"] or _OBSTETRIC.search(self.text)):
            number = int(next(filter(None, weeks.groups())))
            return "1" if number < 14 else "2" if number < 28 else "3"
        return ""

    def of_date(self, code: str) -> str:
        """The billable code for a code at the encounter's date: itself, or the one assigned then; "" if none was."""
        if self.table.billable(code):
            return code
        return next((it.code for it in in_release(Code("icd10cm", code), self.table.release)), "")

    @cached_property
    def loss_of_consciousness(self) -> str:
        """The sixth character of intracranial injuries: 0 to 4, 9, A, or "" if the note does not say."""
        return loss_of_consciousness(self.text)

    def matching(self, pattern: str) -> list[Entry]:
        """The entries whose codes match a pattern: prefixes and ranges, as in I50|N18.5|E08-E13|!E09."""
        return [entry for code, entry in self.entries.items() if matches(pattern, code)]

    def add(self, code: str, probability: float, evidence: Iterable[Span], rule: str) -> bool:
        """Adds a code, or what stood for it at the date; False if it is in the set already or not in the release."""
        code = self.of_date(code)
        if not code or code in self.entries:
            return False
        self.entries[code] = Entry(code, probability, tuple(sorted(set(evidence))), rule)
        self.fired.add(rule)
        return True

    def drop(self, code: str, reason: str, rule: str) -> None:
        """Takes a code out of the set."""
        entry = self.entries.pop(code)
        self.left_out.append(LeftOut(code, reason, rule, entry.evidence))
        self.fired.add(rule)

    def replace(self, old: Iterable[str], new: str, reason: str, rule: str) -> bool:
        """Replaces codes by one billable code that stands at the place of the first; False if it cannot."""
        new = self.of_date(new)
        gone = [self.entries[code] for code in old if code in self.entries and code != new]
        if not gone or not new:
            return False
        evidence = tuple(sorted({span for entry in gone for span in entry.evidence}))
        probability = max(entry.probability for entry in gone)
        added = self.entries.get(new) or Entry(new, probability, evidence, rule)
        added = replace(added, evidence=tuple(sorted({*added.evidence, *evidence})))
        names = [entry.code for entry in gone]
        updated: dict[str, Entry] = {}
        for code, entry in self.entries.items():
            if code == names[0]:
                updated[new] = added
            if code not in names:
                updated.setdefault(code, added if code == new else entry)
        self.entries = updated
        self.left_out += [LeftOut(code, reason, rule, entry.evidence) for code, entry in zip(names, gone)]
        self.fired.add(rule)
        return True


@lru_cache(maxsize=500_000)
def matches(pattern: str, code: str) -> bool:
    """Whether a code matches one of the prefixes or ranges of a pattern, and none of those after "!"."""
    included, excluded = references(pattern)
    return any(it.covers(code) for it in included) and not any(it.covers(code) for it in excluded)


class CodeGlob(NamedTuple):
    """Codes that match a pattern with *, such as T*6A."""

    glob: str

    @property
    def first(self) -> str:
        return self.glob[0]

    @property
    def last(self) -> str:
        return self.glob[0]

    def covers(self, code: str) -> bool:
        """Whether a code matches."""
        return fnmatchcase(code, self.glob)


@cache
def references(pattern: str) -> tuple[tuple[CodeReference | CodeGlob, ...], tuple[CodeReference | CodeGlob, ...]]:
    """The parts of a pattern such as I50|N18.5|E08-E13|T*6A|!E09: those included, those excluded."""
    included: list[CodeReference | CodeGlob] = []
    excluded: list[CodeReference | CodeGlob] = []
    for part in pattern.split("|"):
        name = part.strip().removeprefix("!")
        first, _, last = name.partition("-")
        reference = CodeGlob(name) if "*" in name else CodeReference(first, last or first)
        (excluded if part.strip().startswith("!") else included).append(reference)
    return tuple(included), tuple(excluded)
