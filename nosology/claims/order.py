"""The order of a claim: the principal (first-listed) diagnosis, forced orders, and present on admission."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nosology.claims.assessment import STATEMENT
from nosology.claims.checks import asks_for_all, code_first_notes
from nosology.claims.draft import Draft, Entry, matches
from nosology.claims.rules import rules_by_id
from nosology.codes.poa import is_poa_exempt
from nosology.codes.tabular import code_references
from nosology.core import Span

# Sections in which a note names what the encounter was for, best first; in any other the rank is _OTHER_SECTION.
_SECTION_RANK = {"discharge_diagnosis": 0, "impression": 1, "assessment": 2, "admission_diagnosis": 3}
_REASON_RANK, _PROBLEM_RANK, _OTHER_SECTION = 4, 2, 5
_BACKGROUND = (
    "past_medical_history", "surgical_history", "family_history", "social_history", "medications",
    "discharge_medications", "allergies", "review_of_systems", "problem_list",
)  # fmt: skip
_PRINCIPAL = re.compile(r"\W*\b(?:principal|primary)\b[^\n:]*:", re.IGNORECASE)
_ADMITTED = re.compile(
    r"\b(?:re-?)?(?:adm(?:it(?:ted)?|ission)?|hospitalized|transferred)\b[^.;\n]{0,20}?\b(?:for|with|w/|because of"
    r"|due to|2/2)"
    r"[^.;\n]*$|\breason for admission\b[^.\n]*$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\b(?:admitted (?:for|with|because of|due to)|present(?:s|ed|ing)? (?:with|for|w/)|p/w|c/o|here (?:for|because)"
    r"|reason for (?:admission|visit|encounter)|brought in (?:for|with)|BIB\w*|sent (?:for|with|in)|came (?:in )?with"
    r"|found (?:to have|with)|follow[- ]?up (?:for|of)|indication)\b[^.;\n]*$",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?:\b(?:h/o|hx(?: of)?|history of|PMHx?|PSH|known|s/p|background of|with a history of|chronic)\b"
    r"|\b(?:M|F|man|woman|male|female|gentleman|lady|yo|y/o)\b,?\s(?:\([^)]*\)\s?)?(?:w/|with|c)\s?)"
    r"(?:(?!\b(?:adm\w*|p/w|present\w*|c/o|here|sent|brought|BIB\w*|found|came|who|now|transferred|s/p fall"
    r"|fell)\b|→|->)[^.\n])*$",
    re.IGNORECASE,
)
_SAME = re.compile(r"\bpost-?op(?:erative)? (?:diagnos[ei]s|dx)\s*:\s*same\b", re.IGNORECASE)
_OPENING = 300  # characters at the start of a note with patient, known diseases and reason
_PATIENT = re.compile(r"\b\d{1,3}[ -]?(?:y/?o|yo|year[- ]old|y\.o\.)?[ -]?(?:M|F|male|female|man|woman|boy|girl)\b")
_REASON_STARTS = re.compile(
    r"[;→]|->|\b(?:adm\w*|p/w|present(?:s|ed|ing)|c/o|sent|brought|BIB\w*|found|came|here|transferred|readmit\w*"
    r"|w/ \d+ ?d)\b"
    r"|\.\s+(?=(?:Found|Adm|Sent|BIB|Present|Came|Here|Today|Now|C/o)\w*\b)",
    re.IGNORECASE,
)
# Operations of this stay and the conditions that they treat.
_OPERATIONS = tuple(
    (
        re.compile(rf"(?<!prior )(?<!previous )(?<!hx )\b(?:{operation})\b(?! (?:in )?(?:19|20)\d\d)", re.IGNORECASE),
        pattern,
    )
    for operation, pattern in (
        (
            r"POD ?#?\d+[^.;\n]{0,12}(?:TKA|THA|TKR|THR)|elective (?:total|TKA|THA)|total (?:knee|hip"
            r"|shoulder) arthroplasty",
            "M16|M17|M19|M87",
        ),
        (r"CABG x ?\d", "I25.1"),
        (r"(?:lap\w*|open) (?:chole\w*|appy|appendectomy)", "K80|K81|K35"),
        (
            r"(?:colectomy|hemicolectomy|LAR|APR|Whipple|lobectomy|mastectomy|nephrectomy|prostatectomy|cystectomy|esophagectomy)",
            "C15-C67|K57",
        ),
        (r"hernia repair|herniorrhaphy|hernioplasty", "K40-K46"),
        (r"laminectomy|discectomy|ACDF|PLIF|TLIF|spinal fusion", "M43|M47|M48|M50|M51"),
        (r"TAVR|AVR", "I35|I06|I08"),
        (r"EVAR|aneurysm repair", "I71"),
        (r"hysterectomy|TLH|TAH", "D25|N80|N81|N92|C53-C55"),
        (r"TURP|HoLEP", "N40"),
        (r"thyroidectomy", "C73|E04|E05"),
        (r"sleeve gastrectomy|gastric bypass|RYGB", "E66"),
    )
)
_PROBLEM = re.compile(r"[ \t]*(?:#+ ?(?:\d{1,2}[.):]?)?|\d{1,2}[.):]|[-•*])[ \t]*")
_TITLE_LENGTH = 80  # characters of a problem's line that name the problem

# Diseases of long standing: they do not arise during a stay and rarely cause an admission by themselves.
_CHRONIC = (
    "I10|I11.9|I12|I25.10|I25.2|I25.5|I25.8|I48.1|I48.2|I73.9|E03|E04|E05.00|E08-E13|!E08.0|!E08.1|!E09.0|!E09.1|!E10.1"
    "|!E11.0|!E11.1|!E13.0|!E13.1|!E10.64|!E11.64|!E11.52|!E10.52|!E11.621|!E10.621|!E11.628|E66|E78|E55|E53|E79|J44.9"
    "|J45.20|J45.30|J45.40|J45.50|J45.909|J43|J96.1|N18|N40|N25|N20.0|K21|K58|K59.0|K76.0|K57.30|K57.90|K74|K76.6|M10.9"
    "|M15-M19|M81|M06.9|M05|M87|F17|F32.A|F41|F10.20|F11.20|F12|F14.20|F15.20|F43.1|F60|F90|G20|G30|F01-F03|G40.909|G47"
    "|G62|G25|H25-H26|H35|H40|D63|B18|B35|L40|I50.22|I50.32|I50.42|I51|D57.1|Q|I69|I27.2|C77-C79"
)
# Findings and complications that are rarely what an admission was for.
_SECONDARY = (
    "I48.91|D50.9|D64.9|D69.6|D62|E87.6|E83.42|E83.39|E46|E44|E43|R13|R47|L89|G81|I50.9|K92.0|K92.1|K56.7|J90|J98.11"
)
_SYMPTOMS = "R00-R99|G89|!R57|!R78.81|!R65"

# (pattern, class): the lowest class comes first, whatever the note names first. Classes 0 to 2 are forced to the front.
_CLASSES = (
    ("Z38", 0),  # birth of a newborn: I.C.16.a.2
    ("Z51.0|Z51.11|Z51.12", 0),  # encounter solely for radiotherapy, chemotherapy or immunotherapy: I.C.2.e.2
    ("Z00", 0),  # a screening is a part of a routine examination: I.C.21.c.5
    ("O00-O48|O60|O61|O80|O82", 1),  # chapter 15 has priority (I.C.15.a.1), what led to the admission first
    ("O62-O69|O85-O88", 1.1),
    ("O71-O77|O90-O92", 1.2),
    ("O70|O89|O94-O9A", 1.3),
    ("R65|R29.7|R40.2", 7),  # never first
    ("Z37|Z3A|Z66|Z68|Z79|Z80-Z99|Z55-Z65|Z71-Z78|Z14-Z23|Z28|Z33|B95-B97|Y90", 8),
    ("T31|T32", 8),
    ("V00-Y99", 9),
)
_ENCOUNTER_CODES = "Z00|Z01|Z02|Z11|Z12|Z13|Z08|Z09|Z52|Z34|Z31|Z30|Z47|Z48|Z49.0"  # I.C.21.c.16, outpatients
_INPATIENT_ENCOUNTERS = "Z52|Z47|Z48|Z49.0|Z43|Z44|Z45|Z46"
_SEPSIS = "A40|A41|A02.1|A22.7|A26.7|A32.7|A42.7|B37.7|P36"  # sepsis on admission: I.C.1.d.4
_DEVICE_INFECTION = "T80.2|T81.4|T82.6|T82.7|T83.5|T83.6|T84.5|T84.6|T84.7|T85.7|O86.0"  # I.C.1.d.5.b
_HIV_RELATED = "A15-A19|A31|B00-B02|B25|B37|B39|B45|B58|B59|A07.2|C46|C83|C85|A81.2|J13-J18|R64|E88.A"
_COVID_MANIFESTATIONS = "J12.82|J80|J96.0|J96.2|J20.8|J22|J40|J98.8"
# Causes that a code-first note does not name by code.
_CAUSES = (("I85.1", "K70|K71|K74"), ("G93.5|G93.6|G83.84|R56.9", "C79.3|C70|C71"))
_DIAGNOSIS = 4  # the class of most diagnoses
_UNLIKELY, _LIKELY = 0.45, 0.6
_POISONING = re.compile(r"T(?:3[6-9]|4\d|50|5[1-9]|6[0-5])\.[0-9A-Z]{2}[1-4]")
_ADVERSE = re.compile(r"T(?:3[6-9]|4\d|50)\.[0-9A-Z]{2}[56]")
# Injuries by severity, the most severe first (I.C.19.b).
_SEVERITY = (
    "S06|S14.1|S24.1|S34.1|S25|S26|S35|S15|!S06.0",
    "S27|S36|S37|T20.3|T21.3|T22.3|T23.3|T24.3|T25.3|T27",
    "S12|S22.0|S32|S72",
    "S02|S22|S42|S52|S62|S82|S92|S06.0|M80|T20.2|T21.2|T22.2|T23.2|T24.2|T25.2",
    "S03|S13|S23|S33|S43|S53|S63|S73|S83|S93|S46|S56|S66|S76|S86|S96",
    "S01|S11|S21|S31|S41|S51|S61|S71|S81|S91",
)
_ACQUIRED = re.compile(
    r"\b(?:hospital[- ]acquired|nosocomial|post-?op(?:erative(?:ly)?)?|HD ?#?\d+|POD ?#?\d+|hospital day|developed"
    r"|ventilator[- ]associated|VAP|vent(?:ilator)? day|postprocedural"
    r"|(?:course|stay) (?:was )?complicated by|overnight|during (?:the )?(?:admission|stay|hospitalization))\b",
    re.IGNORECASE,
)
_PRESENT = re.compile(r"\b(?:POA|present on admission|on arrival|on admission|prior to admission|PTA)\b", re.IGNORECASE)
_AFTER_OPERATION = re.compile(r"post-?op|POD", re.IGNORECASE)
_READMITTED = re.compile(r"\bre-?admi|\breturn(?:s|ed) (?:to|with)\b|\bre-?present|\bcame back\b", re.IGNORECASE)
_SUMMARIES = ("discharge_diagnosis", "impression", "assessment")  # lists that tell no time


def ordered(draft: Draft) -> list[Entry]:
    """The entries in billing order."""
    explained = _explained(draft)
    entries = sorted(
        draft.entries.values(), key=lambda entry: (_class(draft, entry), _place(draft, entry, entry.code in explained))
    )
    result = _code_first(draft, _by_severity(entries))
    likely = [entry for entry in result if entry.probability >= _LIKELY and _class(draft, entry) <= _DIAGNOSIS]
    if likely and result[0].probability < _UNLIKELY and _best_rank(draft, result[0]) == _best_rank(draft, likely[0]):
        result.remove(likely[0])  # an unlikely code is not what the encounter was for
        result.insert(0, likely[0])
    return result


def _class(draft: Draft, entry: Entry) -> float:
    """The class of a code; 4 for most diagnoses, the lower the earlier."""
    code, is_inpatient = entry.code, draft.encounter.is_inpatient
    if _POISONING.match(code):
        return 2  # before its manifestations: I.C.19.e.5.b
    if _ADVERSE.match(code):
        return 7
    found = next((value for pattern, value in _CLASSES if matches(pattern, code)), None)
    if found is not None:
        return found
    if matches(_ENCOUNTER_CODES, code) and not is_inpatient:
        return 1
    if code[0] == "Z":
        return _DIAGNOSIS if is_inpatient and matches(_INPATIENT_ENCOUNTERS, code) else 7
    if is_inpatient and present_on_admission(draft, entry) != "N":
        if matches(_DEVICE_INFECTION, code) and draft.matching(_SEPSIS):
            return 1.9
        if matches(_SEPSIS, code):
            return 2
    if code == "U07.1" and draft.matching(_COVID_MANIFESTATIONS):
        return 2  # I.C.1.g.1.a
    if code == "B20" and draft.matching(_HIV_RELATED):
        return 2  # I.C.1.a.2.a
    return _DIAGNOSIS


def _by_severity(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with the injuries among them in the order of their severity, if an injury comes first."""
    is_injury = [any(matches(pattern, entry.code) for pattern in _SEVERITY) for entry in entries]
    if not is_injury or not is_injury[0]:
        return list(entries)
    injuries = iter(sorted((entry for entry, found in zip(entries, is_injury) if found), key=_severity))
    return [next(injuries) if found else entry for entry, found in zip(entries, is_injury)]


