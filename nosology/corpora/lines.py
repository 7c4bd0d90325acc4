"""Lines and rows of text files as people have them: gzipped or not, of mixed encodings, with any line ends."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from nosology.core import DataError
from nosology.corpora.intake import Intake, check_columns, place

_BLOCK = 1 << 20
# A longer field is a quote that was never closed, a longer line a file without line feeds: each would fill the memory.
_LONGEST = 1 << 27
_SEPARATORS = ",\t;|"


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed if they are gzip whatever its name says."""
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def decode(raw: bytes) -> tuple[str, bool]:
    """The text, and whether it was UTF-8; if not it is read as Windows-1252, which every byte string can be."""
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        # The five bytes Windows-1252 leaves undefined stand for themselves, as browsers read them.
        return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in raw), False


def text_lines(path: Path, intake: Intake) -> Iterator[str]:
    """The file's lines with their line ends as they are; only a line feed ends a line."""
    return chain.from_iterable(_blocks_of_lines(path, intake))


def _blocks_of_lines(path: Path, intake: Intake) -> Iterator[Iterable[str]]:
    with open_bytes(path) as file:
        line, begun = 1, bytearray()
        while block := file.read(_BLOCK):
            if line == 1 and not begun:
                if block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise DataError(f"{path} is UTF-16; save it as UTF-8")
                block = block.removeprefix(b"\xef\xbb\xbf")
            whole, newline, rest = block.rpartition(b"\n")
            if newline:
                yield _lines(bytes(begun) + whole + newline, path, line, intake)
                line += whole.count(b"\n") + 1
                begun.clear()
            begun += rest
            if len(begun) > _LONGEST:
                raise DataError(
                    f"{place(path, line, 'line')}: a line of more than {_LONGEST >> 20} MB; a line feed ends a line"
                )
        if begun:
            yield _lines(bytes(begun), path, line, intake)


def _lines(block: bytes, path: Path, first: int, intake: Intake) -> Iterable[str]:
    try:
        return io.StringIO(block.decode("utf-8"), newline="\n")
    except UnicodeDecodeError:
        lines = []
        for number, raw in enumerate(io.BytesIO(block), start=first):
            text, was_utf8 = decode(raw)
            if not was_utf8:
                intake.trouble("encoding", path, number)
            lines.append(text)
        return lines


def table_rows(path: Path, intake: Intake) -> Iterator[tuple[int, list[str]]]:
    """(row number, fields) of a separated table; the first is the header, (1, names). Ragged rows are counted.

    The separator is the one that the header holds most often of comma, tab, semicolon and bar.
    """
    csv.field_size_limit(_LONGEST)
    lines = text_lines(path, intake)
    header = next(lines, "")
    if not header.strip():
        raise DataError(f"{path} is empty: expected a header row")
    reader = csv.reader(chain([header], lines), delimiter=max(_SEPARATORS, key=header.count), strict=True)
    row = 0
    try:
        names = [name.strip() for name in next(reader)]
        row = 1
        yield row, names
        for row, fields in enumerate(reader, start=2):
            if len(fields) == len(names):
                yield row, fields
            elif fields:
                intake.trouble("ragged_row", path, row)
    except csv.Error as error:
        raise DataError(f"{place(path, row + 1)}: not a well-formed row (a quote or line end out of place)") from error


def columns(
    path: Path, intake: Intake, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(row number, the fields asked for in the order asked), whatever the columns' order and letter case.

    An optional column that is not there yields empty fields.
    """
    rows = table_rows(path, intake)
    _, names = next(rows)
    names = [name.lower() for name in names]
    check_columns(path, names, required)
    positions = {name: position for position, name in enumerate(names)}
    wanted = [positions.get(name, -1) for name in (*required, *optional)]
    for row, fields in rows:
        yield row, tuple(fields[position] if position >= 0 else "" for position in wanted)
