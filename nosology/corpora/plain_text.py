"""The check that the content of a note is plain text: no document format, no markup, no encoded or binary data."""

from __future__ import annotations

import base64
import binascii
import re

from nosology.core import DataError

_SAMPLE = 5_000  # characters of a note that are checked for markup and encoded data
_BINARY_FORMATS = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"{\\rtf": "an RTF document",
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"II*\x00": "a picture",
    b"MM\x00*": "a picture",
    b"SQLite format 3": "a database",
    b"PAR1": "a Parquet file",
}
_TEXT_FORMATS = {magic.decode(): kind for magic, kind in _BINARY_FORMATS.items() if magic in (b"%PDF", b"{\\rtf")}
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_MOST_CONTROL_CHARACTERS = 0.01  # of all characters; old systems write a few into their texts
_RTF = re.compile(r"{\\{1,4}rtf\d")  # also escaped, and after a heading
# Only names of HTML: de-identified notes have <NAME>, and others <5 mg.
_TAG = re.compile(
    r"(?:<|&lt;)/?(?:a|b|body|br|center|div|em|font|h[1-6]|head|hr|html|i|img|li|meta|ol|p|pre|script|span|strong|style"
    r"|table|tbody|td|th|thead|title|tr|u|ul)(?:\s[^<>]{0,300})?/?(?:>|&gt;)",
    re.IGNORECASE,
)
_FEW_TAGS, _MOST_TAGS = 3, 0.1  # a note may have a few tags, or more if they are at most this share of its characters
_FIRST_TAG = re.compile(r"<([A-Za-z][\w:.-]*)(?:\s[^<>]*)?>|<(?:\?xml\s|!DOCTYPE\s|!--)", re.IGNORECASE)
_SHORTEST_LINE, _MIN_DISTINCT, _SHORTEST_BASE64 = 60, 8, 12  # no word of a text has 60 letters
_ENCODED = re.compile(rf"[A-Za-z0-9+/]{{{_SHORTEST_LINE},}}")
# What all letters of EBCDIC, Cyrillic or Greek code pages become in Windows-1252; Western texts have a few of them.
_UPPER_HALF = re.compile("[\x80-\xff\u0152-\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]")
_MIN_DISTINCT_UPPER, _MOST_UPPER = 6, 0.5
_NOTES_FILE = re.compile(r'\s*[\[{]\s*{?\s*"')  # an object or a list of objects in JSON


def binary_format(raw: bytes) -> str | None:
    """The format that a file starts with, None if it may be text."""
    start = raw.removeprefix(b"\xef\xbb\xbf")[:64].lstrip()
    return next((kind for magic, kind in _BINARY_FORMATS.items() if start.startswith(magic)), None)


def count_controls(text: str) -> int:
    """The number of control characters, 0 if they are as few as texts have."""
    controls = len(_CONTROL_CHARACTER.findall(text))
    return controls if controls > max(4, _MOST_CONTROL_CHARACTERS * len(text)) else 0


def not_text_reason(text: str) -> str | None:
    """What a text is instead of the plain text of a note, None if it is a note."""
    if controls := count_controls(text):
        return f"binary data ({controls:,} of {len(text):,} characters are control characters)"
    text = text.lstrip("\ufeff \t\r\n").rstrip()
    if kind := next((kind for start, kind in _TEXT_FORMATS.items() if text.startswith(start)), None):
        return kind
    if _RTF.search(text):
        return "an RTF document"
    sample = text[:_SAMPLE]
    if ("<" in sample or "&lt;" in sample) and _is_markup(text, sample):
        return "HTML or XML"
    words = sample.split()
    lengths = list(map(len, words))
    length = sum(lengths)
    has_long_word = max(lengths, default=0) >= _SHORTEST_LINE
    if _is_base64(words, length) or (has_long_word and sum(map(_encoded_length, words)) > length / 2):
        return "encoded data, such as base64"
    if not sample.isascii() and _is_in_unknown_encoding(sample, length):
        return "in an unknown encoding, such as EBCDIC"
    return None


def is_notes_file_content(text: str) -> bool:
    """Whether a text is a notes file: JSON, or a table with the columns id and text."""
    header = [name.strip(' "\ufeff').lower() for name in re.split(r"[,;\t|]", text[:1000].lstrip().partition("\n")[0])]
    is_json = _NOTES_FILE.match(text) is not None and text.rstrip()[-1:] in ("}", "]")
    return is_json or {"id", "text"} <= set(header)


def check_text(text: str, where: str) -> str:
    """The text; DataError if it is not plain text. The message does not show it."""
    if reason := not_text_reason(text):
        raise DataError(f"{where} is {reason}, not plain text; save it as plain text in UTF-8")
    return text


def _is_markup(text: str, sample: str) -> bool:
    if first := _FIRST_TAG.match(text):
        name = first[1]
        if name is None or text[-len(name) - 3 :].lower() == f"</{name.lower()}>":
            return True
    tags = _TAG.findall(sample)
    return len(tags) > _FEW_TAGS and sum(map(len, tags)) > _MOST_TAGS * len(sample)


def _encoded_length(word: str) -> int:
    """The length of the lines of base64 or hexadecimal digits in a word, but not of ruled lines such as xxxx."""
    return sum(len(line) for line in _ENCODED.findall(word) if len(set(line)) >= _MIN_DISTINCT)


def _is_base64(words: list[str], length: int) -> bool:
    """Whether lines are text or a document in base64. Of a word, hardly ever are all bytes characters."""
    if length < _SHORTEST_BASE64 * max(1, len(words) / 2):
        return False
    content = "".join(words)
    try:
        raw = base64.b64decode(content, altchars=b"-_" if {"-", "_"} & set(content) else None, validate=True)
        return binary_format(raw) is not None or "".join(raw.decode().split()).isprintable()
    except (binascii.Error, ValueError):
        return False


def _is_in_unknown_encoding(text: str, length: int) -> bool:
    upper = _UPPER_HALF.findall(text)
    return len(upper) > _MOST_UPPER * length and len(set(upper)) >= _MIN_DISTINCT_UPPER
