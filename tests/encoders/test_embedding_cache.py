"""Vectors that are made once."""

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

from nosology.core import DataError, OutputError
from nosology.encoders import embedding_cache
from nosology.encoders.append_only_store import INDEX_FILE, LOCK_FILE
from nosology.encoders.embedder import EmbeddedBatch
from nosology.encoders.embedding_cache import MANIFEST, RECORD, VECTORS, EmbeddingCache, text_hash

DIM = 5
KEY = "a" * 64


class Counting:
    """An embedder whose vectors are hashes of the texts, and which records the texts that it embeds."""

    key, dim, identity, name = KEY, DIM, {"model": "counting"}, "counting"

    def __init__(self, batch: int = 3, pause: float = 0.0):
        self.batch, self.pause, self.asked = batch, pause, []

    def __call__(self) -> Counting:
        return self

    def embed_batches(self, texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), self.batch):
            time.sleep(self.pause)
            rows = np.array(order[start : start + self.batch])
            embedded = [texts[row] for row in rows]
            self.asked += embedded
            sizes = np.array([len(text) for text in embedded])
            yield EmbeddedBatch(rows, self.expected(embedded), sizes, sizes, sizes > 0, int(sizes.sum()), 0.1)

    @staticmethod
    def expected(texts) -> np.ndarray:
        """Vectors (B, DIM) that the hash of each text decides."""
        raw = b"".join(text_hash(text)[: 4 * DIM] for text in texts)
        return np.frombuffer(raw, dtype="<u4").reshape(-1, DIM).astype(np.float32)


def opened(folder: Path) -> EmbeddingCache:
    return EmbeddingCache(folder, KEY, DIM, {"model": "counting"})


def texts(n: int, start: int = 0) -> list[str]:
    return [f"note {i} {'x' * (i % 7)}" for i in range(start, start + n)]


def test_each_text_is_embedded_once_in_order(tmp_path):
    model = Counting()
    embedded = [*texts(10), "", *texts(4)]
    assert np.array_equal(opened(tmp_path).vectors(embedded, model), Counting.expected(embedded))
    assert sorted(model.asked) == sorted({*embedded})
    again, more = Counting(), [*texts(3, 20), *embedded[::-1]]
    cache = opened(tmp_path)
    assert np.array_equal(cache.vectors(iter(more), again), Counting.expected(more))
    assert sorted(again.asked) == sorted(texts(3, 20))
    assert len(cache) == 14 and "note 0 " in cache and "note 99" not in cache
    assert cache.vectors([]).shape == (0, DIM)


def test_embedder_is_loaded_only_if_a_text_is_missing(tmp_path):
    opened(tmp_path).vectors(texts(5), Counting())

    def never():
        raise AssertionError("the embedder was asked for")

    assert len(opened(tmp_path).vectors(texts(5), never)) == 5
    assert len(opened(tmp_path).vectors(texts(5))) == 5
    with pytest.raises(DataError, match="lacks 2 of the notes"):
        opened(tmp_path).vectors(texts(7))


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
    """Whatever a killed program left of its last batch."""
    folder = tmp_path_factory.mktemp("cache")
    opened(folder).vectors(texts(3), Counting())
    whole = (folder / KEY / LOCK_FILE).read_text()
    opened(folder).vectors(texts(6), Counting())
    (folder / KEY / LOCK_FILE).write_text(whole)  # it was killed before it could write down more
    for name, lost in ((VECTORS, vectors_lost), (INDEX_FILE, index_lost)):
        path = folder / KEY / name
        os.truncate(path, path.stat().st_size - lost)
    cache, model = opened(folder), Counting()
    gone = max(-(-vectors_lost // (4 * DIM)), -(-index_lost // RECORD.itemsize))
    assert len(cache) == 6 - gone
    assert np.array_equal(cache.vectors(texts(8), model), Counting.expected(texts(8)))
    assert len(model.asked) == gone + 2


@pytest.mark.parametrize("name", [VECTORS, INDEX_FILE])
@pytest.mark.parametrize("lost", [1, 1000, None])
def test_committed_data_is_never_truncated(tmp_path, name, lost):
    """A file that has lost its end, or is gone, costs the other one nothing."""
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
    """Of an earlier version, or of a program killed while it wrote that down. A file that is gone is missed still."""
    opened(tmp_path).vectors(texts(6), Counting())
    (tmp_path / KEY / LOCK_FILE).write_text(content)
    assert np.array_equal(opened(tmp_path).vectors(texts(6)), Counting.expected(texts(6)))
    (tmp_path / KEY / LOCK_FILE).write_text(content)
    (tmp_path / KEY / INDEX_FILE).unlink()
    with pytest.raises(DataError, match=r"index\.bin is missing"):
        opened(tmp_path)


@pytest.mark.parametrize("row", [[np.nan, 1, 1, 1, 1], [1, -np.inf, 1, 1, 1], [1, 1, 1e30, 1, 1], [0] * DIM])
def test_damaged_vectors_raise(tmp_path, row):
    opened(tmp_path).vectors(texts(6), Counting())
    with (tmp_path / KEY / VECTORS).open("r+b") as file:
        file.seek(2 * 4 * DIM)
        file.write(np.array(row, "<f4").tobytes())
    with pytest.raises(DataError, match=f"{KEY} is damaged: 1 vectors"):
        opened(tmp_path).vectors(texts(6))


def test_empty_note_may_have_a_zero_vector(tmp_path):
    class Nothing(Counting):
        @staticmethod
        def expected(texts) -> np.ndarray:
            return np.zeros((len(texts), DIM), np.float32)

    assert not opened(tmp_path).vectors([""], Nothing()).any()


def test_incomplete_tail_of_another_process_does_not_shift_rows(tmp_path):
    """It died after this one had opened the cache."""
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
    assert sorted(model.asked) == texts(3, 5)


_PROGRAM = """
import sys
from pathlib import Path
from tests.encoders.test_embedding_cache import Counting, opened, texts
start, n, pause = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
model = Counting(batch=4, pause=pause)
opened(Path(sys.argv[1])).vectors(texts(n, start), model, lambda part: print("batch", flush=True))
"""


def program(folder: Path, start: int, n: int, pause: float) -> subprocess.Popen:
    command = [sys.executable, "-c", _PROGRAM, str(folder), str(start), str(n), str(pause)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": "."})


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
    assert len(model.asked) == 400 - cached


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
    with pytest.raises(OutputError, match="cannot use the cache"):
        opened(tmp_path / "file")


def test_manifest_describes_the_embedder(tmp_path):
    opened(tmp_path)
    manifest = json.loads((tmp_path / KEY / MANIFEST).read_text())
    assert manifest["identity"] == {"model": "counting"} and manifest["dim"] == DIM and manifest["key"] == KEY
