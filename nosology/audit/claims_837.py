"""Bills of X12 837 files: institutional (005010X223) and professional claims (005010X222), read with pyx12.

Elements by their places in the standard: CLM01 is the patient control number, HI has diagnoses and procedures, DTP
dates, DMG birth date and sex of the patient, CL103 the discharge status. Names and addresses are not read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosology.audit.billed_codes import POA, Bill, Bills, in_order
from nosology.audit.finding import BilledCode
from nosology.claims.encounter_values import DISPOSITIONS, iso_date, years_between
from nosology.codes.spelling import parse
from nosology.core import CodeError, ConfigError, DataError
from nosology.corpora.text_files import decode, open_bytes

if TYPE_CHECKING:
    from pyx12.segment import Segment

CLAIM_IDS = ("account", "record")
"""What names the encounter of a claim: the patient control number (CLM01), or the medical record number (REF*EA)."""
_GUIDES = ("X222", "X223", "X096", "X098")  # in the version of the transaction
_INSTITUTIONAL = ("X223", "X096")
# Qualifiers of HI: the system and the place of its codes. The standard has ICD-9-CM under BK, BF and BN; some senders
# put ICD-10 there, so the code itself decides. Admitting diagnosis and reason for visit are not read.
_QUALIFIERS = {
    "ABK": ("icd10cm", 0),
    "BK": (None, 0),
    "ABF": ("icd10cm", 1),
    "BF": (None, 1),
    "ABN": ("icd10cm", 2),  # external causes
    "BN": (None, 2),
    "BBR": ("icd10pcs", 3),
    "BBQ": ("icd10pcs", 4),
}
_INPATIENT_BILLS = ("11", "18", "21", "41")  # the first digits of the type of bill
_SETTINGS = {
    **dict.fromkeys(("02", "10", "11", "17", "19", "20", "22", "49", "50", "72"), "outpatient"),
    "23": "emergency",
}
_REPLACEMENT, _VOID = "7", "8"  # CLM05-3


@dataclass
class _Claim837:
    """A claim while its segments are read."""

    number: int
    is_institutional: bool
    facility: str
    frequency: str
    born: str | None
    stated: dict[str, Any]
    ids: dict[str, str] = field(default_factory=dict)
    codes: list[tuple[float, BilledCode]] = field(default_factory=list)
    service_days: list[str] = field(default_factory=list)

    def bill(self) -> Bill:
        """The bill with what the claim says about the encounter."""
        stated = dict(self.stated)
        if self.is_institutional:
            stated["setting"] = "inpatient" if self.facility in _INPATIENT_BILLS else "outpatient"
        elif self.facility in _SETTINGS:
            stated["setting"] = _SETTINGS[self.facility]
        if self.service_days and "date" not in stated:
            stated["date"] = max(self.service_days)
        if "date" in stated and stated.get("setting") == "inpatient":
            stated.setdefault("discharged", stated["date"])
        came = stated.get("admitted") or stated.get("date")
        if self.born and came and self.born <= came:
            stated["age"] = years_between(self.born, came)
        return Bill(in_order(self.codes), stated=stated)


def is_837(path: Path) -> bool:
    """Whether a file starts like an X12 interchange."""
    if not path.is_file():
        return False
    with open_bytes(path) as file:
        return file.read(3) == b"ISA"


def read_claims_837(path: Path, claim_id: str = "account") -> Bills:
    """The bill of each encounter; claim_id: see CLAIM_IDS. DataError names the claim and shows nothing of it.

    A claim with frequency code 7 replaces an earlier one, and one with code 8 voids it. Of several other claims with
    the same id, the first counts.
    """
    if claim_id not in CLAIM_IDS:
        raise ConfigError(f"--claim-id must be one of {', '.join(CLAIM_IDS)}; got {claim_id!r}")
    bills: dict[str, Bill] = {}
    further = 0
    for claim in _claims(path):
        name = claim.ids.get(claim_id, "")
        if not name:
            what = "CLM01" if claim_id == "account" else "REF with qualifier EA"
            raise DataError(f"{path}: claim {claim.number}: {what} is missing")
        if claim.frequency == _VOID:
            bills.pop(name, None)
        elif name in bills and claim.frequency != _REPLACEMENT:
            further += 1
        else:
            bills[name] = claim.bill()
    return Bills(bills, further)


def _claims(path: Path) -> Iterator[_Claim837]:
    """The claims of a file, each when it is complete."""
    reader = _SegmentsOfClaims(path)
    for segment in _segments(path):
        if (finished := reader.read(segment)) is not None:
            yield finished
    if reader.claim is not None:
        yield reader.claim
    if not reader.count:
        raise DataError(f"{path}: there is no claim (CLM) in it")


def _segments(path: Path) -> Iterator[Segment]:
    """The segments of a file; DataError if envelopes or their counts are wrong."""
    try:
        from pyx12.errors import EngineError, X12Error
        from pyx12.x12file import X12Reader
    except ImportError as error:
        raise ConfigError("837 claims need their own packages: pip install 'nosology[audit]'") from error
    with open_bytes(path) as file:
        content = decode(file.read())[0]
    count = 0
    try:  # the messages of pyx12 have elements of the file, so they are not shown
        reader = X12Reader(io.StringIO(content))
        for segment in reader:
            count += 1
            yield segment
            _refuse(path, count, reader.pop_errors())
        reader.cleanup()
    except (X12Error, EngineError, IndexError):
        raise DataError(f"{path}: segment {count + 1} is not valid X12") from None
    _refuse(path, count, reader.pop_errors())


def _refuse(path: Path, count: int, errors: list[Any]) -> None:
    """Raises DataError for errors of envelopes; numbers of HL and LX do not matter here."""
    if any(kind in ("isa", "gs", "st") for kind, *_ in errors):
        raise DataError(
            f"{path}: segment {count}: ISA, GS and ST must each have a trailer with the same number and the right "
            "count; the file may be incomplete"
        )


def _value(segment: Segment, element: int, component: int = 1) -> str:
    """A component of an element, "" if it is not there."""
    return (segment.get_value(f"{element:02d}-{component}") or "").strip()


class _SegmentsOfClaims:
    """Collects claims from segments."""

    def __init__(self, path: Path):
        self._path = path
        self.claim: _Claim837 | None = None
        self.count = 0
        self._guide, self._sex, self._in_line = "", "", False
        self._born: str | None = None

    def read(self, segment: Segment) -> _Claim837 | None:
        """The claim that this segment ends."""
        name, finished = segment.get_seg_id(), None
        if name in ("ST", "HL", "CLM", "SE"):
            finished, self.claim, self._in_line = self.claim, None, False
        if name == "ST":
            self._start(segment)
        elif name == "HL":  # a subscriber, or a patient who is not the subscriber
            self._born, self._sex = None, ""
        elif name == "DMG" and self.claim is None:
            self._born, self._sex = _day(_value(segment, 2)), _value(segment, 3)
        elif name == "CLM":
            self._open(segment)
        elif name == "LX":
            self._in_line = True
        elif self.claim is not None:
            self._add(self.claim, name or "", segment)
        return finished

    def _start(self, segment: Segment) -> None:
        self._guide, self._born, self._sex = _value(segment, 3), None, ""
        known = not self._guide or any(guide in self._guide for guide in _GUIDES)  # 4010 has the guide elsewhere
        if _value(segment, 1) != "837" or not known:
            raise DataError(f"{self._path}: transactions must be institutional or professional claims (837)")

    def _open(self, segment: Segment) -> None:
        self.count += 1
        facility, kind = _value(segment, 5), _value(segment, 5, 2)
        is_institutional = kind == "A" or any(guide in self._guide for guide in _INSTITUTIONAL)
        stated = {"sex": self._sex} if self._sex in ("F", "M") else {}
        self.claim = _Claim837(self.count, is_institutional, facility, _value(segment, 5, 3), self._born, stated)
        self.claim.ids["account"] = _value(segment, 1)

    def _add(self, claim: _Claim837, name: str, segment: Segment) -> None:
        if name == "DTP":
            self._add_days(claim, segment)
        elif self._in_line:
            return
        elif name == "REF" and _value(segment, 1) == "EA":
            claim.ids["record"] = _value(segment, 2)
        elif name == "CL1" and _value(segment, 3).zfill(2) in DISPOSITIONS:
            claim.stated["disposition"] = _value(segment, 3).zfill(2)
        elif name == "HI":
            for element in range(1, len(segment) + 1):
                self._add_code(claim, segment, element)

    def _add_days(self, claim: _Claim837, segment: Segment) -> None:
        kind, value = _value(segment, 1), _value(segment, 3)
        day = _day(value.rpartition("-")[2])  # the end of a period
        if day is None or _value(segment, 2) == "TM":
            return
        if kind == "472" and self._in_line:
            claim.service_days.append(day)
        elif kind in ("434", "435", "096") and not self._in_line:
            claim.stated[{"434": "date", "435": "admitted", "096": "discharged"}[kind]] = day

    def _add_code(self, claim: _Claim837, segment: Segment, element: int) -> None:
        system, place = _QUALIFIERS.get(_value(segment, element), (None, -1))
        if place < 0:
            return
        where = f"{self._path}: claim {claim.number}"
        try:
            code = parse(_value(segment, element, 2), system).code
        except CodeError:  # its message shows the value, which can be anything in a damaged file
            raise DataError(f"{where}: HI{element:02d} has no valid code of {system or 'icd10cm'}") from None
        if code.system != (system or "icd10cm"):
            raise DataError(f"{where}: HI{element:02d} has a code of {code.system}; ICD-10 alone is audited")
        poa = _value(segment, element, 9).upper() if place < 3 else ""
        if poa not in POA:
            raise DataError(f"{where}: the indicator of HI{element:02d} must be empty or one of {', '.join(POA[1:])}")
        claim.codes.append((place, BilledCode(code, poa)))


def _day(value: str) -> str | None:
    """The day of CCYYMMDD or CCYYMMDDHHMM; None if it is none."""
    return iso_date(f"{value[:4]}-{value[4:6]}-{value[6:8]}") if value[:8].isdecimal() and len(value) >= 8 else None
