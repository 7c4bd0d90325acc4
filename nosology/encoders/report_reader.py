"""Reports as pieces of words, after the preparation of paper 002; places lead to the report as it was given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nosology.encoders.pieces import PieceReader
from nosology.encoders.vocabulary import Read
from nosology.text.report_text import clean_report


@dataclass(frozen=True)
class ReportReader:
    """A piece reader behind `report_view`."""

    tokenizer_json: str  # as the library tokenizers writes it
    limit: int
    negation: bool = True
    cleaning: str = "paper"  # paper, or plain: the words as they stand, apart from NOT_

    kind = "report"

    def read(self, text: str) -> Read:
        """The pieces of a report (T,), without the tokens that begin and end it."""
        if self.cleaning == "plain" and not self.negation:
            return self._pieces.read(text)
        view = clean_report(text, negation=self.negation, stop_words=self.cleaning == "paper")
        found = self._pieces.read(view.text)
        if not len(found):
            return found
        return Read(found.ids, view.starts[found.starts], view.ends[found.ends - 1])

    @cached_property
    def _pieces(self) -> PieceReader:
        return PieceReader(self.tokenizer_json, self.limit)

    def to_json(self) -> dict[str, Any]:
        """All that the reader is made of."""
        settings = {"kind": self.kind, "negation": self.negation, "cleaning": self.cleaning}
        return self._pieces.to_json() | settings

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ReportReader:
        """The reader that `to_json` gave."""
        pieces = PieceReader.from_json(value)
        return cls(pieces.tokenizer_json, pieces.limit, value["negation"], value["cleaning"])
