"""The words by which the codes of a table are called: descriptions, inclusion terms, titles of ICD-9-CM, and our own
list of abbreviations, lay words and synonyms (data/synonyms)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from nosology.codes.gems import map_code
from nosology.codes.history import in_release
from nosology.codes.lookup import table as code_table
from nosology.codes.sources import DATA
from nosology.codes.table import CodeTable
from nosology.core import Code

SOURCES = ("synonym", "description", "inclusion", "index", "category", "icd9", "part", "other")
"""Where a term comes from; an earlier source is more to be trusted when one term names several codes."""

_EMPTY = re.compile(
    r",?\s*\b(?:unspecified (?:as to|whether)[^,;]*|unspecified (?:organism|site|type|severity|trimester|cause|stage"
    r"|laterality|location|part(?: of)?|degree|episode of care|age|behavior|complications?|nature|origin|duration)"
    r"|(?<=,) ?unspecified (?:eye|side|ear|limb|foot)"
    r"|not otherwise specified|not elsewhere classified|site not specified|type not specified"
    r"|not specified(?: as [\w ]+)?|unspecified|specified|classified elsewhere|elsewhere classified"
    r"|so stated|nos|nec)\b",
    re.IGNORECASE,
)
# What is not there, up to what is: "without perforation with bleeding", "without foreign body of scalp".
_WITHOUT = re.compile(
    r",?\s*\b(?:(?:not|with no)\b[^,;]*"
    r"|without\b(?:(?!\s(?:with|in remission|due to)\b|(?<=foreign body)\sof\b)[^,;])*)",
    re.IGNORECASE,
)
_ROUND, _SQUARE = re.compile(r"\s*\(([^()]*)\)"), re.compile(r"\s*\[([^\[\]]*)\]")
_OTHER = re.compile(r"^(?:other and|other|certain)\b\s*", re.IGNORECASE)
_ALSO_OTHER = re.compile(r"\s*(?:,|and|or)\s+other\b[^,;]*", re.IGNORECASE)
_PAIR = re.compile(r"\b([\w-]+),? (?:and|or|and/or) ([\w-]+)\b")
_SPREAD = re.compile(r"\bsecondary malignant neoplasms?\b", re.IGNORECASE)
_NEOPLASM = re.compile(r"\bmalignant neoplasms?\b", re.IGNORECASE)
_MANIFESTATION = re.compile(r"\bin (?:other )?(?:\w+ )?diseases classified\b", re.IGNORECASE)
_HYPHEN = re.compile(r"(?<=[a-z]{3})-(?=[a-z]{3})")  # gastro-esophageal is also written in one word
_SIDE_EYE = re.compile(r", (right|left) (?:eye|ear)$", re.IGNORECASE)  # where else?
_ENCOUNTER = re.compile(r", (?:initial|subsequent) encounter.*|, sequela$", re.IGNORECASE)
_UNCOMPLICATED = re.compile(r"\bwithout\b|\buncomplicated\b", re.IGNORECASE)
_VAGUE = re.compile(r"\bunspecified\b|\bNOS\b", re.IGNORECASE)
_PAST = ("s/p", "status post", "history of", "hx of", "h/o", "prior", "previous")


class Term(NamedTuple):
    """A way to call a code; `source` is one of SOURCES."""

    text: str
    code: str
    source: str


def terms(table: CodeTable, *, seventh: bool = True, added: Iterable[Term] = ()) -> Iterator[Term]:
    """Every term of every code of ICD-10-CM that may be billed, each code in the spelling of the table.

    seventh: injuries have their seventh character (A, the initial encounter, where a term says no more); else the code
    ends before it, as in editions that leave it out. added: terms of the user's own, such as those of an index.
    """
    leaves = DefaultCodes(table, seventh)
    yield from _own(table, leaves)
    for code in table.codes():
        leaf = leaves.get(code)
        if leaf is None:
            continue
        title = _ENCOUNTER.sub("", table.description(code))
        if leaves.seventh and leaves.injury(table.parent(code) or ""):
            if code[-1] == "B":  # A, the closed fracture and every other first encounter, goes by the line above
                yield from _described(f"open {title}", code, "description")
            continue
        yield from _described(title, leaf, "category" if leaves.above(code) else "description")
        notes = table.all_notes().get(code, {})
        for note in (*notes.get("inclusion_terms", ()), *notes.get("includes", ())):
            if len(note) < 120:
                yield from _described(note, leaf, "inclusion")
    yield from _old_titles(table, leaves)
    for term in added:
        leaf = leaves.get(term.code)
        if leaf is not None:
            yield term._replace(code=leaf)


def _sevenths(below: list[str]) -> bool:
    """Whether codes differ in their seventh character alone."""
    return all(len(code) == 8 for code in below) and len({code[:7] for code in below}) == 1


class DefaultCodes:
    """Which code stands for a line of the table where nothing more is said."""

    def __init__(self, table: CodeTable, seventh: bool):
        self.table, self.seventh = table, seventh
        self._below: dict[str, list[str]] = {}
        for code in table.codes():
            parent = table.parent(code)
            if parent is not None:
                self._below.setdefault(parent, []).append(code)
        self._known: dict[str, str | None] = {}
        self._injuries = {code for code, below in self._below.items() if _sevenths(below)}

    def above(self, code: str) -> bool:
        """Whether the code is divided further, other than by the seventh character."""
        return bool(self._below.get(code)) and not self.injury(code)

    def injury(self, code: str) -> bool:
        """Whether the code is divided by a seventh character alone."""
        return code in self._injuries

    def get(self, code: str) -> str | None:
        """The code itself if it is the last of its branch, else the unspecified one below it; None: no such line."""
        if code not in self._known:
            self._known[code] = self._find(code)
        return self._known[code]

    def _find(self, code: str) -> str | None:
        if code not in self.table:
            return None
        below = self._below.get(code)
        if not below:
            parent = self.table.parent(code)
            if parent and self.injury(parent):
                return (code if code[-1] in "AB" else None) if self.seventh else parent
            return code
        if self.injury(code):
            return min(below) if self.seventh else code
        titles = {other: self.table.description(other) for other in below}
        most = max(len(_VAGUE.findall(title)) for title in titles.values())  # "unspecified part of unspecified femur"
        vague = [other for other in below if len(_VAGUE.findall(titles[other])) == most > 0]
        without = [other for other in vague or below if _UNCOMPLICATED.search(titles[other])]
        nines = [other for other in below if other[-1] == "9"]
        return self.get((without or vague or nines or below)[0])


def specificity_keys(table: CodeTable, codes: Iterable[str]) -> dict[str, tuple[bool, int, str]]:
    """A key for each code by which unspecified codes stand before others, then short before long ones."""
    return {code: (not (code in table and _VAGUE.search(table.description(code))), len(code), code) for code in codes}


def _own(table: CodeTable, leaves: DefaultCodes) -> Iterator[Term]:
    for phrase, codes in builtin_synonyms():
        if found := next(filter(None, (_in_release(code, table, leaves) for code in codes)), None):
            yield Term(phrase, found, "synonym")


def _in_release(code: str, table: CodeTable, leaves: DefaultCodes) -> str | None:
    """What a code of any release is in that of the table."""
    found = leaves.get(code)
    if found is None:
        heirs = in_release(Code("icd10cm", code), table.release)
        vague = [heir for heir in heirs if _VAGUE.search(table.description(heir.code))]
        found = leaves.get((vague or heirs)[0].code) if heirs else None
    return found


@cache
def builtin_synonyms() -> list[tuple[str, tuple[str, ...]]]:
    """Our list: phrase and ICD-10-CM code; where several are given, the first that a release has (F32.A|F32.9)."""
    found = []
    for path in sorted((DATA / "synonyms").glob("*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                phrases, codes = line.split("\t")
                spelled = (said for phrase in phrases.split("|") for said in _in_the_past(phrase.strip()))
                found += [(phrase, tuple(codes.split("|"))) for phrase in spelled]
    return found


def _in_the_past(phrase: str) -> list[str]:
    """The ways to say that ~something is over; another phrase as it is."""
    return [f"{past} {phrase[1:]}" for past in _PAST] if phrase.startswith("~") else [phrase]


def _old_titles(table: CodeTable, leaves: DefaultCodes) -> Iterator[Term]:
    old = code_table("icd9cm")
    for code in old.codes(billable=True):
        maps = [m for m in map_code(Code("icd9cm", code), "icd10cm") if m.target is not None and not m.combination]
        targets = dict.fromkeys(leaf for m in maps if (leaf := leaves.get(m.target.code)))
        if len(targets) > 1:
            targets = dict.fromkeys(leaf for leaf in targets if _VAGUE.search(table.description(leaf))) or targets
        if targets and len(targets) <= 3:
            yield from _described(old.description(code), next(iter(targets)), "icd9")


def _described(title: str, code: str, source: str) -> Iterator[Term]:
    """The ways to say a title: without what adds nothing, with and without brackets, by either of two parts."""
    if _MANIFESTATION.search(title):
        return
    if re.search(r"\bwith unspecified\b|\bwith other\b", title, re.IGNORECASE):
        source = "other"
    plain = _EMPTY.sub("", title)
    other = _OTHER.sub("", plain)
    if other != plain or _ALSO_OTHER.search(plain):
        source, plain = "other", _ALSO_OTHER.sub("", other)
    elif re.match(r"other\b", title, re.IGNORECASE):
        source = "other"
    full = {plain: None}
    bare = _ROUND.sub("", plain)
    names = _SQUARE.findall(bare)
    bare = _SQUARE.sub("", bare)
    full[bare] = None
    for name in names:
        if " " in name or (name.isupper() and len(name) > 2):
            full[name] = None
    for text in list(full):
        if (shorter := _WITHOUT.sub("", text).strip(" ,")) and shorter != text:
            full[shorter] = None
            full.pop(text, None)
    for text in list(full):
        if _SPREAD.search(text):
            full[_SPREAD.sub("metastasis", text)] = None
        elif _NEOPLASM.search(text):
            full[_NEOPLASM.sub("cancer", text)] = None
    for text in list(full):
        if (side := _SIDE_EYE.sub(r" \1", text)) != text:
            full[side] = None
    for text in list(full):
        if (closed := _HYPHEN.sub("", text)) != text:
            full[closed] = None
    for text in full:
        if any(c.isalpha() for c in text):
            yield Term(text.strip(" ,"), code, source)
    for text in full:
        for pair in _PAIR.finditer(text):
            for word in pair.groups():
                part = (text[: pair.start()] + word + text[pair.end() :]).strip(" ,")
                if part != text:
                    yield Term(part, code, source if source == "other" else "part")
