"""Codes of a claim whose words fit another code of their category better, by the verifier of the coder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nosology.claims.draft import Draft
from nosology.core import Code

if TYPE_CHECKING:
    from nosology.models.siblings.sibling_chooser import SiblingChooser

RULE = "sibling-verifier"


def choose_siblings(draft: Draft, chooser: SiblingChooser) -> None:
    """Replaces codes by other codes of their categories where the verifier is sure of them.

    A code that a rule adds without words stays, and so does one whose better sibling is in the set already: two codes
    of a category may stand for two conditions.
    """
    scores = {Code(it.system, it.code): it.probability for it in draft.suggestions}
    for entry in list(draft.entries.values()):
        if not entry.evidence:
            continue
        code = Code("icd10cm", entry.code)
        own = {code: max(entry.probability, scores.get(code, 0.0))}
        choice = chooser.choose(draft.text, code, entry.evidence, scores | own, release=draft.encounter.release)
        if choice is None or choice.abstains or choice.best == code or choice.best.code in draft.entries:
            continue
        reason = f"the words of the note fit {choice.best.code} of the same category better"
        draft.replace([entry.code], choice.best.code, reason, RULE)
