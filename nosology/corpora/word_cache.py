"""The word cache of a corpus: every note as word ids in a memory-mapped file, tokenized once for all trainings.

The cache is in the folder `words` of the corpus; where that cannot be written, in the user's cache folder, else in a
temporary folder. Word ids are the text of the notes: only the user who wrote a cache can read it. It can be deleted
when no training uses it.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal
from weakref import finalize

import numpy as np

from nosology.core import DataError, OutputError
from nosology.core.files import (
    atomic_folder,
    cache_folder,
    file_lock,
    json_sha256,
    private_file,
    read_json,
    remove_abandoned,
    sha256,
    write_json,
)
from nosology.core.parallel import cores, parallel_map
from nosology.core.progress import counting, print_progress
from nosology.corpora.corpus import WORDS, Corpus, read_texts
from nosology.text.tokens import benchmark_words, words_of

Cleaning = Literal["none", "benchmark"]
SPLIT: dict[Cleaning, Callable[[str], list[str]]] = {"none": words_of, "benchmark": benchmark_words}

FORMAT = 2  # a change of the files or of a tokenizer in SPLIT is a new format
_ABOUT, _IDS, _BOUNDS, _LIST = "cache.json", "ids.int32", "bounds.int64", "words.txt"
_LOCK = ".lock"
_MAX_WORKERS = 8  # more read the notes no faster than one process merges their words
_MIN_GROUPS = 6  # of notes; below this, starting processes costs more than it saves


class WordCache:
    """The words of the notes of a corpus: note i is words[ids[bounds[i]]], ..., words[ids[bounds[i + 1] - 1]].

    Words are numbered by their first occurrence. A pickled cache is opened again where it is unpickled.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple[type[WordCache], tuple[Path]]:
        return WordCache, (self.folder,)

    @cached_property
    def words(self) -> list[str]:
        """The distinct words of all notes."""
        try:
            return (self.folder / _LIST).read_text(encoding="utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise DataError(f"{self.folder / _LIST} is damaged; delete {self.folder}, and it is made again") from error

    @cached_property
    def ids(self) -> np.ndarray:
        """The word ids of all notes, int32, memory-mapped."""
        path = self.folder / _IDS
        return np.asarray(np.memmap(path, np.int32, "r")) if path.stat().st_size else np.empty(0, np.int32)

    @cached_property
    def bounds(self) -> np.ndarray:
        """The start of each note in `ids`, and the end of the last, int64."""
        return np.fromfile(self.folder / _BOUNDS, np.int64)


def word_cache(corpus: Corpus, cleaning: Cleaning) -> WordCache:
    """The word cache of a corpus; it is read from disk, or built in parallel processes and stored."""
    if cleaning not in corpus.word_caches:
        corpus.word_caches[cleaning] = _stored(corpus, cleaning)
    return corpus.word_caches[cleaning]


def _stored(corpus: Corpus, cleaning: Cleaning) -> WordCache:
    key = {
        "format": FORMAT,
        "corpus": corpus.hash,
        "cleaning": cleaning,
        "unicode": unicodedata.unidata_version,  # decides which characters are letters
    }
    name = f"{cleaning}-{json_sha256(key)[:16]}"
    for place in (corpus.folder / WORDS, cache_folder() / WORDS):
        try:
            return _find_or_build(corpus, cleaning, place / name, key)
        except (OSError, OutputError) as error:
            print_progress(f"{place} cannot have the word cache: {type(error).__name__}")
    temporary = Path(mkdtemp(prefix="nosology-words-"))
    cache = WordCache(temporary / name)
    finalize(cache, shutil.rmtree, temporary, ignore_errors=True)
    _build(corpus, cleaning, cache.folder, key)
    return cache


def _find_or_build(corpus: Corpus, cleaning: Cleaning, folder: Path, key: dict[str, Any]) -> WordCache:
    """The cache in a folder. Of several processes one builds it while the others wait."""
    if not _is_complete(folder, key):
        place = folder.parent
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
        with file_lock(place / _LOCK, "waiting for another process that reads the same notes"):
            if not _is_complete(folder, key):
                _remove_outdated(place, corpus)
                shutil.rmtree(folder, ignore_errors=True)  # damaged
                _build(corpus, cleaning, folder, key)
    return WordCache(folder)


def _is_complete(folder: Path, key: dict[str, Any]) -> bool:
    """Whether a folder has a cache for this key with undamaged files. OSError if it must not be read."""
    try:
        about = read_json(folder / _ABOUT)
        return about["key"] == key and about["files"] == _hashes(folder)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a cache but its description."""
    return {name: sha256(folder / name) for name in (_IDS, _BOUNDS, _LIST)}


def _remove_outdated(place: Path, corpus: Corpus) -> None:
    """Removes caches in the corpus folder of other notes or an older format, and what killed processes left there."""
    for folder in place.iterdir() if place.parent == corpus.folder else ():
        if folder.name.startswith("."):
            remove_abandoned(place / folder.name.removeprefix(".").partition(".")[0])
        else:
            with suppress(OSError, ValueError, KeyError, TypeError):
                key = read_json(folder / _ABOUT)["key"]
                if key["corpus"] != corpus.hash or key["format"] < FORMAT:
                    shutil.rmtree(folder)


def _build(corpus: Corpus, cleaning: Cleaning, folder: Path, key: dict[str, Any]) -> None:
    """Writes the cache to a folder, which appears when it is complete."""
    groups = [(str(corpus.folder), group, cleaning) for group in range(corpus.row_groups)]
    workers = min(cores(), _MAX_WORKERS) if len(groups) >= _MIN_GROUPS else 1
    known: defaultdict[str, int] = defaultdict()
    known.default_factory = known.__len__
    lengths = [np.zeros(1, np.int64)]
    with atomic_folder(folder, marker=_ABOUT, files=[_IDS, _BOUNDS, _LIST]) as temporary:
        temporary.chmod(0o700)
        with (
            open(temporary / _IDS, "wb", opener=private_file) as file,
            counting("tokenizing", total=len(corpus)) as counter,
        ):
            for words, ids, note_lengths in parallel_map(_tokenize_group, groups, workers):
                renumber = np.fromiter(map(known.__getitem__, words), np.int32, len(words))
                renumber[ids].tofile(file)
                lengths.append(note_lengths)
                counter.advance(len(note_lengths))
        with open(temporary / _BOUNDS, "wb", opener=private_file) as file:
            np.cumsum(np.concatenate(lengths), dtype=np.int64).tofile(file)
        with open(temporary / _LIST, "wb", opener=private_file) as file:
            file.writelines(f"{word}\n".encode() for word in known)
        corpus.check_unchanged()
        about = {"key": key, "notes": len(corpus), "words": len(known), "files": _hashes(temporary)}
        write_json(temporary / _ABOUT, about)
        (temporary / _ABOUT).chmod(0o600)


def _tokenize_group(folder: str, group: int, cleaning: Cleaning) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct words of a group of notes, all their words as ids of these, and the number of words per note."""
    split = SPLIT[cleaning]
    known: defaultdict[str, int] = defaultdict()
    known.default_factory = known.__len__
    notes = [
        np.fromiter(map(known.__getitem__, words), np.int32, len(words))
        for words in map(split, read_texts(folder, group))
    ]
    lengths = np.fromiter(map(len, notes), np.int64, len(notes))
    return list(known), np.concatenate(notes) if notes else np.empty(0, np.int32), lengths
