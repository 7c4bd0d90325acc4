"""Cleaning, tokens, sentences, sections and context of notes, with offsets into the original text."""

from nosology.text.cleaning import BENCHMARK, MULTILINGUAL, RULES, CleanedText, Edit, clean
from nosology.text.context import CATEGORIES, Context, ContextSpan, context_of, contexts, mark_negated
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
