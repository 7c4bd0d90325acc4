"""How a site says what a patient has: which wording, abbreviated or not, and with which slips of the pen."""

from __future__ import annotations

from random import Random

from nosology.codes import describe
from nosology.core import Code
from nosology.corpora.simulate import wording
from nosology.corpora.simulate.concepts import Coding, Concept, Wording
from nosology.corpora.simulate.sites import Site


class Speech:
    """Wordings of concepts, those of bare codes made when first needed."""

    def __init__(self) -> None:
        self._made: dict[str, Wording] = {}

    def name(self, rng: Random, site: Site, concept: Concept, coding: Coding) -> str:
        """One way to write the concept, which may or may not tell which of its codes it is."""
        draw = rng.random
        words = concept.generic
        if not words or coding.own or draw() < site.specific:
            words = coding.wording or self._of_code(concept, coding)
        some = words.short if words.short and (not words.long or draw() < site.short) else words.long
        text = some[int(draw() * len(some))]
        return misspelt(rng, text) if draw() < site.typos else text

    def _of_code(self, concept: Concept, coding: Coding) -> Wording:
        found = self._made.get(coding.code)
        if found is None:
            if len(concept.codings) == 1 and concept.generic:
                found = concept.generic
            elif concept.kind == "procedure":
                found = wording.procedure(describe(Code("icd10pcs", coding.code)))[0]
            else:
                found = wording.diagnosis(describe(Code("icd10cm", coding.code)))[0]
            self._made[coding.code] = found = found or concept.generic
        return found


def misspelt(rng: Random, text: str) -> str:
    """The text with two letters swapped, or one lost or doubled, if it has a word long enough to survive that."""
    words = text.split(" ")
    place = int(rng.random() * len(words))
    word = words[place]
    if len(word) < 6 or not word.isalpha():
        return text
    at = 1 + int(rng.random() * (len(word) - 3))
    slip = rng.random()
    if slip < 0.4:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif slip < 0.75:
        word = word[:at] + word[at + 1 :]
    else:
        word = word[:at] + word[at] + word[at:]
    words[place] = word
    return " ".join(words)