def _severity(entry: Entry) -> float:
    rank = next(number for number, pattern in enumerate(_SEVERITY) if matches(pattern, entry.code))
    return rank - 1.5 * (len(entry.code) == 8 and entry.code[-1] in "BC")  # an open fracture is worse than a closed one


def _explained(draft: Draft) -> frozenset[str]:
    """The codes that explain a symptom for which the patient came: integral symptoms of the reason or complaint."""
    found: set[str] = set()
    for item in draft.left_out:
        rule = rules_by_id().get(item.rule)
        if rule is None or rule.family != "integral" or not rule.codes:
            continue
        if any(_is_complaint(draft, span.start) for span in item.evidence):
            found |= {entry.code for entry in draft.matching(rule.codes[0]) if not matches(_SYMPTOMS, entry.code)}
    return frozenset(found)


def _is_complaint(draft: Draft, position: int) -> bool:
    before = draft.text[draft.sentence(position).start : position]
    is_reason = _REASON.search(before) or _ADMITTED.search(before)
    return draft.section_kind(position) == "chief_complaint" or is_reason is not None


def _best_rank(draft: Draft, entry: Entry) -> int:
    """Rank of the best section that mentions a code."""
    return min((_section_rank(draft, span.start) for span in entry.evidence), default=_OTHER_SECTION)


