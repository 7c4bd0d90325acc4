"""The codes assigned to an encounter, in billing order."""

from __future__ import annotations

from dataclasses import dataclass

from nosology.core import Code, Span

PROCEDURES = ("icd9proc", "icd10pcs")


@dataclass(frozen=True, slots=True)
class AssignedCode:
    """A code that stands for the note; origin: suggested, added, changed or triage."""

    code: Code
    origin: str
    poa: str = ""
    evidence: tuple[Span, ...] = ()
    instead_of: Code | None = None


@dataclass(frozen=True, slots=True)
class AssignedCodes:
    """Codes that a coder has assigned, in order; the first diagnosis is the principal one."""

    chosen: tuple[AssignedCode, ...] = ()

    @property
    def codes(self) -> tuple[Code, ...]:
        """The chosen codes in their order."""
        return tuple(item.code for item in self.chosen)

    @property
    def principal(self) -> Code | None:
        """The principal diagnosis: the first chosen code that is no procedure."""
        return next((code for code in self.codes if code.system not in PROCEDURES), None)

    def of(self, code: Code) -> AssignedCode | None:
        """The chosen entry of a code."""
        return next((item for item in self.chosen if item.code == code), None)
