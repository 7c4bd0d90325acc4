"""The encounter of a note: setting, date and patient, as stated by the caller or else read from the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from nosology.claims.encounter_values import iso_date
from nosology.codes import release_on
from nosology.core import CodeError, ConfigError, Note
from nosology.text.borders import documents_of
from nosology.text.sections import sections

SETTINGS = ("inpatient", "outpatient", "emergency")
ROLES = ("attending", "radiology", "pathology")
FIELDS = ("setting", "date", "sex", "age", "admitted", "discharged", "role", "disposition")

_AGE = re.compile(
    r"\b(?P<age>\d{1,3})[ -]?(?:y/?o\b|yo\b|y\.o\.|yrs?\b[ -]?old|years?[ -]old|year[ -]old|yr\b)"
    r"|\b(?:Pt:?\s*)?(?P<short>\d{1,3})\s?(?P<sex>[MF])\b(?!/)"
    r"|\bage:?\s*(?P<label>\d{1,3})\b",
    re.IGNORECASE,
)
_MONTHS = re.compile(
    r"\b(\d{1,2})[ -]?(?:mo\b|months?[ -]old|month[ -]old|weeks?[ -]old|days?[ -]old|day[ -]old)", re.I
)
_FEMALE = re.compile(r"\b(?:woman|female|girl|lady|she|her|mrs|ms|baby girl|G\d+P\d+)\b")
_MALE = re.compile(r"\b(?:man|male|boy|gentleman|he|his|mr|baby boy)\b")
_GIRL, _BOY = r"\b(?:girl|female|FT F|term F)\b", r"\b(?:boy|male|FT M|term M)\b"
_SEX_LABEL = re.compile(r"\b(?:y/?o|yo|y\.o\.|old|sex:?)\s*(?P<sex>[MF])\b")
_INPATIENT = re.compile(
    r"\bdischarge (?:summary|diagnos[ei]s|dx)\b|\bd/?c (?:summary|note|dx)\b|\bhospital course\b|\badmit(?:ted)?:? "
    r"|\bdischarged (?:home|to|on|pod|ppd)\b|\bhospital day\b|\bHD ?\d\b|\bLOS ?\d|\bPOD ?\d|\bwas admitted\b"
    r"|\bdelivery (?:summary|note)\b|\bDC DX\b|\breason for admission\b",
    re.IGNORECASE,
)
_OUTPATIENT = re.compile(
    r"\b(?:clinic|office) (?:visit|note)\b|\bED (?:provider )?note\b|\bRTC\b|\breturn to clinic\b"
    r"|\b(?:presents?|comes in|returns?|seen|here) today\b|\bwho presents (?:for|to (?:the )?(?:clinic|office))\b"
    r"|\b(?:telehealth|video visit|follow-?up visit|office today|clinic today)\b|\boutpatient (?:visit|note)"
    r"|\b(?:exam|technique|comparison):|\bdischarged? home from (?:the )?ED\b",
    re.IGNORECASE,
)
_IMAGING = r"(?:CT|MRI|XR|VCUG|x-?ray|radiograph|ultrasound|sonogram|mammogram|cystourethrogram)"
_RADIOLOGY = re.compile(
    rf"^\s*(?:exam(?:ination)?|technique|comparison)\s*:|\b{_IMAGING}\b[^\n]*\n(?:.*\n){{0,6}}?\s*(?:findings|impression)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
_NEWBORN = re.compile(
    r"\b(?:newborn|neonat\w+|NICU|nursery|NBN|baby (?:boy|girl)|day of life|DOL ?#?\d+|birth ?weight|BW"
    r"|(?:early |late )?(?:pre)?term (?:male|female|boy|girl|infant|newborn|AGA|LGA|SGA)"
    r"|FT (?:male|female|M|F|boy|girl|infant)|twin [AB12])\b",
    re.IGNORECASE,
)
_MOTHER = re.compile(
    r"\bG\d+ ?P\d|\bPPD ?#?\d|\bpostpartum\b|\bdelivery (?:summary|note)\b|\bOB\b|\bobstetric|\bgravida\b"
    r"|\bpregnan|\bEBL\b|\bQBL\b|\bepidural\b|\bperineal\b|\bfundus\b|\blochia\b|\bIUP\b",
    re.IGNORECASE,
)
_INFANT = re.compile(r"\b\d{1,2}[ -]?(?:mo|m/o|months?)\b", re.IGNORECASE)
_HEADER = 300  # characters at the start of a note with the age of the patient
_REPORT_SECTIONS = frozenset(
    ("start", "other", "indication", "hpi", "impression", "findings", "technique", "results", "service")
)
_CLINIC_TITLE = re.compile(
    r"hpi|subjective|(?:history of )?(?:the )?present illness|interval history|chief complaint|cc|plan|a/?p"
    r"|assessment ?(?:/|and|&) ?plan"
    r"|(?:current |home )?med(?:ication)?s|ros|review of systems|social history|vitals?(?: signs)?",
    re.IGNORECASE,
)
_PATHOLOGY = re.compile(r"\bgross description\b|\bmicroscopic description\b|\bsurgical pathology\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Encounter:
    """What the guidelines ask about an encounter; a field that is not known is "" or None."""

    setting: str = "outpatient"
    date: str = ""
    sex: str = ""
    age: float | None = None
    role: str = "attending"
    release: str | None = None
    disposition: str = ""  # the patient discharge status of UB-04, two digits

    @property
    def is_inpatient(self) -> bool:
        return self.setting == "inpatient"

    @classmethod
    def of(cls, text: str, stated: Mapping[str, Any], system: str = "icd10cm") -> Encounter:
        """The encounter with the stated fields (see FIELDS); ConfigError.

        Fields that are not stated are read from the text; of several documents, one of a stay makes it a stay, and all
        must be reports to make the encounter one of radiology or pathology. The code set is that of the discharge, or
        of the date; for claims in ICD-9-CM, which are older than all known releases, the newest one.
        """
        setting = _one_of("setting", stated, SETTINGS) or guess_setting(text)
        role = _one_of("role", stated, ROLES) or _role_of_documents(text)
        _check_stay(stated)
        day = coding_day(stated)
        age, sex = _age(stated.get("age")), str(stated.get("sex") or "").upper()[:1]
        if sex not in ("", "F", "M"):
            raise ConfigError("sex must be F or M")
        guessed_age, guessed_sex = guess_patient(text)
        try:
            release = release_on(day) if day and system == "icd10cm" else None
            datetime.fromisoformat(day or "2000-01-01")
        except ValueError as error:
            raise ConfigError("date must be YYYY-MM-DD") from error
        except CodeError as error:
            raise ConfigError(str(error)) from error
        left = str(stated.get("disposition") or "").strip()
        return cls(setting, day, sex or guessed_sex, guessed_age if age is None else age, role, release, left)


def coding_day(stated: Mapping[str, Any]) -> str:
    """The day whose code set counts: that of the discharge, else the date, else the admission; "" if none is stated."""
    return str(stated.get("discharged") or stated.get("date") or stated.get("admitted") or "")[:10]


def with_coding_day(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the day whose code set counts as the date."""
    return {**stated, "date": coding_day(stated)}


