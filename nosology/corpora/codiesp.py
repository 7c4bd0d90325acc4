"""CodiEsp as published: clinical cases in Spanish, their English translation, and codes with evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from nosology.core import SPLITS, Code, ConfigError, DataError, Evidence, Note
from nosology.corpora.intake import Intake
from nosology.corpora.lines import decode, open_bytes, text_lines

LANGUAGES = {"es": "text_files", "en": "text_files_en"}
_KINDS = {"DIAGNOSTICO": "icd10cm", "PROCEDIMIENTO": "icd10pcs"}


def read(paths: Sequence[Path], intake: Intake, lang: str = "es") -> Iterator[Note]:
    """The cases by split and id; evidence goes with the Spanish text alone, whose offsets it has.

    The patient is the source article (the id up to its last hyphen), so that splits keep its cases together.
    """
    if lang not in LANGUAGES:
        raise ConfigError(f"--lang must be one of {', '.join(LANGUAGES)} for codiesp; got {lang!r}")
    for folder in _split_folders(paths, LANGUAGES[lang]):
        yield from _read_split(folder, lang, intake)


def _split_folders(paths: Sequence[Path], texts: str) -> list[Path]:
    folders = []
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path}: no such folder; codiesp wants the folder that holds train, dev and test")
        below = [found.parent for found in path.rglob(texts) if found.is_dir()]
        folders += [folder for folder in below if folder.name.lower() in SPLITS]
    if not folders:
        raise DataError(f"found no folder train, dev or test with {texts} in {', '.join(map(str, paths))}")
    return sorted(set(folders), key=lambda folder: (SPLITS.index(folder.name.lower()), folder))


def _read_split(folder: Path, lang: str, intake: Intake) -> Iterator[Note]:
    split = folder.name.lower()
    codes: defaultdict[str, list[Code]] = defaultdict(list)
    for letter, system in (("D", "icd10cm"), ("P", "icd10pcs")):
        for path, row, (note_id, raw) in _rows(folder / f"{split}{letter}.tsv", 2, intake):
            code = intake.code(raw, system, path, row)
            if code in codes[note_id]:
                intake.trouble("repeated_code", path, row)
            elif code is not None:
                codes[note_id].append(code)
    evidence = _evidence(folder / f"{split}X.tsv", intake) if lang == "es" else {}
    files = sorted((folder / LANGUAGES[lang]).glob("*.txt"))
    for path in files:
        with open_bytes(path) as file:
            text, was_utf8 = decode(file.read())
        if not was_utf8:
            intake.trouble("encoding", path, 1)
        text = intake.text(text, path, 1)
        if not intake.accepts(path.stem, text, path, 1):
            continue
        given = evidence.pop(path.stem, [])
        within = [item for item in given if item.end <= len(text)]
        intake.trouble("bad_evidence", path, 1, times=len(given) - len(within))
        yield Note(
            path.stem,
            text,
            patient=path.stem.rpartition("-")[0] or path.stem,
            split=split,
            lang=lang,
            codes=tuple(codes.pop(path.stem, ())),
            evidence=tuple(within),
        )
    for note_id in sorted(codes.keys() | evidence.keys()):
        intake.trouble("codes_without_note", folder / f"{note_id}.txt")


def _evidence(path: Path, intake: Intake) -> dict[str, list[Evidence]]:
    """note id -> evidence; of a span in pieces, start and end are the envelope and `spans` the pieces."""
    found: defaultdict[str, list[Evidence]] = defaultdict(list)
    for _, row, (note_id, kind, raw, text, offsets) in _rows(path, 5, intake):
        system = _KINDS.get(kind.strip().upper())
        if system is None:
            raise DataError(f"{path.name} row {row}: expected {' or '.join(_KINDS)} in the second column")
        spans = _spans(offsets)
        if spans is None:
            intake.trouble("bad_evidence", path, row)
        elif code := intake.evidence_code(raw, system, path, row):
            extra = {"text": text, "spans": [list(span) for span in spans]}
            envelope = min(start for start, _ in spans), max(end for _, end in spans)
            found[note_id].append(Evidence(code, *envelope, extra))
    return found


def _spans(raw: str) -> list[tuple[int, int]] | None:
    """The pieces of "307 316;348 361", None if it is not such a list."""
    spans = []
    for piece in raw.strip().split(";"):
        numbers = piece.split()
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            return None
        start, end = map(int, numbers)
        if start >= end:
            return None
        spans.append((start, end))
    return spans


def _rows(path: Path, width: int, intake: Intake) -> Iterator[tuple[Path, int, list[str]]]:
    """(path, row, fields) of a table without a header; none if it is not there, as in the test folder."""
    if not path.is_file():
        return
    for row, line in enumerate(text_lines(path, intake), start=1):
        fields = [field.strip() for field in line.rstrip("\r\n").split("\t")]
        if len(fields) == width:
            yield path, row, fields
        elif line.strip():
            intake.trouble("ragged_row", path, row)
