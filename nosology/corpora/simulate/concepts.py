"""Things a patient can have or undergo, how they are coded, and how people write them down.

The files in data/conditions hold them, a block each:

    @ key kind [F|M] [18-50] | cluster weight, ... | general weight young middle old
    CODE[/ICD9] weight [if key ...] [: wordings of this very code; ...]     (:= if the others never stand for it)
    ~ wordings of the whole condition; ...
    lay | rx | lab | ex | hc | im   what speaks for it without naming it: lay words, drugs, laboratory, examination,
                                    hospital course, imaging (EXAM: finding)
    + key probability, ...          what comes along with it
    ! key, ...                      what it excludes
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from nosology.core import DataError
from nosology.corpora.simulate.spin import spin

KINDS = ("chronic", "acute", "symptom", "status", "family", "cause", "procedure")
SIGNALS = ("lay", "rx", "lab", "ex", "hc", "im")

_CODE = re.compile(r"([A-Z0-9.]+)(?:/([A-Z0-9.]+))?\s+([\d.]+)(?:\s+if\s+([a-z0-9_ ]+?))?\s*(?:(:=?)\s*(.*))?$")
_ABBREVIATION = re.compile(r"\b[A-Z][A-Z0-9]{1,5}s?\b|\w/|\bs/p\b|\bfx\b|\bhx\b|\bdz\b")


@dataclass(frozen=True, slots=True)
class Wording:
    """The ways to write one thing; `short` ones hold abbreviations."""

    long: tuple[str, ...] = ()
    short: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: list[str]) -> Wording:
        """The names, told apart by whether they look abbreviated."""
        short = tuple(name for name in names if _ABBREVIATION.search(name) or len(name) < 5)
        return cls(tuple(name for name in names if name not in short), short)

    def __bool__(self) -> bool:
        return bool(self.long or self.short)


@dataclass(frozen=True, slots=True)
class Coding:
    """One code a concept can be given.

    needs: the concepts that must be present for it. own: it is a thing apart, which the concept's general words and
    signals do not fit.
    """

    code: str
    icd9: str | None = None
    weight: float = 1.0
    needs: tuple[str, ...] = ()
    wording: Wording = Wording()
    own: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Concept:
    """A condition, status, cause or procedure; `generic` words do not tell its codings apart."""

    key: str
    kind: str
    codings: tuple[Coding, ...]
    generic: Wording = Wording()
    sex: str = ""
    ages: tuple[int, int] = (18, 120)
    clusters: dict[str, float] = field(default_factory=dict)
    general: tuple[float, ...] = (0.0, 0.0, 0.0)
    signals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[tuple[str, float], ...] = ()
    excludes: tuple[str, ...] = ()


@cache
def concepts() -> dict[str, Concept]:
    """All hand-written concepts by key."""
    found: dict[str, Concept] = {}
    for file in sorted(files(__package__).joinpath("data/conditions").iterdir(), key=lambda f: f.name):
        for row, block in _blocks(file.read_text(encoding="utf-8")):
            try:
                concept = _concept(block)
            except (ValueError, IndexError) as error:
                raise DataError(f"{file.name}, line {row}: cannot read the block: {error}") from error
            found[concept.key] = concept
    for concept in found.values():
        unknown = [key for key in _mentioned(concept) if key not in found]
        if unknown:
            raise DataError(f"simulate/data/conditions: {concept.key} names unknown concepts {', '.join(unknown)}")
    return found


def _mentioned(concept: Concept) -> list[str]:
    needs = [key for coding in concept.codings for key in coding.needs]
    return [*needs, *(key for key, _ in concept.links), *concept.excludes]


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    block: list[str] = []
    start = 0
    for row, line in enumerate(text.splitlines(), 1):
        if line.startswith("@"):
            if block:
                yield start, block
            block, start = [line], row
        elif line.strip() and not line.startswith("#"):
            block.append(line.strip())
    if block:
        yield start, block


def _concept(block: list[str]) -> Concept:
    head, *places = block[0][1:].split("|")
    key, kind, *limits = head.split()
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind}")
    sex, ages = "", (18, 120)
    for limit in limits:
        if limit in ("F", "M"):
            sex = limit
        else:
            low, high = limit.split("-")
            ages = (int(low), int(high))
    codings: list[Coding] = []
    lines: dict[str, list[str]] = {}
    for line in block[1:]:
        mark, _, rest = line.partition(" ")
        if mark in ("~", "+", "!", *SIGNALS):
            lines.setdefault(mark, []).extend(_phrases(rest, mark))
        else:
            codings.append(_coding(line))
    if not codings:
        raise ValueError(f"{key} has no code")
    pairs = {mark: tuple((p.split()[0], float(p.split()[1])) for p in lines.get(mark, ())) for mark in ("+",)}
    return Concept(
        key=key,
        kind=kind,
        codings=tuple(codings),
        generic=Wording.of(lines.get("~", [])),
        sex=sex,
        ages=ages,
        clusters={p.split()[0]: float(p.split()[1]) for p in _phrases(places[0] if places else "", "+")},
        general=tuple(float(w) for w in places[1].split()) if len(places) > 1 else (0.0, 0.0, 0.0),
        signals={mark: tuple(lines[mark]) for mark in SIGNALS if mark in lines},
        links=pairs["+"],
        excludes=tuple(lines.get("!", ())),
    )


def _phrases(text: str, mark: str) -> list[str]:
    parts = [part.strip() for part in text.split("," if mark in "+!" else ";")]
    return [phrase for part in parts if part for phrase in ([part] if mark in "+!" else spin(part))]


def _coding(line: str) -> Coding:
    match = _CODE.match(line)
    if not match:
        raise ValueError(f"neither a code line nor a known mark: {line[:30]!r}")
    code, icd9, weight, needs, mark, names = match.groups()
    wording = Wording.of(_phrases(names, "~")) if names else Wording()
    return Coding(code, icd9, float(weight), tuple((needs or "").split()), wording, own=mark == ":=")
