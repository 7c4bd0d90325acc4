"""The radiology reports of the 2007 challenge of the Computational Medicine Center, as XML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from nosology.core import DataError, Note
from nosology.corpora.intake import Intake, place
from nosology.corpora.lines import open_bytes

_GOLD = "CMC_MAJORITY"
_PARTS = {"CLINICAL_HISTORY": "History", "IMPRESSION": "Impression"}


def read(paths: Sequence[Path], intake: Intake) -> Iterator[Note]:
    """The reports of each file in turn, with the majority's codes; in the test file they have none.

    The text is "History: ..." and "Impression: ..." on a line each. Rows in messages count the reports.
    """
    for path in paths:
        files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path} holds no XML file")
        for file in files:
            yield from _read_file(file, intake)


def _read_file(path: Path, intake: Intake) -> Iterator[Note]:
    _refuse_doctype(path)
    row = 0
    with open_bytes(path) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag == "doc":
                row += 1
                note = _note(element, path, row, intake)
                if intake.accepts(note.id, note.text, path, row):
                    yield note
                element.clear()
    if row == 0:
        raise DataError(f"{path} holds no report: expected docs / doc elements")


def _note(doc: ElementTree.Element, path: Path, row: int, intake: Intake) -> Note:
    note_id = (doc.get("id") or "").strip()
    if not note_id:
        raise DataError(f"{place(path, row)}: a doc has no id")
    parts = {name: [] for name in _PARTS}
    for element in doc.iter("text"):
        if element.get("type") in parts:
            parts[element.get("type")].append("".join(element.itertext()).strip())
    lines = [f"{_PARTS[name]}: {' '.join(texts)}" for name, texts in parts.items() if any(texts)]
    gold = [("icd9cm", code.text or "") for code in doc.iter("code") if code.get("origin") == _GOLD]
    text = intake.text("\n".join(lines), path, row)
    return Note(note_id, text, lang="en", codes=intake.codes(gold, path, row))


def _refuse_doctype(path: Path) -> None:
    """Raises DataError unless the file is well-formed XML without a document type, which could define entities."""

    def refuse(*_: object) -> None:
        raise DataError(f"{path}: XML with a document type is refused, since its entities could expand without end")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        with open_bytes(path) as file:
            parser.ParseFile(file)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise DataError(f"{path}: not well-formed XML (line {error.lineno}: {reason})") from error
    except (LookupError, ValueError) as error:
        raise DataError(f"{path}: XML in an encoding that cannot be read; save it as UTF-8") from error
