"""Reader of CodiEsp: clinical cases in Spanish, their English translation, and codes with evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from nosology.core import SPLITS, Code, ConfigError, DataError, Evidence, Note
from nosology.corpora.text_files import decode, open_bytes, text_lines
from nosology.corpora.validation import RecordValidator

LANGUAGES = {"es": "text_files", "en": "text_files_en"}
_SYSTEMS = {"DIAGNOSTICO": "icd10cm", "PROCEDIMIENTO": "icd10pcs"}


def read_codiesp(paths: Sequence[Path], validator: RecordValidator, lang: str = "es") -> Iterator[Note]:
    """The cases by split and id. Only Spanish notes have evidence: its offsets are offsets into the Spanish text.

    The patient is the source article (the id up to its last hyphen), so that a split keeps its cases together.
    """
    if lang not in LANGUAGES:
        raise ConfigError(f"--lang must be one of {', '.join(LANGUAGES)} for codiesp; got {lang!r}")
    for folder in _split_folders(paths, LANGUAGES[lang]):
        yield from _read_split(folder, lang, validator)


def _split_folders(paths: Sequence[Path], texts: str) -> list[Path]:
    folders = []
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path}: no such folder; codiesp needs the folder with train, dev and test")
        parents = [texts_folder.parent for texts_folder in path.rglob(texts) if texts_folder.is_dir()]
        folders += [folder for folder in parents if folder.name.lower() in SPLITS]
    if not folders:
        raise DataError(f"found no folder train, dev or test with {texts} in {', '.join(map(str, paths))}")
    return sorted(set(folders), key=lambda folder: (SPLITS.index(folder.name.lower()), folder))


def _read_split(folder: Path, lang: str, validator: RecordValidator) -> Iterator[Note]:
    split = folder.name.lower()
    codes: defaultdict[str, list[Code]] = defaultdict(list)
    for letter, system in (("D", "icd10cm"), ("P", "icd10pcs")):
        path = folder / f"{split}{letter}.tsv"
        for row, (note_id, raw) in _tsv_rows(path, 2, validator):
            code = validator.parse_code(raw, system, path, row)
            if code in codes[note_id]:
                validator.count_issue("repeated_code", path, row)
            elif code is not None:
                codes[note_id].append(code)
    evidence = _read_evidence(folder / f"{split}X.tsv", validator) if lang == "es" else {}
    for path in sorted((folder / LANGUAGES[lang]).glob("*.txt")):
        with open_bytes(path) as file:
            text, is_utf8 = decode(file.read())
        if not is_utf8:
            validator.count_issue("encoding", path, 1)
        note_id, text = path.stem, validator.clean_text(text, path, 1)
        if not validator.accepts(note_id, text, path, 1):
            continue
        spans = evidence.pop(note_id, [])
        valid = tuple(span for span in spans if span.end <= len(text))
        validator.count_issue("bad_evidence", path, 1, times=len(spans) - len(valid))
        article = note_id.rpartition("-")[0] or note_id
        note_codes = tuple(codes.pop(note_id, ()))
        yield Note(note_id, text, patient=article, split=split, lang=lang, codes=note_codes, evidence=valid)
    for note_id in sorted(codes.keys() | evidence.keys()):
        validator.count_issue("codes_without_note", folder / f"{note_id}.txt")


def _read_evidence(path: Path, validator: RecordValidator) -> dict[str, list[Evidence]]:
    """note id -> evidence. A discontinuous span has its envelope as start and end, and its parts in `spans`."""
    evidence: defaultdict[str, list[Evidence]] = defaultdict(list)
    for row, (note_id, kind, raw, text, offsets) in _tsv_rows(path, 5, validator):
        system = _SYSTEMS.get(kind.strip().upper())
        if system is None:
            raise DataError(f"{path.name} row {row}: the second column must be {' or '.join(_SYSTEMS)}")
        spans = _parse_spans(offsets)
        if spans is None:
            validator.count_issue("bad_evidence", path, row)
        elif code := validator.parse_evidence_code(raw, system, path, row):
            extra = {"text": text, "spans": [list(span) for span in spans]}
            start, end = min(start for start, _ in spans), max(end for _, end in spans)
            evidence[note_id].append(Evidence(code, start, end, extra))
    return evidence


def _parse_spans(raw: str) -> list[tuple[int, int]] | None:
    """The spans of "307 316;348 361", None if the text has another form. Some evidence has an empty part: "0 3;5 5"."""
    spans = []
    for part in raw.strip().split(";"):
        numbers = part.split()
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            return None
        start, end = map(int, numbers)
        if start > end:
            return None
        if start < end:
            spans.append((start, end))
    return spans or None


def _tsv_rows(path: Path, width: int, validator: RecordValidator) -> Iterator[tuple[int, list[str]]]:
    """(row, fields) of a table without a header; nothing if there is no file, as in the test folder."""
    if not path.is_file():
        return
    for row, line in enumerate(text_lines(path, validator), start=1):
        fields = [field.strip() for field in line.rstrip("\r\n").split("\t")]
        if len(fields) == width:
            yield row, fields
        elif line.strip():
            validator.count_issue("ragged_row", path, row)
