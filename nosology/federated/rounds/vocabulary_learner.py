"""What federated coders that read words have in common: sites report frequent words, and share a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Message, RecordDict

from nosology.core import ConfigError
from nosology.federated.rounds import messages
from nosology.federated.rounds.corpus_learner import CorpusLearner
from nosology.federated.rounds.federation_setup import SiteMetadata
from nosology.federated.rounds.learner import InputsT
from nosology.federated.rounds.word_noise import WordNoise
from nosology.federated.rounds.word_site import WordSite
from nosology.text.tokens import benchmark_words, words_of

_MAX_WORDS = 10**7  # that a site may report

WordCounts = dict[str, int]
SiteW = TypeVar("SiteW", bound=WordSite)


class VocabularyLearner(CorpusLearner[SiteW, InputsT]):
    """A learner whose sites report words, unless the vocabulary is a public list."""

    @property
    def inputs_name(self) -> str:
        """Words."""
        return "read as words"

    @property
    def reports_words(self) -> bool:
        """Whether there is no public list of words."""
        return not self.recipe.federation.vocabulary

    def check_reading(self) -> None:
        """Raises ConfigError for settings that no kind that reads words supports."""
        recipe, federation = self.recipe, self.recipe.federation
        if federation.vocabulary and not Path(federation.vocabulary).is_file():
            raise ConfigError(f"federation.vocabulary must be a file on the server; got {federation.vocabulary!r}")
        if recipe.training.precision == "fp64":
            raise ConfigError(f'training.precision must not be "fp64" for a federated {recipe.kind}')

    def report(self, site: SiteW) -> RecordDict:
        """The words of enough patients, or noisy counts; no words if the vocabulary is a public list."""
        federation, counts = self.recipe.federation, WordCounts()
        if not federation.vocabulary:
            noise = WordNoise.of(federation)
            counts = site.noisy_word_counts(noise) if noise else site.word_counts(federation.min_site_notes)
        return messages.make_content(words=counts)

    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> WordCounts | str:
        """The words in a reply; a text says why they are invalid."""
        if reply is None:
            return "it did not send its words in time"
        if reply.has_error():
            return messages.error_reason(reply.error)
        try:
            counts = messages.get_value(reply.content, "words")
        except (KeyError, ValueError):
            return "its words cannot be read"
        minimum = self.recipe.federation.min_site_notes
        valid = isinstance(counts, dict) and len(counts) <= _MAX_WORDS
        valid = valid and all(type(n) is int and minimum <= n <= metadata.notes for n in counts.values())
        if not valid:
            return f"its words are not counts of {minimum} to {metadata.notes} patients"
        return counts if all(_is_word(word) for word in counts) else "its words are not words of notes"

    def facts(self) -> dict[str, Any]:
        """The epsilon of the reported words, where they have noise."""
        noise = WordNoise.of(self.recipe.federation)
        return {"word_epsilon": noise.epsilon} if noise and not self.recipe.federation.vocabulary else {}

    @staticmethod
    def add_reports(reports: Sequence[WordCounts]) -> Counter[str]:
        """The number of patients with each reported word, over all sites."""
        counts = Counter[str]()
        for report in reports:
            counts.update(report)
        return counts


def _is_word(word: str) -> bool:
    """Whether reading a note can give this word."""
    return word.isprintable() and [word] in (words_of(word), benchmark_words(word))


def read_words(path: Path) -> Iterator[str]:
    """The words of a public list, one per line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read federation.vocabulary {path}") from error
    return chain.from_iterable(map(words_of, lines))
