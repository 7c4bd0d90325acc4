"""The notes that a command reads: text files, notes files, corpus folders, standard input.

A note that is not plain text, or a malformed row of a notes file, stops no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from nosology.core import ConfigError, DataError, Note
from nosology.core.errors import printable

NOTES_HELP = "Text files, notes files (.jsonl, .csv, .parquet), corpus folders, or - for standard input."
NoteArguments = Annotated[list[str], typer.Argument(metavar="NOTE...", help=NOTES_HELP)]
ColumnOptions = Annotated[
    list[str],
    typer.Option(
        "--column",
        metavar="FIELD=COLUMN",
        help="In notes files, the field (id, text, ...) is in this column; may be repeated.",
    ),
]
SplitOption = Annotated[str | None, typer.Option(help="Of a corpus folder, read only the notes of this split.")]


def parse_columns(given: Sequence[str]) -> dict[str, str]:
    """field -> column of --column options. ConfigError if one has another form or names a field or column again."""
    columns: dict[str, str] = {}
    for option in given:
        field, _, column = (part.strip() for part in option.partition("="))
        if not (field and column):
            raise ConfigError(f"--column must be FIELD=COLUMN, such as text=note; got {option!r}")
        if field in columns or column in columns.values():
            raise ConfigError(f"--column must name a field and a column once; got {option!r} in addition")
        columns[field] = column
    return columns


class InputNote(NamedTuple):
    """A note and the file that it is from; a note with an error has no text, so that it costs nothing to code."""

    note: Note
    file: str
    error: str = ""


class InputNotes:
    """Iterates over the notes of files (with the columns of notes files) and of standard input (-), lazily.

    Cautions name what cannot be used, is empty, or has the id of an earlier note. command: for the hint that a text can
    be piped. failed: the number of notes so far that cannot be used. columns: see `read_notes`. split: that of the
    notes of corpus folders, by default all.
    """

    def __init__(
        self,
        names: Sequence[str],
        command: str = "code BUNDLE",
        columns: Mapping[str, str] | None = None,
        split: str | None = None,
    ):
        self.names, self.command, self.failed = names, command, 0
        self.columns, self.split = columns or {}, split
        self._ids: set[str] = set()

    def __iter__(self) -> Iterator[InputNote]:
        self._check_names()
        for name in self.names:
            read, repeated = 0, 0
            for item in self._of_file(name):
                read += 1
                repeated += item.note.id in self._ids
                self._ids.add(item.note.id)
                if not (item.error or item.note.text.strip()):
                    typer.echo(f"caution: {printable(item.note.id)} is empty: there is nothing to code", err=True)
                yield item
            if not read:
                typer.echo(f"caution: {_shown(name)} has no note", err=True)
            if repeated:
                have = "note has" if repeated == 1 else "notes have"
                typer.echo(f"caution: {_shown(name)}: {repeated:,} {have} the id of an earlier note", err=True)

    def _check_names(self) -> None:
        """DataError for a name that is no file, ConfigError for an option that does not apply to the files."""
        from nosology.corpora.notes_file import is_notes_file

        files = [name for name in self.names if name == "-" or not _is_corpus(name)]
        for name in files:
            if name != "-":
                _check_is_file(name, self.command)
        if self.split is not None and files:
            raise ConfigError(f"--split applies to corpus folders; got {_shown(files[0])}")
        if self.columns and not any(name != "-" and is_notes_file(name) for name in files):
            raise ConfigError(f"--column applies to notes files (.jsonl, .csv, .parquet); got {_shown(self.names[0])}")

    def _of_file(self, name: str) -> Iterator[InputNote]:
        from nosology.corpora.notes_file import is_notes_file, read_well_formed_notes
        from nosology.corpora.plain_text import check_text
        from nosology.corpora.text_files import InputFile, note_text, open_bytes

        if name != "-" and _is_corpus(name):
            yield from _of_corpus(name, self.split)
            return
        file = InputFile(sys.stdin.buffer, "standard input") if name == "-" else InputFile(name)
        if name != "-" and is_notes_file(name):
            for _, note in read_well_formed_notes(file, self._skip_row, self.columns):
                try:
                    check_text(note.text, "the note")
                except DataError as error:
                    yield self.refuse(InputNote(note, name), str(error), "cannot be used")
                else:
                    yield InputNote(note, name)
            return
        note_id = Path(name).name.encode("utf-8", "replace").decode()  # a file name may have other bytes
        try:
            with open_bytes(file) as raw:
                text = note_text(raw.read(), file)
        except DataError as error:
            self.failed += 1
            typer.echo(f"caution: {printable(str(error))}", err=True)
            yield InputNote(Note(note_id, ""), name, str(error))
        else:
            yield InputNote(Note(note_id, text), name)

    def refuse(self, item: InputNote, error: str, what: str) -> InputNote:
        """The note without its text and with an error; it is counted, and standard error names its file and id."""
        self.failed += 1
        typer.echo(f"caution: {_shown(item.file)}: note {printable(item.note.id)} {what}: {error}", err=True)
        return item._replace(note=Note(item.note.id, ""), error=error)

    def _skip_row(self, error: DataError) -> None:
        self.failed += 1
        typer.echo(f"caution: {printable(str(error))}; the row is left out", err=True)

    def usable(self) -> Iterator[Note]:
        """The notes that can be used."""
        return (item.note for item in self if not item.error)

    def exit_if_failed(self) -> None:
        """Prints how many notes could not be used, if any, and ends the command with exit code 1."""
        if self.failed:
            typer.echo(f"caution: {self.failed:,} note{'' if self.failed == 1 else 's'} could not be used", err=True)
            raise typer.Exit(1)


def _shown(name: str) -> str:
    return "standard input" if name == "-" else printable(name)


def _is_corpus(name: str) -> bool:
    from nosology.corpora.corpus import MANIFEST

    return os.path.isfile(os.path.join(name, MANIFEST))  # noqa: PTH113, PTH118 (False for a text that is too long)


def _of_corpus(name: str, split: str | None) -> Iterator[InputNote]:
    """The notes of a split of a corpus, of all for "all"; DataError if it has none."""
    from nosology.corpora.corpus import Corpus

    corpus, split = Corpus.open(name), None if split == "all" else split
    splits = corpus.manifest["counts"]["splits"]
    if split is not None and split not in splits:
        raise DataError(f"{name} has no {split} notes; its splits: {', '.join(sorted(splits)) or 'none'}")
    return (InputNote(note, name) for note in corpus.notes(split))


def _check_is_file(name: str, command: str) -> None:
    """Raises DataError with a hint if this is no file. An argument that may be the text of a note is not shown."""
    if os.path.isfile(name):  # noqa: PTH113 (False, not an error, for a text that is too long for a path)
        return
    if os.path.exists(name) and Path(name).is_fifo():  # noqa: PTH110 (such as <(command) of a shell)
        return
    if os.path.isdir(name):  # noqa: PTH112
        raise DataError(f"{name} is a folder without a corpus; give its files, for example {Path(name) / '*.txt'}")
    is_text = len(name.split()) > 2 or len(name) > 200
    missing = "NOTE must be a file" if is_text else f"no such file: {name} (NOTE must be a text file or a notes file"
    raise DataError(f"{missing}{'' if is_text else ')'}; to code a text, pipe it: echo TEXT | nosology {command} -")
