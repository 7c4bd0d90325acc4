"""A lexicon adapted to coded notes.

What a phrase is worth cannot be seen on the notes it was learned from, where it is always right. So the notes are dealt
into parts; for each part the phrases are learned from the others, and the weighers learn from mentions in notes that
taught no phrase. In the same way the weigher of codes learns from what a weigher of mentions says of notes it has not
seen, and the threshold is found on what a weigher of codes says of such notes. Dev notes are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core import Code, ConfigError, Note
from nosology.core.label_space import LabelSpace
from nosology.core.progress import progress
from nosology.corpora.group_splits import group_folds
from nosology.evaluation import tune_threshold
from nosology.evaluation.decision import UNTUNED, Decision
from nosology.models.coder_trainer import CoderTrainer, TrainedCoder
from nosology.models.lexicon.adapted import Adapted
from nosology.models.lexicon.associations import learn_associations
from nosology.models.lexicon.code_features import code_table
from nosology.models.lexicon.edition import edition
from nosology.models.lexicon.learned_phrases import Learned, apart, learn_evidence, near
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_settings import ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mention_features import Priors, Table, mention_table
from nosology.models.lexicon.mentions import NoteMentions, find_mentions
from nosology.models.lexicon.trees import Trees, Weigher
from nosology.text.context import CATEGORIES
from nosology.training.examples import Examples, union

_MOST_NOTES = 4000  # that the weighers learn from; phrases are learned from all
_LEAST_MENTIONS = 20  # in a context, to learn what it is worth
_CUTS = np.arange(0.1, 0.75, 0.05)  # probabilities among which the least one of evidence is chosen


class LexiconTrainer(CoderTrainer[LexiconRecipe]):
    """Learns phrases and classifiers of mentions and codes from coded notes, by cross-validation."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The trained lexicon and its threshold; refit: dev notes are train notes too."""
        recipe = self.recipe
        _check(recipe)
        notes = list((union(train_notes, dev_notes) if refit else train_notes).notes())
        recipe = recipe.model_copy(update={"codes": edition(recipe.codes, notes)})
        systems = recipe.labels.systems or sorted({code.system for note in notes for code in note.codes})
        work = _Work(recipe, systems, Terms.open(recipe.codes.release, seventh=recipe.codes.seventh))
        part = parts(notes, recipe.learn.folds, recipe.seed)
        seen = work.unseen_mentions(notes, part)
        votes = work.unseen_votes(seen, part)
        tables = [code_table(item.found, item.table, vote) for item, vote in zip(seen, votes)]
        gold = [{code for code in item.note.codes if code.system in systems} for item in seen]
        told = work.unseen_codes(tables, gold, part[: len(seen)])
        threshold = _threshold(recipe, gold, tables, told)
        adapted = Adapted(
            work.learn(notes),
            work.fit_mentions([item.table.rows for item in seen], [item.target for item in seen]),
            work.fit_codes([rows for _, rows in tables], [_has(codes, true) for (codes, _), true in zip(tables, gold)]),
            _evidence_from(seen, votes, tables, told, threshold, systems) if work.with_evidence(notes) else 0.0,
        )
        strange = _too_seldom(recipe.context, seen)
        recipe = recipe.model_copy(update={"context": recipe.context.model_copy(update=strange)})
        found = {
            "tuned_on": f"{recipe.learn.folds} parts of the notes it learned from, crosswise",
            "contexts_as_on_day_one": sorted(strange),
            "evidence": work.with_evidence(notes),
            "phrases": len(adapted.learned.index),
            "folds": recipe.learn.folds,
            "edition": recipe.codes.model_dump(mode="json", include={"release", "seventh"}),
        }
        return TrainedCoder(Lexicon.trained(recipe, adapted), Decision(threshold), found)


def _check(recipe: LexiconRecipe) -> None:
    """Refuses what a lexicon would not heed."""
    plain = LexiconRecipe(labels={"systems": recipe.labels.systems})
    if recipe.labels != plain.labels:
        raise ConfigError("a lexicon knows every code: of labels only systems can be set")
    told = recipe.decision.threshold
    if (told != "global" and not isinstance(told, float)) or recipe.decision.at_least_one:
        raise ConfigError(
            f"a lexicon's decision.threshold must be global or a number, without at_least_one; got {told}"
        )