def _place(draft: Draft, entry: Entry, explains: bool) -> tuple[float, list[int], str]:
    """Rank of the best section that mentions a code, with what speaks against the code, and the positions there."""
    best = _best_rank(draft, entry)
    places = [(_section_rank(draft, span.start), span.start) for span in sorted(entry.evidence)]
    starts = [start for rank, start in places if rank == best] or [len(draft.text)]
    rank = float(best)
    if draft.encounter.is_inpatient and best >= 0:  # what the note calls principal stays
        if not _is_treated(draft, entry.code):
            rank += 3 * (matches(_CHRONIC, entry.code) or matches(_SECONDARY, entry.code))
        rank += 2 * matches(_SYMPTOMS, entry.code)
        rank += 3 * (present_on_admission(draft, entry) == "N" and not entry.code.startswith("D57"))
        rank -= 0.5 * (explains and best > 0)
    return rank, starts, entry.code


def _is_treated(draft: Draft, code: str) -> bool:
    """Whether the note is about an operation for this condition."""
    return any(matches(pattern, code) and operation.search(draft.text) for operation, pattern in _OPERATIONS)


def _background(draft: Draft) -> Span:
    """The list of known diseases between age and sex at the start of a note and the reason of the encounter."""
    patient = _PATIENT.search(draft.text, 0, _OPENING)
    reason = _REASON_STARTS.search(draft.text, patient.end(), patient.end() + _OPENING) if patient else None
    return Span(patient.end(), reason.start()) if patient and reason else Span(0, 0)


