"""What a code is called, also where its line was divided after the notes were coded."""

from __future__ import annotations

from nosology.codes.code_list import description_of
from nosology.codes.lookup import table
from nosology.core import Code

_BELOW = 3  # billable codes below a line that stand for it: the first are the plain ones


def called(code: Code) -> str:
    """The description of a code; of a line that may not be billed any more, what the first codes below it are called.

    Notes of 2007 have 780.6 for fever. Later it was divided, and its own line has no better title than "General
    symptoms".
    """
    known = table(code.system)
    if code.code not in known or known.billable(code.code):
        return description_of(code)
    below = [Code(code.system, line) for line in known.descendants(code.code) if known.billable(line)]
    return "; ".join(dict.fromkeys(description_of(leaf) for leaf in below[:_BELOW])) or description_of(code)
