"""A hospital that takes part in the training of a lexicon: counts of phrases and codes, and decision trees.

The features of a mention are computed from the counts of all sites without those of the own notes of the same fold: a
phrase is always right on the notes from which it was learned. The trees of the other sites have not seen the notes of
this one. So their scores are the held-out scores on which the code classifier is trained and the threshold is tuned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import sparse

from nosology.core import Note
from nosology.core.label_space import LabelSpace, column_sums
from nosology.federated.federation_settings import FederatedLexiconRecipe
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.hashed_counts import hash_pairs, hashed_sum, unpack_names
from nosology.federated.rounds.site_trees import SiteTrees
from nosology.federated.rounds.statistics_learner import COUNTS, FIND, NAMES, StatisticsSite, reading_settings
from nosology.models.lexicon.cross_validation import (
    CrossValidation,
    MentionExamples,
    boost_codes,
    boost_mentions,
    grow_mentions,
    note_folds,
    terms_of,
)
from nosology.models.lexicon.learned_phrases import LearnedPhrases
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.lexicon.lexicon_trainer import rare_contexts
from nosology.models.lexicon.mention_features import code_table
from nosology.models.lexicon.phrase_associations import AssociatedPairs, associated, collect_phrases, learned_phrases
from nosology.models.lexicon.scorers import TrainedScorer
from nosology.models.lexicon.trees import TreeEnsemble
from nosology.text.context import CATEGORIES

PAIRS, BOTH, MENTION_TREES, CODE_TREES, HELD_OUT = "pairs", "both", "mention_trees", "code_trees", "held_out"
BOOSTED, FOREST, CODES = "boosted", "forest", "codes"  # names of trees
PAIR_BUCKETS = 4  # times statistics.buckets: there are more pairs of phrases and codes than phrases
SCORE_BINS = 1000  # of probabilities, for the threshold
_BLOCK = 256  # notes that are scored together, each on all codes of the classification
COUNT_ARRAYS = ("items", "seen", "coded", "notes", "pair_phrase", "pair_code", "both")


@dataclass(frozen=True)
class PhraseCounts:
    """Counts of phrases and codes, of all sites or of some notes."""

    seen: np.ndarray  # (P,) notes with each phrase
    coded: np.ndarray  # (L,) notes with each code
    both: np.ndarray  # (pairs,) notes with both
    notes: int

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> PhraseCounts:
        """The counts of all sites."""
        return cls(arrays["seen"], arrays["coded"], arrays["both"], int(arrays["notes"][0]))

    def without(self, other: PhraseCounts) -> PhraseCounts:
        """These counts minus those of some notes; not below 0 if noise or a lost site has made the sums smaller."""
        return PhraseCounts(
            np.maximum(self.seen - other.seen, 0),
            np.maximum(self.coded - other.coded, 0),
            np.maximum(self.both - other.both, 0),
            max(1, self.notes - other.notes),
        )

    def learned(self, arrays: Mapping[str, np.ndarray], labels: LabelSpace) -> LearnedPhrases:
        """The phrases that are associated with codes, as `nosology train` learns them from notes with these counts."""
        phrase, code = arrays["pair_phrase"].astype(np.int64), arrays["pair_code"].astype(np.int64)
        both, seen = self.both.astype(np.float64), self.seen[phrase].astype(np.float64)
        rows, g2 = associated(both, seen, self.coded[code].astype(np.float64), float(self.notes))
        counts = (both[rows].astype(np.int64), seen[rows].astype(np.int64))
        pairs = AssociatedPairs(phrase[rows], code[rows], *counts, g2)
        names = {number: tuple(name.split(" ")) for number, name in enumerate(unpack_names(arrays["items"]))}
        rank = {number: i for i, number in enumerate(sorted(names, key=names.__getitem__))}
        order = np.array([rank[number] for number in pairs.phrase.tolist()], dtype=np.int64)
        code_notes = {code: int(n) for code, n in zip(labels.codes, self.coded.tolist()) if n > 0}
        return learned_phrases(pairs.best(ties=False, order=order), names, labels.codes, code_notes, self.notes)


@dataclass(frozen=True)
class SiteValidation(CrossValidation):
    """Mentions of the notes of a site, with phrases of all sites but without the notes of the same fold."""

    counts: tuple[LearnedPhrases, ...] = ()  # without each fold, and of all notes

    @cached_property
    def learned(self) -> list[LearnedPhrases]:
        """The phrases without each fold, and last those of all notes."""
        return list(self.counts)

    @cached_property
    def has_evidence(self) -> bool:
        """False: evidence is not used in a federation."""
        return False


@dataclass
class LexiconSite(StatisticsSite):
    """The notes of a hospital for a lexicon."""

    collected: ClassVar[frozenset[str]] = frozenset({NAMES, MENTION_TREES, CODE_TREES})
    counted: ClassVar[frozenset[str]] = frozenset({FIND, COUNTS, PAIRS, BOTH})

    _found: tuple[str, list[MentionExamples]] | None = None  # digest of the counts, and mentions
    _scored: list[Note] = field(default_factory=list)  # the notes of these mentions

    def read_items(self, recipe: FederatedLexiconRecipe) -> list[set[str]]:
        """The phrases of each train note: neighbouring content words, and terms of the classification."""
        items, terms = [], terms_of(recipe, self.systems(recipe))
        for text in self.examples["train"].texts():
            found = collect_phrases([text], terms, recipe.match.gap, recipe.learn.longest)
            rows = ([found.keys[key] for key in row if key >= 0] for row in found.rows.tolist())
            names = {" ".join(sorted(keys)) for keys in rows}
            if terms is not None:
                names |= {" ".join(terms.index.phrase(term)) for term in found.terms.tolist()}
            items.append(names)
        return items

    def systems(self, recipe: FederatedLexiconRecipe) -> list[str]:
        """The code systems of the federation."""
        assert self.labels is not None
        return list(recipe.labels.systems) or sorted({code.system for code in self.labels.codes})

    def vector(self, stage: str, arrays: Arrays, recipe: FederatedLexiconRecipe) -> np.ndarray:
        """The vector of the site in a stage that is a sum, without noise."""
        return super().vector(stage, arrays, with_edition(recipe, arrays))

    def collect(self, stage: str, arrays: Arrays, recipe: FederatedLexiconRecipe) -> Arrays:
        """The arrays of the site in a stage that is no sum: names of phrases, or trees."""
        recipe = with_edition(recipe, arrays)
        if stage == NAMES:
            return super().collect(stage, arrays, recipe)
        found = self._mentions(arrays, recipe)
        learn, seed = recipe.learn, recipe.seed
        if stage == MENTION_TREES:
            rows = np.concatenate([item.table.rows for item in found])
            target = np.concatenate([item.target for item in found])
            trees = -(-learn.forest // int(arrays["sites"][0]))  # together the sites grow one forest
            forest = grow_mentions(learn.model_copy(update={"forest": trees}), seed, 1, rows, target)
            return boost_mentions(learn, seed, rows, target).arrays(BOOSTED) | forest.arrays(FOREST)
        tables = np.concatenate(self._code_tables(arrays, found))
        return boost_codes(learn, seed, tables, np.concatenate(self._targets(found))).arrays(CODES)

    def compute(self, stage: str, arrays: Arrays, recipe: FederatedLexiconRecipe) -> np.ndarray:
        """The vector of the site."""
        if stage == PAIRS:
            counts = (self._phrase_matrix(arrays, recipe).T @ self.gold("train")).tocoo()
            buckets = PAIR_BUCKETS * recipe.statistics.buckets
            return hashed_sum(hash_pairs(counts.row, counts.col), counts.data.astype(np.float64), buckets)
        if stage == BOTH:
            notes, patients = self._pair_counts(arrays, recipe)
            return np.concatenate([notes, patients]).astype(np.float64)
        return self._held_out(arrays, self._mentions(arrays, recipe))

    def _phrase_matrix(self, arrays: Arrays, recipe: FederatedLexiconRecipe) -> sparse.csr_matrix:
        """Which shared phrases the train notes have, 0/1 (B, P)."""
        number = {item: i for i, item in enumerate(unpack_names(arrays["items"]))}
        rows = [sorted(number[item] for item in items if item in number) for items in self.note_items(recipe)]
        bounds = np.cumsum([0, *map(len, rows)])
        columns = np.array([column for row in rows for column in row], dtype=np.int64)
        return sparse.csr_matrix((np.ones(len(columns), np.int64), columns, bounds), shape=(len(rows), len(number)))

    def _note_pairs(self, arrays: Arrays, recipe: FederatedLexiconRecipe) -> list[np.ndarray]:
        """The pairs (their numbers) of a shared phrase and a code that each train note has."""
        phrases, gold = self._phrase_matrix(arrays, recipe), self.gold("train")
        labels = gold.shape[1]
        keys = arrays["pair_phrase"].astype(np.int64) * labels + arrays["pair_code"]  # ascending
        pairs = []
        for row in range(phrases.shape[0]):
            of_phrase = phrases.indices[phrases.indptr[row] : phrases.indptr[row + 1]].astype(np.int64)
            of_code = gold.indices[gold.indptr[row] : gold.indptr[row + 1]].astype(np.int64)
            own = (of_phrase[:, None] * labels + of_code).ravel()
            at = np.minimum(np.searchsorted(keys, own), max(0, len(keys) - 1))
            pairs.append(at[keys[at] == own] if len(keys) else at[:0])
        return pairs

    def _pair_counts(self, arrays: Arrays, recipe: FederatedLexiconRecipe) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of notes and of patients (pairs,) that have a phrase and a code together."""
        size, of_patient = len(arrays["pair_phrase"]), dict[str, list[np.ndarray]]()
        pairs = self._note_pairs(arrays, recipe)
        for note, own in zip(self.examples["train"].notes(), pairs):
            of_patient.setdefault(note.patient or note.id, []).append(own)
        patients = [np.unique(np.concatenate(own)) for own in of_patient.values()]
        return count_numbers(pairs, size), count_numbers(patients, size)

    def _mentions(self, arrays: Arrays, recipe: FederatedLexiconRecipe) -> list[MentionExamples]:
        """The mentions of the train notes with their features, computed once."""
        counts = b"".join(arrays[name].tobytes() for name in COUNT_ARRAYS)
        digest = hashlib.sha256(reading_settings(recipe).encode() + counts).hexdigest()
        if self._found is None or self._found[0] != digest:
            notes, systems, total = self.notes("train"), self.systems(recipe), PhraseCounts.of(arrays)
            folds = note_folds(notes, recipe.learn.folds, recipe.seed)
            phrases, gold, pairs = (
                self._phrase_matrix(arrays, recipe),
                self.gold("train"),
                self._note_pairs(arrays, recipe),
            )
            learned = []
            for fold in range(recipe.learn.folds):
                inside = np.flatnonzero(folds == fold)
                own = PhraseCounts(
                    column_sums(phrases[inside]),
                    column_sums(gold[inside]),
                    count_numbers([pairs[row] for row in inside], len(total.both)),
                    len(inside),
                )
                learned.append(total.without(own).learned(arrays, self._labels()))
            validation = SiteValidation(recipe, systems, notes, 1, tuple(learned))
            self._scored, self._found = list(validation.scored_notes), (digest, validation.mentions())
        return self._found[1]

    def _labels(self) -> LabelSpace:
        assert self.labels is not None
        return self.labels

    def _targets(self, found: list[MentionExamples]) -> list[np.ndarray]:
        """Which of the codes that a note mentions are its codes."""
        true = [set(note.codes) for note in self._scored]
        return [np.array([code in own for code in item.table.codes], dtype=bool) for item, own in zip(found, true)]

    def _code_tables(self, arrays: Arrays, found: list[MentionExamples]) -> list[np.ndarray]:
        """The features of the codes of each note, from mention scores of the trees of the other sites."""
        trees = [read_site_trees(arrays, name).average(without=self.name) for name in (BOOSTED, FOREST)]
        mention_scores = TreeEnsemble(*trees).probabilities(np.concatenate([item.table.rows for item in found]))
        parts = np.split(mention_scores, np.cumsum([len(item.table.rows) for item in found])[:-1])
        return [code_table(item.table, part) for item, part in zip(found, parts)]

    def _held_out(self, arrays: Arrays, found: list[MentionExamples]) -> np.ndarray:
        """Histograms of the probabilities of all and of true codes, the number of true codes, mentions by context."""
        scorer = read_site_trees(arrays, CODES).average(without=self.name)
        scores = scorer.probabilities(np.concatenate(self._code_tables(arrays, found)))
        bins = np.minimum((scores * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
        true = np.concatenate(self._targets(found))
        histograms = [np.bincount(part, minlength=SCORE_BINS) for part in (bins, bins[true])]
        gold = sum(len(set(codes)) for codes in self.codes("train")[: len(found)])
        marked = sum((item.marked for item in found), np.zeros(len(CATEGORIES)))
        return np.concatenate([*histograms, [gold], marked]).astype(np.float64)

    def logits(self, weights: Arrays, recipe: FederatedLexiconRecipe, split: str) -> np.ndarray:
        """Logits (B, L) of the probabilities of the lexicon."""
        lexicon, labels = build_lexicon(recipe, weights, self._labels()), self._labels()
        known = [(i, lexicon.labels.column(code)) for i, code in enumerate(labels.codes) if code in lexicon.labels]
        own, columns = np.array(known, dtype=np.int64).reshape(-1, 2).T
        logits = np.full((self.sizes[split], len(labels)), -np.inf, dtype=np.float32)
        notes = self.notes(split)
        for start in range(0, len(notes), _BLOCK):
            block = slice(start, start + _BLOCK)
            probabilities = lexicon.probabilities(notes[block])[:, columns].astype(np.float64)
            with np.errstate(divide="ignore"):
                logits[block, own] = np.log(probabilities) - np.log1p(-np.minimum(probabilities, 1 - 1e-7))
        return logits


def count_numbers(parts: Sequence[np.ndarray], size: int) -> np.ndarray:
    """How often each number below `size` occurs in several arrays."""
    return np.bincount(np.concatenate([np.zeros(0, np.int64), *parts]), minlength=size)


def with_edition(recipe: FederatedLexiconRecipe, arrays: Mapping[str, np.ndarray]) -> FederatedLexiconRecipe:
    """The recipe with the release and the seventh characters that the server has found for all sites."""
    release, seventh = unpack_names(arrays["edition"])
    codes = recipe.codes.model_copy(update={"release": release or None, "seventh": seventh == "seventh"})
    return recipe.model_copy(update={"codes": codes})


def read_site_trees(arrays: Mapping[str, np.ndarray], name: str) -> SiteTrees:
    """The trees of the sites in the state of the server."""
    sites = unpack_names(arrays[f"{name}.sites"])
    return SiteTrees.from_arrays(arrays, name, sites, arrays[f"{name}.weights"].tolist())


def build_lexicon(recipe: FederatedLexiconRecipe, state: Mapping[str, np.ndarray], labels: LabelSpace) -> Lexicon:
    """The lexicon of the last stage."""
    edition = with_edition(recipe, state)
    rare = rare_contexts(recipe.context, state["marked"])
    central = edition.model_copy(update={"context": recipe.context.model_copy(update=rare)})
    plain = LexiconRecipe.model_validate(central.model_dump(exclude={"federation", "statistics"}))
    learned = PhraseCounts.of(state).learned(state, labels)
    boosted, forest, codes = (read_site_trees(state, name).average() for name in (BOOSTED, FOREST, CODES))
    return Lexicon.build(plain, TrainedScorer(learned, TreeEnsemble(boosted, forest), codes, 0.0))
