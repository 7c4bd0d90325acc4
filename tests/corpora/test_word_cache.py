"""The word cache: the same words as the tokenizers, whole or not at all, private, and no part of the corpus."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nosology.core import DataError, OutputError
from nosology.core.files import json_sha256
from nosology.corpora import corpus as corpus_module
from nosology.corpora import word_cache as module
from nosology.corpora.corpus import NOTES, WORDS, Corpus, write_corpus
from nosology.corpora.word_cache import SPLIT, WordCache, word_cache
from tests.conftest import small_notes

TEXTS = ["", "Fever 39.5 C, fever", "Niño con tos\u0301", "12", "été İzmir ___ 7 mg", "Ça va? 3 x 2"]


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Corpus:
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus_module, "_GROUP_NOTES", 10)  # several row groups
    notes = [replace(note, text=f"{TEXTS[i % 6]} {note.text}") for i, note in enumerate(small_notes(95))]
    return write(notes, tmp_path / "corpus")


def write(notes, folder: Path) -> Corpus:
    return write_corpus(notes, folder, source={}, filters=[], counts={})


def words_in(cache: WordCache) -> list[list[str]]:
    return [[cache.words[i] for i in cache.ids[a:b]] for a, b in zip(cache.bounds[:-1], cache.bounds[1:])]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def program(corpus: Corpus, code: str) -> subprocess.Popen:
    """A process that builds the cache of a corpus after some code."""
    lines = ["import sys, time", "from nosology.corpora import word_cache as module", code]
    lines += [
        "from nosology.corpora.corpus import Corpus",
        f"module.word_cache(Corpus.open({str(corpus.folder)!r}), 'none')",
    ]
    return subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("cleaning", SPLIT)
@pytest.mark.parametrize("processes", [1, 2])
def test_words_are_those_of_the_tokenizer(corpus, cleaning, processes, monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: processes)
    assert corpus.row_groups == 10
    expected = [SPLIT[cleaning](note.text) for note in corpus.notes()]
    cache = word_cache(corpus, cleaning)
    assert words_in(cache) == expected
    assert cache.words == list(dict.fromkeys(word for note in expected for word in note))
    again = word_cache(Corpus.open(corpus.folder), cleaning)
    assert again.folder == cache.folder and words_in(again) == expected
    assert words_in(pickle.loads(pickle.dumps(cache))) == expected


def test_notes_are_tokenized_once(corpus, monkeypatch):
    word_cache(corpus, "none")
    monkeypatch.setattr(module, "_tokenize_group", lambda *_: pytest.fail("it was tokenized again"))
    assert len(word_cache(Corpus.open(corpus.folder), "none").bounds) == 96


def test_corpora_without_words(tmp_path):
    for name, texts in (("empty", []), ("blank", ["", "..."])):
        notes = [replace(note, text=text) for note, text in zip(small_notes(2), texts)]
        cache = word_cache(write(notes, tmp_path / name), "none")
        assert cache.words == [] and len(cache.ids) == 0 and cache.bounds.tolist() == [0] * (len(texts) + 1)


def test_other_cleaning_tokenizer_or_unicode_is_another_cache(corpus, monkeypatch):
    first = word_cache(corpus, "none").folder
    assert word_cache(corpus, "benchmark").folder != first
    for name, value in (("FORMAT", 0), ("unicodedata", type("Data", (), {"unidata_version": "99"}))):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert word_cache(Corpus.open(corpus.folder), "none").folder != first


def test_changed_corpus_has_another_cache(corpus):
    old = word_cache(corpus, "none")
    before = words_in(old)
    other = write([replace(note, text="new words") for note in small_notes(5)], corpus.folder)
    assert words_in(word_cache(other, "none")) == [["new", "words"]] * 5
    assert not old.folder.exists()
    assert words_in(old) == before  # a process that still uses the old cache is not disturbed


def test_caches_of_earlier_notes_are_removed(corpus, tmp_path):
    other = write(small_notes(5), tmp_path / "other")
    stale = word_cache(other, "none").folder
    copy = corpus.folder / WORDS / stale.name
    copy.parent.mkdir()
    stale.rename(copy)
    kept = [word_cache(corpus, cleaning).folder for cleaning in SPLIT]
    assert not copy.exists() and all(folder.is_dir() for folder in kept)


@pytest.mark.parametrize("name", ["ids.int32", "bounds.int64", "words.txt", "cache.json"])
def test_incomplete_cache_is_built_again(corpus, name):
    cache = word_cache(corpus, "none")
    expected = words_in(cache)
    path = cache.folder / name
    path.write_bytes(path.read_bytes()[:-4])
    (cache.folder / "other").touch()
    again = word_cache(Corpus.open(corpus.folder), "none")
    assert words_in(again) == expected and again.folder == cache.folder
    (cache.folder / name).unlink()
    again = word_cache(Corpus.open(corpus.folder), "none")
    assert words_in(again) == expected and again.folder == cache.folder


@pytest.mark.parametrize("name", ["ids.int32", "bounds.int64", "words.txt"])
def test_cache_with_a_changed_byte_is_built_again(corpus, name):
    cache = word_cache(corpus, "none")
    expected, path = words_in(cache), cache.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert words_in(word_cache(Corpus.open(corpus.folder), "none")) == expected


def test_caches_of_another_format_and_of_killed_builds_are_removed(corpus, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 0)
        old = word_cache(corpus, "none").folder
        patch.setattr(module, "FORMAT", module.FORMAT + 10)
        newer = word_cache(Corpus.open(corpus.folder), "none").folder
    host, dead = socket.gethostname(), 2**22 + 1  # more than the largest process number
    killed, other = (old.parent / f".benchmark-0.{name}.{dead}.x.partial" for name in (host, f"not-{host}"))
    running = old.parent / f".benchmark-0.{host}.{os.getpid()}.x.partial"
    for folder in (killed, other, running):
        folder.mkdir()
    present = [word_cache(Corpus.open(corpus.folder), cleaning).folder for cleaning in SPLIT]
    assert {path for path in old.parent.iterdir() if path.is_dir()} == {*present, newer, other, running}


def test_a_changed_tokenizer_is_a_new_format():
    words = {cleaning: [split(text) for text in TEXTS] for cleaning, split in SPLIT.items()}
    found = [module.FORMAT, json_sha256(words)[:16]]
    assert found == [2, "dc4e2496c6229622"], "increase FORMAT of word_cache.py and write the new pair here"


def test_killed_process_leaves_nothing_wrong(corpus):
    stop = "real = module.parallel_map\ndef stop(*given):\n    yield next(real(*given))\n"
    stop += "    print('started', flush=True)\n    time.sleep(60)\nmodule.parallel_map = stop"
    with program(corpus, stop) as child:
        assert child.stdout and child.stdout.readline() == "started\n"
        os.kill(child.pid, signal.SIGKILL)
    left = files(corpus.folder / WORDS)
    assert any(".partial/" in name for name in left) and not any(name.startswith("none") for name in left)
    cache = word_cache(Corpus.open(corpus.folder), "none")
    assert words_in(cache) == [SPLIT["none"](note.text) for note in corpus.notes()]
    assert not any(".partial" in name for name in files(corpus.folder))


def test_of_two_processes_one_builds_and_the_other_waits(corpus, tmp_path):
    log = tmp_path / "log"
    slow = f"real = module._build\ndef slow(*given):\n    open({str(log)!r}, 'a').write('built ')\n"
    slow += "    time.sleep(1.5)\n    return real(*given)\nmodule._build = slow"
    children = [program(corpus, slow) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert log.read_text() == "built "
    assert words_in(word_cache(corpus, "none")) == [SPLIT["none"](note.text) for note in corpus.notes()]
    for child in children:
        assert child.stdout
        child.stdout.close()


def test_only_the_user_can_read_a_cache(corpus, tmp_path):
    umask = os.umask(0)
    try:
        cache = word_cache(corpus, "none")
    finally:
        os.umask(umask)
    for path in [cache.folder.parent, *cache.folder.parent.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path.name
    assert files(tmp_path) - files(corpus.folder) == {f"corpus/{name}" for name in files(corpus.folder)} | {
        "cache/verified_corpora.json"
    }


def test_folder_that_cannot_be_written_falls_back_to_the_cache_folder_and_then_to_a_temporary_one(
    corpus, tmp_path, capsys
):
    expected = [SPLIT["none"](note.text) for note in corpus.notes()]
    (corpus.folder / WORDS).write_text("in the way")
    cache = word_cache(corpus, "none")
    assert cache.folder.parent == tmp_path / "cache" / WORDS and words_in(cache) == expected
    assert cache.folder.parent.stat().st_mode & 0o777 == 0o700

    (tmp_path / "cache" / WORDS).rename(tmp_path / "gone")
    (tmp_path / "cache" / WORDS).write_text("in the way")
    again = Corpus.open(corpus.folder)
    cache = word_cache(again, "none")
    assert cache.folder.is_relative_to(tempfile.gettempdir()) and words_in(cache) == expected
    refused = [line for line in capsys.readouterr().err.splitlines() if "cannot have the word cache" in line]
    assert len(refused) == 3, "the folder of the corpus twice, the cache folder once"
    assert cache.folder.parent.stat().st_mode & 0o777 == 0o700
    assert word_cache(again, "none") is cache
    folder = cache.folder
    del cache, again
    assert not folder.exists()


def test_a_corpus_that_is_replaced_while_it_is_read_has_no_cache(corpus, tmp_path, monkeypatch):
    read = module.parallel_map

    def replace_and_read(*arguments):
        write(small_notes(len(corpus), seed=1), corpus.folder)
        yield from read(*arguments)

    monkeypatch.setattr(module, "parallel_map", replace_and_read)
    with pytest.raises(DataError, match="corpus was replaced by another corpus while its notes were read"):
        word_cache(corpus, "none")
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("none-")]
    assert corpus.word_caches == {}


def test_damaged_notes_are_no_reason_to_fall_back(corpus):
    path = corpus.folder / NOTES
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(1000) + content[1100:])
    with pytest.raises(DataError, match="damaged"):
        word_cache(corpus, "none")


def test_cache_is_no_part_of_the_corpus(corpus):
    word_cache(corpus, "none")
    assert Corpus.open(corpus.folder).manifest == corpus.manifest
    write(small_notes(3), corpus.folder)
    assert files(corpus.folder) == {NOTES, "corpus.json"}
    word_cache(Corpus.open(corpus.folder), "none")
    (corpus.folder / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        write(small_notes(3), corpus.folder)


def test_opening_takes_no_time_in_the_number_of_words(corpus):
    cache = word_cache(corpus, "none")
    started = time.process_time()
    for _ in range(20):
        word_cache(Corpus.open(corpus.folder), "none")
    assert "ids" not in cache.__dict__ and time.process_time() - started < 1
    assert isinstance(cache.ids, np.ndarray) and not cache.ids.flags.owndata