def _section_rank(draft: Draft, position: int) -> int:
    section = next((it for it in draft.sections if it.span.start <= position < it.span.end), None)
    if section is None:
        return _OTHER_SECTION
    if section.kind in _BACKGROUND:
        return _OTHER_SECTION + 1
    line = draft.text.rfind("\n", 0, position) + 1
    if _PRINCIPAL.match(draft.text, line, position) or _PRINCIPAL.search(f"{section.title}:"):
        return -1
    if not draft.encounter.is_inpatient and draft.assessment.place(Span(position, position)) >= STATEMENT:
        return 0  # IV.G: the problems of a visit stand in the order of their importance
    rank = _SECTION_RANK.get(section.kind, _OTHER_SECTION)
    if rank < _OTHER_SECTION:
        return 0 if section.kind == "admission_diagnosis" and _SAME.search(draft.text) else rank
    before = draft.text[draft.sentence(position).start : position]
    if draft.encounter.is_inpatient:
        if section.kind == "hospital_course" and _is_title(draft.text, line, position):
            return _PROBLEM_RANK
        if _ADMITTED.search(before) or section.kind == "chief_complaint":
            return _PROBLEM_RANK
        known = _background(draft)
        if known.start <= position < known.end or _KNOWN.search(before):
            return _OTHER_SECTION + 1
        if 0 < known.end <= position < known.end + _TITLE_LENGTH:
            return _REASON_RANK
    return _REASON_RANK if section.kind == "hpi" or _REASON.search(before) else rank


