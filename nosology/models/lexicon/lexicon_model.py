"""The lexicon: terms found in the note, each with the codes it may mean; day one needs no training at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from nosology.codes.lookup import table
from nosology.core import Code, EvidenceSpan, Note
from nosology.core.label_space import LabelSpace
from nosology.models.lexicon.adapted import Adapted
from nosology.models.lexicon.learned_phrases import apart
from nosology.models.lexicon.lexicon_settings import ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Resolver, Terms
from nosology.models.lexicon.mention_features import padded
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.weighing import ContextPolicy, Vote, Weighed, weigh

THRESHOLD = 0.3  # of day one: between the first code of a category's title (0.35) and second choices
_KEPT = 128  # notes whose analysis is remembered: evidence is asked for after probabilities


@dataclass(frozen=True)
class Lexicon:
    """Mentions of terms, weighed: by hand on day one, by what coded notes have taught afterwards."""

    recipe: LexiconRecipe
    labels: LabelSpace = field(repr=False)
    train_counts: np.ndarray = field(repr=False)  # (L,) training notes of each code
    terms: Terms | None = field(repr=False)  # of ICD-10-CM, where its codes are asked for
    policy: ContextPolicy
    adapted: Adapted | None = field(default=None, repr=False)
    _seen: dict[str, tuple[NoteMentions, Weighed]] = field(default_factory=dict, repr=False)

    kind = "lexicon"
    within_versions = False

    @classmethod
    def untrained(cls, recipe: LexiconRecipe) -> Lexicon:
        """The lexicon of a release alone."""
        return cls._of(recipe, ["icd10cm"], None)

    @classmethod
    def trained(cls, recipe: LexiconRecipe, adapted: Adapted) -> Lexicon:
        """The lexicon with what coded notes have taught: their codes, and all of ICD-10-CM if they have some."""
        return cls._of(recipe, {code.system for code in adapted.learned.codes}, adapted)

    @classmethod
    def _of(cls, recipe: LexiconRecipe, systems: Iterable[str], adapted: Adapted | None) -> Lexicon:
        terms, codes = None, set() if adapted is None else set(adapted.learned.codes)
        if "icd10cm" in systems and (adapted is None or recipe.learn.terms):
            terms = Terms.open(recipe.codes.release, seventh=recipe.codes.seventh)
            every = table("icd10cm", recipe.codes.release).codes(billable=True)
            codes.update(Code("icd10cm", code) for code in (*every, *terms.codes))
            if adapted is not None and adapted.learned.padded:
                codes.update(filter(None, map(padded, sorted(codes))))
        labels = LabelSpace(sorted(codes))
        notes = np.zeros(len(labels), dtype=np.int64)
        if adapted is not None:
            notes[[labels.column(code) for code in adapted.learned.codes]] = adapted.learned.notes
        resolve = Resolver(recipe.codes.release, seventh=recipe.codes.seventh)
        return cls(recipe, labels, notes, terms, ContextPolicy(recipe.context, recipe.codes, resolve), adapted)

    def with_context(self, context: ContextSettings) -> Lexicon:
        """The same lexicon with another policy for contexts."""
        recipe = self.recipe.model_copy(update={"context": context})
        return replace(self, recipe=recipe, policy=replace(self.policy, settings=context), _seen={})

    def analyse(self, text: str) -> tuple[NoteMentions, Weighed]:
        """The mentions of a note and what they say; remembered for a while."""
        if text not in self._seen:
            if len(self._seen) >= _KEPT:
                self._seen.clear()
            match = self.recipe.match
            if self.adapted is None:
                found = find_mentions(text, self.terms, None, match.gap)
                self._seen[text] = found, weigh(found, self.policy)
            else:
                found = find_mentions(text, self.terms, self.adapted.learned.index, match.gap, match.learned_gap)
                self._seen[text] = found, self.adapted.weigh(found, text, self.terms, self.policy)
        return self._seen[text]

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); on day one 0 for a code that no mention speaks for, after training next to it."""
        rows = []
        for note in notes:
            row = np.zeros(len(self.labels), dtype=np.float32)
            for code, probability in self.analyse(note.text)[1].codes.items():
                if code in self.labels:
                    row[self.labels.column(code)] = probability
            rows.append(row)
        return np.array(rows).reshape(-1, len(self.labels))

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the mentions that speak for its code, the likeliest first; where they overlap, the best."""
        found, weighed = self.analyse(note.text)
        votes: dict[Code, list[Vote]] = {self.labels.codes[label]: [] for label in labels}
        for vote in weighed.votes:
            if vote.code in votes:
                votes[vote.code].append(vote)
        return [self._spans(note.text, found, votes[self.labels.codes[label]], limit) for label in labels]

    def _spans(self, text: str, found: NoteMentions, votes: list[Vote], limit: int) -> list[EvidenceSpan]:
        least = self.adapted.evidence_from if self.adapted else 0.0
        spans: list[EvidenceSpan] = []
        for number, _, probability in sorted(votes, key=lambda vote: (-vote.probability, vote.mention)):
            mention = found.mentions[number]
            own = apart(mention.start, mention.end, ((span.start, span.end) for span in spans))
            if own and (probability >= least or not spans) and len(spans) < limit:
                spans.append(EvidenceSpan(mention.start, mention.end, text[mention.start : mention.end], probability))
        return spans

    def save(self, folder: Path) -> None:
        """Writes model.json and, after training, model.safetensors."""
        described = {
            "recipe": self.recipe.model_dump(mode="json"),
            "adapted": self.adapted.to_json() if self.adapted else None,
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        if self.adapted:
            arrays = {name: np.ascontiguousarray(value) for name, value in self.adapted.arrays().items()}
            save_file(arrays, folder / "model.safetensors")

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """The lexicon that `save` wrote."""
        stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        recipe = LexiconRecipe.model_validate(stored["recipe"])
        if stored["adapted"] is None:
            return cls.untrained(recipe)
        return cls.trained(recipe, Adapted.from_stored(load_file(folder / "model.safetensors"), stored["adapted"]))
