"""The lexicon coder: terms found in the note, each with the codes that it may mean; training is optional."""

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
from nosology.models.lexicon.learned_phrases import is_separate
from nosology.models.lexicon.lexicon_settings import ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Resolver, Terms
from nosology.models.lexicon.mention_features import padded
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.rule_scorer import ContextPolicy, MentionScores, ScoredMention, score_mentions
from nosology.models.lexicon.trained_scorer import TrainedScorer

THRESHOLD = 0.3  # without training: between the first code of a category title (0.35) and second choices
_CACHED_NOTES = 128  # notes whose mentions are cached: evidence is requested after probabilities


@dataclass(frozen=True)
class Lexicon:
    """Mentions of terms, scored by rules before training and by classifiers after it."""

    recipe: LexiconRecipe
    labels: LabelSpace = field(repr=False)
    train_counts: np.ndarray = field(repr=False)  # (L,) training notes of each code
    terms: Terms | None = field(repr=False)  # of ICD-10-CM, where its codes are asked for
    policy: ContextPolicy
    scorer: TrainedScorer | None = field(default=None, repr=False)
    _cache: dict[str, tuple[NoteMentions, MentionScores]] = field(default_factory=dict, repr=False)

    kind = "lexicon"
    within_versions = False

    @classmethod
    def untrained(cls, recipe: LexiconRecipe) -> Lexicon:
        """The lexicon of a release, without training."""
        return cls._of(recipe, ["icd10cm"], None)

    @classmethod
    def trained(cls, recipe: LexiconRecipe, scorer: TrainedScorer) -> Lexicon:
        """The trained lexicon: the codes of its train notes, and all of ICD-10-CM if some are of ICD-10-CM."""
        return cls._of(recipe, {code.system for code in scorer.learned.codes}, scorer)

    @classmethod
    def _of(cls, recipe: LexiconRecipe, systems: Iterable[str], scorer: TrainedScorer | None) -> Lexicon:
        terms, codes = None, set() if scorer is None else set(scorer.learned.codes)
        if "icd10cm" in systems and (scorer is None or recipe.learn.terms):
            terms = Terms.open(recipe.codes.release, seventh=recipe.codes.has_seventh)
            every = table("icd10cm", recipe.codes.release).codes(billable=True)
            codes.update(Code("icd10cm", code) for code in (*every, *terms.codes))
            if scorer is not None and scorer.learned.padded:
                codes.update(filter(None, map(padded, sorted(codes))))
        labels = LabelSpace(sorted(codes))
        notes = np.zeros(len(labels), dtype=np.int64)
        if scorer is not None:
            notes[[labels.column(code) for code in scorer.learned.codes]] = scorer.learned.notes
        resolve = Resolver(recipe.codes.release, seventh=recipe.codes.has_seventh)
        return cls(recipe, labels, notes, terms, ContextPolicy(recipe.context, recipe.codes, resolve), scorer)

    def with_context(self, context: ContextSettings) -> Lexicon:
        """The same lexicon with another policy for contexts."""
        recipe = self.recipe.model_copy(update={"context": context})
        return replace(self, recipe=recipe, policy=replace(self.policy, settings=context), _cache={})

    def analyse(self, text: str) -> tuple[NoteMentions, MentionScores]:
        """The mentions of a note and their scores, cached for the latest notes."""
        if text not in self._cache:
            if len(self._cache) >= _CACHED_NOTES:
                self._cache.clear()
            match = self.recipe.match
            if self.scorer is None:
                found = find_mentions(text, self.terms, None, match.gap)
                self._cache[text] = found, score_mentions(found, self.policy)
            else:
                found = find_mentions(text, self.terms, self.scorer.learned.index, match.gap, match.learned_gap)
                self._cache[text] = found, self.scorer.score(found, text, self.terms, self.policy)
        return self._cache[text]

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L). A code without a mention has 0, or nearly 0 after training."""
        rows = []
        for note in notes:
            row = np.zeros(len(self.labels), dtype=np.float32)
            for code, probability in self.analyse(note.text)[1].codes.items():
                if code in self.labels:
                    row[self.labels.column(code)] = probability
            rows.append(row)
        return np.array(rows).reshape(-1, len(self.labels))

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the mentions of its code, most probable first; of overlapping mentions the best."""
        found, weighed = self.analyse(note.text)
        votes: dict[Code, list[ScoredMention]] = {self.labels.codes[label]: [] for label in labels}
        for vote in weighed.votes:
            if vote.code in votes:
                votes[vote.code].append(vote)
        return [self._spans(note.text, found, votes[self.labels.codes[label]], limit) for label in labels]

    def _spans(self, text: str, found: NoteMentions, votes: list[ScoredMention], limit: int) -> list[EvidenceSpan]:
        least = self.scorer.evidence_from if self.scorer else 0.0
        spans: list[EvidenceSpan] = []
        for number, _, probability in sorted(votes, key=lambda vote: (-vote.probability, vote.mention)):
            mention = found.mentions[number]
            own = is_separate(mention.start, mention.end, ((span.start, span.end) for span in spans))
            if own and (probability >= least or not spans) and len(spans) < limit:
                spans.append(EvidenceSpan(mention.start, mention.end, text[mention.start : mention.end], probability))
        return spans

    def save(self, folder: Path) -> None:
        """Writes model.json and, after training, model.safetensors."""
        described = {
            "recipe": self.recipe.model_dump(mode="json"),
            "adapted": self.scorer.to_json() if self.scorer else None,
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        if self.scorer:
            arrays = {name: np.ascontiguousarray(value) for name, value in self.scorer.arrays().items()}
            save_file(arrays, folder / "model.safetensors")

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """The lexicon that `save` wrote."""
        stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        recipe = LexiconRecipe.model_validate(stored["recipe"])
        if stored["adapted"] is None:
            return cls.untrained(recipe)
        return cls.trained(
            recipe, TrainedScorer.from_stored(load_file(folder / "model.safetensors"), stored["adapted"])
        )
