"""Suggestions for the train notes of a lexicon by lexicons that have not seen them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosology.codes import describe
from nosology.core import EvidenceSpan, Note, Suggestion
from nosology.models.lexicon.cross_validation import CrossValidation, MentionExamples
from nosology.models.lexicon.learned_phrases import is_separate
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.lexicon.lexicon_trainer import resolve_code_set
from nosology.models.lexicon.mention_features import code_table

_SPANS = 5  # of a suggestion, as of a coder


def held_out_suggestions(
    recipe: LexiconRecipe, notes: Sequence[Note], threshold: float, systems: Sequence[str] = ("icd10cm",)
) -> list[list[Suggestion]]:
    """Suggestions for each note, the most probable first, from phrases and classifiers of the other folds.

    The folds are those of training. threshold: of accepted codes. At most the first 4,000 notes are scored.
    """
    recipe = recipe.model_copy(update={"codes": resolve_code_set(recipe.codes, notes)})
    validation = CrossValidation(recipe, systems, notes)
    examples = validation.mentions()
    mention_scores, _ = validation.mention_scores(examples)
    true = [set(note.codes) for note in validation.scored_notes]
    targets = [
        np.array([code in codes for code in item.table.codes], dtype=bool) for item, codes in zip(examples, true)
    ]
    scores = validation.code_scores(
        [code_table(item.table, of) for item, of in zip(examples, mention_scores)], targets
    ).scores
    scored = zip(validation.scored_notes, examples, mention_scores, scores)
    return [_suggestions(note.text, item, of, codes, threshold) for note, item, of, codes in scored]


def _suggestions(
    text: str, item: MentionExamples, mention_scores: np.ndarray, scores: np.ndarray, threshold: float
) -> list[Suggestion]:
    table = item.table
    by_code = np.split(
        np.lexsort((-mention_scores, table.code)), np.cumsum(np.bincount(table.code, minlength=len(scores)))[:-1]
    )
    return [
        Suggestion(
            table.codes[at].system,
            table.codes[at].code,
            describe(table.codes[at]),
            float(scores[at]),
            bool(scores[at] >= threshold),
            _spans(text, item, by_code[at], mention_scores),
        )
        for at in np.argsort(-scores, kind="stable").tolist()
    ]


def _spans(text: str, item: MentionExamples, rows: np.ndarray, mention_scores: np.ndarray) -> tuple[EvidenceSpan, ...]:
    """The best mentions of a code that do not overlap; rows: its pairs, best first."""
    spans: list[EvidenceSpan] = []
    for row in rows.tolist():
        place = item.table.mentions[item.table.mention[row]]
        if is_separate(place.start, place.end, ((span.start, span.end) for span in spans)):
            spans.append(
                EvidenceSpan(place.start, place.end, text[place.start : place.end], float(mention_scores[row]))
            )
        if len(spans) == _SPANS:
            break
    return tuple(spans)
