"""Tokenizers of notes: words, subwords of a pretrained transformer, and subwords of a prepared radiology report.

Each `tokenize(text)` returns an `Encoding`: token ids with their character offsets in the original text. No module
here imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nosology.core.parallel import batched
from nosology.text.cleaning import BENCHMARK, clean
from nosology.text.report_text import clean_report
from nosology.text.tokens import benchmark_words, lower, tokenize, words_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    from nosology.corpora.word_cache import Cleaning

PAD, UNKNOWN = 0, 1  # ids of padding and of words outside the vocabulary
SPECIALS = 2
ID_SHIFT = 1  # subword p of the transformer has the id p + ID_SHIFT, so that 0 is padding for every tokenizer
_TEXTS = 256  # of notes that are tokenized at a time
_BENCHMARK_WORD = re.compile(r"[a-z0-9]+")
_DIGIT_OR_REST = re.compile(r"\d|[^\d]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which no subword tokenizer accepts. Offsets stay the same."""
    return _SURROGATE.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids (T,) of a note."""

    ids: np.ndarray  # int32

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Encoding(TokenIds):
    """Token ids (T,) of a note; token i is text[starts[i]:ends[i]] of the original text."""

    starts: np.ndarray  # int64
    ends: np.ndarray  # int64


class Vocabulary:
    """Words and their ids: 0 is padding, 1 is every unknown word, then the words in order."""

    def __init__(self, words: Sequence[str]):
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words, SPECIALS)}
        if len(self._ids) != len(self.words):
            raise ValueError("a vocabulary must not contain a word twice")

    @classmethod
    def build(
        cls,
        note_counts: Mapping[str, int],
        min_notes: int = 3,
        extra_words: Iterable[str] = (),
        max_words: int | None = None,
        alphabetic: bool = False,
    ) -> Vocabulary:
        """The vocabulary of words that occur in at least `min_notes` notes, plus `extra_words`.

        note_counts: the number of notes with each word; the most frequent words come first. alphabetic: without words
        that have no letter.
        """
        frequent = (word for word, count in note_counts.items() if count >= min_notes)
        words = {word for word in frequent if not alphabetic or has_letter(word)} | set(extra_words)
        return cls(sorted(words, key=lambda word: (-note_counts.get(word, 0), word))[:max_words])

    def __len__(self) -> int:
        return len(self.words) + SPECIALS

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """The ids (T,) of words, int32."""
        return np.fromiter(map(self._ids.get, words, repeat(UNKNOWN)), dtype=np.int32, count=len(words))

    def tokenize(self, text: str, limit: int | None = None) -> Encoding:
        """The first `limit` words of a text. Numbers count as words."""
        words = tokenize(text)
        return Encoding(self.ids(words.words[:limit]), words.starts[:limit], words.ends[:limit])


class Tokenizer(Protocol):
    """Splits a text into tokens with offsets."""

    def tokenize(self, text: str) -> Encoding:
        """The tokens of a text."""

    def token_ids(self, texts: Iterable[str]) -> Iterator[TokenIds]:
        """The tokens of texts, for which offsets need not be found."""

    def to_json(self) -> dict[str, Any]:
        """The argument of `from_json` of the same class."""


@dataclass(frozen=True)
class WordTokenizer:
    """Tokenizes a note into its first `limit` words.

    reference_padding: tokenize as the authors' implementation of DualLAAT does: `benchmark`, every note is padded to
    the limit, and descriptions are split at whitespace only.
    alphabetic: words without a letter are dropped from notes, as in PLANT (Saha Roy et al. 2024).
    benchmark: notes have the words of `benchmark_words`, as in Edin et al. (2023) and DualLAAT.
    """

    vocabulary: Vocabulary
    limit: int
    reference_padding: bool = False
    alphabetic: bool = False
    benchmark: bool = False

    @property
    def cleaning(self) -> Cleaning:
        """Which word cache of a corpus has the words of this tokenizer."""
        return "benchmark" if self.benchmark or self.reference_padding else "none"

    def tokenize(self, text: str) -> Encoding:
        """The words of a note (T,); empty (also without padding) if the text contains no word."""
        if self.reference_padding:
            return self._padded(self._benchmark(text), len(text))
        if self.benchmark:
            return self._benchmark(text)
        if not self.alphabetic:
            return self.vocabulary.tokenize(text, self.limit)
        words = tokenize(text)
        chosen = [i for i, word in enumerate(words.words) if has_letter(word)][: self.limit]
        return Encoding(self.vocabulary.ids([words.words[i] for i in chosen]), words.starts[chosen], words.ends[chosen])

    def token_ids(self, texts: Iterable[str]) -> Iterator[TokenIds]:
        """The words of notes as in `tokenize`, without offsets: several times as fast."""
        if self.reference_padding:
            yield from map(self.tokenize, texts)
            return
        for words in map(benchmark_words if self.benchmark else words_of, texts):
            known = list(filter(has_letter, words)) if self.alphabetic else words
            yield TokenIds(self.vocabulary.ids(known[: self.limit]))

    def description_ids(self, text: str, limit: int | None = None) -> np.ndarray:
        """The ids (T,) of the first `limit` words of a code's description, int32."""
        if self.reference_padding:
            return self.vocabulary.ids(text.lower().split()[:limit])
        words = chain.from_iterable(map(self._split_unknown, words_of(text)))
        return self.vocabulary.ids(list(islice(words, limit)))

    def _split_unknown(self, word: str) -> list[str]:
        """The word itself or, if it is unknown and contains digits, its digits and the parts between them.

        Otherwise two codes whose descriptions differ only in an unknown number would get the same tokens.
        """
        return [word] if word in self.vocabulary or word.isalpha() else _DIGIT_OR_REST.findall(word)

    def _benchmark(self, text: str) -> Encoding:
        words = list(islice(_benchmark_matches(lower(text)), self.limit))
        ids = self.vocabulary.ids([match[0] for match in words])
        starts, ends = (np.array([getattr(match, side)() for match in words], np.int64) for side in ("start", "end"))
        return Encoding(ids, starts, ends)

    def _padded(self, words: Encoding, end: int) -> Encoding:
        """The words, padded to the limit; padding has an empty span at the end of the text. Without words, empty."""
        missing = self.limit - len(words) if len(words) else 0
        ids = np.pad(words.ids, (0, missing), constant_values=PAD)
        starts, ends = (np.pad(side, (0, missing), constant_values=end) for side in (words.starts, words.ends))
        return Encoding(ids, starts, ends)

    def to_json(self) -> dict[str, Any]:
        """A JSON description. The key `literal` (reference_padding) is part of the bundle format."""
        words = list(self.vocabulary.words)
        settings = {"literal": self.reference_padding, "alphabetic": self.alphabetic, "benchmark": self.benchmark}
        return {"limit": self.limit, **settings, "words": words}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WordTokenizer:
        flags = (value.get(name, False) for name in ("literal", "alphabetic", "benchmark"))
        return cls(Vocabulary(value["words"]), value["limit"], *flags)


