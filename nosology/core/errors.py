"""Exceptions for users. A message is one sentence: what is wrong, where, what is allowed, what was given.

Messages never have note text.
"""


class RenamedWarning(FutureWarning):
    """An old name was used; the message has the new one. The command line prints it, unlike warnings of libraries."""


class NosologyError(Exception):
    """Base class of all errors for users; the command line prints the message and exits with 1."""


class ConfigError(NosologyError):
    """A recipe, a setting or an argument is wrong."""


class CodeError(NosologyError):
    """A code, system or release does not exist."""


class DataError(NosologyError):
    """An input file is malformed; the message has file and row."""


class BundleError(NosologyError):
    """A bundle folder is missing, incomplete, corrupt or written by an incompatible version."""


class OutputError(NosologyError):
    """An output cannot be written."""


class FederationError(NosologyError):
    """A federation cannot continue; the message has round, sites and reasons."""


class ReviewError(NosologyError):
    """A review decision is not possible; the message has the reason."""


class ConflictError(ReviewError):
    """Another user has changed the note since it was loaded."""


def printable(text: str) -> str:
    """The text without control characters, which could change the terminal that it is printed on."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
