"""What federated coders have in common whose sites need nothing but the notes of their corpora."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nosology.core import SPLITS, DataError, Note
from nosology.corpora.corpus import Corpus
from nosology.federated.rounds.learner import FederatedLearner, InputsT, SiteFiles, SiteT
from nosology.training.examples import Examples


class CorpusLearner(FederatedLearner[SiteT, InputsT]):
    """A learner whose sites are made of notes alone."""

    @abstractmethod
    def make_site(self, name: str, notes: dict[str, Examples]) -> SiteT:
        """The site of these notes by split."""

    def open_site(self, files: SiteFiles) -> SiteT:
        """The site of corpus folders. Word caches beside the corpora are used, and made if there are none."""
        corpora = [Corpus.open(folder) for folder in files.corpora]
        site = self.make_site(files.name, notes_by_split(corpora, lambda note: True))
        if not site.sizes["train"]:
            raise DataError(f"site {files.name} has no train notes: make them with `nosology corpus split`")
        site.code_list = files.code_list
        return site

    def simulated_sites(self, corpora: Sequence[Corpus], site_of: Mapping[str, str], folder: Path) -> list[SiteT]:
        """One hospital per site."""

        def named(name: str) -> SiteT:
            return self.make_site(name, notes_by_split(corpora, lambda note: site_of[note.id] == name))

        return [named(name) for name in sorted(set(site_of.values()))]


def notes_by_split(corpora: Sequence[Corpus], keep: Callable[[Note], bool]) -> dict[str, Examples]:
    """The notes of a site by split."""

    def examples(split: str) -> Examples:
        return Examples(corpora, lambda note: note.split == split and keep(note))

    return {split: examples(split) for split in SPLITS}
