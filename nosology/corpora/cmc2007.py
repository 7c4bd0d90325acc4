"""Reader of the radiology reports of the 2007 challenge of the Computational Medicine Center (XML)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from nosology.core import DataError, Note
from nosology.corpora.text_files import open_bytes
from nosology.corpora.validation import RecordValidator, location

_MAJORITY = "CMC_MAJORITY"
_SPLIT = re.compile(r"(?<![A-Za-z])(?:train|test)|Train|Test|TRAIN|TEST")  # in a file name; not in latest.xml
_SECTIONS = {"CLINICAL_HISTORY": "History", "IMPRESSION": "Impression"}


def read_cmc2007(paths: Sequence[Path], validator: RecordValidator) -> Iterator[Note]:
    """The reports of each file with the codes of the majority of coders; the test file has no codes.

    The text is two lines, "History: ..." and "Impression: ...". A file with train or test in its name is that split:
    otherwise the test file would be training notes without codes. Rows in messages are reports.
    """
    for path in paths:
        files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path} has no XML file")
        for file in files:
            yield from _read_file(file, validator)


def _read_file(path: Path, validator: RecordValidator) -> Iterator[Note]:
    _refuse_doctype(path)
    row, split = 0, match[0].lower() if (match := _SPLIT.search(path.name)) else None
    with open_bytes(path) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag == "doc":
                row += 1
                note = _note(element, path, row, split, validator)
                if validator.accepts(note.id, note.text, path, row):
                    yield note
                element.clear()
    if row == 0:
        raise DataError(f"{path} has no report; it must have docs / doc elements")


def _note(doc: ElementTree.Element, path: Path, row: int, split: str | None, validator: RecordValidator) -> Note:
    note_id = (doc.get("id") or "").strip()
    if not note_id:
        raise DataError(f"{location(path, row)}: a doc has no id")
    sections: dict[str | None, list[str]] = {name: [] for name in _SECTIONS}
    for element in doc.iter("text"):
        if (name := element.get("type")) in sections:
            sections[name].append("".join(element.itertext()).strip())
    lines = [f"{title}: {' '.join(sections[name])}" for name, title in _SECTIONS.items() if any(sections[name])]
    codes = [("icd9cm", code.text or "") for code in doc.iter("code") if code.get("origin") == _MAJORITY]
    text = validator.clean_text("\n".join(lines), path, row)
    return Note(note_id, text, split=split, lang="en", codes=validator.parse_codes(codes, path, row))


def _refuse_doctype(path: Path) -> None:
    """Raise DataError unless the file is well-formed XML without a document type, which could define entities."""

    def refuse(*_: object) -> None:
        raise DataError(f"{path}: XML with a document type is refused, because its entities could expand without limit")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        with open_bytes(path) as file:
            parser.ParseFile(file)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise DataError(f"{path}: not well-formed XML (line {error.lineno}: {reason})") from error
    except (LookupError, ValueError) as error:
        raise DataError(f"{path}: XML in an unknown encoding; save it as UTF-8") from error
