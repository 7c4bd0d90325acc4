"""Whether a mention counts for the claim: of this patient, at this encounter, certain enough for the setting."""

from __future__ import annotations

import re
from typing import NamedTuple

from nosology.claims.advice import is_advice
from nosology.claims.assessment import DETAIL
from nosology.claims.draft import Draft, matches
from nosology.claims.ruled_out import is_resolved, is_ruled_out
from nosology.codes.related_codes import is_past_event
from nosology.core import Span
from nosology.text.tokens import words_of

SYMPTOMS = "R00-R99|M25.4|M25.5|M54.2|M54.5|M54.6|M54.9|M79.1|M79.6|N64.4|H57.1|H92.0|L29|L50.9"
_REASONS = "R00-R99|!R16|!R18|!R19.0|!R22|!R59|!R90-R93"  # symptoms, but not findings of an examination
_PAINS = "M25.5|M54.2|M54.5|M54.6|M54.9|M79.6|H92.0|N64.4"
_FINAL = ("discharge_diagnosis", "assessment", "impression")  # sections that state the diagnoses at the end
_EARLY = ("chief_complaint", "hpi", "admission_diagnosis", "past_medical_history", "indication", "review_of_systems")
_EARLY_OR_TESTS = (*_EARLY, "physical_exam", "vital_signs", "results", "findings", "technique", "medications")
_CONFIRMED_ONLY = "B20|Z21|U07.1|J09|J10|A92.5"  # I.C.1.a, I.C.1.f, I.C.1.g, I.C.10.c
_REACTIONS = "R00-R99|L27|L50|L51|T78.0|T78.2|T78.3|T88.6|T88.7|J38.4|K52|G25|L29"
_ADVISED = "F10-F19|Z30|Z55-Z79"  # what patients are advised about because they have it
_WINDOW = 100
_PRIMARY_WITH_SPREAD = re.compile(
    r"\b(?:cancer|ca|carcinoma|adeno\w*|NSCLC|SCLC)\b.*\b(?:mets?|metasta\w+)\b", re.I | re.S
)
_NUMBER_FIRST = re.compile(r"[1-5]\b")
_NUMBERED = re.compile(r"\b(?:stage|type|grade|class) \d", re.IGNORECASE)
_TWO_KIDNEY_TERMS = re.compile(r"\bUTI\b.*\b(?:AKI|CKD|ARF|ESRD)\b|\b(?:AKI|CKD|ARF|ESRD)\b.*\bUTI\b", re.S)
_PULMONARY_EDEMA = re.compile(r"\bedema\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[,\w] (?:which|who|whom|that|how|they|he|she|we|because|although|while) ")  # inside of a mention

