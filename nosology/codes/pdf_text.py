"""The text of a PDF as the agencies publish addenda: compressed pages, fonts with one byte a character (WinAnsi)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from nosology.core import DataError

_OBJECT = re.compile(rb"(?<![0-9])(\d+)\s+\d+\s+obj\b(.*?)\bendobj", re.DOTALL)
_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\n?endstream", re.DOTALL)
_TOKEN = re.compile(
    rb"\((?:[^()\\]|\\.)*\)|\[|\]|<<|>>|<[0-9A-Fa-f\s]*>|/[^\s/<>\[\]()]*|[-+.\d]+|[A-Za-z'\"*]+[0-9*]?", re.DOTALL
)
_ESCAPE = re.compile(rb"\\(\r\n|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"\n": b"", b"\r": b"", b"\r\n": b""}
_SAME_LINE = 3.0  # points


def pdf_lines(path: Path) -> Iterator[list[tuple[float, str]]]:
    """The lines of all pages from top to bottom, each as its fragments (x in points, text) from left to right."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if not content.startswith(b"%PDF"):
        raise DataError(f"{path} is not a PDF")
    objects = _objects(content)
    pages = list(_pages(objects))
    if not pages:
        raise DataError(f"{path} is a PDF without readable pages (encrypted or damaged)")
    for page in pages:
        yield from _lines(b"\n".join(_stream(objects.get(number, b"")) for number in _references(page, b"Contents")))


def _objects(content: bytes) -> dict[int, bytes]:
    """All objects by number, also those in object streams."""
    objects = {int(match[1]): match[2] for match in _OBJECT.finditer(content)}
    for body in list(objects.values()):
        if re.search(rb"/Type\s*/ObjStm\b", body[:300]):
            first = int(_number(body, rb"First"))
            data = _stream(body)
            header = [int(word) for word in data[:first].split()]
            starts = [first + start for start in header[1::2]]
            for number, start, end in zip(header[::2], starts, [*starts[1:], len(data)]):
                objects.setdefault(number, data[start:end])
    return objects


def _number(body: bytes, name: bytes) -> bytes:
    match = re.search(rb"/" + name + rb"\s+(\d+)", body)
    return match[1] if match else b"0"


def _stream(body: bytes) -> bytes:
    """The decompressed stream of an object; b"" if it has none that can be read."""
    match = _STREAM.search(body)
    if match is None:
        return b""
    if b"FlateDecode" not in body[: match.start()]:
        return match[1]
    try:
        return zlib.decompressobj().decompress(match[1])
    except zlib.error:
        return b""


def _references(body: bytes, name: bytes) -> list[int]:
    """The numbers of the objects that an entry of a dictionary refers to: one, or an array of them."""
    match = re.search(rb"/" + name + rb"\s*(\[[^\]]*\]|\d+\s+\d+\s+R)", body)
    return [int(number) for number in re.findall(rb"(\d+)\s+\d+\s+R", match[1])] if match else []


def _pages(objects: dict[int, bytes]) -> Iterator[bytes]:
    """The page dictionaries in the order of the page tree."""
    trees = [body for body in objects.values() if re.search(rb"/Type\s*/Catalog\b", body)]
    stack = [number for tree in trees[:1] for number in _references(tree, b"Pages")]
    seen: set[int] = set()
    while stack:
        number = stack.pop(0)
        if number in seen:
            continue
        seen.add(number)
        body = objects.get(number, b"")
        kids = _references(body, b"Kids")
        if kids:
            stack = kids + stack
        elif re.search(rb"/Type\s*/Page\b", body):
            yield body


def _lines(content: bytes) -> Iterator[list[tuple[float, str]]]:
    """The lines of one page."""
    fragments = list(_fragments(content))
    lines: list[tuple[float, list[tuple[float, str]]]] = []
    for x, y, text in sorted(fragments, key=lambda fragment: -fragment[1]):  # stable: fragments of a line keep order
        if lines and lines[-1][0] - y < _SAME_LINE:
            lines[-1][1].append((x, text))
        else:
            lines.append((y, [(x, text)]))
    for _, line in lines:
        if any(text.strip() for _, text in line):
            yield sorted(line, key=lambda fragment: fragment[0])


def _fragments(content: bytes) -> Iterator[tuple[float, float, str]]:
    """Each string that a page shows with the position where it starts."""
    x = y = leading = 0.0
    operands: list[bytes] = []
    for match in _TOKEN.finditer(content):
        token = match[0]
        if token[:1] in b"(<[]/+-.0123456789" or token == b">>":
            operands.append(token)
            continue
        numbers = [float(operand) for operand in operands if re.fullmatch(rb"[-+]?\d*\.?\d+", operand)]
        if token in (b"Td", b"TD") and len(numbers) >= 2:
            x, y = x + numbers[-2], y + numbers[-1]
            leading = -numbers[-1] if token == b"TD" else leading
        elif token == b"Tm" and len(numbers) >= 6:
            x, y = numbers[-2], numbers[-1]
        elif token == b"TL" and numbers:
            leading = numbers[-1]
        elif token in (b"T*", b"'", b'"'):
            y -= leading
        elif token == b"BT":
            x = y = 0.0
        if token in (b"Tj", b"TJ", b"'", b'"'):
            text = "".join(_string(operand) for operand in operands if operand[:1] == b"(")
            if text:
                yield x, y, text
        operands = []


def _string(token: bytes) -> str:
    """The text of a literal string."""

    def unescape(match: re.Match[bytes]) -> bytes:
        escaped = match[1]
        if escaped[:1].isdigit():
            return bytes([int(escaped, 8) & 255])
        return _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(unescape, token[1:-1]).decode("cp1252", errors="replace")
