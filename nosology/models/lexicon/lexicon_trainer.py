"""Training of the lexicon coder on coded notes, by cross-validation.

A phrase is always right on the notes from which it was learned. Therefore the notes are divided into folds. The
mentions of a fold are found with phrases of the other folds; the mention classifier is trained on these held-out
mentions. In the same way the code classifier is trained on held-out scores of mentions, and the threshold is tuned on
held-out scores of codes. Dev notes are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from nosology.codes.history import is_valid
from nosology.codes.lookup import table
from nosology.codes.releases import releases
from nosology.core import Code, ConfigError, Evidence, Note
from nosology.core.label_space import LabelSpace
from nosology.core.progress import activity, progress
from nosology.corpora.group_splits import group_folds
from nosology.evaluation import tune_threshold
from nosology.evaluation.decision import UNTUNED, Decision
from nosology.models.lexicon.learned_phrases import (
    LearnedPhrases,
    is_same_span,
    is_separate,
    learn_associations,
    learn_from_evidence,
)
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_settings import CORPUS, CodeSetSettings, ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mention_features import MentionTable, code_table, mention_table
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.scorers import TrainedScorer
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from nosology.models.train import CoderTrainer, TrainedCoder
from nosology.text.context import CATEGORIES
from nosology.training.examples import Examples, union
from nosology.training.recipe_settings import LabelSettings

_MAX_NOTES = 4000  # for the classifiers; phrases are learned from all notes
_MIN_MENTIONS = 20  # in a context, to learn how it changes the probability
_CUTS = np.arange(0.1, 0.75, 0.05)  # candidates for the least probability of evidence

CodeTable = tuple[list[Code], np.ndarray]  # the codes of a note and their features


class LexiconTrainer(CoderTrainer[LexiconRecipe]):
    """Learns phrases, a mention classifier and a code classifier from coded notes."""

    @activity("training the lexicon", spinner=False)
    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The trained lexicon and its threshold; refit: dev notes are train notes too."""
        recipe = self.recipe
        _check(recipe)
        notes = list((union(train_notes, dev_notes) if refit else train_notes).notes())
        recipe = recipe.model_copy(update={"codes": resolve_code_set(recipe.codes, notes)})
        systems = recipe.labels.systems or sorted({code.system for note in notes for code in note.codes})
        validation = CrossValidation(
            recipe, systems, Terms.open(recipe.codes.release, seventh=recipe.codes.has_seventh), notes
        )
        examples = validation.mentions()
        mention_scores = validation.mention_scores(examples)
        tables = [code_table(item.mentions, item.table, scores) for item, scores in zip(examples, mention_scores)]
        gold = [{code for code in item.note.codes if code.system in systems} for item in examples]
        code_scores = validation.code_scores(tables, gold)
        threshold = _threshold(recipe, gold, tables, code_scores)
        evidence_from = 0.0
        if validation.has_evidence:
            evidence_from = _evidence_threshold(examples, mention_scores, tables, code_scores, threshold, systems)
        scorer = TrainedScorer(
            validation.learn(notes),
            validation.fit_mentions([item.table.rows for item in examples], [item.target for item in examples]),
            validation.fit_codes([rows for _, rows in tables], _code_targets(tables, gold)),
            evidence_from,
        )
        rare = _rare_contexts(recipe.context, examples)
        recipe = recipe.model_copy(update={"context": recipe.context.model_copy(update=rare)})
        report = {
            "tuned_on": f"{recipe.learn.folds} held-out folds of the train notes",
            "contexts_as_on_day_one": sorted(rare),
            "evidence": validation.has_evidence,
            "phrases": len(scorer.learned.index),
            "folds": recipe.learn.folds,
            "edition": recipe.codes.model_dump(mode="json", include={"release", "seventh"}),
        }
        return TrainedCoder(Lexicon.build(recipe, scorer), Decision(threshold), report)


def _check(recipe: LexiconRecipe) -> None:
    """Refuses settings that a lexicon does not use."""
    default = LexiconRecipe(labels=LabelSettings(systems=recipe.labels.systems))
    if recipe.labels != default.labels:
        raise ConfigError("a lexicon knows every code: of labels only systems can be set")
    threshold = recipe.decision.threshold
    if (threshold != "global" and not isinstance(threshold, float)) or recipe.decision.at_least_one:
        raise ConfigError(
            f"a lexicon's decision.threshold must be global or a number, without at_least_one; got {threshold}"
        )


def note_folds(notes: Sequence[Note], folds: int, seed: int) -> np.ndarray:
    """The fold of each note; notes of one patient, or of one source where ids are SOURCE-NUMBER, stay together."""
    names = [note.patient or note.id.rpartition("-")[0] or note.id for note in notes]
    return group_folds(names, folds, seed, balanced=False)


@dataclass(frozen=True)
class MentionExamples:
    """The held-out mentions of a note, their features, and which (mention, code) pairs are true."""

    note: Note
    mentions: NoteMentions
    table: MentionTable
    target: np.ndarray