# II.H and IV.H name these next to the terms of the context table.
_LIKE = re.compile(
    r"\b(?:consistent|compatible|comparable|in keeping) with\b[^.;:\n]*$|\bc/w\b[^.;:\n]*$"
    r"|\b(?:working|presumptive|provisional|tentative) (?:diagnosis|dx)\b[^.;\n]*$|\bindicative of\b[^.;:\n]*$"
    r"|\bfavor(?:ed|s|ing)?\b[^.;:\n]*$"
    r"|\b(?:typical|characteristic) (?:for|of)\b[^.;:\n]*$|\b(?:points? to(?:ward)?|fits? (?:well )?with"
    r"|in line with)\b[^.;:\n]*$",
    re.IGNORECASE,
)
# In the talk of a visit these leave a diagnosis open as well; what the patient is known to have is not meant.
_TENTATIVE = re.compile(
    r"\b(?:believe|think|suspicious|guess|feel|impression (?:is )?that)\b[^.;:\n]{0,60}"
    r"\b(?:is|has|have|had|are|from|due to|related to|represents?)\b[^.;:\n]*$"
    r"|\b(?:likely|probably|possibly|perhaps)\b(?! to\b)[^.;:\n]*$|\bit (?:appears|seems|looks like)\b[^.;:\n]*$"
    r"|\b(?:concerned|worried) (?:about|for|that)\b[^.;:\n]*$",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"\b(?:his|her|their|known|underlying|history of|longstanding|chronic)\b(?:\W+[\w-]+){0,2}\W*$", re.I
)
# Not yet examined at all: only in the list of final diagnoses do these mean "still to be ruled out".
_TO_EXAMINE = re.compile(
    r"\b(?:r/o|rule|rules?d? out|eval\w*|assess\w*|work ?up|exclude|vs|versus|differential|ddx|query|question\w*"
    r"|concern\w*|whether|unsure|unclear|certain|clear|sure|doubt\w*|perhaps)\b",
    re.IGNORECASE,
)
_ASKED = re.compile(r"(?: [\w-]+){1,2}\?")  # "encephalopathy due to hepatic failure?"
_ASKED_BEFORE = re.compile(  # "? small effusion", "question pneumonia"
    r"(?:^|[\s,;:(])(?:\?\s?|(?:question|query) )(?:[\w-]+ ){0,2}$", re.IGNORECASE
)
_ANSWERED_NO = re.compile(r"(?: [\w-]+){0,2}\?\s*No\b|(?: [\w-]+)?:? (?:none|absent|never)\b(?! of)", re.IGNORECASE)
_OR_AFTER = re.compile(r"\s+or\s+(?!more\b|less\b|so\b)\w")
_OR_BEFORE = re.compile(
    r"\w\s+or\s+(?:(?:an?|early|mild|small|focal|developing|right|left|lower|upper|middle|lobe) )*$"
)
_ON_ARRIVAL = re.compile(
    r"\b(?:admitted|presented|presents|sent|brought|transferred|referred|initial(?:ly)?|on arrival|in the ED)\b",
    re.I,
)
_RELATIVES = r"(?:mothers?|moms?|mum|fathers?|dads?|parents?|sisters?|brothers?|sib(?:ling)?s?|husband|wife|donor)"
_SAID_OF_OTHER = re.compile(  # "his wife is being treated for", "a coworker was found to have"
    r"\b(?:his|her|their|my|an?|whose|the patient's) (?:\w+ )?(?:mother|mom|father|dad|parent|sister|brother"
    r"|husband|wife"
    r"|spouse|partner|son|daughter|child|uncle|aunt|cousin|nephew|niece|grand\w+|friend|neighbor|co-?worker|roommate"
    r"|boyfriend|girlfriend|boss)s?,? (?:who )?(?:\w+ ){0,2}?(?:has|had|have|is|was|were|got|gets|died|suffer\w*|takes"
    r"|developed|went|recently)\b(?![^.;\n]*\b(?:he|she|I|they|patient)\b)[^.;\n]*$",
    re.IGNORECASE,
)
_OF_RELATIVE = re.compile(rf"\s+{_RELATIVES}\b", re.IGNORECASE)
_MATERNAL = re.compile(r"\b(?:maternal|mother'?s?|mom'?s?)\b[^.;\n]*$", re.IGNORECASE)
_RECIPIENT = re.compile(r"\brecipient (?:is|was|has|had)\b[^.;\n]*$", re.IGNORECASE)
_EXPOSED = re.compile(r"\b(?:exposed to|exposure to|contact with|contacts? (?:has|had|have))\b[^.;\n]*$", re.IGNORECASE)
_DIET = re.compile(r"\bdiet\s*:\s*[\w-]*\s*$", re.IGNORECASE)
_NAME = re.compile(  # of a place, a test or a service: "HEADACHE CLINIC", "sepsis protocol"
    r"\s+(?:clinic|diet(?! controlled)|unit|service|cent(?:er|re)|team|program|protocol|registry|score|scale"
    r"|proph\b|eval\b|evaluation\b|work-?up\b(?! (?:show|reveal|positive))"
    r"|questionnaire|screen|consent|education|handouts?|support group|nurse|foundation|society|ppx|prophylaxis"
    r"|precautions|shot|vaccines?)\b"
    r"|(?:(?:,| and| or|/) ?[\w-]+){0,2} (?:tests?|testing|PrEP|antibod(?:y|ies)|serolog(?:y|ies)|titers?|panel)\b"
    r"(?! (?:was |were |is |came back )?(?:positive"
    r"|reactive))",
    re.IGNORECASE,
)
_CONSIDERED = re.compile(  # "Wernicke encephalopathy: considered, thiamine given"
    r"[:,]? (?:(?:was|were|had been|also|initially|briefly) )*"
    r"(?:considered|entertained|queried|questioned|on the differential)\b"
    r"(?! (?:to be|as|secondary|due|a|an|related|likely|probable|possible|present|stable|severe|the|part)\b)",
    re.IGNORECASE,
)
_NOT_YET = re.compile(  # a device that the patient does not have yet
    r"\b(?:desires?|wants?|requests?|plans?|planning|planned|interested in|discuss\w*|refer\w*|counsel\w*|considering"
    r"|offered|emergent|urgent|cysto\w*|evaluat\w+ for|wait ?list\w*|candidate for|would need|needs?"
    r"|scheduled)\b(?:(?!\b(?:his|her|has|have|with|existing|interrogat\w+)\b)[^.;,\n]){0,40}$",
    re.IGNORECASE,
)
_PLACED_NOW = re.compile(
    r"[ ,(]+(?:this (?:admission|stay|hospitalization)|today|(?:on )?HD ?#?\d|(?:on )?hospital day)\b"
    r"|(?: [\w-]+){0,2} (?:was |were )?(?:placed|implanted|inserted) (?:this (?:morning|afternoon|evening|admission"
    r"|stay)|today|yesterday|during (?:this|the) (?:admission|stay|hospitalization)|on (?:hospital )?day|HD ?#?\d|POD"
    r"|(?:hospital )?day \d|without complication)",
    re.IGNORECASE,
)
_DEVICES = "Z95.0|Z95.81|Z96.0|Z97.5|Z93"
_TEACHING = re.compile(
    r"\b(?:hand-?outs?|leaflets?|brochures?|pamphlets?|education(?:al)? material|warning signs|instructed to return"
    r"|precautions|ppx:|prophylaxis:|patient education|discussed\b[^.\n]*\b(?:signs|risks?|prevention)|return if"
    r"|counsel\w+ (?:on|about|regarding)|come back if|seek care)(?<=[\w:])[^.\n]*$",
    re.IGNORECASE,
)
_PRESCRIBED = re.compile(
    r"\b(?:\d+ ?(?:mg|mcg|g|ml|units?|tabs?|puffs?|drops?)|(?:once|twice|three times)(?: a day| daily)|daily|bid|tid"
    r"|qid|q\d+h|every \d+ hours|prn|as needed)\b[^.;\n]*\bfor\b[^.;\n]*$",
    re.IGNORECASE,
)
_ALLERGY = re.compile(r"\b(?:allerg(?:y|ies|ic)|intoleran(?:t|ce)|adverse reactions?)\b[^.;\n]*$", re.IGNORECASE)
_CAUSED_BY_DRUG = re.compile(
    r"\b(?:makes?|made|gives?|gave|causes?|caused) (?:him|her|them|me|the patient|pt)\b[^.;\n]*$", re.I
)
_ITEM_END = re.compile(r"[;\n]|\.\s|, (?=[A-Za-z])|\s-\s+(?=[A-Z])")
_STRUCK = re.compile(
    r"[(–-] ?removed\b|\b(?:error|erroneous|removed from (?:\w+ )?(?:problem|list|chart|record|PMH|history)"
    r"|entered in error|disproven|not confirmed|never confirmed)\b",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"[\s,:;(–-]*(?:(?:has|have|is|are|was|now|completely|fully|since|clinically|entirely) )*(?:resolved|healed"
    r"|cleared)\b",
    re.I,
)
_OVER_SINCE = re.compile(  # "cellulitis of the leg, which resolved years ago"
    r"\b(?:resolved|healed|cleared|cured)\b[^.,;:\n]{0,20}\b"
    r"(?:(?:months|years|decades) ago|in (?:(?P<year>(?:19|20)\d\d)|childhood|infancy)|as a child)\b",
    re.IGNORECASE,
)
_YEARS_AGO = re.compile(r"[ :,]*[\"“'(]?(?:many |several )?(?:years|decades) ago\b", re.IGNORECASE)
_SAME_DISEASE = re.compile(  # what may stand between a disease and that it is over
    r"(?:(?!\b(?:and|or|but|while|not|never)\b)[^.,;:\n])*"
    r"(?:, ?(?:(?:which|that|has|have|had|is|was|now|since|completely|fully|entirely|long) )*)?",
    re.IGNORECASE,
)
_AFTERMATH = "Z00-Z99|I25.2|I69"  # codes of what is over
_RESOLVED = re.compile(r"\bresolved\b|\bcured\b|\bdelivered\b|\bmiscarriage\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_OLD_LIST = re.compile(r"problem list|past|prior|pmh|copied|carried|imported|history", re.IGNORECASE)
_PAST = re.compile(r"\b(?:history|h/o|hx|pmhx?|personal|previous(?:ly)?|past)\b", re.IGNORECASE)
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*•]|\d{1,2}[.)])[ \t]*\S")


