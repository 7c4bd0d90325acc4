"""What every room shares: notes, codes, spans, suggestions and the exceptions."""

from nosology.core.errors import (
    BundleError,
    CodeError,
    ConfigError,
    ConflictError,
    DataError,
    FederationError,
    NosologyError,
    OutputError,
    ReviewError,
)
from nosology.core.note import SPLITS, SYSTEMS, Code, Evidence, EvidenceSpan, Note, Span, Suggestion

__all__ = [
    "SPLITS",
    "SYSTEMS",
    "BundleError",
    "Code",
    "CodeError",
    "ConfigError",
    "ConflictError",
    "DataError",
    "Evidence",
    "EvidenceSpan",
    "FederationError",
    "NosologyError",
    "Note",
    "OutputError",
    "ReviewError",
    "Span",
    "Suggestion",
]
