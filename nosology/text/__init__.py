"""Text with offsets: cleaning, tokens, sentences, sections and context, each pointing into the original note."""

from nosology.text.cleaning import BENCHMARK, MULTILINGUAL, RULES, clean
from nosology.text.context import CATEGORIES, Context, ContextSpan, context_of, contexts, mark_negated
from nosology.text.edits import Cleaned, Edit
from nosology.text.report_text import report_view
from nosology.text.sections import Section, sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, tokens

__all__ = [
    "BENCHMARK",
    "CATEGORIES",
    "MULTILINGUAL",
    "RULES",
    "Cleaned",
    "Context",
    "ContextSpan",
    "Edit",
    "Section",
    "Tokens",
    "clean",
    "context_of",
    "contexts",
    "mark_negated",
    "report_view",
    "sections",
    "sentences",
    "tokens",
]
