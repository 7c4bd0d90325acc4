"""Word counts of a few texts, without a corpus."""

from collections import Counter
from collections.abc import Callable, Iterable

from nosology.text.tokens import words_of


def note_counts(texts: Iterable[str], split: Callable[[str], list[str]] = words_of) -> Counter[str]:
    """The number of texts with each word."""
    return Counter(word for text in texts for word in set(split(text)))
