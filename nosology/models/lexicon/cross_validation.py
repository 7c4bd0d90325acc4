"""Held-out mentions and scores of the train notes of a lexicon, computed on all cores.

The notes are divided into folds. What is computed for a note depends only on the note and on the notes of the other
folds, so the results are the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from nosology.core import Code, Evidence, Note
from nosology.core.parallel import cores, parallel_map, parts
from nosology.core.progress import progress
from nosology.corpora.group_splits import group_folds
from nosology.models.lexicon.learned_phrases import (
    LearnedPhrases,
    NoteEvidence,
    is_same_span,
    learn_from_evidence,
    note_evidence,
)
from nosology.models.lexicon.lexicon_settings import LearnSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mention_features import MentionTable, mention_table
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.phrase_associations import NotePhrases, PhraseRows, collect_phrases
from nosology.models.lexicon.tagger import MAX_NOTES as TAGGED_NOTES
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from nosology.text.context import CATEGORIES

_MAX_NOTES = 4000  # for the classifiers; phrases are learned from all notes
_MAX_ROWS = 200_000  # pairs of a mention and a code that a classifier is trained on
_MIN_PARALLEL = 500_000  # characters of notes; with fewer, starting processes takes longer than the work
_PART = 25  # notes that a process takes at a time

FitTrees = Callable[[np.ndarray, np.ndarray], Trees]  # from rows (N, F) and targets (N,)


def note_folds(notes: Sequence[Note], folds: int, seed: int) -> np.ndarray:
    """The fold of each note; notes of one patient, or of one source where ids are SOURCE-NUMBER, stay together."""
    names = [note.patient or note.id.rpartition("-")[0] or note.id for note in notes]
    return group_folds(names, folds, seed, balanced=False)


def terms_of(recipe: LexiconRecipe, systems: Sequence[str]) -> Terms | None:
    """The terms of ICD-10-CM, where they are used."""
    if not recipe.learn.terms or "icd10cm" not in systems:
        return None
    return Terms.open(recipe.codes.release, seventh=recipe.codes.has_seventh)


@dataclass(frozen=True)
class MentionExamples:
    """The held-out mentions of a note, which pairs are true, and the number of mentions in each context."""

    table: MentionTable
    target: np.ndarray  # (N,)
    marked: np.ndarray  # (categories,)


@dataclass(frozen=True)
class HeldOut:
    """Held-out probabilities of each note's rows, and the classifier that is trained on all notes."""

    scores: list[np.ndarray]
    classifier: Trees


