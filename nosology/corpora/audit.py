"""The audit of a corpus: what leaks from one split into another, and what else a score would hide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nosology.codes import is_known
from nosology.core import ConfigError, Note
from nosology.corpora.corpus import Corpus
from nosology.corpora.duplicates import SHINGLE, THRESHOLD, check_threshold, exact_pairs, near_pairs
from nosology.corpora.roster import Row, read_roster
from nosology.corpora.splits import reading

EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: how many `what` it found, out of how many, with a few ids; a leak makes scores untrue."""

    check: str
    leak: bool
    count: int
    of: int
    what: str
    examples: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """ok, warning or leak."""
        return "ok" if not self.count else "leak" if self.leak else "warning"


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings about one corpus."""

    folder: str
    hash: str
    notes: int
    splits: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """The findings that make scores untrue."""
        return tuple(finding for finding in self.findings if finding.status == "leak")

    def to_json(self) -> dict[str, Any]:
        """The audit as plain values."""
        findings = [{"status": finding.status, **asdict(finding)} for finding in self.findings]
        return asdict(self) | {"findings": findings, "leak": bool(self.leaks)}


def audit(folder: str | Path, *, threshold: float = THRESHOLD, shingle: int = SHINGLE) -> Audit:
    """The findings about the corpus in a folder; examples are ids, never words of a note."""
    check_threshold(threshold)
    if not 1 <= shingle <= 50:
        raise ConfigError(f"a shingle must have 1 to 50 words; got {shingle}")
    corpus = Corpus.open(folder)
    bad_evidence: list[str] = []
    roster = read_roster(_watched(reading(corpus), bad_evidence), shingle=shingle)
    return Audit(
        str(folder),
        corpus.hash,
        len(roster),
        dict(corpus.manifest["counts"]["splits"]),
        (
            _patients(roster),
            *_duplicates(roster, threshold),
            *_unseen(roster),
            _unknown(roster),
            _notes(roster, "notes without codes", "notes", lambda row: not row.codes),
            _notes(roster, "notes without words", "notes", lambda row: not row.print.digest),
            _notes(roster, "notes without a split", "notes", lambda row: row.split is None),
            _finding("evidence outside its text", False, sorted(bad_evidence), len(roster), "notes"),
        ),
    )


def crossing_patients(corpora: Iterable[Corpus]) -> int:
    """How many patients are in train of one corpus and in dev or test of another; no text is read."""
    learned: dict[str, set[int]] = defaultdict(set)
    held_out: dict[str, set[int]] = defaultdict(set)
    for number, corpus in enumerate(corpora):
        for note in corpus.notes(text=False):
            if note.patient is not None and note.split is not None:
                (learned if note.split == "train" else held_out)[note.patient].add(number)
    return sum(len(learned[patient] | held_out[patient]) > 1 for patient in learned.keys() & held_out.keys())


def _watched(notes: Iterable[Note], bad_evidence: list[str]) -> Iterator[Note]:
    """The notes, while the ids of those with evidence outside their text are put aside."""
    for note in notes:
        if any(not 0 <= item.start < item.end <= len(note.text) for item in note.evidence):
            bad_evidence.append(note.id)
        yield note


def _finding(check: str, leak: bool, found: list[str], of: int, what: str) -> Finding:
    return Finding(check, leak, len(found), of, what, tuple(found[:EXAMPLES]))


def _notes(roster: list[Row], check: str, what: str, is_found: Callable[[Row], bool]) -> Finding:
    return _finding(check, False, [row.id for row in roster if is_found(row)], len(roster), what)


def _patients(roster: list[Row]) -> Finding:
    splits: dict[str, set[str]] = defaultdict(set)
    for row in roster:
        if row.patient is not None:
            splits[row.patient] |= {row.split} - {None}
    crossing = sorted(patient for patient, found in splits.items() if len(found) > 1)
    return _finding("patients in two splits", True, crossing, len(splits), "patients")


def _duplicates(roster: list[Row], threshold: float) -> Iterator[Finding]:
    """Copies and near-copies across splits and within one, then those that one patient has."""
    prints = [row.print for row in roster]
    exact = exact_pairs(prints)
    near, similarity = near_pairs(prints, threshold)
    # One note of each split stands for all copies of a text: a crowd of copies makes no crowd of pairs.
    of_split: dict[int, dict[str | None, int]] = {}
    shown: dict[int, tuple[int, int]] = {}
    for first, copy in exact.tolist():
        shown.setdefault(first, (first, copy))
        of_split.setdefault(first, {roster[first].split: first}).setdefault(roster[copy].split, copy)
    texts = [(_crossing(held, held), shown[first], "") for first, held in of_split.items()]
    pairs = []
    for (left, right), value in zip(near.tolist(), similarity):
        sides = [of_split.get(position, {roster[position].split: position}) for position in (left, right)]
        pairs.append((_crossing(*sides), (left, right), f" ({value:.2f})"))
    for check, what, found in (("duplicate notes", "texts", texts), ("near-duplicate notes", "pairs", pairs)):
        crossing = [_ids(roster, where) + tail for where, _, tail in found if where]
        staying = [_ids(roster, pair) + tail for where, pair, tail in found if not where]
        yield _finding(f"{check} across splits", True, crossing, len(roster), what)
        yield _finding(f"{check} within a split", False, staying, len(roster), what)
    both = [*exact.tolist(), *near.tolist()]
    own = [_ids(roster, pair) for pair in both if len({roster[position].patient or position for position in pair}) == 1]
    yield _finding("(near-)duplicates of one patient", False, own, len(roster), "pairs")


def _crossing(left: dict[str | None, int], right: dict[str | None, int]) -> tuple[int, ...]:
    """A note of each side, in two different splits; empty if there are no such."""
    named = [(a, b) for a in sorted(filter(None, left)) for b in sorted(filter(None, right)) if a != b]
    return (left[named[0][0]], right[named[0][1]]) if named else ()


def _ids(roster: list[Row], positions: Iterable[int]) -> str:
    return " ~ ".join(roster[position].id for position in positions)


def _unseen(roster: list[Row]) -> Iterator[Finding]:
    """Codes of dev and test that train does not have, and how often they occur there; nothing without a train split."""
    train = {code for row in roster if row.split == "train" for code in row.codes}
    held_out = [code for row in roster if row.split in ("dev", "test") for code in row.codes]
    if not train:
        return
    unseen = [code for code in held_out if code not in train]
    codes = sorted(map(str, set(unseen)))
    yield _finding("codes never seen in train", False, codes, len(set(held_out)), "codes")
    yield Finding("occurrences of such codes", False, len(unseen), len(held_out), "occurrences")


def _unknown(roster: list[Row]) -> Finding:
    codes = sorted({code for row in roster for code in row.codes})
    unknown = [str(code) for code in codes if not is_known(code)]
    return _finding("codes no release has", False, unknown, len(codes), "codes")
