"""Words that carry their negation with them: "no evidence of pneumonia" has the word NOT_pneumonia."""

from __future__ import annotations

from nosology.text.context import word_marks
from nosology.text.context_rules import CATEGORIES
from nosology.text.data import function_words
from nosology.text.tokens import Tokens

PREFIX = "NOT_"


def mark_negated(text: str, found: Tokens) -> Tokens:
    """The words of the text with NOT_ before each content word in a negated scope; places stay.

    `found` are the words of the text itself, all of them: tokens(text).
    """
    negated = word_marks(text, found)[CATEGORIES.index("negated")].tolist()
    empty = function_words()
    words = [
        PREFIX + word if mark and word not in empty and not word.isdigit() else word
        for word, mark in zip(found.words, negated)
    ]
    return Tokens(words, found.starts, found.ends)
