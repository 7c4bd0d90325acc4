"""Metastases by site: the sites after "mets to" and their codes in the Table of Neoplasms."""

from __future__ import annotations

import re
from functools import cache

from nosology.claims.code_completion import completed
from nosology.claims.draft import RULE_PROBABILITY, Draft
from nosology.codes.official_tables import neoplasm_codes, neoplasm_tree
from nosology.core import Span

_RULE = "metastasis-by-site"
_SPREAD = re.compile(
    r"\b(?:metasta(?:sis|ses|tic|si[sz]ed)|mets)\b(?:(?! from )[^.;:\n]){0,60}?\b(?:to|in|involving)\b(?: the| both)? ",
    re.IGNORECASE,
)
_END = re.compile(r"[.;:\n]|\b(?:from|on|with|who|now|after|for|status|s/p|seen|currently|treated)\b", re.IGNORECASE)
_SITE = re.compile(r"[A-Za-z][A-Za-z -]*")
_BRACKETS = re.compile(r"\([^()]*\)")
_SIDE = re.compile(r"^(?:the|her|his|bilateral|left|right|both|multiple|and) ", re.IGNORECASE)


def add_metastases(draft: Draft) -> None:
    """Adds the code of each site of a metastasis; a primary tumor that was read from the same words goes."""
    for match in _SPREAD.finditer(draft.text):
        if draft.context(Span(match.start(), match.start() + 4)).negated:
            continue
        end = _END.search(draft.text, match.end())
        rest = draft.text[match.end() : end.start() if end else len(draft.text)]
        plain = _BRACKETS.sub(lambda found: "," * len(found[0]), rest)
        for item in re.finditer(r"(?:(?!,|&|/| and | or ).)+", plain):
            if site := _SITE.search(item[0]):
                start = match.end() + item.start() + site.start()
                _add(draft, site[0].strip(), Span(start, start + len(site[0].rstrip())), match.start())


def _add(draft: Draft, site: str, span: Span, start: int) -> None:
    words = site
    while _SIDE.match(f"{words} "):
        words = _SIDE.sub("", f"{words} ").strip()
    codes = neoplasm_codes(words) if words else None
    secondary = completed(draft, codes.malignant_secondary.rstrip("-."), span) if codes else ""
    if not codes or not secondary or not draft.table.billable(secondary):
        return
    evidence = Span(start, span.end)
    if draft.add(secondary, RULE_PROBABILITY, [evidence], _RULE) or secondary in draft.entries:
        for code, entry in list(draft.entries.items()):
            is_site = _secondary_of().get(code[:3]) == secondary[:5].rstrip(".") or code.startswith("C79.9")
            if is_site and all(it.end > span.start and it.start < evidence.end for it in entry.evidence):
                draft.drop(code, f"the note names it as a site of metastases ({secondary})", _RULE)


@cache
def _secondary_of() -> dict[str, str]:
    """Category of a primary tumor -> the first five characters of the code of a metastasis at its site."""
    found: dict[str, str] = {}
    for line in neoplasm_tree():
        if line.cells and line.cells[0] and line.cells[1]:
            found.setdefault(line.cells[0][:3], line.cells[1][:5].rstrip("-."))
    return found
