"""Whether and for how long a patient lost consciousness at an injury."""

from __future__ import annotations

import re

_LOC = r"(?:LOC|loss of consciousness|lost consciousness|los[et] consciousness|unconscious(?:ness)?|knocked out)"
_NO_LOC = re.compile(
    rf"\b(?:no|without|w/o|denie[sd]|neg(?:ative)?(?: for)?|never|not?|did not|didn't)\s(?:any |a |head (?:trauma"
    rf"|strike|injury) (?:or|and|/) ?|definite )?{_LOC}\b"
    r"|\bLOC\s?(?:\(-\)|neg\w*|denied|-(?!\w))|(?<!\w)-LOC\b",
    re.IGNORECASE,
)
_UNKNOWN_LOC = re.compile(
    rf"(?:\bunknown|\bunclear|\buncertain|\?)\s?(?:if )?{_LOC}\b|\bLOC\s?(?:unknown|unclear|uncertain|\?)", re.I
)
_ANY_LOC = re.compile(rf"\b{_LOC}\b", re.IGNORECASE)
_NUMBERS = {
    word: number
    for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    )
}
_DURATION = re.compile(
    rf"(?P<number>\d+|{'|'.join(_NUMBERS)}|a few|several|few|couple(?: of)?)\s?(?:-?\d+ ?)?(?P<unit>s(?:ec\w*)?"
    rf"|min\w*|h(?:r|our)?s?)\b",
    re.IGNORECASE,
)
_BRIEF = re.compile(r"\b(?:brief(?:ly)?|momentar\w+|transient(?:ly)?|short|seconds?)\b", re.IGNORECASE)
_HOURS = ((0.5, "1"), (1, "2"), (6, "3"), (24.01, "4"))  # hours of unconsciousness below -> sixth character
_AROUND = 60  # characters around the loss of consciousness with its duration


def loss_of_consciousness(text: str) -> str:
    """The sixth character of S06 codes: 0 none, 1 to 4 by duration, 9 of unknown duration, A unknown, "" not said."""
    if _UNKNOWN_LOC.search(text):
        return "A"
    said = _NO_LOC.sub(lambda match: " " * len(match[0]), text)
    found = _ANY_LOC.search(said)
    if found is None:
        return "0" if _NO_LOC.search(text) else ""
    around = said[max(0, found.start() - _AROUND) : found.end() + _AROUND]
    duration = _DURATION.search(around)
    if duration:
        word = duration["number"].lower()
        number = float(word) if word.isdigit() else _NUMBERS.get(word, 3)
        hours = number / {"s": 3600, "m": 60, "h": 1}[duration["unit"][0].lower()]
        return next((character for limit, character in _HOURS if hours <= limit), "9")
    return "1" if _BRIEF.search(around) else "9"