class Objection(NamedTuple):
    """The rule by which a mention does not count, and the reason in a sentence."""

    rule: str
    reason: str


def objection(draft: Draft, span: Span, code: str) -> Objection | None:
    """Why a mention of a code does not count; None if it does."""
    context = draft.context(span)
    sentence = draft.sentence(span.start)
    before = draft.text[max(sentence.start, span.start - _WINDOW) : span.start]
    after = draft.text[span.end : span.end + _WINDOW]
    kind = draft.section_kind(span.start)
    is_description = words_of(draft.text[span.start : span.end]) == words_of(draft.table.description(code))
    if (context.negated and not is_description) or _ANSWERED_NO.match(after):
        return Objection("negated", "the note denies it")
    is_taught = (code[0] != "Z" and _TEACHING.search(before)) or (
        not matches(_ADVISED, code) and is_advice(draft, span)
    )
    # The word that makes a screening hypothetical is part of the name of its code.
    is_screening = matches("Z11-Z13", code) and "screen" in draft.text[span.start : span.end].lower()
    if (context.hypothetical and not is_screening) or is_taught:
        return Objection("hypothetical", "the note mentions it only as a possibility in the future")
    if not is_description and _CLAUSE.search(draft.text, span.start, span.end):
        return Objection("fragment", "its words belong to different parts of the sentence")
    if _is_fragment(draft, span, code):
        return Objection("fragment", "its words belong to different conditions")
    if _is_of_other_person(draft, code, before, after, context.family):
        return Objection("relative", "the note says it of another person")
    if code[0] in "ABJU" and _EXPOSED.search(before):
        return Objection("contact", "the note says it of a contact")
    if code[0] != "Z" and (_NAME.match(after) or _DIET.search(before)):
        return Objection("name", "it is part of the name of a place, a test or a service")
    is_first = sentence.start <= draft.section_body(span.start)
    if _is_reaction(code, kind, before, draft.text[span.start : span.end], is_first):
        return Objection("allergy", "it is the reaction to a substance that the patient avoids")
    if matches(SYMPTOMS, code) and _PRESCRIBED.search(before):
        return Objection("indication", "it is what a drug is taken for, if it occurs")
    is_asked = "?" in draft.text[span.start : span.end] or bool(_ASKED.match(after) or _ASKED_BEFORE.search(before))
    is_supposed = _is_alternative(draft, span, before, after) or _is_tentative(draft, before)
    is_uncertain = context.uncertain or is_asked or is_supposed
    if (is_uncertain or _LIKE.search(before)) and (reason := _doubt(draft, span, code, kind, before)):
        return Objection("uncertain", reason)
    if is_ruled_out(draft, span, code, certain_section=_is_listed(draft, span, kind) and not is_uncertain):
        return Objection("ruled-out", "the note says that it was ruled out")
    if context.historical and code[0] != "Z" and draft.assessment.is_discussion and _is_detail(draft, span):
        return Objection("past", "the assessment mentions it only as history")
    if code[0] != "Z" and _YEARS_AGO.match(after):
        return Objection("past", "the note says that it was years ago")
    if _was_over_before(draft, code, after) or (
        (context.historical or not draft.encounter.is_inpatient) and code[0] != "Z" and _OVER.match(after)
    ):
        return Objection("resolved", "the note says that it is over")
    if draft.encounter.is_inpatient and code[0] != "Z" and _CONSIDERED.match(after):
        return Objection("uncertain", "II.H: it was not a diagnosis at discharge")
    if matches(_DEVICES, code) and (_NOT_YET.search(before) or _PLACED_NOW.match(after)):
        return Objection("device", "the patient did not have it before this encounter")
    if is_resolved(draft, span, code):
        return Objection("resolved", "the report says that it has resolved")
    if (code[0] != "Z" or matches("Z33|Z34|Z3A", code)) and _is_struck(draft, span, code):
        return Objection("copied", "the note says that it is over or was entered in error")
    if matches("Z87|!Z87.891|!Z87.5|!Z87.7", code) and not _PAST.search(f"{draft.section_title(span.start)} {before}"):
        return Objection("past", "an event that is over and has no bearing on this encounter")
    if draft.encounter.role == "pathology" and kind != "discharge_diagnosis" and _has_finding(draft):
        return Objection("report", "the final diagnosis of the report is coded")
    return None


