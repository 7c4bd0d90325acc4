"""The standard spelling of codes: I50.9, 428.0, 39.95, 02HV33Z for inputs such as i509, 4280, "I10.", 4.0."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from nosology.core import SYSTEMS, Code, CodeError

DOTTED_ICD10CM = r"[A-Z](?:\d[0-9A-Z]|A\d)(?:\.[0-9A-Z]{1,4})?"
"""The pattern of ICD-10-CM codes in texts; no word such as CAN matches it."""
_ICD10CM = re.compile(r"[A-Z][0-9A][0-9A-Z][0-9A-Z]{0,4}")  # QA0 is new in 2026
_ICD10PCS = re.compile(r"[0-9A-HJ-NP-Z]{1,7}")
_ICD9CM = re.compile(r"(?:[0-9]{1,3}|E[0-9]{1,3}|V[0-9]{1,2})(?:\.[0-9]{1,2})?")
_LETTERS = "letters O and I read as digits 0 and 1"
_ICD9PROC = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,2})?")


class ParsedCode(NamedTuple):
    """A code in its standard spelling, and in words what was repaired or remains ambiguous."""

    code: Code
    repairs: tuple[str, ...] = ()


def normalise(raw: str, system: str) -> Code:
    """The code in its standard spelling; CodeError if the text cannot be a code of the system.

    The code need not exist; see `is_known` and `is_valid`.
    """
    return _parse(str(raw), system).code


def parse(raw: str, system: str | None = None) -> ParsedCode:
    """The code in its standard spelling, with its repairs; without a system the most plausible one is taken."""
    return _parse_any_system(str(raw)) if system is None else _parse(str(raw), system)


@lru_cache(maxsize=1 << 17)
def _parse(raw: str, system: str) -> ParsedCode:
    if system not in SPELLERS:
        raise CodeError(f"system must be one of {', '.join(SYSTEMS)}; got {system}")
    compact = "".join(raw.split())
    text = compact.upper().rstrip(".-")
    spelled, fixes = SPELLERS[system](text) if text.count(".") < 2 else ("", [])
    if not spelled:
        raise CodeError(f"not an {system} code: {_excerpt(raw)}")
    repairs = ["blanks removed"] * (compact != raw) + ["upper case"] * (compact.upper() != compact)
    repairs += ["stray dot removed"] * (len(text) != len(compact)) + fixes
    if spelled.count(".") > text.count("."):
        repairs.append("dot added")
    elif spelled.replace(".", "") == text.replace(".", "") and spelled != text:
        repairs.append("dot moved" if "." in spelled else "dot removed")
    return ParsedCode(Code(system, spelled), tuple(repairs))


def _excerpt(raw: str) -> str:
    """A raw code for a message, shortened because a wrong column may have note text."""
    return repr(raw if len(raw) <= 12 else raw[:12] + "...")


def _icd10cm(text: str) -> tuple[str, list[str]]:
    bare = text.replace(".", "")
    if not _ICD10CM.fullmatch(bare):
        return "", []
    return (f"{bare[:3]}.{bare[3:]}" if len(bare) > 3 else bare), []


def _icd10pcs(text: str) -> tuple[str, list[str]]:
    bare = text.replace(".", "").replace("-", "")
    fixes = []
    if "O" in bare or "I" in bare:  # ICD-10-PCS does not use these letters
        bare = bare.replace("O", "0").replace("I", "1")
        fixes.append(_LETTERS)
    if not _ICD10PCS.fullmatch(bare):
        return "", []
    if bare.isdigit() and 4 < len(bare) < 7 and _exists("icd10pcs", bare.zfill(7)):
        bare = bare.zfill(7)
        fixes.append("leading zeros restored")
    return bare, fixes


def _icd9(text: str, system: str, pattern: re.Pattern[str]) -> tuple[str, list[str]]:
    """Puts the dot after the category and restores leading zeros that a spreadsheet has removed."""
    letter = text[:1] if system == "icd9cm" and text[:1] in ("E", "V") else ""
    width = 2 if letter == "V" or system == "icd9proc" else 3
    if "." in text:
        if not pattern.fullmatch(text):
            return "", []
        stem, digits = text[len(letter) :].split(".")
        padded = letter + stem.zfill(width) + "." + digits
        return padded, ["leading zeros restored"] if padded != text else []
    number = text[len(letter) :]
    plain = letter + number.zfill(width)
    if len(number) > width:
        plain = f"{letter}{number[:width]}.{number[width:]}"
    if not pattern.fullmatch(plain) or not number:
        return "", []
    if len(number) < width:
        return plain, ["leading zeros restored"]
    if letter or len(number) >= width + 2 or number.startswith("0"):
        return plain, []
    with_zero = f"0{number[: width - 1]}.{number[width - 1 :]}"
    if not _exists(system, with_zero):
        return plain, []
    if _exists(system, plain):
        return plain, [] if len(number) > width else [f"or {with_zero}, if a leading zero was lost"]
    return with_zero, ["leading zeros restored"]


def _exists(system: str, code: str) -> bool:
    from nosology.codes.lookup import table

    return code in table(system)


SPELLERS: dict[str, Callable[[str], tuple[str, list[str]]]] = {
    "icd9cm": partial(_icd9, system="icd9cm", pattern=_ICD9CM),
    "icd9proc": partial(_icd9, system="icd9proc", pattern=_ICD9PROC),
    "icd10cm": _icd10cm,
    "icd10pcs": _icd10pcs,
}


def _parse_any_system(raw: str) -> ParsedCode:
    """The best reading: it exists and is billable; then ICD-10-CM, ICD-9-CM, ICD-10-PCS, ICD-9-CM procedures."""
    from nosology.codes.lookup import is_known, table

    text = "".join(raw.split()).upper().rstrip(".-")
    readings = []
    for system in ("icd10cm", "icd9cm", "icd10pcs", "icd9proc"):
        try:
            parsed = _parse(raw, system)
        except CodeError:
            continue
        # A dot shows where the category ends, and a replaced letter is too weak to choose a system.
        if ("." not in text or parsed.code.code == text) and _LETTERS not in parsed.repairs:
            readings.append(parsed)
    if not readings and "." in text:
        with suppress(CodeError):
            readings = [_parse(raw, "icd9cm")]
    if not readings:
        raise CodeError(f"not a code of {', '.join(SYSTEMS)}: {_excerpt(raw)}")
    if len(readings) == 1:
        return readings[0]
    existing = [parsed for parsed in readings if is_known(parsed.code)] or readings
    existing.sort(key=lambda parsed: not table(parsed.code.system).billable(parsed.code.code))
    best, *others = existing
    if not others:
        return best
    alternatives = ", ".join(str(parsed.code) for parsed in others)
    return ParsedCode(best.code, (*best.repairs, f"read as {best.code.system}; it may also be {alternatives}"))