def stated_fields(note: Note) -> dict[str, Any]:
    """The fields of the encounter among the columns of a note."""
    return {name: note.extra[name] for name in FIELDS if note.extra.get(name) not in (None, "")}


def _one_of(name: str, stated: Mapping[str, Any], allowed: tuple[str, ...]) -> str:
    value = str(stated.get(name) or "").strip().lower()
    if value and value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}")  # the value may be note text
    return value


def _check_stay(stated: Mapping[str, Any]) -> None:
    """Raises ConfigError for a stay whose days are none, or that ends before it starts."""
    came, left = (iso_date(stated.get(name)) for name in ("admitted", "discharged"))
    for name, day in (("admitted", came), ("discharged", left)):
        if stated.get(name) and day is None:
            raise ConfigError(f"{name} must be a day, YYYY-MM-DD")
    if came and left and left < came:
        raise ConfigError("discharged must not be before admitted")


def _age(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        age = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError("age must be a number of years") from error
    if not 0 <= age <= 130:
        raise ConfigError(f"age must be between 0 and 130 years; got {age:g}")
    return age


@lru_cache(maxsize=256)  # every check of a note's codes asks again
def guess_setting(text: str) -> str:
    """inpatient if the note, or one of its documents, is about a stay, else outpatient."""
    return "inpatient" if any(_is_about_stay(part.text) for part in documents_of(text)) else "outpatient"


def _is_about_stay(text: str) -> bool:
    inpatient, outpatient = _INPATIENT.search(text), _OUTPATIENT.search(text)
    return inpatient is not None and (outpatient is None or inpatient.start() < outpatient.start())


def _role_of_documents(text: str) -> str:
    roles = {_guess_role(part.text) for part in documents_of(text) if part.text.strip()}
    return roles.pop() if len(roles) == 1 else "attending"


@lru_cache(maxsize=256)  # every check of a note's codes asks again
def _guess_role(text: str) -> str:
    if _PATHOLOGY.search(text):
        return "pathology"
    found = sections(text)
    if any(_CLINIC_TITLE.fullmatch(section.title) for section in found):
        return "attending"
    kinds = {section.kind for section in found}
    is_report = not kinds.isdisjoint({"impression", "findings"}) and kinds <= _REPORT_SECTIONS
    return "radiology" if is_report or _RADIOLOGY.search(text) else "attending"


def is_newborn_note(text: str) -> bool:
    """Whether a note is about a newborn, and not about its mother or an infant of some months."""
    newborn = _NEWBORN.search(text)
    if newborn is None:
        return False
    others = (match.start() for pattern in (_MOTHER, _AGE) if (match := pattern.search(text)))
    return newborn.start() < min(others, default=len(text)) and not _INFANT.search(text, 0, _HEADER)


@lru_cache(maxsize=256)  # every check of a note's codes asks again
def guess_patient(text: str) -> tuple[float | None, str]:
    """Age in years and sex (F, M or "") as the note first states them."""
    age, sex = None, ""
    if is_newborn_note(text):
        female, male = (re.search(words, text, re.IGNORECASE) for words in (_GIRL, _BOY))
        is_female = female and (not male or female.start() < male.start())
        return 0.0, "F" if is_female else "M" if male else ""
    if match := _AGE.search(text):
        age = float(match["age"] or match["short"] or match["label"])
        sex = (match["sex"] or "").upper()
    if (months := _MONTHS.search(text)) and (match is None or months.start() < match.start()):
        age, sex = 0.0 if int(months[1]) < 12 else int(months[1]) // 12, ""
    if not sex and (label := _SEX_LABEL.search(text)):
        sex = label["sex"]
    if not sex:
        female, male = _FEMALE.search(text), _MALE.search(text)
        if female or male:
            sex = "F" if female and (not male or female.start() < male.start()) else "M"
    return (age if age is None or age <= 130 else None), sex
