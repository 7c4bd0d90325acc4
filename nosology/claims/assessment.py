"""The assessment of a visit: the problems that it names in titles, and the words that explain or plan them.

"1. Hypertension. Not at goal." has the title "Hypertension". Where an assessment is prose without titles, all of it
states what the visit found.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from nosology.core import Span
from nosology.text.sections import Section
from nosology.text.tokens import function_words, words_of

ASSESSED = ("discharge_diagnosis", "impression", "assessment")
"""The kinds of sections that state the diagnoses of a visit."""

TITLE, STATEMENT, DETAIL, OUTSIDE = 3, 2, 1, 0
"""Where a mention stands: title of a problem, prose of an assessment, details of a problem or plan, elsewhere."""

_LINE = re.compile(r"[^\n\r]+")
_MARK = re.compile(
    r"(?P<blank>[ \t]*)(?:(?P<number>(?:(?:problem|diagnosis|issue)[ #]*)?#?[ ]?\d{1,2}(?:[.):]+|(?= ))|#"
    r"|(?-i:[A-H])[.)](?= ))"
    r"|(?P<bullet>[-*•▪●◦>+–]+))?"
    r"[ \t]*(?:(?:assessment|impression|diagnos[ei]s|problem)s?:[ \t]*)?",
    re.IGNORECASE,
)
_PLAN = re.compile(r"(?:treatment |care )?plans?$|(?:recommend|instruct|order)\w*$", re.IGNORECASE)
# Labels of the parts of a problem, which are no problems.
_LABEL = re.compile(
    r"(?:medical |additional |patient |clinical |further |other )*(?:reasoning|treatments?|test(?:ing|s)"
    r"|educations?|counsel\w+"
    r"|agreements?|plans?|instructions?|follow[- ]?up|orders?|referrals?|medications?|labs?|imaging|consults?|summary"
    r"|discussion|diagnostics?|procedures?|goals?|rationale|specialist|monitoring|disposition|work-?up"
    r"|decision[- ]making"
    r"|differential(?: diagnos[ei]s)?|recommendations?)\b(?:(?: and|,| &|/)? ?[\w-]+){0,3}(?::|\s*$)",
    re.IGNORECASE,
)
_TITLE_END = re.compile(
    r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bMrs)\.(?=\s|$)|:|;|\s[-–—]+\s|(?<=\w)[-–—]\s|\s(?:->|=>)|[ \t]{3,}|\?\s"
)
_SENTENCE = re.compile(
    r"\b(?:is|are|was|were|am|be|been|being|has|have|had|will|would|can|could|may|might|should|do|does|did|looks?|appears?"
    r"|seems?|reports?|denies|needs?|wants?|wishes|agrees?|understands?|discussed|reviewed|explained|recommend\w*|we|he|she|they|you|us|me"
    r"|him|our|I (?:will|am|have|would|do|also|think|believe|suspect|don't|can|recommend\w*|discussed|explained"
    r"|reviewed))\b|^I\b",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"(?:continue|start|stop|increase|decrease|reduce|add|begin|take|keep|return|follow|call|order|obtain|check|repeat|recheck"
    r"|refer|referral|schedule|discuss\w*|counsel\w*|recommend\w*|advise\w*|encourage\w*|review\w*|refill\w*|prescri\w+|trial|use"
    r"|avoid|send|sent|get|see|consider|monitor|watch|hold|resume|switch|apply|give\w*|given|wear|ice|rest|drink|go|come|if|when"
    r"|since|because|as|after|before|until|labs?|no|not|will|patient|pt|the|this|there|these|those|it|all|most"
    r"|more|due to|risks?"
    r"|spent|total time|time|thank|sincerely|signed|electronically|rtc|f/u)\b",
    re.IGNORECASE,
)
_MAX_TITLE, _MAX_NUMBERED = 16, 30  # words of a title, and of one with a number
_DISCUSSION = 40  # words
_PROSE = 0.2  # share of function words: about 0.3 in sentences, below 0.2 in telegraphic notes


class Assessment:
    """The assessment sections of a note: where the titles of its problems are, and what else stands there."""

    def __init__(self, text: str, sections: Sequence[Section], mentions: Iterable[Span]):
        """mentions: of all suggested codes; a title without any is not the name of a problem."""
        starts = sorted(span.start for span in mentions)
        self._areas = [section for section in sections if section.kind in ASSESSED]
        named = [[title for title in _titles(text, it) if _has_mention(title, starts)] for it in self._areas]
        if any(titles and not _is_plan(it) for it, titles in zip(self._areas, named)):
            named = [[] if _is_plan(it) else titles for it, titles in zip(self._areas, named)]
        self._named = named
        self._labelled = [any(_labels(text, section)) for section in self._areas]
        self._starts = [section.span.start for section in self._areas]
        self._has_diagnoses = any(not _is_plan(section) for section in self._areas)
        self.titles = [title for titles in named for title in titles]
        first = self._starts[0] if self._areas else len(text)
        written = [it for it in sections if it in self._areas or (it.kind == "instructions" and it.span.start > first)]
        words = [word for section in written for word in words_of(text[section.body.start : section.body.end])]
        prose = sum(word in function_words() for word in words)
        self.is_discussion = len(words) >= _DISCUSSION and prose >= _PROSE * len(words)
        """Whether it discusses the problems in sentences; a short or telegraphic assessment only lists them."""

    def place(self, span: Span) -> int:
        """Where a mention stands: TITLE, STATEMENT, DETAIL or OUTSIDE."""
        at = bisect_right(self._starts, span.start) - 1
        if at < 0 or span.start >= self._areas[at].span.end:
            return OUTSIDE
        if self.title(span) is not None:
            return TITLE
        is_detail = self._named[at] or self._labelled[at] or (self._has_diagnoses and _is_plan(self._areas[at]))
        return DETAIL if is_detail else STATEMENT

    def title(self, span: Span) -> Span | None:
        """The title in which a mention stands."""
        return next((title for title in self.titles if title.start <= span.start < title.end), None)

    def block(self, title: Span) -> Span:
        """A title and the details of its problem."""
        area = next(section for section in self._areas if section.span.start <= title.start < section.span.end)
        following = (other.start for other in self.titles if title.end <= other.start < area.span.end)
        return Span(title.start, next(following, area.span.end))

    def problem(self, position: int) -> Span | None:
        """The last title before a character, or around it."""
        return next((title for title in reversed(self.titles) if title.start <= position), None)


def _has_mention(title: Span, starts: Sequence[int]) -> bool:
    at = bisect_left(starts, title.start)
    return at < len(starts) and starts[at] < title.end


def _is_plan(section: Section) -> bool:
    return _PLAN.match(section.title) is not None


def _titles(text: str, section: Section) -> Iterator[Span]:
    """The titles of the problems in a section.

    Lines with bullets below titles without them, and indented lines, are details.
    """
    found = list(_candidates(text, section))
    has_plain = any(mark != "bullet" for mark, _ in found)
    for mark, title in found:
        if not (has_plain and mark == "bullet"):
            yield title


def _labels(text: str, section: Section) -> Iterator[re.Match[str]]:
    """The labels of the parts of problems: "Medical Reasoning:"."""
    for line in _LINE.finditer(text, section.body.start, section.body.end):
        mark = _MARK.match(text, line.start(), line.end())
        if mark is not None and (label := _LABEL.match(text, mark.end(), line.end())):
            yield label


def _candidates(text: str, section: Section) -> Iterator[tuple[str, Span]]:
    """The kind of mark (number, bullet, plain) and the title of each line that can name a problem."""
    for line in _LINE.finditer(text, section.body.start, section.body.end):
        mark = _MARK.match(text, line.start(), line.end())
        if mark is None or not text[mark.end() : line.end()].strip():
            continue
        kind = "number" if mark["number"] else "bullet" if mark["bullet"] else "plain"
        if len(mark["blank"]) > 1 and kind == "bullet":
            continue
        start = mark.end()
        if _LABEL.match(text, start, line.end()):
            continue
        end = _TITLE_END.search(text, start, line.end())
        title = Span(start, end.start() if end else line.end())
        if _is_title(text[title.start : title.end], _MAX_NUMBERED if kind == "number" else _MAX_TITLE):
            yield kind, title


def _is_title(words: str, longest: int) -> bool:
    """Whether words name a problem: no sentence and no order."""
    return bool(
        0 < len(words.split()) <= longest
        and (words[0].isupper() or words[0].isdigit())
        and not _SENTENCE.search(words)
        and not _ORDER.match(words)
    )
