"""The leakage audit of a corpus: what train shares with dev and test, and other facts that a score does not show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nosology.codes import is_known
from nosology.core import ConfigError
from nosology.core.progress import activity
from nosology.corpora.corpus import Corpus
from nosology.corpora.corpus_summary import summarize_corpus
from nosology.corpora.duplicates import SHINGLE, THRESHOLD, check_threshold, exact_pairs, near_pairs
from nosology.corpora.group_splits import NoteSummary

MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of one check: the number of `what` found, out of how many, and a few ids. A leak inflates scores."""

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
    """The results of all checks of a corpus."""

    folder: str
    hash: str
    notes: int
    splits: dict[str, int]
    results: tuple[AuditResult, ...]

    @property
    def leaks(self) -> tuple[AuditResult, ...]:
        """The results that are leaks."""
        return tuple(result for result in self.results if result.status == "leak")

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON values."""
        values = asdict(self)
        del values["results"]
        findings = [{"status": result.status, **asdict(result)} for result in self.results]
        return values | {"findings": findings, "leak": bool(self.leaks)}


def audit(folder: str | Path, *, threshold: float = THRESHOLD, shingle: int = SHINGLE, workers: int = 1) -> Audit:
    """The audit of the corpus in a folder. Examples are ids, never note text. workers: processes that read it."""
    check_threshold(threshold)
    if not 1 <= shingle <= 50:
        raise ConfigError(f"shingle must be 1 to 50 words; got {shingle}")
    corpus = Corpus.open(folder)
    summary = summarize_corpus(corpus, shingle=shingle, workers=workers)
    notes = summary.notes
    results = (
        _check_patients(notes),
        *_check_duplicates(notes, threshold),
        *_check_unseen_codes(notes),
        _check_unknown_codes(notes),
        _check_notes(notes, "notes without codes", lambda note: not note.codes),
        _check_notes(notes, "notes without words", lambda note: not (note.fingerprint and note.fingerprint.digest)),
        _check_notes(notes, "notes without a split", lambda note: note.split is None),
        _result("evidence outside its text", False, sorted(summary.bad_evidence), len(notes), "notes"),
    )
    return Audit(str(folder), corpus.hash, len(notes), dict(corpus.manifest["counts"]["splits"]), results)


def count_leaked_patients(corpora: Iterable[Corpus]) -> int:
    """The number of patients in train of one corpus and in dev or test of another. No text is read."""
    train: dict[str, set[int]] = defaultdict(set)
    held_out: dict[str, set[int]] = defaultdict(set)
    for number, corpus in enumerate(corpora):
        for note in corpus.notes(text=False):
            if note.patient is not None and note.split is not None:
                (train if note.split == "train" else held_out)[note.patient].add(number)
    return sum(len(train[patient] | held_out[patient]) > 1 for patient in train.keys() & held_out.keys())


def _result(check: str, leak: bool, ids: list[str], of: int, what: str) -> AuditResult:
    return AuditResult(check, leak, len(ids), of, what, tuple(ids[:MAX_EXAMPLES]))


def _check_notes(notes: list[NoteSummary], check: str, applies: Callable[[NoteSummary], bool]) -> AuditResult:
    return _result(check, False, [note.id for note in notes if applies(note)], len(notes), "notes")


def _check_patients(notes: list[NoteSummary]) -> AuditResult:
    splits: dict[str, set[str]] = defaultdict(set)
    for note in notes:
        if note.patient is not None:
            splits[note.patient].update([note.split] if note.split else [])
    leaked = sorted(patient for patient, names in splits.items() if len(names) > 1)
    return _result("patients in two splits", True, leaked, len(splits), "patients")


def _check_duplicates(notes: list[NoteSummary], threshold: float) -> Iterator[AuditResult]:
    """Duplicates and near-duplicates across splits and within a split, then those of one patient."""
    prints = [note.fingerprint for note in notes if note.fingerprint is not None]
    exact = exact_pairs(prints)
    with activity("looking for near-duplicates"):
        near, similarity = near_pairs(prints, threshold)
    # One note per split represents all copies of a text, so that many copies do not give very many pairs.
    copies: dict[int, dict[str | None, int]] = {}
    example: dict[int, tuple[int, ...]] = {}
    for first, copy in exact.tolist():
        example.setdefault(first, (first, copy))
        copies.setdefault(first, {notes[first].split: first}).setdefault(notes[copy].split, copy)
    texts = [(_pair_across_splits(splits, splits), example[first], "") for first, splits in copies.items()]
    pairs = []
    for (left, right), value in zip(near.tolist(), similarity):
        sides = [copies.get(position, {notes[position].split: position}) for position in (left, right)]
        pairs.append((_pair_across_splits(*sides), (left, right), f" ({value:.2f})"))
    for check, what, items in (("duplicate notes", "texts", texts), ("near-duplicate notes", "pairs", pairs)):
        across = [_ids(notes, leak) + suffix for leak, _, suffix in items if leak]
        within = [_ids(notes, pair) + suffix for leak, pair, suffix in items if not leak]
        yield _result(f"{check} across splits", True, across, len(notes), what)
        yield _result(f"{check} within a split", False, within, len(notes), what)
    all_pairs = [*exact.tolist(), *near.tolist()]
    same_patient = [_ids(notes, pair) for pair in all_pairs if len({notes[i].patient or i for i in pair}) == 1]
    yield _result("(near-)duplicates of one patient", False, same_patient, len(notes), "pairs")


def _pair_across_splits(left: dict[str | None, int], right: dict[str | None, int]) -> tuple[int, ...]:
    """One note of each side, in two different splits; empty if there is no such pair."""
    named = [(a, b) for a in sorted(filter(None, left)) for b in sorted(filter(None, right)) if a != b]
    return (left[named[0][0]], right[named[0][1]]) if named else ()


def _ids(notes: list[NoteSummary], positions: Iterable[int]) -> str:
    return " ~ ".join(notes[position].id for position in positions)


def _check_unseen_codes(notes: list[NoteSummary]) -> Iterator[AuditResult]:
    """Codes of dev and test that train does not have, and their occurrences; nothing without a train split."""
    train = {code for note in notes if note.split == "train" for code in note.codes}
    held_out = [code for note in notes if note.split in ("dev", "test") for code in note.codes]
    if not train:
        return
    unseen = [code for code in held_out if code not in train]
    codes = sorted(map(str, set(unseen)))
    yield _result("codes never seen in train", False, codes, len(set(held_out)), "codes")
    yield AuditResult("occurrences of such codes", False, len(unseen), len(held_out), "occurrences")


def _check_unknown_codes(notes: list[NoteSummary]) -> AuditResult:
    codes = sorted({code for note in notes for code in note.codes})
    unknown = [str(code) for code in codes if not is_known(code)]
    return _result("codes no release has", False, unknown, len(codes), "codes")
