"""Terms of ICD-10-CM codes: descriptions, inclusion terms, ICD-9-CM titles, built-in synonyms (data/synonyms)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from nosology.codes.history import in_release
from nosology.codes.lookup import table as code_table
from nosology.codes.related_codes import map_code
from nosology.codes.sources import DATA, read_lines
from nosology.codes.table import CodeTable
from nosology.core import Code

SOURCES = ("synonym", "description", "inclusion", "index", "category", "icd9", "part", "other")
"""Where a term comes from. If one term has several codes, the earlier source has priority."""

_FILLER = re.compile(
    r",?\s*\b(?:unspecified (?:as to|whether)[^,;]*|unspecified (?:organism|site|type|severity|trimester|cause|stage"
    r"|laterality|location|part(?: of)?|degree|episode of care|age|behavior|complications?|nature|origin|duration)"
    r"|(?<=,) ?unspecified (?:eye|side|ear|limb|foot)"
    r"|not otherwise specified|not elsewhere classified|site not specified|type not specified"
    r"|not specified(?: as [\w ]+)?|unspecified|specified|classified elsewhere|elsewhere classified"
    r"|so stated|nos|nec)\b",
    re.IGNORECASE,
)
# What is absent, up to what is present: "without perforation with bleeding", "without foreign body of scalp".
_WITHOUT = re.compile(
    r",?\s*\b(?:(?:not|with no)\b[^,;]*"
    r"|without\b(?:(?!\s(?:with|in remission|due to)\b|(?<=foreign body)\sof\b)[^,;])*)",
    re.IGNORECASE,
)
_ROUND, _SQUARE = re.compile(r"\s*\(([^()]*)\)"), re.compile(r"\s*\[([^\[\]]*)\]")
_OTHER = re.compile(r"^(?:other and|other|certain)\b\s*", re.IGNORECASE)
_ALSO_OTHER = re.compile(r"\s*(?:,|and|or)\s+other\b[^,;]*", re.IGNORECASE)
_PAIR = re.compile(r"\b([\w-]+),? (?:and|or|and/or) ([\w-]+)\b")
_SECONDARY = re.compile(r"\bsecondary malignant neoplasms?\b", re.IGNORECASE)
_NEOPLASM = re.compile(r"\bmalignant neoplasms?\b", re.IGNORECASE)
_MANIFESTATION = re.compile(r"\bin (?:other )?(?:\w+ )?diseases classified\b", re.IGNORECASE)
_HYPHEN = re.compile(r"(?<=[a-z]{3})-(?=[a-z]{3})")  # gastro-esophageal is also written as one word
_SIDE_EYE = re.compile(r", (right|left) (?:eye|ear)$", re.IGNORECASE)  # the organ is clear from the disease
_ENCOUNTER = re.compile(r", (?:initial|subsequent) encounter.*|, sequela$", re.IGNORECASE)
_UNCOMPLICATED = re.compile(r"\bwithout\b|\buncomplicated\b", re.IGNORECASE)
_UNSPECIFIED = re.compile(r"\bunspecified\b|\bNOS\b", re.IGNORECASE)
# Notes among the inclusion terms that tell how to code: "Code to specified site", "This category is for use with".
_INSTRUCTION = re.compile(
    r"(?:code|use (?:two|additional)|(?:this|these) (?:code|categor)|any condition|the listed)", re.I
)
_PAST_PREFIXES = ("s/p", "status post", "history of", "hx of", "h/o", "prior", "previous")


class Term(NamedTuple):
    """A phrase for a code; `source` is one of SOURCES."""

    text: str
    code: str
    source: str


def terms(table: CodeTable, *, seventh: bool = True, added: Iterable[Term] = ()) -> Iterator[Term]:
    """All terms of the billable ICD-10-CM codes of a table.

    seventh: codes of injuries have their seventh character (A, initial encounter, if a term gives none). Otherwise they
    end before it, as in editions without it. added: terms of the user, such as those of an index.
    """
    defaults = DefaultCodes(table, seventh)
    for phrase, codes in builtin_synonyms():
        if code := next(filter(None, (code_in_release(code, table, defaults) for code in codes)), None):
            yield Term(phrase, code, "synonym")
    for code in table.codes():
        default = defaults.get(code)
        if default is None:
            continue
        title = _ENCOUNTER.sub("", table.description(code))
        if defaults.seventh and defaults.is_injury(table.parent(code) or ""):
            if code[-1] == "B":  # terms of A, which includes closed fractures, come from the line above
                yield from _title_terms(f"open {title}", code, "description")
            continue
        yield from _title_terms(title, default, "category" if defaults.is_header(code) else "description")
        notes = table.all_notes().get(code, {})
        for note in (*notes.get("inclusion_terms", ()), *notes.get("includes", ())):
            if len(note) < 120 and not _INSTRUCTION.match(note):
                yield from _title_terms(note, default, "inclusion")
    yield from _icd9_terms(table, defaults)
    for term in added:
        default = defaults.get(term.code)
        if default is not None:
            yield term._replace(code=default)


class DefaultCodes:
    """The default billable code of each line: the code to use if nothing more specific is known."""

    def __init__(self, table: CodeTable, seventh: bool):
        self.table, self.seventh = table, seventh
        self._children: dict[str, list[str]] = {}
        for code in table.codes():
            parent = table.parent(code)
            if parent is not None:
                self._children.setdefault(parent, []).append(code)
        self._defaults: dict[str, str | None] = {}
        self._injuries = {
            code
            for code, children in self._children.items()
            if all(len(child) == 8 for child in children)
            and len({child[:7] for child in children}) == 1
            # the last character of other codes is a stage, an eye or a fetus
            and (not seventh or any(child[-1] == "A" for child in children))
        }

    def is_header(self, code: str) -> bool:
        """Whether the code is divided further, other than by the seventh character."""
        return bool(self._children.get(code)) and not self.is_injury(code)

    def is_injury(self, code: str) -> bool:
        """Whether the code is divided by the seventh character only."""
        return code in self._injuries

    def get(self, code: str) -> str | None:
        """The code itself if it is a leaf, else the unspecified code below it; None if the table lacks the code."""
        if code not in self._defaults:
            self._defaults[code] = self._find(code)
        return self._defaults[code]

    def _find(self, code: str) -> str | None:
        if code not in self.table:
            return None
        children = self._children.get(code)
        if not children:
            parent = self.table.parent(code)
            if parent and self.is_injury(parent):
                return (code if code[-1] in "AB" else None) if self.seventh else parent
            return code
        if self.is_injury(code):
            return min(children) if self.seventh else code
        titles = {child: self.table.description(child) for child in children}
        counts = {child: len(_UNSPECIFIED.findall(title)) for child, title in titles.items()}
        most = max(counts.values())  # "unspecified part of unspecified femur" has 2
        unspecified = [child for child in children if counts[child] == most > 0]
        uncomplicated = [child for child in unspecified or children if _UNCOMPLICATED.search(titles[child])]
        nines = [child for child in children if child[-1] == "9"]
        return self.get((uncomplicated or unspecified or nines or children)[0])


def specificity_keys(table: CodeTable, codes: Iterable[str]) -> dict[str, tuple[bool, int, str]]:
    """A sort key for each code: unspecified codes first, then short codes before long ones."""
    return {
        code: (not (code in table and _UNSPECIFIED.search(table.description(code))), len(code), code) for code in codes
    }


def code_in_release(code: str, table: CodeTable, defaults: DefaultCodes) -> str | None:
    """The default code, in the release of the table, for a code of any release."""
    default = defaults.get(code)
    if default is None and (mapped := in_release(Code("icd10cm", code), table.release)):
        unspecified = [item for item in mapped if _UNSPECIFIED.search(table.description(item.code))]
        default = defaults.get((unspecified or mapped)[0].code)
    return default


@cache
def builtin_synonyms() -> list[tuple[str, tuple[str, ...]]]:
    """Phrases and their ICD-10-CM codes; of several codes, the first that a release has is used (F32.A|F32.9)."""
    synonyms = []
    for path in sorted((DATA / "synonyms").glob("*.tsv")):
        for line in read_lines(path):
            if line and not line.startswith("#"):
                phrases, codes = line.split("\t")
                variants = (variant for phrase in phrases.split("|") for variant in _past_variants(phrase.strip()))
                synonyms += [(variant, tuple(codes.split("|"))) for variant in variants]
    return synonyms


def _past_variants(phrase: str) -> list[str]:
    """For ~phrase, the ways to express that it is in the past; any other phrase unchanged."""
    return [f"{prefix} {phrase[1:]}" for prefix in _PAST_PREFIXES] if phrase.startswith("~") else [phrase]


def _icd9_terms(table: CodeTable, defaults: DefaultCodes) -> Iterator[Term]:
    """The titles of ICD-9-CM codes as terms of the ICD-10-CM codes that they map to."""
    icd9 = code_table("icd9cm")
    for code in icd9.codes(billable=True):
        mappings = (mapping for mapping in map_code(Code("icd9cm", code), "icd10cm") if not mapping.combination)
        mapped = (defaults.get(mapping.target.code) for mapping in mappings if mapping.target is not None)
        targets = list(dict.fromkeys(filter(None, mapped)))
        if len(targets) > 1:
            targets = [target for target in targets if _UNSPECIFIED.search(table.description(target))] or targets
        if 0 < len(targets) <= 3:
            yield from _title_terms(icd9.description(code), targets[0], "icd9")


def title_terms(table: CodeTable) -> Iterator[Term]:
    """The terms of the descriptions of the billable codes of a table, of any system."""
    for code in table.codes(billable=True):
        yield from _title_terms(table.description(code), code, "description")


def _title_terms(title: str, code: str, source: str) -> Iterator[Term]:
    """The terms of a title: without uninformative words, with and without brackets, and with either of two parts."""
    if _MANIFESTATION.search(title):
        return
    if re.search(r"\bwith unspecified\b|\bwith other\b", title, re.IGNORECASE):
        source = "other"
    plain = _FILLER.sub("", title)
    without_other = _OTHER.sub("", plain)
    if without_other != plain or _ALSO_OTHER.search(plain):
        source, plain = "other", _ALSO_OTHER.sub("", without_other)
    elif re.match(r"other\b", title, re.IGNORECASE):
        source = "other"
    bare = _ROUND.sub("", plain)
    names = [name for name in _SQUARE.findall(bare) if " " in name or (name.isupper() and len(name) > 2)]
    variants = dict.fromkeys((plain, _SQUARE.sub("", bare), *names))
    for text in list(variants) if code[0] != "Z" else ():  # "immunization not carried out" is no immunization
        if (shorter := _WITHOUT.sub("", text).strip(" ,")) and shorter != text:
            variants[shorter] = None
            variants.pop(text, None)
    for text in list(variants):
        if _SECONDARY.search(text):
            variants[_SECONDARY.sub("metastasis", text)] = None
        elif _NEOPLASM.search(text):
            variants[_NEOPLASM.sub("cancer", text)] = None
    for pattern, replacement in ((_SIDE_EYE, r" \1"), (_HYPHEN, "")):
        variants |= dict.fromkeys(pattern.sub(replacement, text) for text in list(variants))
    for text in variants:
        if any(c.isalpha() for c in text):
            yield Term(text.strip(" ,"), code, source)
    for text in variants:
        for pair in _PAIR.finditer(text):
            for word in pair.groups():
                part = (text[: pair.start()] + word + text[pair.end() :]).strip(" ,")
                if part != text:
                    yield Term(part, code, source if source == "other" else "part")
