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

from nosology.audit.billed_codes import POA, REVERSED, Bill, Bills, in_order
from nosology.audit.finding import BilledCode
from nosology.claims.encounter_values import DISPOSITIONS, iso_date, years_between
from nosology.codes.spelling import parse
from nosology.core import CodeError, ConfigError, DataError
from nosology.corpora.text_files import decode_marked, open_bytes

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
_DAYS = {"434": "date", "435": "admitted", "096": "discharged"}  # qualifiers of DTP
_HEAD = 4096  # bytes in which an interchange starts
_NO_DAY = "no day"  # in place of a date that is none: an encounter with it is not audited


@dataclass
class _Claim837:
    """A claim while its segments are read."""

    number: int
    is_institutional: bool
    facility: str
    frequency: str
    sent: str  # date and time of the transaction
    born: str | None
    stated: dict[str, Any]
    ids: dict[str, str] = field(default_factory=dict)
    codes: list[tuple[float, BilledCode]] = field(default_factory=list)
    service_days: list[str] = field(default_factory=list)
    refused: str = ""

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
        came = iso_date(stated.get("admitted") or stated.get("date"))
        if self.born and came:
            stated["age"] = years_between(self.born, came)  # negative before the birth: refused with the encounter
        return Bill(in_order(self.codes), stated=stated, refused=self.refused)


def is_837(path: Path) -> bool:
    """Whether a file starts like an X12 interchange, perhaps after a byte-order mark and blanks."""
    if not path.is_file():
        return False
    with open_bytes(path) as file:
        head = file.read(_HEAD)
    return head.translate(None, b"\x00\xef\xbb\xbf\xff\xfe \t\r\n").startswith(b"ISA")


def read_claims_837(path: Path, claim_id: str = "account") -> Bills:
    """The bill of each encounter; claim_id: see CLAIM_IDS. DataError names the claim and shows nothing of it.

    A claim with frequency code 7 replaces the earlier claims with its patient control number, and one with code 8 voids
    them. Of several claims that remain for an id, the first counts.
    """
    if claim_id not in CLAIM_IDS:
        raise ConfigError(f"--claim-id must be one of {', '.join(CLAIM_IDS)}; got {claim_id!r}")
    bills: dict[str, Bill] = {}
    current = _CurrentClaims()
    # The newest transaction last: files of several transactions need not be in their order.
    for claim in sorted(_claims(path), key=lambda it: it.sent):
        current.add(claim)
    for claim in current.remaining():
        name = claim.ids.get(claim_id, "")
        if not name:
            what = "CLM01" if claim_id == "account" else "REF with qualifier EA"
            raise DataError(f"{path}: claim {claim.number}: {what} is missing")
        bills.setdefault(name, claim.bill())
    further = len(current.remaining()) - len(bills)
    return Bills(bills, {"further_bills_of_an_encounter": further, **current.counts})


class _CurrentClaims:
    """The claims that count, after later ones have replaced or voided earlier ones with their control number."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, bool], list[_Claim837]] = {}
        self.counts = {"replaced_claims": 0, "voided_claims": 0}

    def add(self, claim: _Claim837) -> None:
        """Takes the next claim into account."""
        # A hospital and a physician may use the same number; without a number nothing is replaced.
        key = claim.ids["account"] or f"#{claim.number}", claim.is_institutional
        earlier = self._claims.setdefault(key, [])
        if claim.frequency == _REPLACEMENT:
            self.counts["replaced_claims"] += len(earlier)
            self._claims[key] = [claim]
        elif claim.frequency == _VOID:
            self.counts["voided_claims"] += len(earlier)
            self._claims[key] = []
        else:
            earlier.append(claim)

    def remaining(self) -> list[_Claim837]:
        """The claims that are left, in the order of the file."""
        return sorted((it for claims in self._claims.values() for it in claims), key=lambda it: it.number)


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
        content = decode_marked(file.read(), path).lstrip("\ufeff \t\r\n")
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
        self._guide, self._sent, self._sex, self._in_line = "", "", "", False
        self._born: str | None = None

    def read(self, segment: Segment) -> _Claim837 | None:
        """The claim that this segment ends."""
        name, finished = segment.get_seg_id(), None
        if name in ("ST", "HL", "CLM", "SE"):
            finished, self.claim, self._in_line = self.claim, None, False
        if name == "ST":
            self._start(segment)
        elif name == "BHT":
            self._sent = _value(segment, 4) + _value(segment, 5)
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
        frequency = _value(segment, 5, 3)
        self.claim = _Claim837(self.count, is_institutional, facility, frequency, self._sent, self._born, stated)
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
        if not value or _value(segment, 2) == "TM" or kind not in (_DAYS if not self._in_line else ("472",)):
            return
        first, last = (_day(it) or _NO_DAY for it in (value.partition("-")[0], value.rpartition("-")[2]))
        if first > last:
            claim.refused = REVERSED
        elif self._in_line:
            claim.service_days.append(last)
        else:
            claim.stated[_DAYS[kind]] = last

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