def parts(notes: Sequence[Note], folds: int, seed: int) -> np.ndarray:
    """The part of each note; those of one patient, or of one source where ids are SOURCE-NUMBER, stay together."""
    names = [note.patient or note.id.rpartition("-")[0] or note.id for note in notes]
    return group_folds(names, folds, seed, balanced=False)


@dataclass(frozen=True)
class _Seen:
    """A note, the mentions that others' phrases find in it, their features, and which of them are coded so."""

    note: Note
    found: NoteMentions
    table: Table
    target: np.ndarray


@dataclass(frozen=True)
class _Work:
    recipe: LexiconRecipe
    systems: Sequence[str]
    every_term: Terms

    @property
    def terms(self) -> Terms | None:
        return self.every_term if self.recipe.learn.terms and "icd10cm" in self.systems else None

    def with_evidence(self, notes: Sequence[Note]) -> bool:
        """Whether most coded notes say which words their codes rest on."""
        coded = [note for note in notes if any(code.system in self.systems for code in note.codes)]
        return 2 * sum(any(item.code.system in self.systems for item in note.evidence) for note in coded) > len(coded)

    def learn(self, notes: Sequence[Note]) -> Learned:
        """The phrases that notes teach."""
        match = self.recipe.match
        if self.with_evidence(notes):
            return learn_evidence(notes, self.systems, match.learned_gap, tagger=self.recipe.learn.tagger)
        return learn_associations(notes, self.systems, self.terms, match.gap, self.recipe.learn.longest)

    def unseen_mentions(self, notes: Sequence[Note], part: np.ndarray) -> list[_Seen]:
        """The mentions of each note, found and described by what the other parts teach."""
        found: dict[int, _Seen] = {}
        match, evidence = self.recipe.match, self.with_evidence(notes)
        for fold in progress(range(self.recipe.learn.folds), "learning phrases"):
            learned = self.learn([note for note, own in zip(notes, part) if own != fold])
            priors = Priors(learned)
            for number in np.flatnonzero(part[:_MOST_NOTES] == fold).tolist():
                note = notes[number]
                mentions = find_mentions(note.text, self.terms, learned.index, match.gap, match.learned_gap)
                table = mention_table(mentions, learned, priors, note.text, self.terms)
                found[number] = _Seen(note, mentions, table, _target(note, mentions, table, evidence))
        return [found[number] for number in sorted(found)]

    def unseen_votes(self, seen: Sequence[_Seen], part: np.ndarray) -> list[np.ndarray]:
        """What weighers of mentions say, each of the part that it has not learned from."""
        rows, targets = [item.table.rows for item in seen], [item.target for item in seen]
        return self._crossed(self.fit_mentions, rows, targets, part[: len(seen)], "weighing mentions")

    def unseen_codes(self, tables: Sequence[tuple[list[Code], np.ndarray]], gold: list[set[Code]], part: np.ndarray):
        """What weighers of codes say, each of the part that it has not learned from: one array a note."""
        rows, targets = [rows for _, rows in tables], [_has(codes, true) for (codes, _), true in zip(tables, gold)]
        return self._crossed(self.fit_codes, rows, targets, part, "weighing codes")

    def _crossed(
        self,
        fit: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], Weigher | Trees],
        rows: list[np.ndarray],
        targets: list[np.ndarray],
        part: np.ndarray,
        title: str,
    ) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for fold in progress(range(self.recipe.learn.folds), title):
            others = np.flatnonzero(part != fold).tolist()
            weigher = fit([rows[i] for i in others], [targets[i] for i in others])
            for i in np.flatnonzero(part == fold).tolist():
                found[i] = weigher.probabilities(rows[i])
        return found

    def fit_mentions(self, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Weigher:
        """A weigher of mentions."""
        learn, seed = self.recipe.learn, self.recipe.seed
        if not sum(map(len, targets)):
            return Weigher.constant(0.01)
        x, y = np.concatenate(rows), np.concatenate(targets)
        return Weigher(
            Trees.boost(
                x, y, rounds=learn.rounds, leaves=learn.leaves, rate=learn.rate, min_leaf=learn.min_leaf, seed=seed
            ),
            Trees.forest(
                x, y, trees=learn.forest, leaves=learn.forest_leaves, min_leaf=learn.forest_min_leaf, seed=seed
            ),
        )

    def fit_codes(self, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> Trees:
        """A weigher of codes: it has little to learn, and learns it with half the trees, each half as large."""
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


def _too_seldom(context: ContextSettings, seen: Sequence[_Seen]) -> dict[str, str]:
    """Contexts that were to be learned and have too few mentions for it, with what day one makes of them."""
    marks = (mention.marks for item in seen for mention in item.found.mentions)
    counts = Counter(name for own in marks for name, marked in zip(CATEGORIES, own) if marked)
    plain = ContextSettings()
    return {name: getattr(plain, name) for name, told in context if told == "learn" and counts[name] < _LEAST_MENTIONS}


def _target(note: Note, found: NoteMentions, table: Table, evidence: bool) -> np.ndarray:
    """Which pairs are true: the mention is evidence of the code, or, where there is none, the note has the code."""
    if not evidence:
        true = set(note.codes)
        return np.array([pair.code in true for pair in table.pairs], dtype=bool)
    spans: dict[Code, list] = {}
    for item in note.evidence:
        spans.setdefault(item.code, []).append(item)
    places = [(found.mentions[pair.mention].start, found.mentions[pair.mention].end) for pair in table.pairs]
    hits = (any(near(*place, item) for item in spans.get(pair.code, ())) for place, pair in zip(places, table.pairs))
    return np.fromiter(hits, dtype=bool, count=len(places))


def _has(codes: Sequence[Code], true: set[Code]) -> np.ndarray:
    return np.array([code in true for code in codes], dtype=bool)


def _threshold(
    recipe: LexiconRecipe,
    gold: list[set[Code]],
    tables: Sequence[tuple[list[Code], np.ndarray]],
    told: Sequence[np.ndarray],
) -> float:
    """The threshold of the recipe, else the best one on notes that the weighers have not seen."""
    if isinstance(recipe.decision.threshold, float):
        return recipe.decision.threshold
    labels = LabelSpace(sorted({code for codes, _ in tables for code in codes} | set().union(*gold)))
    bounds = np.concatenate([[0], np.cumsum([len(codes) for codes, _ in tables])])
    columns = [labels.column(code) for codes, _ in tables for code in codes]
    values = np.concatenate([*told, np.zeros(0)]).astype(np.float32)
    scores = sparse.csr_matrix((values, columns, bounds), shape=(len(tables), len(labels)))
    if not labels.encode(gold).multiply(scores).count_nonzero():
        return UNTUNED
    return max(0.05, tune_threshold(labels, gold, scores))


def _evidence_from(
    seen: Sequence[_Seen],
    votes: Sequence[np.ndarray],
    tables: Sequence[tuple[list[Code], np.ndarray]],
    told: Sequence[np.ndarray],
    threshold: float,
    systems: Sequence[str],
) -> float:
    """The least probability of a mention that makes the evidence of accepted codes most like that of the notes."""
    hits, given = np.zeros(len(_CUTS)), np.zeros(len(_CUTS))
    for item, vote, (codes, _), own in zip(seen, votes, tables, told):
        accepted = {code for code, probability in zip(codes, own) if probability >= threshold}
        for probability, true, first in _given(item, vote, accepted):
            shown = (probability >= _CUTS) | first
            given += shown
            hits += true * shown
    total = sum(
        len({(one.code, one.start, one.end) for one in item.note.evidence if one.code.system in systems})
        for item in seen
    )
    return float(_CUTS[np.argmax(2 * hits / np.maximum(given + total, 1))])


def _given(item: _Seen, votes: np.ndarray, accepted: set[Code]) -> list[tuple[float, bool, bool]]:
    """The votes that may be shown for accepted codes, as `Lexicon.evidence` picks them: probability, whether it is
    true, and whether it is the best of its code, which is shown in any case."""
    taken: dict[Code, list[tuple[int, int]]] = {}
    kept = []
    for row in np.argsort(-votes, kind="stable").tolist():
        pair = item.table.pairs[row]
        mention = item.found.mentions[pair.mention]
        here = taken.setdefault(pair.code, [])
        if pair.code in accepted and apart(mention.start, mention.end, here):
            kept.append((float(votes[row]), bool(item.target[row]), not here))
            here.append((mention.start, mention.end))
    return kept