@dataclass(frozen=True)
class CrossValidation:
    """Held-out mentions and scores of the train notes of a lexicon; workers: number of processes, None: as it pays."""

    recipe: LexiconRecipe
    systems: Sequence[str]
    notes: Sequence[Note]
    workers: int | None = None

    @cached_property
    def n_workers(self) -> int:
        if self.workers is not None:
            return self.workers
        return cores() if sum(len(note.text) for note in self.notes) > _MIN_PARALLEL else 1

    @cached_property
    def folds(self) -> np.ndarray:
        return note_folds(self.notes, self.recipe.learn.folds, self.recipe.seed)

    @cached_property
    def has_evidence(self) -> bool:
        """Whether most coded notes have evidence spans."""
        return self._most_have_evidence(self.notes)

    @property
    def scored_notes(self) -> Sequence[Note]:
        """The notes whose mentions and codes are scored."""
        return self.notes[:_MAX_NOTES]

    def _most_have_evidence(self, notes: Sequence[Note]) -> bool:
        coded = [note for note in notes if any(code.system in self.systems for code in note.codes)]
        return 2 * sum(any(item.code.system in self.systems for item in note.evidence) for note in coded) > len(coded)

    @cached_property
    def learned(self) -> list[LearnedPhrases]:
        """The phrases learned from the notes outside of each fold, and last from all notes."""
        n_folds = self.recipe.learn.folds
        outside = [np.flatnonzero(self.folds != fold).tolist() for fold in range(n_folds + 1)]
        by_evidence = {
            fold: numbers
            for fold, numbers in enumerate(outside)
            if self._most_have_evidence([self.notes[number] for number in numbers])
        }
        learned = dict(enumerate(self._associations())) if len(by_evidence) < len(outside) else {}
        if by_evidence:
            learned |= self._from_evidence(by_evidence)
        return list(learned.values())

    def _from_evidence(self, folds: dict[int, list[int]]) -> dict[int, LearnedPhrases]:
        """What is learned from evidence for some folds; folds: the numbers of the notes outside of each."""
        tagged = {number for numbers in folds.values() for number in numbers[:TAGGED_NOTES]}
        tagger = self.recipe.learn.tagger
        work = [(note, tagger and number in tagged) for number, note in enumerate(self.notes)]
        results = parallel_map(_note_evidence, [(self.systems, part) for part in parts(work, _PART)], self.n_workers)
        found = (item for part in results for item in part)
        notes = list(progress(found, "reading evidence", total=len(work)))
        arguments = [
            ([notes[number] for number in numbers], self.systems, self.recipe.match.learned_gap)
            for numbers in folds.values()
        ]
        fitted = parallel_map(learn_from_evidence, arguments, self.n_workers)
        return dict(zip(folds, progress(fitted, "learning phrases", total=len(arguments), unit="folds")))

    def _associations(self) -> list[LearnedPhrases]:
        """The phrases associated with codes outside of each fold, and of all notes."""
        texts = [[note.text for note in part] for part in parts(self.notes, _PART)]
        results = parallel_map(_collect_phrases, [(self.recipe, self.systems, part) for part in texts], self.n_workers)
        shown = progress(results, "collecting phrases", total=len(texts), unit=f"parts of {_PART} notes")
        terms = terms_of(self.recipe, self.systems)
        n_folds = self.recipe.learn.folds
        found = NotePhrases.collect(self.notes, self.systems, self.folds, n_folds, shown, terms, self.n_workers)
        return found.learned()

    def mentions(self) -> list[MentionExamples]:
        """The mentions of each scored note, found with phrases of the other folds."""
        by_fold = [np.flatnonzero(self.folds[:_MAX_NOTES] == fold) for fold in range(self.recipe.learn.folds)]
        # Each part is sent with the phrases of its fold, which grow with the notes: few parts per process.
        size = max(_PART, -(-len(self.scored_notes) // (self.recipe.learn.folds * self.n_workers)))
        numbers = [(fold, part) for fold, of_fold in enumerate(by_fold) for part in parts(of_fold.tolist(), size)]
        arguments = [
            (self.recipe, self.systems, self.has_evidence, self.learned[fold], [self.notes[number] for number in part])
            for fold, part in numbers
        ]
        terms_of(self.recipe, self.systems)  # built here if they are new, not by every process
        results = parallel_map(_find_examples, arguments, self.n_workers)
        found = (item for part in results for item in part)
        shown = progress(found, "finding mentions", total=len(self.scored_notes))
        examples = dict(zip((number for _, part in numbers for number in part), shown))
        return [examples[number] for number in sorted(examples)]

    def mention_scores(self, examples: Sequence[MentionExamples]) -> tuple[list[np.ndarray], TreeEnsemble]:
        """Held-out probabilities of the mention classifier, one array per note, and the classifier of all notes."""
        learn, seed = self.recipe.learn, self.recipe.seed
        threads = max(1, self.n_workers // (learn.folds + 1))
        fits = [partial(boost_mentions, learn, seed), partial(grow_mentions, learn, seed, threads)]
        rows, targets = [item.table.rows for item in examples], [item.target for item in examples]
        boosted, forest = self._held_out(fits, rows, targets, "scoring mentions")
        scores = [(one + other) / 2 for one, other in zip(boosted.scores, forest.scores)]
        return scores, TreeEnsemble(boosted.classifier, forest.classifier)

    def code_scores(self, tables: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> HeldOut:
        """Held-out probabilities of the code classifier, one array per note, and the classifier of all notes."""
        fit = partial(boost_codes, self.recipe.learn, self.recipe.seed)
        return self._held_out([fit], tables, targets, "scoring codes")[0]

    def _held_out(
        self, fits: Sequence[FitTrees], rows: Sequence[np.ndarray], targets: Sequence[np.ndarray], title: str
    ) -> list[HeldOut]:
        """For each fit, held-out probabilities and the classifier of all notes."""
        n_folds, sizes = self.recipe.learn.folds, [len(part) for part in targets]
        x, y = np.concatenate(rows), np.concatenate(targets)
        row_fold = np.repeat(self.folds[: len(rows)], sizes)
        arguments = [(fit, x, y, row_fold, fold, self.recipe.seed) for fit in fits for fold in range(n_folds + 1)]
        results = parallel_map(_fit_outside, arguments, self.n_workers)
        fitted = list(progress(results, title, total=len(arguments), unit="classifiers"))
        held_out = []
        for number in range(len(fits)):
            of_fit = fitted[number * (n_folds + 1) : (number + 1) * (n_folds + 1)]
            scores = np.zeros(len(y))
            for fold, (_, probabilities) in enumerate(of_fit):
                scores[row_fold == fold] = probabilities
            held_out.append(HeldOut(np.split(scores, np.cumsum(sizes)[:-1]), of_fit[-1][0]))
        return held_out


def _note_evidence(systems: Sequence[str], notes: Sequence[tuple[Note, bool]]) -> list[NoteEvidence]:
    return [note_evidence(note, systems, tagger) for note, tagger in notes]


def _collect_phrases(recipe: LexiconRecipe, systems: Sequence[str], texts: Sequence[str]) -> PhraseRows:
    return collect_phrases(texts, terms_of(recipe, systems), recipe.match.gap, recipe.learn.longest)


def _find_examples(
    recipe: LexiconRecipe, systems: Sequence[str], has_evidence: bool, learned: LearnedPhrases, notes: Sequence[Note]
) -> list[MentionExamples]:
    """The mentions of notes, found with learned phrases and terms."""
    terms, match = terms_of(recipe, systems), recipe.match
    examples = []
    for note in notes:
        mentions = find_mentions(note.text, terms, learned.index, match.gap, match.learned_gap)
        table = mention_table(mentions, learned, note.text, terms)
        marks = [mention.marks for mention in mentions.mentions]
        marked = np.array(marks, dtype=np.int64).reshape(-1, len(CATEGORIES)).sum(axis=0)
        examples.append(MentionExamples(table, _target(note, mentions, table, has_evidence), marked))
    return examples


def _target(note: Note, mentions: NoteMentions, table: MentionTable, has_evidence: bool) -> np.ndarray:
    """Which pairs are true: the mention is evidence of the code; without evidence, the note has the code."""
    if not has_evidence:
        true = set(note.codes)
        return np.array([code in true for code in table.codes], dtype=bool)[table.code]
    spans: dict[Code, list[Evidence]] = {}
    for item in note.evidence:
        spans.setdefault(item.code, []).append(item)
    target = np.zeros(len(table.rows), dtype=bool)
    for row, (number, code) in enumerate(table.pairs()):
        mention = mentions.mentions[number]
        target[row] = any(is_same_span(mention.start, mention.end, item) for item in spans.get(code, ()))
    return target


def _fit_outside(
    fit: FitTrees, rows: np.ndarray, target: np.ndarray, row_fold: np.ndarray, fold: int, seed: int
) -> tuple[Trees, np.ndarray]:
    """The classifier of the rows outside of a fold, and its probabilities of the rows in the fold."""
    train = np.flatnonzero(row_fold != fold)
    if not len(train):
        classifier = Trees.constant(0.01)
    else:
        if len(train) > _MAX_ROWS:
            train = np.sort(np.random.default_rng(seed).choice(train, _MAX_ROWS, replace=False))
        classifier = fit(rows[train], target[train])
    return classifier, classifier.probabilities(rows[row_fold == fold])


def boost_mentions(learn: LearnSettings, seed: int, rows: np.ndarray, target: np.ndarray) -> Trees:
    return Trees.boost(
        rows,
        target,
        rounds=learn.rounds,
        leaves=learn.leaves,
        learning_rate=learn.learning_rate,
        min_leaf=learn.min_leaf,
        seed=seed,
    )


def grow_mentions(learn: LearnSettings, seed: int, threads: int, rows: np.ndarray, target: np.ndarray) -> Trees:
    return Trees.forest(
        rows,
        target,
        trees=learn.forest,
        leaves=learn.forest_leaves,
        min_leaf=learn.forest_min_leaf,
        seed=seed,
        threads=threads,
    )


def boost_codes(learn: LearnSettings, seed: int, rows: np.ndarray, target: np.ndarray) -> Trees:
    """A code classifier. It has few examples, hence half the trees with half the leaves."""
    return Trees.boost(
        rows,
        target,
        rounds=max(1, learn.rounds // 2),
        leaves=max(2, learn.leaves // 2),
        learning_rate=learn.learning_rate,
        min_leaf=2 * learn.min_leaf,
        seed=seed,
    )
