"""Which notes a coder was trained on, by short hashes of their texts in the provenance of its bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nosology.core.files import text_sha256

NOTE_HASHES = "note_hashes"
_DIGITS = 8  # 32 bits: among 100,000 notes a new one looks seen once in 40,000 times


def note_hashes(texts: Iterable[str]) -> str:
    """The first digits of the SHA-256 of each text, each once, sorted and joined."""
    return "".join(sorted({_short_hash(text) for text in texts}))


def count_seen(provenance: Mapping[str, Any], texts: Iterable[str]) -> int:
    """How many of the texts the coder of a bundle was trained on; 0 for bundles without hashes."""
    joined = provenance.get(NOTE_HASHES, "")
    known = {joined[at : at + _DIGITS] for at in range(0, len(joined), _DIGITS)}
    return sum(_short_hash(text) in known for text in texts) if known else 0


def _short_hash(text: str) -> str:
    return text_sha256(text)[:_DIGITS]
