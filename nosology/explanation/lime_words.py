"""LIME over the words of a note (Ribeiro et al. 2016), with the package lime: words are left out, a line is fitted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import numpy as np

from nosology.core import ConfigError
from nosology.text.tokens import Tokens

_BATCH = 512  # notes that are scored at a time


def lime_weights(
    probabilities: Callable[[Iterable[str]], np.ndarray],
    text: str,
    words: Tokens,
    column: int,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """The weights (W,) of the words in the linear model that is nearest to the coder around this note.

    probabilities: of notes (B,) as (B, L). A note with the same words left out is scored once.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package has escapes that newer Pythons dislike
            from lime.lime_text import LimeTextExplainer
    except ImportError as error:
        raise ConfigError("method lime needs the library lime: pip install 'nosology[explain]'") from error

    def scored(texts: list[str]) -> np.ndarray:
        different, back = np.unique(np.array(texts, dtype=object), return_inverse=True)
        parts = [
            np.asarray(probabilities(different[start : start + _BATCH].tolist()))[:, column]
            for start in range(0, len(different), _BATCH)
        ]
        found = np.concatenate(parts)[back]
        return np.column_stack([1 - found, found])

    # With a word at each place of its own, the package numbers words in their order; what is between them stays.
    explainer = LimeTextExplainer(split_expression=lambda _: words.words, bow=False, mask_string="", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = explainer.explain_instance(text, scored, labels=(1,), num_features=len(words), num_samples=samples)
    weights = np.zeros(len(words))
    for number, weight in found.as_map()[1]:
        weights[number] = weight
    return weights
