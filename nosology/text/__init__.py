"""Text with offsets: cleaning, tokens, sentences, sections and context, each pointing into the original note."""

from nosology.text.cleaning import BENCHMARK, MULTILINGUAL, RULES, clean
from nosology.text.edits import Cleaned, Edit
from nosology.text.tokens import Tokens, tokens

__all__ = ["BENCHMARK", "MULTILINGUAL", "RULES", "Cleaned", "Edit", "Tokens", "clean", "tokens"]
