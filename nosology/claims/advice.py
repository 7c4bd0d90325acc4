"""Mentions in advice: what to call or return for, side effects, risks, what was explained, what a test looks for."""

from __future__ import annotations

import re

from nosology.claims.assessment import ASSESSED
from nosology.claims.draft import Draft
from nosology.core import Span

_SECTIONS = (*ASSESSED, "instructions", "other")
_LETTER = 100  # words of a note without headings that can give advice
_TO_DO = r"(?:^|[:;,•–-] ?|\b(?:will|to|should|must|please|may|can|or|and) )"
# Each pattern matches from the words that give advice to the mention.
_WARNED = re.compile(
    rf"{_TO_DO}(?:call|return|go to|come (?:back|in)|contact|notify|seek|report|be seen|reach out)\b[^.;\n]*?"
    r"\b(?:for|if|with|when|about|because of|should|any)\b[^.\n]*$"
    r"|(?:^|[:;] )(?:emergency (?:room|department)|E[RD]|911|urgent care|sooner|earlier)\b[^.\n]*?\b(?:for|if"
    r"|with)\b[^.\n]*$"
    r"|\b(?:sooner|earlier|immediately|right away|at once) (?:for|if|with|should)\b[^.\n]*$",
    re.IGNORECASE,
)
_EFFECT = re.compile(
    r"\b(?:side effects?|adverse (?:effects?|reactions?)|risks?(?! factors?| score)|warning signs?|red flags?"
    r"|precautions?"
    r"|chances?|likelihood|possibility|(?:options?|alternatives?) (?:include|are|would be|such as)|candidate for"
    r"|(?:in|among) (?:\w+ )?(?:people|patients|those|individuals|children|women|men|adults)|(?:sign"
    r"|symptom)s? (?:and symptoms? )?(?:of|such as|like|includ\w+)|signs\b"
    r"|(?:potential|possible|prevent\w*|avoid\w*|reduc\w+) (?:\w+ ){0,2}complications?)\b[^.\n]*$"
    r"|\b(?:can|may|might|could|would|will) (?:also |sometimes |rarely |potentially |even )?(?:cause|lead to|raise"
    r"|lower"
    r"|increase|result in|mean|be (?:a )?signs?|indicate|set off|trigger|worsen|bring|turn (?:in)?to|progress|develop"
    r"|become|need|mask|aggravate|include|look like)\b[^.\n]*$",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|when(?:ever)?|unless|until|in case|before any|planned|future|should (?:he|she|they|you|symptoms"
    r"|the patient|there))\b[^.\n]*$",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(
    r"\b(?:discussed|reviewed|talk(?:ed)? (?:about|through)|went over|explained|counsel\w*|educat\w+|advised"
    r"|warned|cautioned"
    r"|reminded|told|informed|taught|knows?|aware|(?:pros and cons|benefits?) of)\b(?!:)(?P<what>[^.\n]*)$",
    re.IGNORECASE,
)
_LOOKED_FOR = re.compile(
    r"\b(?:to (?:check|screen|test|look|evaluate|assess|watch|monitor|rule out|exclude|see (?:if|whether)"
    r"|make sure|prevent"
    r"|avoid|reduce|protect|determine|lower)|(?:test(?:s|ing|ed)?|screen(?:s|ing|ed)?|check(?:s|ed)?|prophylaxis|prevention"
    r"|vaccin\w+|immuniz\w+|antibod\w+|titers?) (?:for|of|against))\b(?P<what>[^.\n]*)$",
    re.IGNORECASE,
)
# What is said of this patient is no advice: "explained that her MRI shows a tear", "options for his arthritis".
_OF_PATIENT = re.compile(
    r"\b(?:his|her|their|your|patient'?s|these)\b(?:\W+[\w-]+){0,3}\W*$"
    r"|\b(?:diagnos[ei]s|findings?|results?) (?:of|show\w*|consistent|and)\b[^.,;]*$"
    r"|\b(?:has|have|is|are|was|were|shows?|showed|reveal\w*|demonstrat\w*|confirm\w*|due to|caused by)\b[^.;]*$",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"[^.;:\n]{0,80}\b(?:were|was) (?:also )?(?:reviewed|discussed|explained|mentioned)\b", re.IGNORECASE
)
_LATER = re.compile(
    r"\W+(?:may|can|could|might) (?:get worse|worsen|occur|happen|develop|appear|return|recur|result)\b"
    r"|[^.;:\n]{0,30}\b(?:is|are) (?:to be expected|expected|common|possible|(?:the|a) (?:\w+ ){0,2}side effects?)\b",
    re.IGNORECASE,
)


def is_advice(draft: Draft, span: Span) -> bool:
    """Whether an outpatient note mentions something only as advice, in its assessment or instructions."""
    kind = draft.section_kind(span.start)
    is_letter = kind == "start" and len(draft.tokens) >= _LETTER
    if draft.encounter.is_inpatient or not (is_letter or kind in _SECTIONS):
        return False
    sentence = draft.sentence(span.start)
    before = draft.text[sentence.start : span.start]
    if _WARNED.search(draft.text[sentence.start : span.end]) or _EFFECT.search(before) or _CONDITION.search(before):
        return True
    found = _EXPLAINED.search(before) or _LOOKED_FOR.search(before)
    if found and not _OF_PATIENT.search(found["what"]):
        return True
    is_listed = _LISTED.match(draft.text, span.end) and before.strip(" -•*\t") and not _OF_PATIENT.search(before)
    return bool(is_listed or _LATER.match(draft.text, span.end))
