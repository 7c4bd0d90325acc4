"""Lines and table rows of text files: paths or streams, gzipped or not, in any encoding, with any line ends."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from nosology.core import DataError
from nosology.corpora.plain_text import binary_format, check_text, is_notes_file_content
from nosology.corpora.validation import RecordValidator, check_columns, location

_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"  # the first two bytes
# A longer field is an unclosed quote, a longer line is a file without line feeds. Both would fill the memory.
_LONGEST = 1 << 27
_SEPARATORS = ",\t;|"
_MOST_COLUMNS = 10_000


class InputFile:
    """A file to read: a path, bytes or a binary stream, with the name that messages show.

    A stream is read from its current position and is not closed. A seekable one can be read several times.
    longest: for a file that somebody else made: bytes of a line, and characters of a table's row; a longer one raises
    DataError. Nested columns of Parquet are then left out, because a small file can have billions of values in them.
    """

    def __init__(self, content: str | Path | bytes | BinaryIO, name: str | None = None, *, longest: int | None = None):
        self._content: Path | BinaryIO
        self.is_limited, self.longest = longest is not None, longest or _LONGEST
        self._start: int | None = None
        if isinstance(content, str | Path):
            self._content = Path(content)
            self.name = name or str(content)
        else:
            self._content = io.BytesIO(content) if isinstance(content, bytes) else content
            self._start = self._content.tell() if self._content.seekable() else None
            self.name = name or str(getattr(content, "name", "stream"))

    def __str__(self) -> str:
        return self.name

    def exists(self) -> bool:
        """Whether it can be opened: False for a path without a file."""
        return not isinstance(self._content, Path) or self._content.is_file()

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader[Any]]:
        """The bytes of the file."""
        if isinstance(self._content, Path):
            with self._content.open("rb") as file:
                yield file
            return
        if self._start is not None:
            self._content.seek(self._start)
        reader = io.BufferedReader(cast(io.RawIOBase, self._content))  # typing.BinaryIO has no readinto
        try:
            yield reader
        finally:
            reader.detach()  # else the stream would be closed with the reader


Source = str | Path | InputFile


def input_file(source: Source) -> InputFile:
    """The source as an InputFile."""
    return source if isinstance(source, InputFile) else InputFile(source)


def is_gzip(source: Source) -> bool:
    """Whether the content of a file is gzip, whatever its name is."""
    with input_file(source).open() as raw:
        return raw.peek(2)[:2] == _GZIP


@contextmanager
def open_bytes(source: Source) -> Iterator[io.BufferedReader[Any] | gzip.GzipFile]:
    """The bytes of a file, decompressed if the content is gzip, whatever the file name is."""
    file = input_file(source)
    try:
        with file.open() as raw:
            yield gzip.GzipFile(fileobj=raw, mode="rb") if raw.peek(2)[:2] == _GZIP else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is not a complete gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from error


def decode(raw: bytes) -> tuple[str, bool]:
    """The text, and whether it is UTF-8. Other bytes are read as Windows-1252, which never fails."""
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        # Windows-1252 does not define five bytes. They become the characters of the same number, as in browsers.
        return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in raw), False


_BYTE_ORDER_MARKS = {  # the longest first: that of UTF-32 starts like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def decode_marked(raw: bytes, name: object) -> str:
    """The text of a whole file: as its byte-order mark says, else by `decode`; DataError if the mark is wrong."""
    encoding = next((encoding for mark, encoding in _BYTE_ORDER_MARKS.items() if raw.startswith(mark)), None)
    try:
        return raw.decode(encoding) if encoding else decode(raw)[0]
    except UnicodeDecodeError:  # not chained: its message has bytes of the note
        raise DataError(f"{name} is damaged: it starts with a byte-order mark but is not {encoding}") from None


def note_text(raw: bytes, name: object) -> str:
    """The text of a file with one note: in UTF-8, in Windows-1252, or as its byte-order mark says.

    DataError if the content is not text.
    """
    if kind := binary_format(raw):
        raise DataError(f"{name} is {kind}, not text; save it as plain text in UTF-8")
    text = decode_marked(raw, name)
    if is_notes_file_content(text):
        raise DataError(f"{name} is a notes file, not the text of one note; its name must end in .jsonl or .csv")
    return check_text(text, str(name))


def text_lines(source: Source, validator: RecordValidator) -> Iterator[str]:
    """The lines with their line ends unchanged. Only a line feed ends a line."""
    return chain.from_iterable(_blocks_of_lines(source, validator))


def _blocks_of_lines(source: Source, validator: RecordValidator) -> Iterator[Iterable[str]]:
    longest = input_file(source).longest
    with open_bytes(source) as file:
        line, partial = 1, bytearray()
        while block := file.read(_BLOCK):
            if line == 1 and not partial:
                if block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise DataError(f"{source} is UTF-16; save it as UTF-8")
                block = block.removeprefix(b"\xef\xbb\xbf")
            complete, newline, rest = block.rpartition(b"\n")
            if newline:
                yield _lines(bytes(partial) + complete + newline, source, line, validator)
                line += complete.count(b"\n") + 1
                partial.clear()
            partial += rest
            if len(partial) > longest:
                where = location(source, line, "line")
                raise DataError(f"{where}: a line of more than {longest >> 20} MB; only a line feed ends a line")
        if partial:
            yield _lines(bytes(partial), source, line, validator)


def _lines(block: bytes, source: Source, first: int, validator: RecordValidator) -> Iterable[str]:
    try:
        return io.StringIO(block.decode("utf-8"), newline="\n")
    except UnicodeDecodeError:
        lines = []
        for number, raw in enumerate(io.BytesIO(block), start=first):
            text, is_utf8 = decode(raw)
            if not is_utf8:
                validator.count_issue("encoding", source, number)
            lines.append(text)
        return lines


def table_rows(
    source: Source, validator: RecordValidator, malformed: Callable[[DataError], None] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """(row number, fields) of a separated table, first (1, column names). Rows of another width are left out.

    The separator is the most frequent one in the header of comma, tab, semicolon and bar.

    malformed: is called with the error of each row of another width, in place of the validator. A misplaced quote is
    always raised: it hides where the next row starts, and lines of a note could pass for rows.
    """
    csv.field_size_limit(_LONGEST)
    longest, length, row = input_file(source).longest, 0, 0

    def counted() -> Iterator[str]:
        # A row with quotes goes on over many lines. Its fields take several times the memory of the file.
        nonlocal length
        for line in text_lines(source, validator):
            if (length := length + len(line)) > longest:
                raise DataError(f"{location(source, row + 1)}: a row of more than {longest >> 20} MB (an open quote?)")
            yield line

    lines = counted()
    header = next(lines, "")
    if not header.strip():
        raise DataError(f"{source} is empty; it must have a header row")
    reader = csv.reader(chain([header], lines), delimiter=max(_SEPARATORS, key=header.count), strict=True)
    try:
        names = [name.strip() for name in next(reader)]
        row, length = 1, 0
        if len(names) > _MOST_COLUMNS:
            raise DataError(f"{source} has {len(names):,} columns; it may have {_MOST_COLUMNS:,}")
        yield row, names
        for row, fields in enumerate(reader, start=2):
            length = 0
            if len(fields) == len(names):
                yield row, fields
            elif fields and malformed:
                found = f"{len(fields):,} field{'' if len(fields) == 1 else 's'}"
                malformed(
                    DataError(f"{location(source, row)}: must have {len(names)} fields, as the header; got {found}")
                )
            elif fields:
                validator.count_issue("ragged_row", source, row)
    except csv.Error as error:
        raise DataError(f"{location(source, row + 1)}: not a well-formed row (misplaced quote or line end)") from error


def columns(
    source: Source, validator: RecordValidator, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(row number, fields of the required and optional columns), whatever the order and letter case of the columns.

    The fields of an optional column that does not exist are empty.
    """
    rows = table_rows(source, validator)
    _, names = next(rows)
    names = [name.lower() for name in names]
    check_columns(source, names, required)
    index = {name: position for position, name in enumerate(names)}
    positions = [index.get(name, -1) for name in (*required, *optional)]
    for row, fields in rows:
        yield row, tuple(fields[position] if position >= 0 else "" for position in positions)
