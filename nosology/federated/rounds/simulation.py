"""The hospitals of a simulation: the notes of one corpus, each at its site, embedded once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nosology.core import DataError
from nosology.core.files import text_sha256
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.group_splits import summarize_notes
from nosology.corpora.splits import assign_sites
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.client_app import make_app
from nosology.federated.rounds.hospital_site import SPLITS, Site
from nosology.federated.rounds.in_process import SITE_NAME, InProcessGrid
from nosology.models.heads.coded_vectors import CodedVectors
from nosology.training.examples import codes_in_systems


def _check_ids(corpora: Sequence[Corpus]) -> None:
    """Raises where a note's site could not be told by its id."""
    ids = [note.id for corpus in corpora for note in corpus.notes(text=False)]
    if again := len(ids) - len(set(ids)):
        raise DataError(f"ids of notes must differ from corpus to corpus; {again} are in two of them")


def own_sites(corpora: Sequence[Corpus]) -> dict[str, str]:
    """The site of every note id, as the corpora have it."""
    _check_ids(corpora)
    found = {note.id: note.site for corpus in corpora for note in corpus.notes(text=False)}
    if without := sum(not site for site in found.values()):
        raise DataError(f"{without} notes are at no site: `nosology corpus split --sites`, or --sites here, deals them")
    return found


def dealt_sites(corpora: Sequence[Corpus], sites: int, skew: str, alpha: float, seed: int) -> dict[str, str]:
    """The site of every note id, dealt out anew; no patient and no repeated note is at two sites."""
    _check_ids(corpora)
    notes = (note for corpus in corpora for note in progress(corpus.notes(), "sites"))
    return assign_sites(summarize_notes(notes), sites, skew=skew, alpha=alpha, seed=seed)


def notes_hash(corpora: Sequence[Corpus], site_of: dict[str, str]) -> str:
    """A hash of the notes and of where each is."""
    told = json.dumps([[corpus.hash for corpus in corpora], sorted(site_of.items())])
    return text_sha256(told)[:16]


def simulated_sites(
    corpora: Sequence[Corpus], site_of: dict[str, str], recipe: FederatedHeadsRecipe, cache: Path
) -> list[Site]:
    """A hospital for each site that has notes; vectors that the cache does not have are made and kept there."""
    embedder = Embedder.load(recipe.embedder)
    kept = EmbeddingCache.for_embedder(cache, embedder)
    parts: dict[str, dict[str, CodedVectors]] = {name: {} for name in sorted(set(site_of.values()))}
    for split in SPLITS:
        notes = [note for corpus in corpora for note in corpus.notes(split, text=False)]
        texts = (note.text for corpus in corpora for note in corpus.notes(split))
        vectors = kept.vectors(progress(texts, f"vectors, {split}", total=len(notes)), lambda: embedder)
        codes = codes_in_systems(recipe.labels, [note.codes for note in notes])
        names = np.array([site_of[note.id] for note in notes], dtype=object)
        for name, own in parts.items():
            rows = np.flatnonzero(names == name)
            own[split] = CodedVectors(vectors[rows], [codes[row] for row in rows])
    return [Site(name, embedder.identity, embedder.key, own) for name, own in parts.items()]


def grid_of(sites: Sequence[Site]) -> InProcessGrid:
    """A grid whose nodes are these sites."""
    by_name = {site.name: site for site in sites}
    return InProcessGrid(make_app(lambda context, _: by_name[str(context.node_config[SITE_NAME])]), by_name)
