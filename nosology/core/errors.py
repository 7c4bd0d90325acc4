"""Every exception that a user may see. A message is one sentence that says what, where, allowed and got.

Note text never enters a message: notes are patients.
"""


class NosologyError(Exception):
    """The base of all errors whose message is meant for the user; the command line prints it and exits with 1."""


class ConfigError(NosologyError):
    """A recipe, a setting or an argument is wrong."""


class CodeError(NosologyError):
    """A code, system or release does not exist."""


class DataError(NosologyError):
    """An input file cannot be read as what it should be; the message names file and row."""


class BundleError(NosologyError):
    """A bundle folder is missing, incomplete, corrupt or made by an incompatible version."""


class OutputError(NosologyError):
    """An output cannot be written."""


class FederationError(NosologyError):
    """A federation cannot go on; the message names round, sites and reasons."""


class ReviewError(NosologyError):
    """A decision on a note cannot be made; the message says why."""


class ConflictError(ReviewError):
    """Somebody else has decided on the note since it was last seen."""
