"""The cache of embeddings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import DataError, OutputError, progress
from nosology.encoders import embedding_cache
from nosology.encoders.append_only_store import DIGEST_FILE, INDEX_FILE, LOCK_FILE
from nosology.encoders.embedding_cache import MANIFEST, RECORD, VECTORS, EmbeddingCache
from tests.encoders.counting_embedder import DIM, KEY, Counting, opened, texts


def test_each_text_is_embedded_once_in_order(tmp_path):
    model = Counting()
    embedded = [*texts(10), "", *texts(4)]
    assert np.array_equal(opened(tmp_path).vectors(embedded, model), Counting.expected(embedded))
    assert sorted(model.embedded) == sorted({*embedded})
    again, more = Counting(), [*texts(3, 20), *embedded[::-1]]
    cache = opened(tmp_path)
    assert np.array_equal(cache.vectors(iter(more), again), Counting.expected(more))
    assert sorted(again.embedded) == sorted(texts(3, 20))
    assert len(cache) == 14 and "note 0 " in cache and "note 99" not in cache
    assert cache.vectors([]).shape == (0, DIM)


def test_embedder_is_loaded_only_if_a_text_is_missing(tmp_path):
    opened(tmp_path).vectors(texts(5), Counting())

    def never():
        raise AssertionError("the embedder was loaded")

    assert len(opened(tmp_path).vectors(texts(5), never)) == 5
    assert len(opened(tmp_path).vectors(texts(5))) == 5
    with pytest.raises(DataError, match="lacks 2 of the notes"):
        opened(tmp_path).vectors(texts(7))


def test_embedding_prints_a_line_while_a_batch_takes_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.01)

    class Slow(Counting):
        def embed_batches(self, texts):
            printed, end = "", time.monotonic() + 30
            while "embedding 3 notes: 0:00:0" not in printed and time.monotonic() < end:
                printed += capsys.readouterr().err
            assert "embedding 3 notes: 0:00:0" in printed
            yield from super().embed_batches(texts)

    opened(tmp_path).vectors(texts(3), Slow())


def test_files_do_not_contain_texts(tmp_path):
    opened(tmp_path).vectors(["a very secret illness"], Counting())
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"secret" not in file.read_bytes()


def test_caches_of_different_embedders_are_separate(tmp_path):
    opened(tmp_path).vectors(texts(5), Counting())
    untouched = EmbeddingCache(tmp_path, "b" * 64, DIM, {})
    assert len(untouched) == 0 and len(opened(tmp_path)) == 5
    with pytest.raises(DataError, match="belongs to another embedder"):
        untouched.vectors(texts(2), Counting())
    with pytest.raises(DataError, match=r"dim 6; got format 1, .*dim 5"):
        EmbeddingCache(tmp_path, KEY, 6, {})
    (tmp_path / KEY / MANIFEST).write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        opened(tmp_path)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(0, 100))
def test_incomplete_tail_is_truncated(tmp_path_factory, vectors_lost, index_lost):
    folder = tmp_path_factory.mktemp("cache")
    opened(folder).vectors(texts(3), Counting())
    lock = (folder / KEY / LOCK_FILE).read_text()
    opened(folder).vectors(texts(6), Counting())
    (folder / KEY / LOCK_FILE).write_text(lock)  # as if it was killed before the commit
    for name, lost in ((VECTORS, vectors_lost), (INDEX_FILE, index_lost)):
        path = folder / KEY / name
        os.truncate(path, path.stat().st_size - lost)
    cache, model = opened(folder), Counting()
    gone = max(-(-vectors_lost // (4 * DIM)), -(-index_lost // RECORD.itemsize))
    assert len(cache) == 6 - gone
    assert np.array_equal(cache.vectors(texts(8), model), Counting.expected(texts(8)))
    assert len(model.embedded) == gone + 2


@pytest.mark.parametrize("name", [VECTORS, INDEX_FILE])
@pytest.mark.parametrize("lost", [1, 1000, None])
def test_committed_data_is_never_truncated(tmp_path, name, lost):
    opened(tmp_path).vectors(texts(60), Counting())
    path = tmp_path / KEY / name
    [untouched] = {tmp_path / KEY / VECTORS, tmp_path / KEY / INDEX_FILE} - {path}
    before = untouched.read_bytes()
    path.unlink() if lost is None else os.truncate(path, path.stat().st_size - lost)
    with pytest.raises(DataError, match=f"{KEY} is damaged"):
        opened(tmp_path)
    assert untouched.read_bytes() == before


@pytest.mark.parametrize("content", ["", "17", "12 ab"])
def test_cache_without_committed_sizes_is_opened(tmp_path, content):
    opened(tmp_path).vectors(texts(6), Counting())
    (tmp_path / KEY / LOCK_FILE).write_text(content)
    assert np.array_equal(opened(tmp_path).vectors(texts(6)), Counting.expected(texts(6)))
    (tmp_path / KEY / LOCK_FILE).write_text(content)
    (tmp_path / KEY / INDEX_FILE).unlink()
    with pytest.raises(DataError, match=r"index\.bin is missing"):
        opened(tmp_path)


@pytest.mark.parametrize("row", [[np.nan, 1, 1, 1, 1], [1, -np.inf, 1, 1, 1], [1, 1, 1e30, 1, 1], [0] * DIM])
def test_damaged_vectors_without_digests_raise(tmp_path, row):
    opened(tmp_path).vectors(texts(6), Counting())
    (tmp_path / KEY / DIGEST_FILE).unlink()  # version 0.1 wrote none
    with (tmp_path / KEY / VECTORS).open("r+b") as file:
        file.seek(2 * 4 * DIM)
        file.write(np.array(row, "<f4").tobytes())
    with pytest.raises(DataError, match=f"{KEY} is damaged: 1 vectors"):
        opened(tmp_path).vectors(texts(6))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([VECTORS, INDEX_FILE, DIGEST_FILE]), st.floats(0, 1, exclude_max=True))
def test_flipped_bit_is_computed_again(tmp_path_factory, name, share):
    folder = tmp_path_factory.mktemp("cache")
    opened(folder).vectors(texts(6), Counting())
    path = folder / KEY / name
    flip(path, int(share * 8 * path.stat().st_size))
    cache, model = opened(folder), Counting()
    assert np.array_equal(cache.vectors(texts(6), model), Counting.expected(texts(6)))
    assert len(model.embedded) == 1
    again = Counting()
    assert np.array_equal(opened(folder).vectors(texts(6), again), Counting.expected(texts(6)))
    assert not again.embedded, "the new row is used from now on"


def test_damaged_entries_are_named_in_one_line(tmp_path, capsys):
    opened(tmp_path).vectors(texts(6), Counting())
    flip(tmp_path / KEY / VECTORS, 3)
    flip(tmp_path / KEY / VECTORS, 8 * 4 * DIM + 3)
    cache = opened(tmp_path)
    assert cache.missing(texts(6))[0] == 2
    assert capsys.readouterr().err == f"{cache.folder} is damaged: the damaged entries are computed again\n"
    with pytest.raises(DataError, match="lacks 2 of the notes"):
        cache.vectors(texts(6))


def test_cache_without_digests_gets_them(tmp_path):
    opened(tmp_path).vectors(texts(6), Counting())
    path = tmp_path / KEY / DIGEST_FILE
    before = path.read_bytes()
    for content in (b"", before[:40], before + b"more"):
        path.write_bytes(content)
        assert len(opened(tmp_path)) == 6 and path.read_bytes() == before


def test_empty_note_may_have_a_zero_vector(tmp_path):
    class Nothing(Counting):
        @staticmethod
        def expected(texts) -> np.ndarray:
            return np.zeros((len(texts), DIM), np.float32)

    assert not opened(tmp_path).vectors([""], Nothing()).any()


def test_incomplete_tail_of_another_process_does_not_shift_rows(tmp_path):
    cache = opened(tmp_path)
    cache.vectors(texts(3), Counting())
    with (tmp_path / KEY / VECTORS).open("ab") as file:
        file.write(b"\1" * 4 * DIM + b"\1\2\3")
    assert np.array_equal(cache.vectors(texts(6), Counting()), Counting.expected(texts(6)))
    assert np.array_equal(opened(tmp_path).vectors(texts(6)), Counting.expected(texts(6)))


def test_open_caches_see_rows_of_each_other(tmp_path):
    first, second, model = opened(tmp_path), opened(tmp_path), Counting()
    first.vectors(texts(5), Counting())
    assert np.array_equal(second.vectors(texts(8), model), Counting.expected(texts(8)))
    assert sorted(model.embedded) == texts(3, 5)


def program(folder: Path, start: int, n: int, pause: float) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.encoders.counting_embedder", str(folder), str(start), str(n), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_killed_process_loses_at_most_one_batch(tmp_path):
    running = program(tmp_path, 0, 400, 0.05)
    for _ in range(5):
        assert running.stdout.readline() == "batch\n"
    running.send_signal(signal.SIGKILL)
    done = 5 + running.stdout.read().count("batch")
    running.wait()
    running.stdout.close()
    cache, model = opened(tmp_path), Counting()
    assert 4 * done <= len(cache) <= 4 * done + 4 < 400
    cached = len(cache)
    assert np.array_equal(cache.vectors(texts(400), model), Counting.expected(texts(400)))
    assert len(model.embedded) == 400 - cached


def test_concurrent_writers_corrupt_nothing(tmp_path):
    processes = [program(tmp_path, start, 120, 0.002) for start in (0, 40, 80)]
    for running in processes:
        running.communicate()
        assert running.returncode == 0
    cache = opened(tmp_path)
    assert len(cache) == 200
    assert np.array_equal(cache.vectors(texts(200)), Counting.expected(texts(200)))
    assert (tmp_path / KEY / VECTORS).stat().st_size == 200 * 4 * DIM


def test_records_contain_tokens_and_milliseconds(tmp_path):
    cache = opened(tmp_path)
    cache.vectors(["ab", "abcd", ""], Counting())
    assert cache.records["tokens"].tolist() == [4, 2, 0]
    assert np.allclose(cache.records["milliseconds"], [100 * 4 / 6, 100 * 2 / 6, 0])
    assert np.array_equal(cache.stored, Counting.expected(["abcd", "ab", ""]))


def test_texts_are_held_in_memory_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding_cache, "_MAX_TEXTS", 4)
    held = []

    class Watching(Counting):
        def embed_batches(self, inputs):
            held.append(len(inputs))
            return super().embed_batches(inputs)

    assert np.array_equal(opened(tmp_path).vectors(iter(texts(10)), Watching()), Counting.expected(texts(10)))
    assert held == [4, 4, 2]


def test_unwritable_folder_raises_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to .*file: it is a file"):
        opened(tmp_path / "file")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / KEY).write_text("")
    with pytest.raises(OutputError, match="cannot use the cache"):
        opened(tmp_path / "cache")


@pytest.mark.parametrize("name", ["corpus.json", "thesis.txt"])
def test_folder_of_another_output_is_refused(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(OutputError, match=r"will not write to .*; give another folder"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_manifest_describes_the_embedder(tmp_path):
    opened(tmp_path)
    manifest = json.loads((tmp_path / KEY / MANIFEST).read_text())
    assert manifest["identity"] == {"model": "counting"} and manifest["dim"] == DIM and manifest["key"] == KEY


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"9" * 5000 + b" 1", "² ³".encode(), b"12", b""])
def test_a_lock_file_with_other_bytes(tmp_path, content):
    opened(tmp_path).vectors(texts(3), Counting())
    (tmp_path / KEY / LOCK_FILE).write_bytes(content)
    assert np.array_equal(opened(tmp_path).vectors(texts(3)), Counting.expected(texts(3)))
