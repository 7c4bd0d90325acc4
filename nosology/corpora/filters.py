"""Filters over a stream of notes, and published split files. Each filter counts in `record` what it drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from nosology.core import SPLITS, Code, DataError, Note
from nosology.corpora.mimic import normalize_id
from nosology.corpora.notes_file import json_records
from nosology.corpora.text_files import table_rows
from nosology.corpora.validation import RecordValidator, check_columns, location, parse_split

_ID_COLUMNS = ("_id", "hadm_id", "note_id", "id")
_COLUMNS = (*_ID_COLUMNS, "split")


def keep_codes(notes: Iterable[Note], keep: Callable[[Code], bool], record: dict[str, Any]) -> Iterator[Note]:
    """The notes with only the codes to keep. A note that loses all its codes is dropped."""
    record.update(code_occurrences_left_out=0, notes_left_out=0)
    for note in notes:
        codes = tuple(code for code in note.codes if keep(code))
        if len(codes) == len(note.codes):
            yield note
            continue
        record["code_occurrences_left_out"] += len(note.codes) - len(codes)
        if codes:
            yield replace(note, codes=codes, evidence=tuple(item for item in note.evidence if keep(item.code)))
        else:
            record["notes_left_out"] += 1


def drop_uncoded(notes: Iterable[Note], record: dict[str, Any]) -> Iterator[Note]:
    """The notes with at least one code."""
    record.update(notes_left_out=0)
    for note in notes:
        if note.codes:
            yield note
        else:
            record["notes_left_out"] += 1


def assign_splits(notes: Iterable[Note], splits: Mapping[str, str], record: dict[str, Any]) -> Iterator[Note]:
    """The notes with the split of their admission or id. Notes that are not in `splits` are dropped."""
    record.update(notes_left_out=0, entries_without_note=len(splits))
    used: set[str] = set()
    for note in notes:
        key = next((key for key in (normalize_id(str(note.extra.get("hadm_id"))), note.id) if key in splits), None)
        if key is None:
            record["notes_left_out"] += 1
            continue
        if key not in used:
            used.add(key)
            record["entries_without_note"] -= 1
        yield replace(note, split=splits[key])


def frequent_codes(notes: Iterable[Note], min_count: int) -> frozenset[Code]:
    """The codes of at least `min_count` notes."""
    counts: Counter[Code] = Counter()
    for note in notes:
        counts.update(note.codes)
    return frozenset(code for code, count in counts.items() if count >= min_count)


def read_splits(paths: Sequence[Path]) -> dict[str, str]:
    """id -> split, from Feather, Parquet, CSV or JSON lines files with an id column and a column named split.

    A CSV of ids without a header belongs to the split at the start of its name, such as train_full_hadm_ids.csv.
    """
    splits: dict[str, str] = {}
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such split file")
        suffix = Path(path.name.lower().removesuffix(".gz")).suffix
        records = {".feather": _arrow_records, ".parquet": _arrow_records, ".jsonl": _json_records}
        for row, record in records.get(suffix, _table_records)(path):
            key = next((name for name in _ID_COLUMNS if name in record), None)
            if key is None or "split" not in record:
                raise DataError(f"{location(path, row)}: must have split and one of {', '.join(_ID_COLUMNS)}")
            split = parse_split(record["split"], path, row)
            if split is None or splits.setdefault(normalize_id(str(record[key])), split) != split:
                raise DataError(f"{location(path, row)}: an id must be in one split; got none or a second one")
    if not splits:
        raise DataError(f"{', '.join(map(str, paths))}: no id in the split file")
    return splits


def _arrow_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    from pyarrow import feather, parquet

    try:
        table = feather.read_table(path) if path.suffix.lower() == ".feather" else parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}") from error
    names = _check_names(table.column_names, path)
    yield from enumerate(table.rename_columns(names).select([n for n in names if n in _COLUMNS]).to_pylist(), start=1)


def _json_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return json_records(path, RecordValidator(strict=True))


def _table_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = table_rows(path, RecordValidator(strict=True))
    _, names = next(rows)
    if len(names) == 1 and names[0].lower() not in _ID_COLUMNS:
        split = next((split for split in SPLITS if path.name.lower().startswith(split)), None)
        if split is None:
            raise DataError(f"{path}: the name of a list of ids must start with {', '.join(SPLITS)}")
        yield from ((row, {"id": fields[0], "split": split}) for row, fields in chain([(1, names)], rows))
        return
    names = _check_names(names, path)
    yield from ((row, dict(zip(names, fields))) for row, fields in rows)


def _check_names(names: Sequence[str], path: Path) -> list[str]:
    """The column names in lower case. DataError without a column of ids and one of splits."""
    lower = [name.lower() for name in names]
    key = next((name for name in _ID_COLUMNS if name in lower), None)
    if key is None:
        allowed = f"{', '.join(_ID_COLUMNS[:-1])} or {_ID_COLUMNS[-1]}"
        raise DataError(f"{location(path, 1)}: missing a column of ids, named {allowed}")
    check_columns(path, lower, [key, "split"])
    return lower
