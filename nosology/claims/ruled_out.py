"""Diseases that a note rules out, or a report calls resolved: they count nowhere in it, in none of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nosology.claims.draft import Draft, matches
from nosology.codes.related_codes import personal_history
from nosology.core import Span
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.text.phrases import TokenizedNote

_SAID = (
    r"(?:(?:was|were|is|are|been|has been|have been|considered|and|but|clinically|effectively|essentially)"
    r"(?: by (?:the )?[\w-]+)?,? ){0,6}"
)
_AFTER = re.compile(
    rf"[\s,:;>→(–-]{{0,6}}{_SAID}(?:(?:ruled out|excluded|disproven|refuted|(?:considered (?:and|but) )?rejected)\b"
    r"(?!\s+(?:for|from)\b)|(?:not|never|n't) (?:separately )?(?:supported|diagnosed|dx'?d|confirmed|substantiated"
    r"|felt to be present|thought to be present)\b"
    r"(?!\s+(?:before|previously|earlier|until|in|at|prior|with|by (?:cultures?|biopsy|PCR|serolog\w+))\b))",
    re.IGNORECASE,
)
# "ACS and reversible causes excluded", in whatever section
_LIST_RULED_OUT = re.compile(
    r"(?:(?:(?:, [\w-]+(?: [\w-]+){0,2}){0,3},? (?:and|or) |/)[\w-]+(?: [\w-]+){0,2}?)?" + _AFTER.pattern,
    re.IGNORECASE,
)
# "UTI suspected by nursing, culture negative, no UTI"
_DENIED_AFTER = re.compile(
    r"\b(?P<what>[A-Za-z][\w-]*(?: [\w-]+){0,3}?) (?:was |were |is )?(?:suspected|considered|queried|questioned|raised"
    r"|mentioned)\b[^.\n]{0,80}\b(?:no|not) (?P=what)\b",
    re.IGNORECASE,
)
# "possible pneumonia; no fever, not treated, not pneumonia"
_POSSIBLE_DENIED = re.compile(
    r"\b(?:possible|probable|suspected|presumed|questionable|concern for|query) "
    r"(?P<what>[A-Za-z][\w-]*(?: [\w-]+){0,3}?)\b"
    r"(?:[^.\n]|\.\d){0,80}\bnot (?P=what)\b",
    re.IGNORECASE,
)
# "Wernicke encephalopathy: considered, treated empirically. ... Ruled out."
_TITLE_RULED_OUT = re.compile(
    r"^[ \t]*(?:[-*•#]+|#?\d{1,2}[.):]*)?[ \t]*(?P<what>[A-Za-z][^:.,;\n?]{2,50})[:.?,]"
    r"[ \t]*(?:[\w-]+ ){0,3}(?:considered|suspected|queried|questioned|possible|treated empirically)\b"
    r"[^\n]*(?:\. |; )(?:[Rr]uled out|[Ee]xcluded|[Nn]ot supported)\.",
    re.MULTILINE,
)
# "pneumonia" on the preliminary read, over-read as atelectasis
_OVERREAD = re.compile(
    r"\b(?P<what>[A-Za-z][\w-]*(?: [\w-]+){0,2}?)\"?,? "
    r"(?:was )?(?:queried |raised |called |read |described |mentioned )?"
    r"(?:on|by|in) (?:the |an )?(?:[\w-]+ ){0,2}(?:prelim\w*|overnight|initial|first)\b[^.;\n]{0,60}"
    r"\b(?:over-?read|re-?read|revised|corrected)\b",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"\b(?:ruled out|rules out|ruled (?:him|her|pt|patient) out)(?: for)?\s+(?P<what>[^.;,\n()]{2,60})", re.I
)
_STUDY = (
    r"(?:CTA?|CTPA|MR[IA]|US|ultrasound|sono\w*|doppler|duplex|echo\w*|T[TE]E|CXR|x-?ray|XR|films?|imaging|EEG|LP|V/?Q"
    r"|angio\w*|cath\w*|biops\w*|EGD|colonoscopy|cultures?|scan)"
)
_NO_ON_STUDY = re.compile(rf"\bno (?P<what>[^,.;\n()]{{2,40}}?) (?:on|by|per) (?:the |repeat |chest )?{_STUDY}\b", re.I)
_STUDY_WITHOUT = re.compile(
    rf"\b{_STUDY}\b[^.;,\n]{{0,25}}\b(?:no|neg(?:ative)? for) (?P<what>[^,.;\n()]{{2,40}})", re.I
)
_PART = re.compile(r"[^.;,\n]+")  # the two patterns above match within such parts
_DENIAL = re.compile(r"no |neg", re.IGNORECASE)  # and both need one of these
_QUESTION_ANSWERED = re.compile(
    r"(?:\br/o|\brule out|\bevaluat\w+ for|\?)\s*(?P<what>[^,.;\n?-]{2,40})[^.;\n]{0,60}"
    r"\b(?:ruled out|neg(?:ative)?\b(?!\s+for)|excluded|unlikely|doubt\w*|not found)",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\b(?P<what>[A-Za-z][\w/ -]{1,30})\?[^\n]{0,60}\bno (?P=what)\b", re.IGNORECASE)
_RULED_OUT_WORDS = (
    "ruled out", "excluded", "disproven", "refuted", "rejected", "supported", "diagnosed", "dx'd", "dxd", "confirmed",
    "substantiated", "to be present",
)  # fmt: skip
_DENIED_LATER = (
    ((" suspected", " considered", " queried", " questioned", " raised", " mentioned"), _DENIED_AFTER),
    (("possible", "probable", "suspected", "presumed", "questionable", "concern for", "query"), _POSSIBLE_DENIED),
    (("ruled out.", "excluded.", "not supported."), _TITLE_RULED_OUT),
    (("over-read", "overread", "re-read", "reread", "revised", "corrected"), _OVERREAD),
)
_SEEN = r"(?:seen|noted|described|identified|present|visualized|evident|demonstrated)"
_RESOLVED_AFTER = re.compile(
    rf"[\s,]*(?:(?:previously {_SEEN}|on the (?:prior|previous) \w+|is|are|has|have|had|since|now|been|completely|fully"
    rf"|,) )*(?:resolved|cleared|no longer {_SEEN})\b",
    re.IGNORECASE,
)
_RESOLVED_BEFORE = re.compile(
    r"(?<!near )(?<!nearly )(?<!partial )\b(?:complete |interval |full )*(?:resolution|clearing|clearance) of (?:the )?"
    r"(?P<what>[^.;,\n()]{2,60})",
    re.IGNORECASE,
)
_SEGMENT = re.compile(r"[.;\n]|, |\s[-–]\s|\) ?|: |\bbut\b|\bwith\b")
_SENTENCE_END = re.compile(r"\.\s|[;\n]")
_MAX_LIST = 3  # words of an item before "and ... were ruled out"
_GAP = 2
_REACH = 90  # characters before "ruled out"
# Codes of several complications: ruling out one of them does not rule out the others.
_VARIOUS = "E89.8|G97.8|H59.8|I97.8|J95.8|K91.8|L76.8|M96.8|N99.8|T88.8|R09.89|R68.89"
# Ruling out one disease rules out what other categories call the same.
_SAME = (
    ("A41", "A40-A41|R65.2"),
    ("J18", "J12-J18"),
    ("I21", "I21-I22|I20.0"),
    ("E11.1", "E08.1|E09.1|E10.1|E11.1|E13.1"),
)


def is_ruled_out(draft: Draft, span: Span, code: str, certain_section: bool) -> bool:
    """Whether a code is ruled out in its note; what a list of final diagnoses states for certain is not."""
    if code[0] in "ZSVWXY":
        return False
    if _LIST_RULED_OUT.match(draft.text, span.end):
        return True
    if certain_section:
        return False
    return any(matches(pattern, code) for pattern in _patterns(draft))


def is_resolved(draft: Draft, span: Span, code: str) -> bool:
    """Whether a report says that a disease has resolved: at this mention, or anywhere if it has a code as history."""
    if draft.encounter.role == "attending" or code[0] in "ZSVWXY":
        return False
    sentence = draft.sentence(span.start)
    is_here = _RESOLVED_AFTER.match(draft.text, span.end) or any(
        match.start("what") <= span.start < match.end("what")
        for match in _RESOLVED_BEFORE.finditer(draft.text, sentence.start, sentence.end)
    )
    return bool(is_here) or (personal_history(code) is not None and _is_resolved_anywhere(draft, code))


def _is_resolved_anywhere(draft: Draft, code: str) -> bool:
    if draft.resolved is None:
        after = (draft.text[max(0, it.start() - _REACH) : it.start()] for it in _RESOLVED_AFTER.finditer(draft.text))
        what = [it for part in after for it in _before(part)]
        what += [match["what"] for match in _RESOLVED_BEFORE.finditer(draft.text)]
        draft.resolved = frozenset(_codes(draft, ".\n".join(what))) if what else frozenset()
    return any(matches(pattern, code) for pattern in draft.resolved)


def _patterns(draft: Draft) -> frozenset[str]:
    """The patterns of the codes that a note rules out."""
    if draft.ruled_out is None:
        text = ".\n".join(_statements(draft.text))
        draft.ruled_out = frozenset(_codes(draft, text)) if text else frozenset()
    return draft.ruled_out


def _statements(text: str) -> Iterator[str]:
    """The words of a note that name what is ruled out."""
    # Words that a pattern needs are looked for first: each pattern takes as long as all of the words.
    lowered = text.lower()
    if any(words in lowered for words in _RULED_OUT_WORDS):
        for match in _AFTER.finditer(text):
            yield from _before(text[max(0, match.start() - _REACH) : match.start()])
    if "rule" in lowered:
        yield from (match["what"] for match in _BEFORE.finditer(text))
    parts = [part for part in _PART.findall(text) if _DENIAL.search(part)]
    for pattern in (_NO_ON_STUDY, _STUDY_WITHOUT):
        yield from (match["what"] for part in parts for match in pattern.finditer(part))
    if any(words in lowered for words in ("r/o", "rule out", "evaluat", "?")):
        yield from (match["what"] for match in _QUESTION_ANSWERED.finditer(text))
    for words, pattern in _DENIED_LATER:
        if any(word in lowered for word in words):
            yield from (match["what"] for match in pattern.finditer(text))
    if "?" in text:
        yield from (match["what"] for match in _ASKED.finditer(text))


def _before(text: str) -> Iterator[str]:
    """The last part of a text, and the items of the list that it ends: "MI, PE and dissection"."""
    parts = [part for part in _SEGMENT.split(text) if part.strip()]
    if not parts:
        return
    last = parts.pop()
    yield last
    in_sentence = len([part for part in _SEGMENT.split(_SENTENCE_END.split(text)[-1]) if part.strip()]) - 1
    is_list = re.search(r"\b(?:and|or)\b|/", last)
    if not is_list and parts and re.search(r"\b(?:neg|negative|normal|flat|nl)\b", last):
        yield parts[-1]  # "? DVT L leg - doppler neg, ruled out"
    parts = parts[len(parts) - in_sentence :] if in_sentence > 0 else []
    while is_list and parts and len(parts[-1].split()) <= _MAX_LIST:
        yield parts.pop()


def _codes(draft: Draft, text: str) -> Iterator[str]:
    terms = Terms.open(draft.encounter.release)
    found = terms.index.find(TokenizedNote.from_text(text), _GAP)
    longest = [match for match in found if not any(set(match.places) < set(other.places) for other in found)]
    for match in longest:
        for code, _ in terms.entries(match.phrase)[:1]:
            if matches(_VARIOUS, code):
                continue
            yield _pattern(draft, code)


def _pattern(draft: Draft, code: str) -> str:
    """The codes of a ruled-out disease: the code, or all of its category if it is the unspecified one."""
    title = draft.table.description(code).lower() if code in draft.table else ""
    if "without" in title or ("unspecified" not in title and code[-1] == "9"):
        wide = code[:3]
    else:  # acute respiratory failure, unspecified whether with hypoxia: J96.0, but not chronic failure
        wide = code[: max(3, len(code) - title.count("unspecified"))].rstrip(".")
    return next((pattern for prefix, pattern in _SAME if wide.startswith(prefix)), wide)
