"""Names of procedures as data: the TOML files of claims/procedures, and the names of the ICD-10-PCS index."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from nosology.claims.draft import Draft
from nosology.claims.rule_phrases import PhraseIndex, find_phrases, phrase_index
from nosology.codes.pcs_tables import pcs_terms
from nosology.core import Span
from nosology.text.tokens import words_of

_SHORT = 4  # characters of an abbreviation, which counts in capitals only
_INCISION = re.compile(r".*otomy")
_DRAINAGE = "9"  # the third character


class ProcedureExample(BaseModel):
    """A text with the procedure codes of its claim."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    codes: tuple[str, ...] = ()


class ProcedurePart(BaseModel):
    """One code of a procedure, as a pattern that words of the note and defaults complete.

    code: patterns of codes such as 0SR[9B]0 (the first characters; ? is any, several are separated by |).
    default: axis -> label of the value if no word of the note says otherwise.
    words: axis -> label -> phrases that mean this value here, besides those of data/procedure_words.toml.
    count: what is counted to choose a value (see `procedure_counts`).
    each: every body part that is named with the procedure has a code of its own.
    prefer: labels that count before others that are named nearer.
    The default "-" of an axis means that there is none, not even no device or no qualifier. The axis "operation" is the
    choice between tables: Excision of a part or Resection of all of a body part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    code: str
    default: Mapping[str, str] = Field(default_factory=dict)
    words: Mapping[str, Mapping[str, tuple[str, ...]]] = Field(default_factory=dict)
    count: str = ""
    each: bool = False
    near: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()


class Procedure(ProcedurePart):
    """A procedure that notes name.

    names: phrases, written as in text/data/context.tsv; in capitals: only in capitals.
    near: words of which the sentence must have one. unless: words of which the clause must have none.
    also: further codes of the same procedure; if a part has `near`, only with one of these words in the sentence.
    done: the names say that it was done ("intubated"), in any section.
    part_of: regular expression for codes that include it if they are in the same claim.
    kind: index: a name of the index; operation: a root operation, which counts only where a note lists procedures.
    of_mother: of a woman who gives birth; it does not count in the note of a newborn.
    quiet: no question is asked if a value is missing, because many hospitals do not report it.
    """

    id: str
    names: tuple[str, ...]
    unless: tuple[str, ...] = ()
    also: tuple[ProcedurePart, ...] = ()
    done: bool = False
    part_of: str = ""
    quiet: bool = False
    of_mother: bool = False
    kind: Literal["named", "index", "operation"] = "named"
    positive: tuple[ProcedureExample, ...] = ()
    negative: tuple[ProcedureExample, ...] = ()


class NamedProcedure(NamedTuple):
    """A procedure and where a note names it."""

    procedure: Procedure
    span: Span


@cache
def procedures() -> tuple[Procedure, ...]:
    """All procedures: those of the TOML files, then the names of the index that these do not have."""
    folder = files("nosology.claims").joinpath("data", "procedures")
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".toml")), key=lambda path: path.name)
    named: list[Procedure] = []
    for path in paths:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        named += (Procedure.model_validate(item) for item in content.get("procedure", ()))
    known = {name.lower() for procedure in named for name in procedure.names}
    for name, prefixes in pcs_terms().names.items():
        # An incision (hysterotomy, thoracotomy) is mostly how another operation began.
        is_incision = _INCISION.fullmatch(name) and any(prefix[2] == _DRAINAGE for prefix in prefixes)
        if name not in known and not is_incision and prefixes[0][0] == "0":
            named.append(Procedure(id=f"index-{name}", names=(name,), code="|".join(prefixes), kind="index"))
    return tuple(named)


@cache
def _index() -> PhraseIndex:
    return phrase_index({str(number): _spellings(procedure) for number, procedure in enumerate(procedures())})


def _spellings(procedure: Procedure) -> list[str]:
    """The names of a procedure, in singular and plural."""
    names = [name.lower() for name in procedure.names]
    plural = [re.sub(r"(?<=[^aeiou])y$", "ie", name) + "s" for name in names if name[-1:] not in "sd&"]
    return [*names, *plural]


@cache
def _abbreviations() -> frozenset[tuple[str, ...]]:
    """The short names that count in capitals only, as words."""
    names = (name for procedure in procedures() for name in procedure.names)
    return frozenset(tuple(words_of(name)) for name in names if name.isupper() and len(name) <= _SHORT)


def named_procedures(draft: Draft) -> list[NamedProcedure]:
    """The procedures that a note names, in order; of overlapping names the longest."""
    found: dict[Span, list[int]] = {}
    for number, spans in find_phrases(draft.text, draft.tokens, _index()).items():
        for span in spans:
            found.setdefault(span, []).append(int(number))
    result: list[NamedProcedure] = []
    end = 0
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        text = draft.text[span.start : span.end]
        words = tuple(words_of(text))
        if span.start < end or (words in _abbreviations() and text.islower()):
            continue
        if max(map(len, words)) == 1 and "/" in text:  # D/C is a discharge, D&C an operation
            continue
        chosen = next((it for number in sorted(found[span]) if _fits(draft, it := procedures()[number], span)), None)
        if chosen is not None:
            result.append(NamedProcedure(chosen, span))
            end = span.end
    return result


def _fits(draft: Draft, procedure: Procedure, span: Span) -> bool:
    """Whether the sentence around a name has the words that the procedure needs, and none that speak against it."""
    if not procedure.near and not procedure.unless:
        return True
    sentence = draft.sentence(span.start)
    text = draft.text[sentence.start : sentence.end]
    if procedure.near and not word_pattern(procedure.near).search(text):
        return False
    return not (procedure.unless and word_pattern(procedure.unless).search(text))


@cache
def word_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """A regular expression for one of these words; a word may itself be a regular expression."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)
