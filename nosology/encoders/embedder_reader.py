"""From the texts of notes to the tokens that an embedder is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nosology.encoders.embedder_files import Plan
from nosology.encoders.embedder_settings import KNOWN, EmbedderSettings

_BROKEN = re.compile("[\ud800-\udfff]")  # halves of a character, which no tokenizer takes


@dataclass(frozen=True)
class Reader:
    """Texts to pieces, and pieces to what the model is given."""

    tokenizer: Any  # of the library tokenizers
    begin: list[int]
    prompt: str
    head: list[int]  # the prompt's pieces
    end: list[int]
    lower_case: bool

    @property
    def around(self) -> int:
        """The tokens of a window that are not the note's."""
        return len(self.begin) + len(self.head) + len(self.end)

    def pieces(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The pieces (T,) of each text, without what stands around them; a blank text has none."""
        whole = [self.prompt + _BROKEN.sub("\ufffd", text) for text in texts]
        whole = [text.lower() for text in whole] if self.lower_case else whole
        found = self.tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        none = np.empty(0, dtype=np.int32)  # some tokenizers make a piece of a space, or of the prompt's last one
        pieces = (np.array(one.ids[len(self.head) :], dtype=np.int32) for one in found)
        return [ids if text.strip() else none for text, ids in zip(texts, pieces)]


def reader_of(settings: EmbedderSettings, plan: Plan, tokenizer: Any) -> Reader:
    """How texts become what the model is given."""
    from nosology.encoders.transformer import around

    known = KNOWN.get(settings.model)
    begin, end = around(tokenizer)
    if known and known.end and not end:
        end = [tokenizer.vocab[known.end]] if known.end in tokenizer.vocab else []
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    prompt = settings.prompt or plan.prompt or (known.prompt if known else "")
    head = _head(backend, prompt.lower() if plan.lower_case else prompt)
    return Reader(backend, begin, prompt, head, end, plan.lower_case)


def _head(tokenizer: Any, prompt: str) -> list[int]:
    """The pieces that a prompt begins every text with; a space at its end may melt into the first word."""
    one, other = (tokenizer.encode(prompt + text, add_special_tokens=False).ids for text in ("a", "7"))
    same = next((i for i, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
    return one[:same] if prompt else []
