"""A writer of X12 837 interchanges for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GUIDES = {"institutional": "005010X223A2", "professional": "005010X222A1"}


@dataclass(frozen=True)
class WrittenClaim:
    """A claim to write: diagnoses as (code without dot, indicator), the first is the principal one; procedures."""

    account: str
    diagnoses: Sequence[tuple[str, str]]
    procedures: Sequence[str] = ()
    record: str = "MRN1"
    frequency: str = "1"
    stay: str = "20251103-20251108"
    admitted: str = "20251103"


def write_837(claims: Sequence[WrittenClaim], kind: str = "institutional", end: str = "~", part: str = ":") -> str:
    """An interchange with one transaction. end: of a segment; part: separates components."""
    guide = GUIDES[kind]
    body = [
        f"ST*837*0001*{guide}",
        "BHT*0019*00*1*20251203*0900*CH",
        "NM1*41*2*SENDER*****46*123",
        "PER*IC*CONTACT*TE*5555550000",
        "NM1*40*2*PAYER*****46*456",
        "HL*1**20*1",
        "NM1*85*2*HOSPITAL*****XX*1234567893",
        "N3*1 STREET",
        "N4*TOWN*TX*782230001",
        "REF*EI*123456789",
    ]
    for number, claim in enumerate(claims, 2):
        body += _subscriber(number)
        body += (_institutional if kind == "institutional" else _professional)(claim)
    body.append(f"SE*{len(body) + 1}*0001")
    isa = ["ISA", "00", " " * 10, "00", " " * 10, "ZZ", "SENDER".ljust(15), "ZZ", "PAYER".ljust(15)]
    isa += ["251203", "0900", "^", "00501", "000000001", "0", "T", part]
    head = ["*".join(isa), f"GS*HC*SENDER*PAYER*20251203*0900*1*X*{guide}"]
    tail = ["GE*1*1", "IEA*1*000000001"]
    written = [head[0], *(segment.replace(":", part) for segment in [head[1], *body, *tail])]
    return "".join(f"{segment}{end}" for segment in written)


def _subscriber(number: int) -> list[str]:
    return [
        f"HL*{number}*1*22*0",
        "SBR*P*18*******MC",
        "NM1*IL*1*SECRETNAME*JANE****MI*M1",
        "N3*2 STREET",
        "N4*TOWN*TX*782230001",
        "DMG*D8*19550310*F",
        "NM1*PR*2*PAYER*****PI*456",
    ]


def _institutional(claim: WrittenClaim) -> list[str]:
    (first, poa), *others = claim.diagnoses
    segments = [
        f"CLM*{claim.account}*180***11:A:{claim.frequency}**A*Y*Y",
        f"DTP*434*RD8*{claim.stay}",
        f"DTP*435*D8*{claim.admitted}",
        "CL1*1*1*03",
        f"REF*EA*{claim.record}",
        f"HI*ABK:{_with_poa(first, poa)}",
        "HI*ABJ:R0600",
    ]
    segments += _blocks([f"ABF:{_with_poa(code, indicator)}" for code, indicator in others])
    if claim.procedures:
        segments.append(f"HI*BBR:{claim.procedures[0]}:D8:20251104")
        segments += _blocks([f"BBQ:{code}:D8:20251104" for code in claim.procedures[1:]])
    return [*segments, "NM1*71*1*DOCTOR*JO****XX*1234567893", "LX*1", "SV2*0120**180*UN*1"]


def _professional(claim: WrittenClaim) -> list[str]:
    codes = [f"{'ABF' if place else 'ABK'}:{code}" for place, (code, _) in enumerate(claim.diagnoses)]
    return [
        f"CLM*{claim.account}*180***11:B:{claim.frequency}*Y*A*Y*Y",
        f"REF*EA*{claim.record}",
        *_blocks(codes),
        "LX*1",
        "SV1*HC:99213*180*UN*1***1",
        "DTP*472*D8*20251108",
    ]


def _with_poa(code: str, poa: str) -> str:
    return f"{code}:::::::{poa}" if poa else code


def _blocks(codes: list[str]) -> list[str]:
    """HI segments of at most 12 codes each."""
    return ["HI*" + "*".join(codes[at : at + 12]) for at in range(0, len(codes), 12)]
