"""The probe of a bundle on the corpus that it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nosology.core import BundleError, Note
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.federated.privacy.membership import Probe, probe
from nosology.models.bundle import Bundle
from nosology.models.heads.heads_model import Heads

Side = tuple[np.ndarray, np.ndarray]  # logits (B, L), true codes (B, L)


def probe_bundle(
    bundle: Bundle, corpus: Corpus, cache: Path | None = None, notes: int = 2000, seed: int = 0
) -> tuple[Probe, list[str]]:
    """The probe, and what a reader of it must know; at most so many notes a side are looked at, a chance selection.

    cache: where vectors are looked for and kept; None: they are made anew.
    """
    model = bundle.model
    if not isinstance(model, Heads):
        raise BundleError(f"a probe needs a bundle of kind heads; got {model.kind}")
    trained_on = bundle.provenance["trained_on"]
    if "test" in trained_on:
        raise BundleError("the coder was trained on all notes of its corpus: there are no unseen ones to compare with")
    seen = [note for split in trained_on for note in corpus.notes(split)]
    sides = {"seen": seen, "unseen": list(corpus.notes("test"))}
    if "dev" not in trained_on:
        sides["control"] = list(corpus.notes("dev"))
    cautions = _cautions(bundle, corpus, min(notes, len(sides["unseen"])))
    scored = {name: _side(model, _some(part, notes, seed), cache) for name, part in sides.items()}
    return probe(scored["seen"], scored["unseen"], scored.get("control"), seed), cautions


def _side(model: Heads, notes: list[Note], cache: Path | None) -> Side:
    texts = [note.text for note in notes]
    if cache is None:
        logits = model.logits(texts)
    else:
        logits = model.logits_of(
            EmbeddingCache.for_embedder(cache, model.embedder).vectors(texts, lambda: model.embedder)
        )
    return logits, model.labels.encode([note.codes for note in notes]).toarray()


def _some(notes: list[Note], most: int, seed: int) -> list[Note]:
    """At most so many notes, a chance selection in their order."""
    if len(notes) <= most:
        return notes
    chosen = np.random.default_rng(seed).choice(len(notes), most, replace=False)
    return [notes[i] for i in np.sort(chosen)]


def _cautions(bundle: Bundle, corpus: Corpus, unseen: int) -> list[str]:
    found = []
    known = [item.get("hash") for item in bundle.provenance["corpora"]]
    if not known:
        found.append(
            "the coder does not say which corpus it was trained on: the train notes of this one are taken for it"
        )
    elif corpus.hash not in known:
        found.append("the coder was not trained on this corpus, so its train notes are unseen ones too")
    if unseen < 500:
        found.append(f"with {unseen} unseen notes, 1% of them is a handful: the last column is rough")
    return found
