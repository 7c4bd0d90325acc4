"""Questions about sibling codes that a lexicon is asked, and the training of its verifier on held-out notes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from nosology.core import Code, Note
from nosology.models.lexicon.cross_validation import CrossValidation, MentionExamples
from nosology.models.lexicon.learned_phrases import is_separate
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.models.siblings.sibling_features import FEATURES, SiblingQuestion
from nosology.models.siblings.sibling_group import MAX_SIBLINGS, sibling_group
from nosology.models.siblings.sibling_training import AnsweredQuestions, fit_verifier, held_out
from nosology.models.siblings.sibling_verifier import SiblingVerifier

SYSTEM = "icd10cm"
_MAX_SPANS = 5
_MAX_QUESTIONS = 10_000
_MIN_QUESTIONS = 50  # with fewer the verifier of the package is used
_TIE = 1e-6  # among codes that the lexicon scores equally it ranks the more frequent one first

ScoredSpan = tuple[float, Code, int, int]  # the probability that characters start to end are coded with a code


def siblings_by_category(codes: Iterable[Code]) -> dict[str, tuple[Code, ...]]:
    """The codes of each category of ICD-10-CM that has at least two, and not many hundreds, as some injuries have."""
    found: dict[str, list[Code]] = {}
    for code in codes:
        if code.system == SYSTEM:
            found.setdefault(code.code[:3], []).append(code)
    return {category: tuple(siblings) for category, siblings in found.items() if 1 < len(siblings) <= MAX_SIBLINGS}


def lexicon_question(lexicon: Lexicon, text: str, siblings: tuple[Code, ...]) -> SiblingQuestion:
    """The question which of the siblings a note has, with what the lexicon finds in it."""
    mentions, scores = lexicon.analyse(text)
    at = [(mentions.mentions[scored.mention], scored) for scored in scores.mentions]
    spans = [(scored.probability, scored.code, mention.start, mention.end) for mention, scored in at]
    counts = {code: int(lexicon.train_counts[lexicon.labels.column(code)]) for code in siblings}
    return _question(text, siblings, spans, scores.codes, counts, lexicon.recipe.codes.release)


def train_chooser(
    lexicon: Lexicon,
    validation: CrossValidation,
    examples: Sequence[MentionExamples],
    mention_scores: Sequence[np.ndarray],
    code_scores: Sequence[np.ndarray],
) -> tuple[SiblingChooser, dict[str, float]]:
    """The chooser whose verifier is trained on held-out mentions and scores of the train notes, and its accuracy there.

    Its training starts from the verifier of the package, which is kept where there are few questions.
    """
    by_category = siblings_by_category(lexicon.labels.codes)
    counts = [dict(zip(learned.codes, learned.notes.tolist())) for learned in validation.learned]
    features, right, folds = [], [], []
    for number, note in enumerate(validation.scored_notes):
        if len(folds) >= _MAX_QUESTIONS:
            break
        table, fold = examples[number].table, int(validation.folds[number])
        places = [(code, *table.mentions[mention][2:]) for mention, code in table.pairs()]
        spans = [(score, *place) for score, place in zip(mention_scores[number].tolist(), places)]
        scores = dict(zip(table.codes, code_scores[number].tolist()))
        for siblings in siblings_asked(note, by_category):
            question = _question(note.text, siblings, spans, scores, counts[fold], lexicon.recipe.codes.release)
            features.append(question.features())
            right.append(np.array([code in note.codes for code in siblings]))
            folds.append(fold)
    shipped = SiblingVerifier.shipped()
    of_all = counts[-1]
    if len(folds) < _MIN_QUESTIONS:
        return SiblingChooser(shipped, of_all), {"questions": len(folds)}
    questions = AnsweredQuestions.collect(features, right, folds)
    verifier = fit_verifier(questions, shipped)
    return SiblingChooser(verifier, of_all), _accuracy(questions, verifier, shipped)


def _accuracy(questions: AnsweredQuestions, verifier: SiblingVerifier, start: SiblingVerifier) -> dict[str, float]:
    """The held-out accuracy of the first choice of the lexicon and of the verifier, with and without abstentions."""
    best, right = held_out(questions, start)
    sure = best >= verifier.sure_from
    score, frequency = (questions.features[:, FEATURES.index(name)] for name in ("score", "frequency"))
    first = questions.best(score + _TIE * frequency)[1]
    shares = {"lexicon": first.mean(), "verifier": right.mean(), "sure": sure.mean()}
    shares |= (
        {"lexicon_where_sure": first[sure].mean(), "verifier_where_sure": right[sure].mean()} if sure.any() else {}
    )
    return {"questions": len(right)} | {name: round(float(value), 4) for name, value in shares.items()}


def siblings_asked(note: Note, by_category: Mapping[str, tuple[Code, ...]]) -> list[tuple[Code, ...]]:
    """The siblings of each category of which the note has a code."""
    categories = dict.fromkeys(code.code[:3] for code in note.codes if code.system == SYSTEM)
    return [by_category[name] for name in categories if name in by_category]


def _question(
    text: str,
    siblings: tuple[Code, ...],
    spans: Iterable[ScoredSpan],
    scores: Mapping[Code, float],
    counts: Mapping[Code, int],
    release: str | None,
) -> SiblingQuestion:
    evidence = _evidence(spans, set(siblings))
    return SiblingQuestion(text, evidence, sibling_group(siblings, release), scores, counts)


def _evidence(scored: Iterable[ScoredSpan], siblings: Collection[Code]) -> tuple[tuple[int, int], ...]:
    """The most probable separate mentions of siblings."""
    spans: list[tuple[int, int]] = []
    for _, code, start, end in sorted(scored, key=lambda span: -span[0]):
        if code in siblings and is_separate(start, end, spans) and len(spans) < _MAX_SPANS:
            spans.append((start, end))
    return tuple(spans)