def _is_listed(draft: Draft, span: Span, kind: str) -> bool:
    """Whether a mention is in the list of final diagnoses, and not in the paragraphs that follow it."""
    if kind not in _FINAL:
        return False
    before = draft.text[draft.section_body(span.start) : span.start].lstrip()
    line = draft.text.rfind("\n", 0, span.start) + 1
    return "\n\n" not in before or _LIST_ITEM.match(draft.text, line) is not None


def _is_fragment(draft: Draft, span: Span, code: str) -> bool:
    """Whether the words of a mention name other conditions: "type 2 with CKD" is not stage 2."""
    words = draft.text[span.start : span.end]
    if code.startswith(("C77", "C78", "C79.8", "C79.9")) and _PRIMARY_WITH_SPREAD.search(words):
        return True
    if words.endswith(" s") or (code.startswith("N1") and _TWO_KIDNEY_TERMS.search(words)):  # "fx s/p", "UTI with AKI"
        return True
    if _NUMBER_FIRST.match(words) and _NUMBERED.search(draft.table.description(code)):
        return True
    return code.startswith("I27") and bool(_PULMONARY_EDEMA.search(words))


def _was_over_before(draft: Draft, code: str, after: str) -> bool:
    """Whether a disease no longer existed long before the encounter, which no setting codes (III.A, IV.J)."""
    found = _OVER_SINCE.search(after)
    if found is None or not _SAME_DISEASE.fullmatch(after, 0, found.start()) or matches(_AFTERMATH, code):
        return False
    return not found["year"] or not draft.encounter.date or found["year"] < draft.encounter.date[:4]


