"""Notes as the pieces of words that a pretrained transformer knows, each with its place in the note."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.encoders.vocabulary import Read
from nosology.text.tokens import lower

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHIFT = 1  # piece p has the number p + SHIFT: 0 is the pad of every reader
_BROKEN = re.compile("[\ud800-\udfff]")  # halves of a character, which no tokenizer takes


@dataclass(frozen=True)
class PieceReader:
    """Reads a note as its first `limit` pieces; a piece stands at the place of the whole word that it is part of."""

    tokenizer_json: str  # as the library tokenizers writes it
    limit: int
    lower_case: bool = False  # small letters, also where the tokenizer would keep capitals

    kind = "pieces"

    def read(self, text: str) -> Read:
        """The pieces of a note (T,), without the tokens that begin and end it."""
        text = _BROKEN.sub("\ufffd", lower(text) if self.lower_case else text)
        found = self._tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(found.ids[: self.limit], dtype=np.int32) + np.int32(SHIFT)
        return Read(ids, *_words(text, found.offsets[: self.limit]))

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def to_json(self) -> dict[str, Any]:
        """All that the reader is made of."""
        tokenizer = json.loads(self.tokenizer_json)
        return {"kind": self.kind, "limit": self.limit, "lower_case": self.lower_case, "tokenizer": tokenizer}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PieceReader:
        """The reader that `to_json` gave."""
        return cls(json.dumps(value["tokenizer"], ensure_ascii=False), value["limit"], value["lower_case"])


def _words(text: str, offsets: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Where the word of each piece starts and ends (T,), of the places of the pieces.

    Two pieces are of one word if they touch and letters or digits stand on both sides; tokenizers have notions of their
    own, and some of them call a whole note a word.
    """
    starts, ends = np.empty(len(offsets), dtype=np.int64), np.empty(len(offsets), dtype=np.int64)
    first, before = 0, 0
    for i, (start, end) in enumerate(offsets):
        while start < end and text[start].isspace():
            start += 1
        inside = 0 < start < end and text[start - 1].isalnum() and text[start].isalnum()
        if i and (start < before or (start == before and inside)):
            starts[i] = starts[first]
        else:
            first, starts[i] = i, start
        before = ends[first : i + 1] = max(end, starts[i])
    return starts, ends
