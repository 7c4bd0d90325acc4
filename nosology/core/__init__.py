"""Types that all packages share: notes, codes, spans, suggestions and exceptions."""

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

__version__ = "0.2.0"  # a literal, so that a build can read it without imports

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
    "__version__",
]
