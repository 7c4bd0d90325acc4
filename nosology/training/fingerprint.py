"""What a training run is of: a checkpoint of another one is passed over."""

from __future__ import annotations

import hashlib
import json

from nosology.core import __version__
from nosology.training.examples import Examples
from nosology.training.settings import Recipe

_ELSEWHERE = {"training", "decision", "two_stage", "federation", "states"}  # told to the loop, or not its concern


def fingerprint(recipe: Recipe, *examples: Examples) -> str:
    """What decides the weights: recipe, corpora and package, and which of the notes are used."""
    told = recipe.model_dump(mode="json", exclude=_ELSEWHERE)
    hashes = [[corpus.hash for corpus in part.corpora] + [len(part)] for part in examples]
    return hashlib.sha256(json.dumps([told, hashes, __version__]).encode()).hexdigest()
