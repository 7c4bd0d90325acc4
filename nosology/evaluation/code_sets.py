"""Which codes of a corpus a measurement is about: all, the frequent or the rare ones (paper 001, section 3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from nosology.core import Code, ConfigError, DataError

FREQUENT = 10  # notes of the whole corpus, whatever their split; a code of fewer is rare
SETS: dict[str, Callable[[int], bool]] = {
    "full": lambda notes: True,
    "frequent": lambda notes: notes >= FREQUENT,
    "rare": lambda notes: notes < FREQUENT,
}
KNOWN = "known"  # those that a coder has learned, over the notes that have one
_MEANING = {
    KNOWN: "those that the coder has learned",
    "full": "every code of the corpus",
    "frequent": f"{FREQUENT} notes or more",
    "rare": f"under {FREQUENT}",
}


@dataclass(frozen=True)
class CodeSet:
    """Codes that count; with `only_with_code` a note without a true one among them is left out."""

    name: str
    codes: frozenset[Code]
    only_with_code: bool = False

    @classmethod
    def of(cls, wanted: str | Collection[Code], notes: Iterable[Collection[Code]]) -> CodeSet:
        """The set of a name, or of given codes; notes: the codes of each note of the corpus, of all splits."""
        if not isinstance(wanted, str):
            return cls("given", frozenset(Code(*code) for code in wanted))
        if wanted not in SETS:
            raise ConfigError(f"codes must be one of {', '.join([*SETS, KNOWN])}; got {wanted!r}")
        counts = Counter(code for codes in notes for code in set(codes))
        found = frozenset(code for code, count in counts.items() if SETS[wanted](count))
        if not found:
            raise DataError(f"the corpus has no {wanted} codes ({_MEANING[wanted]})")
        return cls(wanted, found, only_with_code=wanted == "rare")

    def of_systems(self, systems: Collection[str]) -> CodeSet:
        """The codes of these systems alone."""
        return CodeSet(self.name, frozenset(c for c in self.codes if c.system in systems), self.only_with_code)

    def narrow(self, gold: Sequence[Collection[Code]]) -> tuple[list[int], list[list[Code]]]:
        """Which of these notes count, and the codes of each that count."""
        kept = [[code for code in codes if code in self.codes] for codes in gold]
        rows = [row for row, codes in enumerate(kept) if codes or not self.only_with_code]
        return rows, [kept[row] for row in rows]

    def __str__(self) -> str:
        return f"{self.name} ({_MEANING.get(self.name, 'a list')}): {len(self.codes):,} codes"