def _is_title(text: str, line: int, position: int) -> bool:
    """Whether a position is in the name of a problem at the start of a line: "# Pneumonia", "1. Sepsis"."""
    marker = _PROBLEM.match(text, line)
    return (
        marker is not None
        and position - marker.end() < _TITLE_LENGTH
        and not re.search(r"[.;:]\s", text[line + 4 : position])
    )


def _code_first(draft: Draft, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with each code after one that its code-first notes name, or after all associated ones."""
    result = list(entries)
    for entry in entries:
        notes = code_first_notes(draft.table, entry.code).values()
        needs_all = any(asks_for_all(group) for group in notes)
        wanted = [reference for group in notes for note in group for reference in code_references(note)]
        causes = [pattern for code, pattern in _CAUSES if matches(code, entry.code)]
        named = [
            it
            for it in result
            if any(reference.covers(it.code) for reference in wanted)
            or any(matches(cause, it.code) for cause in causes)
        ]
        for first in named if needs_all else named[:1]:
            if result.index(first) > result.index(entry):
                result.remove(first)
                result.insert(result.index(entry), first)
    return result


def present_on_admission(draft: Draft, entry: Entry) -> str:
    """The indicator of an inpatient's diagnosis: Y, N, 1 (exempt), or "" for other settings."""
    if not draft.encounter.is_inpatient:
        return ""
    if is_poa_exempt(entry.code, draft.encounter.date or None):
        return "1"
    if matches(_CHRONIC, entry.code):
        return "Y"
    mentions = [span for span in entry.evidence if draft.section_kind(span.start) not in _SUMMARIES] or entry.evidence
    return "N" if mentions and _is_acquired(draft, min(mentions)) else "Y"


def _is_acquired(draft: Draft, span: Span) -> bool:
    """Whether the sentence of a mention says that the condition arose during the stay."""
    sentence = draft.sentence(span.start)
    text = draft.text[sentence.start : sentence.end]
    if _PRESENT.search(text):
        return False
    found = _ACQUIRED.search(text)
    return found is not None and not (_AFTER_OPERATION.match(found[0]) and _READMITTED.search(draft.text))
