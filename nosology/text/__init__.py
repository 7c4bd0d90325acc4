"""Text with offsets: cleaning, tokens, sentences, sections and context, each pointing into the original note."""

from nosology.text.cleaning import BENCHMARK, MULTILINGUAL, RULES, clean
from nosology.text.context import CATEGORIES, Context, ContextSpan, context_of, contexts, mark_negated
from nosology.text.edits import CleanedText, Edit
from nosology.text.report_text import clean_report
from nosology.text.sections import Section, sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, tokenize

__all__ = [
    "BENCHMARK",
    "CATEGORIES",
    "MULTILINGUAL",
    "RULES",
    "CleanedText",
    "Context",
    "ContextSpan",
    "Edit",
    "Section",
    "Tokens",
    "clean",
    "clean_report",
    "context_of",
    "contexts",
    "mark_negated",
    "sections",
    "sentences",
    "tokenize",
]