def has_letter(word: str) -> bool:
    """Whether a word has a letter."""
    return any(map(str.isalpha, word))


def _benchmark_matches(text: str) -> Iterator[re.Match[str]]:
    """The words of a lower-case text, those of `benchmark_words`, with their places."""
    for match in _BENCHMARK_WORD.finditer(text):
        if not match[0].isdigit() or match.start() == 0 or match.end() == len(text):
            yield match


@dataclass(frozen=True)
class SubwordTokenizer:
    """Tokenizes a note into its first `limit` subwords; the offsets of a subword are those of its whole word."""

    tokenizer_json: str  # serialized by the library tokenizers
    limit: int
    lower_case: bool = False  # lower the text first, also for a cased tokenizer
    benchmark: bool = False  # clean the text first, as Edin et al. (2023): a-z and 0-9, no separate numbers

    def tokenize(self, text: str) -> Encoding:
        """The subwords of a note (T,), without special tokens."""
        if not self.benchmark:
            return self._subwords(text)
        view = clean(text, BENCHMARK)
        tokenized = self._subwords(view.text)
        if not len(tokenized):
            return tokenized
        return Encoding(tokenized.ids, view.starts[tokenized.starts], view.ends[tokenized.ends - 1])

    def token_ids(self, texts: Iterable[str]) -> Iterator[TokenIds]:
        """The subwords of notes as in `tokenize`, without their places; on all cores, some notes at a time."""
        for some in batched(texts, _TEXTS):
            cleaned = [self._lowered(clean(text, BENCHMARK).text if self.benchmark else text) for text in some]
            for encoding in self._tokenizer.encode_batch_fast(cleaned, add_special_tokens=False):
                yield TokenIds(np.array(encoding.ids[: self.limit], dtype=np.int32) + np.int32(ID_SHIFT))

    def _lowered(self, text: str) -> str:
        return replace_surrogates(lower(text) if self.lower_case else text)

    def _subwords(self, text: str) -> Encoding:
        text = self._lowered(text)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids[: self.limit], dtype=np.int32) + np.int32(ID_SHIFT)
        return Encoding(ids, *_word_offsets(text, encoding.offsets[: self.limit]))

    @cached_property
    def _tokenizer(self) -> HuggingFaceTokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def to_json(self) -> dict[str, Any]:
        tokenizer = json.loads(self.tokenizer_json)
        settings = {"lower_case": self.lower_case, "benchmark": self.benchmark}
        return {"limit": self.limit, **settings, "tokenizer": tokenizer}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SubwordTokenizer:
        flags = (value.get(name, False) for name in ("lower_case", "benchmark"))
        return cls(json.dumps(value["tokenizer"], ensure_ascii=False), value["limit"], *flags)


