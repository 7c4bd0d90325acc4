"""Pressure ulcers by site and stage, where one sentence names several: "sacral stage IV, R heel stage 3"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nosology.claims.code_completion import side_at
from nosology.claims.draft import RULE_PROBABILITY, Draft
from nosology.core import Span

_RULE = "pressure-ulcer-by-site"
# Site, the characters of its code, and whether the next digit is the side.
_SITES = (
    (r"sacr(?:um|al)|coccy\w+|sacrococcygeal", "L89.15", False),
    (r"heels?", "L89.6", True),
    (r"hips?|trochanter\w*", "L89.2", True),
    (r"buttocks?|ischi\w+|gluteal", "L89.3", True),
    (r"ankles?|malleol\w+", "L89.5", True),
    (r"elbows?", "L89.0", True),
    (r"occip\w+|scalp", "L89.81", False),
    (r"foot|toe|knee|calf|thigh|scapula\w*|ears?|nose|nasal", "L89.89", False),
)
_SITE = re.compile("|".join(rf"(?P<s{number}>\b(?:{words})\b)" for number, (words, _, _) in enumerate(_SITES)), re.I)
_STAGE = re.compile(
    r"\b(?:stage|stg|st|grade)\.?\s?(?P<stage>IV|III|II|I|[1-4])\b|\b(?P<unstageable>unstageable)\b"
    r"|\b(?P<deep>deep tissue|DTI|SDTI|DTPI)\b",
    re.IGNORECASE,
)
_STAGES = {"i": "1", "ii": "2", "iii": "3", "iv": "4"}
_ULCER = re.compile(r"\b(?:pressure|decub\w*|bedsores?|wounds?|ulcers?|sores?|DTI|PUs?|PIs?|HAPI)\b", re.IGNORECASE)
_OTHER_CLAUSE = 40  # characters that a comma between site and stage counts for


def code_pressure_ulcers(draft: Draft) -> None:
    """Replaces the pressure ulcers of the set by one code for each site with the highest stage that the note names."""
    if not draft.matching("L89"):
        return
    best: dict[str, tuple[str, Span]] = {}
    for site, stage, span in _staged_sites(draft):
        if site not in best or best[site][0] < stage:
            best[site] = stage, span
    codes = {f"{site}{stage}": span for site, (stage, span) in best.items()}
    for entry in draft.matching("L89") if codes else []:
        is_same_site = any(entry.code.startswith(site) for site in best)
        if entry.code not in codes and (is_same_site or entry.code[-1] == "9" or entry.code.startswith("L89.9")):
            draft.drop(entry.code, "the note names site and stage of the ulcer", _RULE)
    for code, span in codes.items():
        draft.add(code, RULE_PROBABILITY, [span], _RULE)


def _staged_sites(draft: Draft) -> Iterator[tuple[str, str, Span]]:
    """The characters of a site with its side, the digit of the stage, and the span of both."""
    for stage in _STAGE.finditer(draft.text):
        sentence = draft.sentence(stage.start())
        at = Span(*stage.span())
        if not _ULCER.search(draft.text, sentence.start, sentence.end) or draft.context(at).negated:
            continue
        sites = list(_SITE.finditer(draft.text, sentence.start, sentence.end))
        if not sites:
            continue
        site = min(sites, key=lambda match: _distance(draft.text, at, match.span()))
        _, code, is_sided = _SITES[int((site.lastgroup or "s0")[1:])]
        digit = "6" if stage["deep"] else "0" if stage["unstageable"] else _stage_digit(stage["stage"])
        sides = {"right": "1", "left": "2"}.get(side_at(draft, Span(*site.span())), "0") if is_sided else ""
        both = is_sided and side_at(draft, Span(*site.span())) == "bilateral"
        for side in ("1", "2") if both else (sides,):
            if draft.table.billable(f"{code}{side}{digit}"):
                yield f"{code}{side}", digit, Span(min(at.start, site.start()), max(at.end, site.end()))


def _stage_digit(word: str) -> str:
    return _STAGES.get(word.lower(), word)


def _distance(text: str, one: Span, other: tuple[int, int]) -> int:
    """Characters between two spans; a comma between them counts for more."""
    first, last = (one.end, other[0]) if one.end <= other[0] else (other[1], one.start)
    return max(0, last - first) + _OTHER_CLAUSE * len(re.findall(r"[,;]| and ", text[first:last]))
