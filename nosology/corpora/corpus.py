"""The corpus folder: notes.parquet, and corpus.json with source, filters, counts and hashes of notes and files.

for note in Corpus.open("corpus").notes("train"): ...
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet

from nosology.core import SPLITS, SYSTEMS, Code, DataError, Evidence, Note, OutputError, __version__
from nosology.core.files import (
    atomic_folder,
    cache_folder,
    check_depth,
    check_output_folder,
    json_sha256,
    read_json,
    sha256,
    write_json,
)
from nosology.core.parallel import batched
from nosology.corpora.notes_file import note_to_json

MANIFEST, NOTES = "corpus.json", "notes.parquet"
WORDS = "words"  # the folder of the word caches (`word_cache`), which are no part of the corpus
FORMAT = 1
_DIGEST = "digest"  # of the other values of the manifest
_KEYS = {"format", "package", "source", "filters", "counts", "hash", "sha256", _DIGEST}

_STRINGS = ("id", "text", "patient", "site", "split", "lang")
_CODE = [("system", pa.string()), ("code", pa.string())]
_EVIDENCE = [*_CODE, ("start", pa.int64()), ("end", pa.int64()), ("extra", pa.string())]
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in _STRINGS]
    + [("codes", pa.list_(pa.struct(_CODE))), ("evidence", pa.list_(pa.struct(_EVIDENCE))), ("extra", pa.string())]
)
# Limits of a row group, which is what reading and writing hold in memory.
_GROUP_NOTES, _GROUP_CHARACTERS = 2_000, 1 << 24
_BATCH_NOTES = 256
_VERIFIED_CORPORA = 200  # how many are remembered
# json.dumps with options would make a new encoder in each call.
_JSON, _SORTED_JSON = json.JSONEncoder(default=str), json.JSONEncoder(default=str, sort_keys=True)
_FILES = [NOTES, f"{WORDS}/*", f"{WORDS}/*/*"]  # what a corpus folder may have when it is replaced


class Corpus:
    """A corpus on disk. Its notes are streamed, not held in memory."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest
        self.word_caches: dict[str, Any] = {}  # those that are open, by the name of the cleaning

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """The corpus in a folder. DataError if there is none or it is incomplete."""
        folder = Path(folder)
        path = folder / MANIFEST
        if not path.is_file():
            raise DataError(f"{folder} is no corpus: it has no {MANIFEST} (write one with `nosology corpus prepare`)")
        manifest = _read_manifest(path)
        notes = manifest["counts"]["notes"]
        # Older corpora have no digest. A changed name of the digest is an unknown key.
        if manifest.get(_DIGEST, _digest(manifest)) != _digest(manifest) or manifest.keys() - _KEYS:
            raise DataError(f"{path} is damaged or was changed: its digest is not that of its content")
        try:
            with parquet.ParquetFile(folder / NOTES) as file:
                stored, schema = file.metadata.num_rows, file.schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is not UTF-8
            raise DataError(f"{folder / NOTES} is missing or damaged") from error
        if schema.names != _SCHEMA.names:
            columns = ", ".join(_SCHEMA.names)
            raise DataError(f"{folder / NOTES} must have the columns {columns}; got {', '.join(schema.names)}")
        for column, wanted in zip(schema, _SCHEMA):
            if column.type != wanted.type:
                raise DataError(f"{folder / NOTES}: the column {column.name} must be {wanted.type}; got {column.type}")
        if stored != notes:
            raise DataError(f"{folder / NOTES} has {stored!r} notes; {MANIFEST} says {notes!r}")
        corpus = cls(folder, manifest)
        corpus._verify()
        return corpus

    def _verify(self) -> None:
        """DataError if the notes are not those that were written. A file of the same size and time is read once."""
        path = self.folder / NOTES
        status = path.stat()
        state = f"{status.st_size} {status.st_mtime_ns} {self.hash} {self.manifest.get('sha256')}"
        name, cache = str(path.resolve()), cache_folder() / "verified_corpora.json"
        try:
            known = dict(read_json(cache)).items()
            verified = {key: value for key, value in known if isinstance(key, str) and isinstance(value, str)}
        except (OSError, ValueError, TypeError):
            verified = {}
        if verified.pop(name, None) == state:
            return
        if "sha256" in self.manifest:
            is_intact = sha256(path) == self.manifest["sha256"]
        else:  # written by version 0.1
            counter = _CorpusCounter()
            for group in encoded_groups(self.notes()):
                counter.add(group)
            is_intact = counter.digest.hexdigest() == self.hash
        if not is_intact:
            raise DataError(f"{path} is damaged or was changed: its hash is not that in {MANIFEST}")
        with suppress(OutputError):  # without a cache the file is read again next time
            write_json(cache, dict([*verified.items(), (name, state)][-_VERIFIED_CORPORA:]))

    @property
    def hash(self) -> str:
        """A hash of the notes in order. It does not depend on the version of Parquet."""
        return self.manifest["hash"]

    def __len__(self) -> int:
        return self.manifest["counts"]["notes"]

    def check_unchanged(self) -> None:
        """DataError if another corpus has been written to the folder since this one was opened."""
        if Corpus.open(self.folder).hash != self.hash:
            raise DataError(f"{self.folder} was replaced by another corpus while its notes were read")

    @property
    def row_groups(self) -> int:
        """The number of groups of notes in the file; `read_texts` reads one."""
        with parquet.ParquetFile(self.folder / NOTES) as file:
            return file.metadata.num_row_groups

    def notes(self, split: str | None = None, text: bool = True, group: int | None = None) -> Iterator[Note]:
        """The notes in order, optionally of one split. `text=False` is faster: without text and evidence.

        group: only the notes of this row group, read without threads, as in a forked process.
        """
        if split is not None and split not in SPLITS:
            raise DataError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")
        names = [name for name in _SCHEMA.names if text or name not in ("text", "evidence")]
        try:
            with parquet.ParquetFile(self.folder / NOTES) as file:
                groups = None if group is None else [group]
                batches = file.iter_batches(_BATCH_NOTES, groups, columns=names, use_threads=group is None)
                for batch in batches:
                    if split is not None:
                        batch = batch.filter(compute.call_function("equal", [batch.column("split"), pa.scalar(split)]))
                    yield from map(_from_row, batch.to_pylist())
        # A damaged file may also have text that is not UTF-8, or miss a field.
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f": {error}" if isinstance(error, _RowError) else ""
            raise DataError(f"{self.folder / NOTES} is missing or damaged{reason}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    """corpus.json; DataError if it is damaged, of another format or of other types."""
    try:
        manifest = read_json(path)
        file_format = manifest["format"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path} is damaged or not a corpus manifest") from error
    if file_format != FORMAT:
        raise DataError(f"{path}: format must be {FORMAT}; got {file_format!r}")
    counts = manifest.get("counts")
    is_complete = (
        isinstance(counts, dict)
        and _is_count(counts.get("notes"))
        and isinstance(counts.get("splits"), dict)
        and all(map(_is_count, counts["splits"].values()))
        and isinstance(manifest.get("source"), dict)
        and isinstance(manifest.get("filters"), list)
        and all(isinstance(item, dict) for item in manifest["filters"])
        and isinstance(manifest.get("hash"), str)
    )
    if not is_complete:
        raise DataError(f"{path} is damaged: source, filters, counts or hash is missing or of another type")
    return manifest


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_texts(folder: str | Path, group: int) -> list[str]:
    """The texts of a row group of the corpus in a folder."""
    try:
        with parquet.ParquetFile(Path(folder) / NOTES) as file:
            texts = file.read_row_group(group, columns=["text"]).column("text").to_pylist()
            if None in texts:
                raise ValueError("a note has no text")
            return texts
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{Path(folder) / NOTES} is missing or damaged") from error


def return_memory() -> None:
    """Makes Arrow return memory to the system at once in this process, if it is one of several that share a machine."""
    if parent_process() is not None:
        pa.set_memory_pool(pa.system_memory_pool())


def check_corpus_folder(folder: str | Path) -> Path:
    """The resolved path; OutputError if a corpus must not be written to it."""
    return check_output_folder(folder, marker=MANIFEST, files=_FILES)


@dataclass(slots=True)
class EncodedNotes:
    """A group of notes as it is hashed and stored, and its counts."""

    ids: list[str]
    patients: set[str]
    splits: Counter[str]
    codes: Counter[Code]
    uncoded: int
    json: bytearray  # a line per note
    table: pa.Table


def encode_notes(notes: Iterable[Note]) -> EncodedNotes:
    """The notes as a corpus stores them; few of them are in memory at a time."""
    encoded = EncodedNotes([], set(), Counter(), Counter(), 0, bytearray(), _SCHEMA.empty_table())
    tables = []
    for batch in batched(notes, _BATCH_NOTES):
        encoded.ids += [note.id for note in batch]
        encoded.patients.update(note.patient for note in batch if note.patient is not None)
        encoded.splits.update(note.split or "none" for note in batch)
        for note in batch:
            encoded.codes.update(note.codes)
            encoded.uncoded += not note.codes
            encoded.json += _SORTED_JSON.encode(note_to_json(note)).encode() + b"\n"
        tables.append(pa.Table.from_pylist([_to_row(note) for note in batch], _SCHEMA))
    if tables:
        encoded.table = pa.concat_tables(tables).combine_chunks()
    return encoded


def encoded_groups(notes: Iterable[Note]) -> Iterator[EncodedNotes]:
    """The notes in groups of the size of a row group, encoded when they are needed."""
    return map(encode_notes, _row_groups(notes))


def write_corpus(
    notes: Iterable[Note], folder: str | Path, *, source: dict[str, Any], filters: list, counts: dict[str, Any]
) -> Corpus:
    """The corpus of the notes, written atomically.

    `counts` is read after the last note, so the source of the notes may fill it. The counts of notes, splits and
    systems are added to it.
    """
    return write_encoded(encoded_groups(notes), folder, source=source, filters=filters, counts=counts)


def write_encoded(
    groups: Iterable[EncodedNotes], folder: str | Path, *, source: dict[str, Any], filters: list, counts: dict[str, Any]
) -> Corpus:
    """The corpus of notes that are encoded, group by group, perhaps by other processes; as `write_corpus`."""
    folder = Path(folder)
    counter = _CorpusCounter()
    with atomic_folder(folder, marker=MANIFEST, files=_FILES) as temporary:
        with parquet.ParquetWriter(temporary / NOTES, _SCHEMA, compression="zstd") as writer:
            for group in groups:
                counter.add(group)
                writer.write_table(group.table)
        manifest = {
            "format": FORMAT,
            "package": f"nosology {__version__}",
            "source": source,
            "filters": filters,
            "counts": counter.to_json() | counts,
            "hash": counter.digest.hexdigest(),
            "sha256": sha256(temporary / NOTES),
        }
        write_json(temporary / MANIFEST, manifest | {_DIGEST: _digest(manifest)})
    return Corpus.open(folder)


def _digest(manifest: dict[str, Any]) -> str:
    return json_sha256({name: value for name, value in manifest.items() if name != _DIGEST})


class _CorpusCounter:
    """Counts and hashes groups of notes. DataError for a repeated id."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.ids: set[str] = set()
        self.patients: set[str] = set()
        self.splits: Counter[str] = Counter()
        self.codes: Counter[Code] = Counter()
        self.uncoded = 0

    def add(self, notes: EncodedNotes) -> None:
        for note_id in notes.ids:
            if note_id in self.ids:
                raise DataError(f"ids of a corpus must be unique; got {note_id!r} twice")
            self.ids.add(note_id)
        self.patients |= notes.patients
        self.splits += notes.splits
        self.codes += notes.codes
        self.uncoded += notes.uncoded
        self.digest.update(notes.json)

    def to_json(self) -> dict[str, Any]:
        systems: dict[str, dict[str, int]] = {}
        for code, count in sorted(self.codes.items()):
            system = systems.setdefault(code.system, {"codes": 0, "occurrences": 0})
            system["codes"] += 1
            system["occurrences"] += count
        return {
            "notes": len(self.ids),
            "patients": len(self.patients),
            "notes_without_codes": self.uncoded,
            "splits": {name: self.splits[name] for name in (*SPLITS, "none") if self.splits[name]},
            "systems": systems,
        }


def _row_groups(notes: Iterable[Note]) -> Iterator[list[Note]]:
    group: list[Note] = []
    characters = 0
    for note in notes:
        group.append(note)
        characters += len(note.text)
        if len(group) >= _GROUP_NOTES or characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _to_row(note: Note) -> dict[str, Any]:
    return {
        **{name: getattr(note, name) for name in _STRINGS},
        "codes": [{"system": system, "code": code} for system, code in note.codes],
        "evidence": [
            {
                "system": item.code[0],
                "code": item.code[1],
                "start": item.start,
                "end": item.end,
                "extra": _pack_evidence(item.extra),
            }
            for item in note.evidence
        ],
        "extra": _pack(note.extra),
    }


class _RowError(ValueError):
    """A row is no note; the message has no text of it."""


def _from_row(row: dict[str, Any]) -> Note:
    for name in ("id", "text", "codes", "evidence"):
        if row.get(name, "") is None:
            raise _RowError(f"a note has no {name}")
    if row["split"] is not None and row["split"] not in SPLITS:
        raise _RowError(f"split must be one of {', '.join(SPLITS)}")
    items = row.get("evidence", ())
    if any(item["start"] is None or item["end"] is None for item in items):
        raise _RowError("an evidence span has no start or end")
    evidence = [
        Evidence(_code(item["system"], item["code"]), item["start"], item["end"], _unpack_evidence(item["extra"]))
        for item in items
    ]
    return Note(
        **{"text": "", **{name: row[name] for name in _STRINGS if name in row}},
        codes=tuple(_code(item["system"], item["code"]) for item in row["codes"]),
        evidence=tuple(evidence),
        extra=_unpack(row["extra"]),
    )


@lru_cache(maxsize=1 << 17)
def _code(system: str, code: str) -> Code:
    """The code, as the same object each time: the codes of all train notes are in memory."""
    if system not in SYSTEMS or code is None:
        raise _RowError(f"a code must have one of the systems {', '.join(SYSTEMS)}")
    return Code(system, code)


def _pack(extra: Mapping[str, Any]) -> str | None:
    return _JSON.encode(dict(extra)) if extra else None


def _pack_evidence(extra: Mapping[str, Any]) -> str | None:
    """The fields of an evidence span in JSON; mostly they are the same few, such as its kind."""
    items = tuple(extra.items())
    return _pack_strings(items) if all(type(value) is str for _, value in items) else _pack(extra)


@lru_cache(maxsize=1 << 10)
def _pack_strings(items: tuple[tuple[str, str], ...]) -> str | None:
    return _pack(dict(items))


def _unpack(extra: str | None) -> dict[str, Any]:
    if not extra:
        return {}
    value = json.loads(extra)
    if not isinstance(value, dict):
        raise _RowError("extra must be a JSON object")
    check_depth(value)
    return value


def _unpack_evidence(extra: str | None) -> dict[str, Any]:
    """The fields of an evidence span, which mostly are the same few, such as its kind."""
    flat = _unpack_flat(extra)
    return _unpack(extra) if flat is None else dict(flat)


@lru_cache(maxsize=1 << 10)
def _unpack_flat(extra: str | None) -> dict[str, Any] | None:
    """The fields; None if one is a list or an object, which spans must not share."""
    value = _unpack(extra)
    return None if any(isinstance(item, list | dict) for item in value.values()) else value
