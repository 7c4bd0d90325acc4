"""The choice between the codes of a category, for notes that one coder has read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nosology.core import Code
from nosology.core.files import write_json
from nosology.models.bundle import is_day_one
from nosology.models.siblings.sibling_features import SiblingQuestion
from nosology.models.siblings.sibling_group import MAX_SIBLINGS, billable_siblings, sibling_group
from nosology.models.siblings.sibling_verifier import SiblingChoice, SiblingVerifier

FILE = "siblings.json"  # of a bundle


@dataclass(frozen=True)
class SiblingChooser:
    """A verifier, and how many train notes of its coder have each code."""

    verifier: SiblingVerifier
    counts: Mapping[Code, int] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, bundle: str | Path) -> SiblingChooser | None:
        """The chooser in a bundle folder, or of day one; None if the coder has none. Nothing else is loaded."""
        if is_day_one(bundle):
            return cls(SiblingVerifier.shipped())
        path = Path(bundle) / FILE
        if not path.is_file():
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        counts = {
            Code(system, name): n for system, of_system in stored["counts"].items() for name, n in of_system.items()
        }
        return cls(SiblingVerifier.from_json(stored["verifier"]), counts)

    def save(self, folder: Path) -> None:
        """Writes siblings.json."""
        counts: dict[str, dict[str, int]] = {}
        for code, n in self.counts.items():
            counts.setdefault(code.system, {})[code.code] = n
        write_json(folder / FILE, {"verifier": self.verifier.to_json(), "counts": counts})

    def choose(
        self,
        text: str,
        code: Code,
        evidence: Sequence[tuple[int, int]],
        scores: Mapping[Code, float],
        *,
        release: str | None = None,
    ) -> SiblingChoice | None:
        """The choice between the billable codes of the category of a code; None if there are fewer than two.

        evidence: characters of the text that name the code. scores: probabilities of the coder, by code. In the largest
        categories, of injuries, only codes with the same parent are siblings.
        """
        siblings = billable_siblings(code, release)
        if len(siblings) > MAX_SIBLINGS:
            siblings = billable_siblings(code, release, parent=True)
        if len(siblings) < 2:
            return None
        spans = tuple((start, end) for start, end in evidence)
        group = sibling_group(siblings, release)
        return self.verifier.choose(SiblingQuestion(text, spans, group, scores, self.counts))