def _is_alternative(draft: Draft, span: Span, before: str, after: str) -> bool:
    """Whether a report leaves open which of two diseases it is: "atelectasis or pneumonia"."""
    if draft.encounter.role == "attending":
        return False
    return _OR_AFTER.match(after) is not None or _OR_BEFORE.search(before) is not None


def _is_detail(draft: Draft, span: Span) -> bool:
    """Whether a mention is in the details of a problem of an outpatient visit."""
    return not draft.encounter.is_inpatient and draft.assessment.place(span) == DETAIL


def _is_tentative(draft: Draft, before: str) -> bool:
    """Whether the physician of a visit only supposes what follows."""
    return not draft.encounter.is_inpatient and bool(_TENTATIVE.search(before)) and not _KNOWN.search(before)


def _is_of_other_person(draft: Draft, code: str, before: str, after: str, family: bool) -> bool:
    if _RECIPIENT.search(before):
        return code[0] != "Z" or matches("Z80-Z84", code)
    if (_MATERNAL.search(before) or _OF_RELATIVE.match(after)) and draft.is_newborn:
        return code[0] != "P" and not matches("Z38|Z05|Z23", code)
    return code[0] != "Z" and (family or bool(_OF_RELATIVE.match(after) or _SAID_OF_OTHER.search(before)))


