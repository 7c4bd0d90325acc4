"""How a clinician might put a code's description: clauses turned round, details dropped, words abbreviated.

Nothing here is shared with any coder: the tables are data/rewrites.tsv and data/operations.tsv.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from nosology.corpora.simulate.concepts import Wording

_ENCOUNTER = re.compile(r",? (initial|subsequent) encounter.*$|, sequela$")
_VAGUE = re.compile(
    r"\b(unspecified|other specified|not elsewhere classified|in diseases classified elsewhere|not otherwise specified"
    r"|without mention of [\w ]+|not stated as [\w ]+|not applicable or unspecified|nos|nec)\b|\(current\) "
)
_SIDE = re.compile(r"\b(left|right|bilateral|first|second|third) (trimester )?")
_DETAIL = re.compile(r",| with | without | due to | affecting | complicating | following |\(")
_LINK = re.compile(r"^(of|in|to|with|into|from|using) ")
_APPROACHES = {
    "percutaneous endoscopic approach": ("laparoscopic", "minimally invasive"),
    "percutaneous approach": ("percutaneous", "perc"),
    "open approach": ("open", ""),
    "via natural or artificial opening endoscopic": ("endoscopic", ""),
}


def rows(name: str) -> list[list[str]]:
    """The lines of a tab-separated data file without its header."""
    text = files(__package__).joinpath(f"data/{name}").read_text(encoding="utf-8")
    return list(csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


@cache
def _rewrites() -> list[tuple[str, list[str]]]:
    return [(old, new.split("|")) for old, new in rows("rewrites.tsv")]


@cache
def _operations() -> list[tuple[str, list[str]]]:
    operations = [(name.lower(), words.split("|")) for name, words in rows("operations.tsv")]
    return sorted(operations, key=lambda pair: -len(pair[0]))


def diagnosis(description: str, terms: Iterable[str] = ()) -> tuple[Wording, Wording]:
    """The wordings of a description and its inclusion terms: those that tell the code, and vaguer ones."""
    plain = _tidy(_VAGUE.sub("", _ENCOUNTER.sub("", description.lower())))
    forms = [description.lower(), plain, *_turned(plain), *(_tidy(_VAGUE.sub("", term.lower())) for term in terms)]
    forms += [_rewritten(form, turn) for form in forms[1:3] for turn in range(4)]
    head = _tidy(_SIDE.sub("", _DETAIL.split(plain)[0]))
    vague = [head, *_turned(head), _rewritten(head, 0), _rewritten(head, 1)] if len(head) > 3 else [plain]
    return _wording(forms), _wording(vague)


def procedure(description: str) -> tuple[Wording, Wording]:
    """The wordings of an ICD-10-PCS description: exact ones, and those that leave out side, device and approach."""
    text = description.lower()
    for name, words in _operations():  # noqa: B007  both are read after the loop
        if text.startswith(name):
            break
    else:
        return diagnosis(description)
    parts = [part.strip() for part in text[len(name) :].split(",")]
    if parts[-1] == "diagnostic":
        words = ["biopsy", "diagnostic " + words[0]]
        parts.pop()
    how = next((_APPROACHES[part] for part in parts if part in _APPROACHES), ("",))
    what = _LINK.sub("", parts[0]) or "site"
    brief = _tidy(_SIDE.sub("", re.split(r" with | using | into ", what)[-1 if " into " in what else 0]))
    exact = [f"{way} {word} of {what}" for way in how for word in words]
    exact += [f"{way} {_rewritten(what, turn)} {word}" for way in how for turn, word in enumerate(words)]
    vague = [f"{brief} {word}" for word in words] + [f"{word} of the {brief}" for word in words]
    return _wording([*exact, text]), _wording(vague)


def _turned(text: str) -> list[str]:
    turned = []
    head, comma, rest = text.partition(", ")
    if comma:
        turned.append(f"{rest} {head}" if len(rest.split()) < 4 else f"{head} ({rest})")
        turned.append(f"{head} {rest}".replace(",", ""))
    head, of, rest = text.partition(" of ")
    if of and len(head.split()) < 4 and len(rest.split()) < 6:
        turned.append(f"{rest.removeprefix('the ')} {head}")
    return turned


def _rewritten(text: str, turn: int) -> str:
    for old, new in _rewrites():
        if old in text:
            draw = zlib.crc32(f"{turn}{old}{text}".encode())
            if draw % 10 < 7:
                text = text.replace(old, new[draw // 10 % len(new)], 1)
    return text


def _tidy(text: str) -> str:
    text = re.sub(r"\bother (?!than)", "", text)
    return re.sub(r"\s+", " ", re.sub(r"(\s*,\s*)+", ", ", text)).strip(" ,;-")


def _wording(forms: list[str]) -> Wording:
    return Wording.of([form for form in dict.fromkeys(" ".join(form.split()) for form in forms) if len(form) > 1])
