"""Split files that others publish: which admission or note is in which split."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from nosology.core import SPLITS, DataError
from nosology.corpora.intake import Intake, check_columns, place, split_name
from nosology.corpora.lines import table_rows, text_lines
from nosology.corpora.mimic_tables import admission_id

_KEYS = ("_id", "hadm_id", "note_id", "id")


def read_splits(paths: Sequence[Path]) -> dict[str, str]:
    """id -> split of one or more files: feather, parquet, csv or json lines with ids and a column named split.

    A csv of ids alone, without a header, is the split its name begins with, as in train_full_hadm_ids.csv.
    """
    splits: dict[str, str] = {}
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such split file")
        suffix = Path(path.name.lower().removesuffix(".gz")).suffix
        for row, key, raw in _READERS.get(suffix, _text_rows)(path):
            split = split_name(raw, path, row)
            key = admission_id(key)
            if split is None or splits.setdefault(key, split) != split:
                raise DataError(f"{place(path, row)}: an id must be in one split; got none or a second one")
    if not splits:
        raise DataError(f"{', '.join(map(str, paths))}: no id in the split file")
    return splits


def _columns(names: Sequence[str], path: Path) -> tuple[int, int]:
    """The positions of the id and the split."""
    lower = [name.lower() for name in names]
    key = next((lower.index(name) for name in _KEYS if name in lower), None)
    if key is None:
        raise DataError(f"{place(path, 1)}: missing a column of ids, named {', '.join(_KEYS[:-1])} or {_KEYS[-1]}")
    check_columns(path, lower, [lower[key], "split"])
    return key, lower.index("split")


def _arrow_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    import pyarrow as pa
    from pyarrow import feather, parquet

    try:
        table = feather.read_table(path) if path.suffix.lower() == ".feather" else parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}") from error
    key, split = _columns(table.column_names, path)
    for row, values in enumerate(zip(table.column(key).to_pylist(), table.column(split).to_pylist()), start=1):
        yield row, str(values[0]), values[1]


def _text_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    rows = table_rows(path, Intake(strict=True))
    _, names = next(rows)
    if len(names) == 1 and names[0].lower() not in _KEYS:
        named = next((split for split in SPLITS if path.name.lower().startswith(split)), None)
        if named is None:
            raise DataError(f"{path}: a list of ids must have a name that begins with {', '.join(SPLITS)}")
        yield 1, names[0], named
        yield from ((row, fields[0], named) for row, fields in rows)
        return
    key, split = _columns(names, path)
    yield from ((row, fields[key], fields[split]) for row, fields in rows)


def _json_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    for row, line in enumerate(text_lines(path, Intake(strict=True)), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            key = next(record[name] for name in _KEYS if name in record)
            yield row, str(key), record["split"]
        except (ValueError, TypeError, KeyError, StopIteration) as error:
            raise DataError(f"{place(path, row)}: must hold split and one of {', '.join(_KEYS)}") from error


_READERS = {".feather": _arrow_rows, ".parquet": _arrow_rows, ".jsonl": _json_rows}