def _is_reaction(code: str, kind: str, before: str, words: str, is_first: bool) -> bool:
    """is_first: the mention is in the first sentence of its section."""
    if kind == "allergies" and is_first:
        return code[0] != "Z" and not matches("J30|J45|L20|L23|L24|L25", code)
    if "(" in words or "allerg" in words.lower():  # "allergic to amoxicillin (hives", "PCN allergy - hives"
        before += words
    return matches(_REACTIONS, code) and bool(
        kind == "allergies" or _ALLERGY.search(before) or _CAUSED_BY_DRUG.search(before)
    )


def _has_finding(draft: Draft) -> bool:
    """Whether the findings or the impression of a report name a disease for certain."""
    for suggestion in draft.suggestions:
        for item in suggestion.evidence if suggestion.accepted and suggestion.code[0] not in "RZ" else ():
            context = draft.context(Span(item.start, item.end))
            before = draft.text[draft.sentence(item.start).start : item.start]
            is_stated = not (context.negated or context.uncertain or context.hypothetical or _LIKE.search(before))
            if is_stated and draft.section_kind(item.start) in ("findings", "impression", "discharge_diagnosis"):
                return True
    return False


def _doubt(draft: Draft, span: Span, code: str, kind: str, before: str) -> str:
    """Why an uncertain diagnosis is not coded; "" if it is."""
    if matches("Z80-Z90", code):
        return "an uncertain history or status is not coded"
    if code[0] == "Z" or (matches(f"{_REASONS}|{_PAINS}", code) and not draft.encounter.is_inpatient):
        return ""
    if matches(_CONFIRMED_ONLY, code):
        return "only confirmed cases of this disease are coded"
    if not draft.encounter.is_inpatient:
        return "IV.H: an uncertain diagnosis is not coded for an outpatient"
    if kind in _FINAL:
        return ""
    if _ON_ARRIVAL.search(re.split(r",|;|\bbut\b", before)[-1]):
        return "II.H: it was not a diagnosis at discharge"
    triggers = draft.uncertain_triggers(span)
    is_open = not triggers and not _LIKE.search(before)  # "?CHF"
    if is_open or any(_TO_EXAMINE.search(trigger) for trigger in triggers):
        return "II.H: it was not a diagnosis at discharge"
    has_final = any(section.kind in _FINAL for section in draft.sections)
    if kind in _EARLY_OR_TESTS or (kind == "start" and has_final):
        return "II.H: it was not a diagnosis at discharge"
    return ""


def _is_struck(draft: Draft, span: Span, code: str) -> bool:
    """Whether the item of a list says that the condition is over or was an error."""
    line_start, line_end = draft.text.rfind("\n", 0, span.start) + 1, draft.text.find("\n", span.end)
    line_end = line_end if line_end >= 0 else len(draft.text)
    if _LIST_ITEM.match(draft.text, line_start):
        item = draft.text[line_start:line_end]
    else:
        item = _ITEM_END.split(draft.text[span.end : line_end], maxsplit=1)[0]
    if code[0] in "VWXY":
        return _YEAR.match(item.strip(" ,(")) is not None
    if _STRUCK.search(item):
        return True
    title = f"{draft.section_title(span.start)} {_list_title(draft.text, span.start)}"
    is_old = _OLD_LIST.search(title) is not None
    if not is_old:
        return False
    return bool(_RESOLVED.search(item)) or (is_past_event(code) and bool(_YEAR.search(item)))


def _list_title(text: str, position: int) -> str:
    """The line above the list around a character, or what stands before it in its line."""
    start = text.rfind("\n", 0, position) + 1
    if not _LIST_ITEM.match(text, start):
        return text[start:position]
    while start and _LIST_ITEM.match(text, start):
        start = text.rfind("\n", 0, start - 1) + 1
    return text[start : text.find("\n", start)]