@dataclass(frozen=True)
class CrossValidation:
    """Held-out mentions and scores of the train notes of a lexicon."""

    recipe: LexiconRecipe
    systems: Sequence[str]
    all_terms: Terms
    notes: Sequence[Note]

    @property
    def terms(self) -> Terms | None:
        """The terms of ICD-10-CM, where they are used."""
        return self.all_terms if self.recipe.learn.terms and "icd10cm" in self.systems else None

    @cached_property
    def folds(self) -> np.ndarray:
        return note_folds(self.notes, self.recipe.learn.folds, self.recipe.seed)

    @cached_property
    def has_evidence(self) -> bool:
        """Whether most coded notes have evidence spans."""
        return self._most_have_evidence(self.notes)

    def _most_have_evidence(self, notes: Sequence[Note]) -> bool:
        coded = [note for note in notes if any(code.system in self.systems for code in note.codes)]
        return 2 * sum(any(item.code.system in self.systems for item in note.evidence) for note in coded) > len(coded)

    def learn(self, notes: Sequence[Note]) -> LearnedPhrases:
        match = self.recipe.match
        if self._most_have_evidence(notes):
            return learn_from_evidence(notes, self.systems, match.learned_gap, tagger=self.recipe.learn.tagger)
        return learn_associations(notes, self.systems, self.terms, match.gap, self.recipe.learn.longest)

    def mentions(self) -> list[MentionExamples]:
        """The mentions of each note, found with phrases of the other folds."""
        examples: dict[int, MentionExamples] = {}
        match = self.recipe.match
        for fold in progress(range(self.recipe.learn.folds), "learning phrases", unit="folds"):
            learned = self.learn([note for note, its_fold in zip(self.notes, self.folds) if its_fold != fold])
            for number in np.flatnonzero(self.folds[:_MAX_NOTES] == fold).tolist():
                note = self.notes[number]
                mentions = find_mentions(note.text, self.terms, learned.index, match.gap, match.learned_gap)
                table = mention_table(mentions, learned, note.text, self.terms)
                examples[number] = MentionExamples(note, mentions, table, self._target(note, mentions, table))
        return [examples[number] for number in sorted(examples)]

    def _target(self, note: Note, mentions: NoteMentions, table: MentionTable) -> np.ndarray:
        """Which pairs are true: the mention is evidence of the code; without evidence, the note has the code."""
        if not self.has_evidence:
            true = set(note.codes)
            return np.array([pair.code in true for pair in table.pairs], dtype=bool)
        spans: dict[Code, list[Evidence]] = {}
        for item in note.evidence:
            spans.setdefault(item.code, []).append(item)
        target = np.zeros(len(table.pairs), dtype=bool)
        for row, pair in enumerate(table.pairs):
            mention = mentions.mentions[pair.mention]
            target[row] = any(is_same_span(mention.start, mention.end, item) for item in spans.get(pair.code, ()))
        return target

    def mention_scores(self, examples: Sequence[MentionExamples]) -> list[np.ndarray]:
        """Held-out probabilities of the mention classifier, one array per note."""
        rows, targets = [item.table.rows for item in examples], [item.target for item in examples]
        return self._held_out(self.fit_mentions, rows, targets, "scoring mentions")

    def code_scores(self, tables: Sequence[CodeTable], gold: list[set[Code]]) -> list[np.ndarray]:
        """Held-out probabilities of the code classifier, one array per note."""
        return self._held_out(
            self.fit_codes, [rows for _, rows in tables], _code_targets(tables, gold), "scoring codes"
        )

    def _held_out(
        self,
        fit: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], TreeEnsemble | Trees],
        rows: list[np.ndarray],
        targets: list[np.ndarray],
        title: str,
    ) -> list[np.ndarray]:
        scores: list[np.ndarray] = [np.zeros(0)] * len(rows)
        folds = self.folds[: len(rows)]
        for fold in progress(range(self.recipe.learn.folds), title, unit="folds"):
            train = np.flatnonzero(folds != fold).tolist()
            classifier = fit([rows[i] for i in train], [targets[i] for i in train])
            for i in np.flatnonzero(folds == fold).tolist():
                scores[i] = classifier.probabilities(rows[i])
        return scores

    def fit_mentions(self, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> TreeEnsemble:
        """A mention classifier: boosted trees and a random forest."""
        learn, seed = self.recipe.learn, self.recipe.seed
        if not sum(map(len, targets)):
            return TreeEnsemble.constant(0.01)
        x, y = np.concatenate(rows), np.concatenate(targets)
        return TreeEnsemble(
            Trees.boost(
                x, y, rounds=learn.rounds, leaves=learn.leaves, rate=learn.rate, min_leaf=learn.min_leaf, seed=seed
            ),
            Trees.forest(
                x, y, trees=learn.forest, leaves=learn.forest_leaves, min_leaf=learn.forest_min_leaf, seed=seed
            ),
        )

    def fit_codes(self, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Trees:
        """A code classifier. It has few examples, hence half the trees with half the leaves."""
        learn = self.recipe.learn
        if not sum(map(len, targets)):
            return Trees.constant(0.01)
        return Trees.boost(
            np.concatenate(rows),
            np.concatenate(targets),
            rounds=max(1, learn.rounds // 2),
            leaves=max(2, learn.leaves // 2),
            rate=learn.rate,
            min_leaf=2 * learn.min_leaf,
            seed=self.recipe.seed,
        )


def _code_targets(tables: Sequence[CodeTable], gold: list[set[Code]]) -> list[np.ndarray]:
    return [np.array([code in true for code in codes], dtype=bool) for (codes, _), true in zip(tables, gold)]


def _rare_contexts(context: ContextSettings, examples: Sequence[MentionExamples]) -> dict[str, str]:
    """Contexts that were to be learned but have too few mentions, with their default policy."""
    marks = (mention.marks for item in examples for mention in item.mentions.mentions)
    counts = Counter(name for flags in marks for name, marked in zip(CATEGORIES, flags) if marked)
    default = ContextSettings()
    return {
        name: getattr(default, name) for name, policy in context if policy == "learn" and counts[name] < _MIN_MENTIONS
    }


def _threshold(
    recipe: LexiconRecipe, gold: list[set[Code]], tables: Sequence[CodeTable], code_scores: Sequence[np.ndarray]
) -> float:
    """The threshold of the recipe, else the best one on held-out scores."""
    if isinstance(recipe.decision.threshold, float):
        return recipe.decision.threshold
    labels = LabelSpace(sorted({code for codes, _ in tables for code in codes} | set().union(*gold)))
    bounds = np.concatenate([[0], np.cumsum([len(codes) for codes, _ in tables])])
    columns = [labels.column(code) for codes, _ in tables for code in codes]
    values = np.concatenate([*code_scores, np.zeros(0)]).astype(np.float32)
    scores = sparse.csr_matrix((values, columns, bounds), shape=(len(tables), len(labels)))
    if not labels.encode(gold).multiply(scores).count_nonzero():
        return UNTUNED
    return max(0.05, tune_threshold(labels, gold, scores))


def _evidence_threshold(
    examples: Sequence[MentionExamples],
    mention_scores: Sequence[np.ndarray],
    tables: Sequence[CodeTable],
    code_scores: Sequence[np.ndarray],
    threshold: float,
    systems: Sequence[str],
) -> float:
    """The least probability of a shown mention that maximises the F1 of evidence spans over accepted codes."""
    hits, shown_total = np.zeros(len(_CUTS)), np.zeros(len(_CUTS))
    for item, scores, (codes, _), probabilities in zip(examples, mention_scores, tables, code_scores):
        accepted = {code for code, probability in zip(codes, probabilities) if probability >= threshold}
        for probability, true, first in _shown_mentions(item, scores, accepted):
            shown = (probability >= _CUTS) | first
            shown_total += shown
            hits += true * shown
    gold_total = sum(
        len({(span.code, span.start, span.end) for span in item.note.evidence if span.code.system in systems})
        for item in examples
    )
    return float(_CUTS[np.argmax(2 * hits / np.maximum(shown_total + gold_total, 1))])


def _shown_mentions(item: MentionExamples, scores: np.ndarray, accepted: set[Code]) -> list[tuple[float, bool, bool]]:
    """The mentions that `Lexicon.evidence` could show for accepted codes: probability, whether the pair is true, and
    whether it is the best of its code, which is always shown."""
    taken: dict[Code, list[tuple[int, int]]] = {}
    shown = []
    for row in np.argsort(-scores, kind="stable").tolist():
        pair = item.table.pairs[row]
        mention = item.mentions.mentions[pair.mention]
        spans = taken.setdefault(pair.code, [])
        if pair.code in accepted and is_separate(mention.start, mention.end, spans):
            shown.append((float(scores[row]), bool(item.target[row]), not spans))
            spans.append((mention.start, mention.end))
    return shown


def resolve_code_set(settings: CodeSetSettings, notes: Sequence[Note]) -> CodeSetSettings:
    """The settings, with `corpus` replaced by the release and the seventh characters that the notes use."""
    counts = Counter(code for note in notes for code in note.codes if code.system == "icd10cm")
    release = _release(counts) if settings.release == CORPUS else settings.release
    seventh = _seventh(counts, release) if settings.seventh == CORPUS else settings.seventh
    return settings.model_copy(update={"release": release, "seventh": seventh})


def _release(counts: Counter[Code]) -> str:
    """The release in which most codes are valid; the newest on ties."""
    all_releases = releases("icd10cm")
    valid_codes = {release: sum(n for code, n in counts.items() if is_valid(code, release)) for release in all_releases}
    return max(all_releases, key=lambda release: (valid_codes[release], release))


def _seventh(counts: Counter[Code], release: str | None) -> bool:
    """Whether most codes that require a seventh character have one; True without such codes."""
    whole = cut = 0
    lines = table("icd10cm", release)
    for code, n in counts.items():
        if len(code.code) == len("S72.001A") and code.code in lines:
            whole += n
        elif code.code[0] in "STVWXY" and not lines.billable(code.code):
            cut += n
    return whole >= cut
