"""The code of a category that a text supports, where it does not support the billed one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from nosology.audit.mentioned_codes import MentionedCodes
from nosology.claims.draft import Draft
from nosology.claims.mention_status import objection
from nosology.core import Code, Span, Suggestion
from nosology.models.siblings.sibling_chooser import SiblingChooser


class SupportedSibling(NamedTuple):
    """A code with its probability among the codes of its category, and where the text names the category."""

    code: str
    probability: float
    evidence: tuple[Span, ...]


class SiblingSearch:
    """The verifier of sibling codes for one note: it answers only where it is sure."""

    def __init__(self, chooser: SiblingChooser, draft: Draft, mentions: MentionedCodes):
        self._chooser, self._draft, self._mentions = chooser, draft, mentions
        self._suggested: Mapping[str, Suggestion] = {it.code: it for it in draft.suggestions if it.system == "icd10cm"}
        self._scores = {Code("icd10cm", name): it.probability for name, it in self._suggested.items()}

    def find(self, code: Code, taken: Collection[str]) -> SupportedSibling | None:
        """The code of the same category that the text supports; None if the verifier abstains or names this code.

        taken: codes that are billed, or that explain another billed code; their words count for them.
        """
        places = self._places(code.code, taken)
        spans = tuple(dict.fromkeys(span for of_code in places.values() for span in of_code))
        if not spans:
            return None
        release = self._draft.encounter.release
        choice = self._chooser.choose(self._draft.text, code, spans, self._scores, release=release)
        if choice is None or choice.abstains or choice.best.code in {code.code, *taken}:
            return None
        best = choice.best.code
        return SupportedSibling(best, float(choice.probabilities.max()), places.get(best) or spans)

    def _places(self, code: str, taken: Collection[str]) -> dict[str, tuple[Span, ...]]:
        """Where the terms or the coder name other codes of the category, without mentions that do not count."""
        found: dict[str, tuple[Span, ...]] = {}
        for name, suggestion in self._suggested.items():
            if name[:3] == code[:3] and name not in {code, *taken}:
                spans = (Span(it.start, it.end) for it in suggestion.evidence)
                found[name] = tuple(span for span in spans if not self._is_denied(span, name))
        for name, mentions in self._mentions.of_category(code).items():
            if name not in taken:
                spans = (it.span for it in mentions if it.objection is None)
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *spans)))
        return found

    def _is_denied(self, span: Span, code: str) -> bool:
        return code in self._draft.table and objection(self._draft, span, code) is not None