def _word_offsets(text: str, offsets: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends (T,) of the word that contains each subword.

    Two subwords belong to one word if they touch between alphanumeric characters. A subword of spaces alone, as
    SentencePiece has, belongs to the word after it; at the end of a note its span is empty. The word ids of tokenizers
    are not used: some tokenizers report a whole note as one word.
    """
    starts, ends = np.empty(len(offsets), dtype=np.int64), np.empty(len(offsets), dtype=np.int64)
    first, previous_end = 0, 0
    for i, (start, end) in enumerate(offsets):
        while start < end and text[start].isspace():
            start += 1
        inside_word = 0 < start < end and text[start - 1].isalnum() and text[start].isalnum()
        if i and starts[first] == previous_end:  # only spaces so far
            starts[first : i + 1] = start
        elif i and (start < previous_end or (start == previous_end and inside_word)):
            starts[i] = starts[first]
        else:
            first, starts[i] = i, start
        previous_end = ends[first : i + 1] = max(end, starts[i])
    return starts, ends


@dataclass(frozen=True)
class ReportTokenizer:
    """Tokenizes a radiology report into subwords after the preparation of Sasikala et al. (2025).

    Offsets refer to the original report.
    """

    tokenizer_json: str  # serialized by the library tokenizers
    limit: int
    negation: bool = True
    cleaning: str = "paper"  # paper: remove stop words; plain: keep all words. NOT_ is marked in both
    context: bool = False  # marks uncertain and past words and those of relatives as well

    def tokenize(self, text: str) -> Encoding:
        """The subwords of a report (T,), without special tokens."""
        if self.cleaning == "plain" and not self.negation and not self.context:
            return self._subwords.tokenize(text)
        stop_words = self.cleaning == "paper"
        view = clean_report(text, negation=self.negation, stop_words=stop_words, context=self.context)
        tokenized = self._subwords.tokenize(view.text)
        if not len(tokenized):
            return tokenized
        return Encoding(tokenized.ids, view.starts[tokenized.starts], view.ends[tokenized.ends - 1])

    def token_ids(self, texts: Iterable[str]) -> Iterator[Encoding]:
        """The subwords of reports. Their preparation finds the offsets anyway."""
        return map(self.tokenize, texts)

    @cached_property
    def _subwords(self) -> SubwordTokenizer:
        return SubwordTokenizer(self.tokenizer_json, self.limit)

    def to_json(self) -> dict[str, Any]:
        settings = {"negation": self.negation, "cleaning": self.cleaning, "context": self.context}
        return self._subwords.to_json() | settings

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ReportTokenizer:
        subwords = SubwordTokenizer.from_json(value)
        context = value.get("context", False)  # absent in bundles of version 0.2
        return cls(subwords.tokenizer_json, subwords.limit, value["negation"], value["cleaning"], context)
