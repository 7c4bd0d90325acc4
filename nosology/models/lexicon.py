"""The lexicon: terms found in the note, each with the codes it may mean; day one needs no training at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nosology.codes.label_space import LabelSpace
from nosology.codes.lookup import table
from nosology.core import Code, EvidenceSpan
from nosology.models.lexicon_settings import ContextSettings, LexiconRecipe
from nosology.models.lexicon_terms import Resolver, Terms
from nosology.models.mentions import NoteMentions, find_mentions
from nosology.models.weighing import ContextPolicy, Weighed, weigh

THRESHOLD = 0.3  # of day one: between the first code of a category's title (0.35) and second choices
_KEPT = 128  # notes whose analysis is remembered: evidence is asked for after probabilities


@dataclass(frozen=True)
class Lexicon:
    """Mentions of terms, weighed; every probability above 0 rests on a mention."""

    recipe: LexiconRecipe
    labels: LabelSpace
    notes: np.ndarray  # (L,) training notes of each code
    terms: Terms
    policy: ContextPolicy
    _seen: dict[str, tuple[NoteMentions, Weighed]] = field(default_factory=dict, repr=False)

    kind = "lexicon"

    @classmethod
    def untrained(cls, recipe: LexiconRecipe) -> Lexicon:
        """The lexicon of a release alone."""
        chosen = recipe.codes
        resolve = Resolver(chosen.release, seventh=chosen.seventh)
        terms = Terms.open(chosen.release, seventh=chosen.seventh)
        every = dict.fromkeys([*table("icd10cm", chosen.release).codes(billable=True), *terms.codes])
        labels = LabelSpace(Code("icd10cm", code) for code in sorted(every))
        notes = np.zeros(len(labels), dtype=np.int64)
        return cls(recipe, labels, notes, terms, ContextPolicy(recipe.context, chosen, resolve))

    def with_context(self, context: ContextSettings) -> Lexicon:
        """The same lexicon with another policy for contexts."""
        recipe = self.recipe.model_copy(update={"context": context})
        return replace(self, recipe=recipe, policy=replace(self.policy, settings=context), _seen={})

    def analyse(self, text: str) -> tuple[NoteMentions, Weighed]:
        """The mentions of a note and what they say; remembered for a while."""
        if text not in self._seen:
            if len(self._seen) >= _KEPT:
                self._seen.clear()
            found = find_mentions(text, self.terms, None, self.recipe.match.gap)
            self._seen[text] = found, weigh(found, self.policy)
        return self._seen[text]

    def probabilities(self, texts: Iterable[str]) -> np.ndarray:
        """Probabilities (B, L); 0 for a code that no mention speaks for."""
        rows = []
        for text in texts:
            row = np.zeros(len(self.labels), dtype=np.float32)
            for code, probability in self.analyse(text)[1].codes.items():
                if code in self.labels:
                    row[self.labels.column(code)] = probability
            rows.append(row)
        return np.array(rows).reshape(-1, len(self.labels))

    def evidence(self, text: str, columns: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each column, the mentions that speak for its code, the likeliest first."""
        found, weighed = self.analyse(text)
        spans: dict[Code, list[EvidenceSpan]] = {}
        for number, code, probability in weighed.votes:
            mention = found.mentions[number]
            span = EvidenceSpan(mention.start, mention.end, text[mention.start : mention.end], probability)
            spans.setdefault(code, []).append(span)
        codes = (self.labels.codes[column] for column in columns)
        return [sorted(spans.get(c, ()), key=lambda span: (-span.score, span.start))[:limit] for c in codes]

    def save(self, folder: Path) -> None:
        """Writes model.json."""
        described = {"recipe": self.recipe.model_dump(mode="json")}
        (folder / "model.json").write_text(json.dumps(described), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """The lexicon that `save` wrote."""
        stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        return cls.untrained(LexiconRecipe.model_validate(stored["recipe"]))
