"""The codes assigned to an encounter, in billing order."""

from __future__ import annotations

from dataclasses import dataclass

from nosology.core import Code, Span

PROCEDURES = ("icd9proc", "icd10pcs")


@dataclass(frozen=True, slots=True)
class AssignedCode:
    """A code assigned to an encounter.

    origin: suggested, added, changed or triage. poa: present-on-admission indicator. instead_of: the code it replaces.
    """

    code: Code
    origin: str
    poa: str = ""
    evidence: tuple[Span, ...] = ()
    instead_of: Code | None = None


@dataclass(frozen=True, slots=True)
class AssignedCodes:
    """The assigned codes in order; the first diagnosis is the principal one."""

    chosen: tuple[AssignedCode, ...] = ()

    @property
    def codes(self) -> tuple[Code, ...]:
        """The codes in order."""
        return tuple(item.code for item in self.chosen)

    @property
    def principal(self) -> Code | None:
        """The principal diagnosis: the first code that is not a procedure."""
        return next((code for code in self.codes if code.system not in PROCEDURES), None)

    def find(self, code: Code) -> AssignedCode | None:
        """The assigned entry of a code, or None."""
        return next((item for item in self.chosen if item.code == code), None)
