"""Held-out suggestions: a note is scored by what the other folds teach."""

from __future__ import annotations

from nosology.core import Code, Note
from nosology.models.lexicon.held_out import held_out_suggestions
from nosology.models.lexicon.lexicon_settings import LearnSettings, LexiconRecipe

GOUT, RARE = Code("icd10cm", "M10.9"), Code("icd10cm", "Z98.89")


def test_a_phrase_of_one_note_does_not_help_this_note():
    notes = [Note(f"n{i}", "Zorbing of the toe. Gout.", codes=(GOUT, RARE)) for i in range(30)]
    notes += [Note(f"m{i}", "Quiet toe.", codes=()) for i in range(30)]
    notes.append(Note("alone", "Frabbling of the ear.", codes=(Code("icd10cm", "H93.8X9"),)))
    recipe = LexiconRecipe(learn=LearnSettings(folds=3, rounds=10, forest=5, min_leaf=2))
    found = held_out_suggestions(recipe, notes, 0.3)
    assert len(found) == len(notes)
    shared = {item.code: item for item in found[0]}
    assert shared["M10.9"].accepted and shared["Z98.89"].accepted  # the latter only by a phrase of other notes
    assert "Zorbing" in " ".join(span.text for span in shared["Z98.89"].evidence)
    assert all(span.text == notes[0].text[span.start : span.end] for item in found[0] for span in item.evidence)
    probabilities = [item.probability for item in found[0]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert "H93.8X9" not in {item.code for item in found[-1]}
