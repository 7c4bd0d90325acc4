"""Trains the sibling verifier of the package on the simulated hospital: python tools/train_sibling_verifier.py

The coder is day one, so there are no train counts. Writes nosology/models/siblings/data/verifier.json and prints the
accuracy on held-out patients, beside the first choice of day one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from nosology.core import Note
from nosology.core.files import write_json
from nosology.core.progress import progress
from nosology.corpora.simulate import simulate_notes
from nosology.models.lexicon.cross_validation import note_folds
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.lexicon.lexicon_siblings import lexicon_question, siblings_asked, siblings_by_category
from nosology.models.siblings.sibling_features import FEATURES
from nosology.models.siblings.sibling_training import AnsweredQuestions, fit_verifier, held_out

OUT = Path(__file__).parents[1] / "nosology" / "models" / "siblings" / "data" / "verifier.json"
FOLDS = 5


def collect(lexicon: Lexicon, notes: list[Note]) -> AnsweredQuestions:
    """The questions about categories of which a note has a code."""
    by_category = siblings_by_category(lexicon.labels.codes)
    folds = note_folds(notes, FOLDS, 0).tolist()
    features, right, of_question = [], [], []
    for note, fold in progress(list(zip(notes, folds)), "asking about siblings"):
        for siblings in siblings_asked(note, by_category):
            features.append(lexicon_question(lexicon, note.text, siblings).features())
            right.append(np.array([code in note.codes for code in siblings]))
            of_question.append(fold)
    return AnsweredQuestions.collect(features, right, of_question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    notes = list(simulate_notes(arguments.patients, arguments.seed, years=(2016, 2019)))
    questions = collect(Lexicon.build(LexiconRecipe()), notes)
    best, right = held_out(questions)
    verifier = fit_verifier(questions)
    write_json(OUT, verifier.to_json())
    sure, named = best >= verifier.sure_from, questions.is_named
    first = questions.best(questions.features[:, FEATURES.index("score")])[1]
    print(f"{len(right):,} questions; day one {first.mean():.3f}, verifier {right.mean():.3f}")
    print(f"where day one names a sibling ({named.mean():.3f}): {first[named].mean():.3f}, {right[named].mean():.3f}")
    print(f"without abstentions: {right[sure].mean():.3f} of {sure.mean():.3f}")


if __name__ == "__main__":
    main()
