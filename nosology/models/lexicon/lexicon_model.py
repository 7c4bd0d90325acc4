"""The lexicon coder: finds terms in a note and scores the codes of each term. Training is optional.

The bundle `day-one` is the untrained lexicon with all codes of ICD-10-CM; it is built in and has no folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

import numpy as np
from safetensors.numpy import load_file, save_file

from nosology.codes.lookup import table
from nosology.codes.sources import garbage_collection_off
from nosology.core import Code, ConfigError, EvidenceSpan, Note, __version__
from nosology.core.label_space import LabelSpace
from nosology.core.parallel import cores, parallel_map, parts
from nosology.evaluation.decision import Decision
from nosology.models.bundle import DAY_ONE, Bundle
from nosology.models.lexicon.learned_phrases import is_separate
from nosology.models.lexicon.lexicon_settings import CORPUS, ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Resolver, Terms
from nosology.models.lexicon.mention_features import padded
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.scorers import ContextPolicy, MentionScores, ScoredMention, TrainedScorer, score_mentions
from nosology.models.siblings.sibling_chooser import SiblingChooser

DAY_ONE_THRESHOLD = 0.3  # below the first code of a category title (0.35), above second codes
_MIN_PARALLEL = 1_000_000  # characters; with fewer, starting processes takes longer than coding the notes
_PART = 16  # notes that a process codes at a time
_CACHED_NOTES = 8  # notes whose mentions are cached: evidence is requested directly after probabilities


@dataclass(frozen=True)
class Lexicon:
    """Mentions of terms, scored by rules before training and by classifiers after it."""

    recipe: LexiconRecipe
    labels: LabelSpace = field(repr=False)
    train_counts: np.ndarray = field(repr=False)  # (L,) training notes of each code
    terms: Terms | None = field(repr=False)  # of ICD-10-CM; None: not used
    policy: ContextPolicy
    scorer: TrainedScorer | None = field(default=None, repr=False)
    siblings: SiblingChooser | None = field(default=None, repr=False)  # chooses between the codes of a category
    _cache: dict[str, tuple[NoteMentions, MentionScores]] = field(default_factory=dict, repr=False)

    kind = "lexicon"
    within_versions = False

    @classmethod
    @garbage_collection_off()
    def build(cls, recipe: LexiconRecipe, scorer: TrainedScorer | None = None) -> Lexicon:
        """The lexicon of a recipe. scorer: what was learned from train notes; None: an untrained lexicon.

        An untrained lexicon has all codes of ICD-10-CM. A trained one has the codes of its train notes, and all of
        ICD-10-CM if some of them are of ICD-10-CM.
        """
        terms, codes = None, [] if scorer is None else list(scorer.learned.codes)
        if scorer is None or (recipe.learn.terms and any(code.system == "icd10cm" for code in codes)):
            terms = Terms.open(recipe.codes.release, seventh=recipe.codes.has_seventh)
            billable = table("icd10cm", recipe.codes.release).codes(billable=True)
            codes += [Code("icd10cm", name) for name in sorted({*billable, *terms.codes})]
            if scorer is not None and scorer.learned.padded:
                codes += [code for code in map(padded, codes) if code is not None]
        labels = LabelSpace(dict.fromkeys(sorted(codes)))
        counts = np.zeros(len(labels), dtype=np.int64)
        if scorer is not None:
            counts[[labels.column(code) for code in scorer.learned.codes]] = scorer.learned.notes
        resolver = Resolver(recipe.codes.release, seventh=recipe.codes.has_seventh)
        return cls(recipe, labels, counts, terms, ContextPolicy(recipe.context, recipe.codes, resolver), scorer)

    def with_context(self, context: ContextSettings) -> Lexicon:
        """The same lexicon with another policy for contexts."""
        recipe = self.recipe.model_copy(update={"context": context})
        return replace(self, recipe=recipe, policy=replace(self.policy, settings=context), _cache={})

    def analyse(self, text: str) -> tuple[NoteMentions, MentionScores]:
        """The mentions of a note and their scores, cached for the latest notes."""
        if (known := self._cache.get(text)) is not None:
            return known
        settings = self.recipe.match
        index = self.scorer.learned.index if self.scorer else None
        mentions = find_mentions(text, self.terms, index, settings.gap, settings.learned_gap)
        if self.scorer is None:
            scores = score_mentions(mentions, self.policy)
        else:
            scores = self.scorer.score(mentions, text, self.terms, self.policy)
        if len(self._cache) >= _CACHED_NOTES:  # only the oldest goes: evidence of the others may still be requested
            self._cache.pop(next(iter(self._cache)), None)
        self._cache[text] = mentions, scores
        return mentions, scores

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L). A code without a mention has 0, or nearly 0 after training.

        Many long notes are coded on all cores.
        """
        texts = [note.text for note in notes]
        workers = cores() if sum(map(len, texts)) > _MIN_PARALLEL else 1
        if workers == 1:
            scored = map(self.scored_columns, texts)
        else:
            arguments = [(self._stored, part) for part in parts(texts, _PART)]
            scored = (item for part in parallel_map(_scored_columns, arguments, workers) for item in part)
        probabilities = np.tile(self._unmentioned, (len(notes), 1))
        for row, (columns, values) in zip(probabilities, scored):
            row[columns] = values
        return probabilities

    def scored_columns(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The labels that a note mentions, and their probabilities."""
        scores = self.analyse(text)[1].codes
        pairs = [(self.labels.column(code), probability) for code, probability in scores.items() if code in self.labels]
        columns, values = zip(*pairs) if pairs else ((), ())
        return np.array(columns, dtype=np.int64), np.array(values, dtype=np.float32)

    @cached_property
    def _unmentioned(self) -> np.ndarray:
        """The probabilities (L,) of codes that a note does not mention."""
        row = np.zeros(len(self.labels), dtype=np.float32)
        for code, probability in self.scorer.unmentioned().items() if self.scorer else ():
            row[self.labels.column(code)] = probability
        return row

    @cached_property
    def _stored(self) -> str:
        """A folder with this lexicon, for other processes; it is removed with the lexicon."""
        folder = mkdtemp()
        finalize(self, rmtree, folder, ignore_errors=True)
        self.save(Path(folder))
        return folder

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the mentions of its code, most probable first; of overlapping mentions the best."""
        mentions, scores = self.analyse(note.text)
        scored: dict[Code, list[ScoredMention]] = {self.labels.codes[label]: [] for label in labels}
        for mention in scores.mentions:
            if mention.code in scored:
                scored[mention.code].append(mention)
        return [self._spans(note.text, mentions, scored[self.labels.codes[label]], limit) for label in labels]

    def _spans(self, text: str, note: NoteMentions, scored: list[ScoredMention], limit: int) -> list[EvidenceSpan]:
        minimum = self.scorer.evidence_from if self.scorer else 0.0
        spans: list[EvidenceSpan] = []
        for number, _, probability in sorted(scored, key=lambda item: (-item.probability, item.mention)):
            mention = note.mentions[number]
            separate = is_separate(mention.start, mention.end, ((span.start, span.end) for span in spans))
            if separate and (probability >= minimum or not spans) and len(spans) < limit:
                spans.append(EvidenceSpan(mention.start, mention.end, text[mention.start : mention.end], probability))
        return spans

    def save(self, folder: Path) -> None:
        """Writes model.json and, after training, model.safetensors and siblings.json."""
        described = {
            "recipe": self.recipe.model_dump(mode="json"),
            "adapted": self.scorer.to_json() if self.scorer else None,
        }
        (folder / "model.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")
        if self.scorer:
            arrays = {name: np.ascontiguousarray(value) for name, value in self.scorer.arrays().items()}
            save_file(arrays, folder / "model.safetensors")
        if self.siblings:
            self.siblings.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        stored = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        recipe = LexiconRecipe.model_validate(stored["recipe"])
        state = stored["adapted"]
        scorer = TrainedScorer.from_stored(load_file(folder / "model.safetensors"), state) if state else None
        return replace(cls.build(recipe, scorer), siblings=SiblingChooser.load(folder))


@lru_cache(maxsize=1)
def _loaded(folder: str) -> Lexicon:
    return Lexicon.load(Path(folder))


def _scored_columns(folder: str, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The results of `Lexicon.scored_columns` with the lexicon of a folder."""
    return [_loaded(folder).scored_columns(text) for text in texts]


def day_one(recipe: LexiconRecipe | None = None) -> Bundle:
    """The bundle of the untrained lexicon."""
    recipe = recipe or LexiconRecipe()
    _check_untrained(recipe)
    threshold = recipe.decision.threshold
    decision = Decision(threshold if isinstance(threshold, float) else DAY_ONE_THRESHOLD)
    provenance = {"package": f"nosology {__version__}", "trained_on": [], "corpora": [], "tuned_on": None}
    lexicon = replace(Lexicon.build(recipe), siblings=SiblingChooser.load(DAY_ONE))
    return Bundle(lexicon, decision, recipe.model_dump(mode="json"), provenance)


def _check_untrained(recipe: LexiconRecipe) -> None:
    """Raises ConfigError for settings that have an effect only in training."""
    if CORPUS in (recipe.codes.release, recipe.codes.seventh):
        raise ConfigError("codes.release and codes.seventh can be left to a corpus only in training; got corpus")
    for name, policy in recipe.context:
        if policy == "learn":
            raise ConfigError(f"context.{name} can be learned only in training; day one knows keep, drop, history")
    default = LexiconRecipe()
    for section in ("labels", "learn"):
        if getattr(recipe, section) != getattr(default, section):
            raise ConfigError(f"day one does not learn: {section} can be set only in training")
    threshold = recipe.decision.threshold
    if (threshold != "global" and not isinstance(threshold, float)) or recipe.decision.at_least_one:
        raise ConfigError(f"day one's decision.threshold must be a number, without at_least_one; got {threshold}")
