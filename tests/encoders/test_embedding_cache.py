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
    """An embedder whose vector of a text can be told from the text, and which counts what it is asked for."""

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
            asked = [texts[row] for row in rows]
            self.asked += asked
            sizes = np.array([len(text) for text in asked])
            yield EmbeddedBatch(rows, self.expected(asked), sizes, sizes, sizes > 0, int(sizes.sum()), 0.1)

    @staticmethod
    def expected(texts) -> np.ndarray:
        """Vectors (B, DIM) that the hash of each text decides."""
        raw = b"".join(text_hash(text)[: 4 * DIM] for text in texts)
        return np.frombuffer(raw, dtype="<u4").reshape(-1, DIM).astype(np.float32)


def opened(folder: Path) -> EmbeddingCache:
    return EmbeddingCache(folder, KEY, DIM, {"model": "counting"})


def texts(n: int, start: int = 0) -> list[str]:
    return [f"note {i} {'x' * (i % 7)}" for i in range(start, start + n)]


def test_each_text_is_embedded_once_and_order_is_kept(tmp_path):
    model = Counting()
    asked = [*texts(10), "", *texts(4)]
    assert np.array_equal(opened(tmp_path).vectors(asked, model), Counting.expected(asked))
    assert sorted(model.asked) == sorted({*asked})
    again, more = Counting(), [*texts(3, 20), *asked[::-1]]
    cache = opened(tmp_path)
    assert np.array_equal(cache.vectors(iter(more), again), Counting.expected(more))
    assert sorted(again.asked) == sorted(texts(3, 20))
    assert len(cache) == 14 and "note 0 " in cache and "note 99" not in cache
    assert cache.vectors([]).shape == (0, DIM)


def test_nothing_is_loaded_where_nothing_is_missing(tmp_path):
    opened(tmp_path).vectors(texts(5), Counting())

    def never():
        raise AssertionError("the embedder was asked for")

    assert len(opened(tmp_path).vectors(texts(5), never)) == 5
    assert len(opened(tmp_path).vectors(texts(5))) == 5
    with pytest.raises(DataError, match="lacks 2 of the notes"):
        opened(tmp_path).vectors(texts(7))


def test_texts_are_nowhere_in_the_files(tmp_path):
    opened(tmp_path).vectors(["a very secret illness"], Counting())
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"secret" not in file.read_bytes()


def test_embedders_do_not_mix(tmp_path):
    opened(tmp_path).vectors(texts(5), Counting())
    other = EmbeddingCache(tmp_path, "b" * 64, DIM, {})
    assert len(other) == 0 and len(opened(tmp_path)) == 5
    with pytest.raises(DataError, match="belongs to another embedder"):
        other.vectors(texts(2), Counting())
    with pytest.raises(DataError, match=r"dim 6; got format 1, .*dim 5"):
        EmbeddingCache(tmp_path, KEY, 6, {})
    (tmp_path / KEY / MANIFEST).write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        opened(tmp_path)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(0, 100))
def test_a_torn_tail_is_cut_off(tmp_path_factory, vectors_lost, index_lost):
    """Whatever a killed program left of its last batch."""
    folder = tmp_path_factory.mktemp("cache")
    opened(folder).vectors(texts(3), Counting())
    whole = (folder / KEY / LOCK_FILE).read_text()
    opened(folder).vectors(texts(6), Counting())
    (folder / KEY / LOCK_FILE).write_text(whole)  # it was killed before it could write down more
    for place, lost in ((VECTORS, vectors_lost), (INDEX_FILE, index_lost)):
        path = folder / KEY / place
        os.truncate(path, path.stat().st_size - lost)
    cache, model = opened(folder), Counting()
    gone = max(-(-vectors_lost // (4 * DIM)), -(-index_lost // RECORD.itemsize))
    assert len(cache) == 6 - gone
    assert np.array_equal(cache.vectors(texts(8), model), Counting.expected(texts(8)))
    assert len(model.asked) == gone + 2


@pytest.mark.parametrize("place", [VECTORS, INDEX_FILE])
@pytest.mark.parametrize("lost", [1, 1000, None])
def test_what_was_whole_once_is_never_cut_off(tmp_path, place, lost):
    """A file that has lost its end, or is gone, costs the other one nothing."""
    opened(tmp_path).vectors(texts(60), Counting())
    path = tmp_path / KEY / place
    [other] = {tmp_path / KEY / VECTORS, tmp_path / KEY / INDEX_FILE} - {path}
    before = other.read_bytes()
    path.unlink() if lost is None else os.truncate(path, path.stat().st_size - lost)
    with pytest.raises(DataError, match=f"{KEY} is damaged"):
        opened(tmp_path)
    assert other.read_bytes() == before


@pytest.mark.parametrize("told", ["", "17", "12 ab"])
def test_a_cache_that_does_not_say_what_was_whole_is_opened(tmp_path, told):
    """Of an earlier version, or of a program killed while it wrote that down. A file that is gone is missed still."""
    opened(tmp_path).vectors(texts(6), Counting())
    (tmp_path / KEY / LOCK_FILE).write_text(told)
    assert np.array_equal(opened(tmp_path).vectors(texts(6)), Counting.expected(texts(6)))
    (tmp_path / KEY / LOCK_FILE).write_text(told)
    (tmp_path / KEY / INDEX_FILE).unlink()
    with pytest.raises(DataError, match=r"index\.bin is missing"):
        opened(tmp_path)


@pytest.mark.parametrize("row", [[np.nan, 1, 1, 1, 1], [1, -np.inf, 1, 1, 1], [1, 1, 1e30, 1, 1], [0] * DIM])
def test_damaged_vectors_are_not_used(tmp_path, row):
    opened(tmp_path).vectors(texts(6), Counting())
    with (tmp_path / KEY / VECTORS).open("r+b") as file:
        file.seek(2 * 4 * DIM)
        file.write(np.array(row, "<f4").tobytes())
    with pytest.raises(DataError, match=f"{KEY} is damaged: 1 vectors"):
        opened(tmp_path).vectors(texts(6))


def test_a_note_of_which_nothing_was_read_may_be_zero(tmp_path):
    class Nothing(Counting):
        @staticmethod
        def expected(texts) -> np.ndarray:
            return np.zeros((len(texts), DIM), np.float32)

    assert not opened(tmp_path).vectors([""], Nothing()).any()


def test_a_tail_torn_by_another_process_does_not_shift_rows(tmp_path):
    """It died after this one had opened the cache."""
    cache = opened(tmp_path)
    cache.vectors(texts(3), Counting())
    with (tmp_path / KEY / VECTORS).open("ab") as file:
        file.write(b"\1" * 4 * DIM + b"\1\2\3")
    assert np.array_equal(cache.vectors(texts(6), Counting()), Counting.expected(texts(6)))
    assert np.array_equal(opened(tmp_path).vectors(texts(6)), Counting.expected(texts(6)))


def test_caches_that_are_open_at_once_see_each_other(tmp_path):
    one, two, model = opened(tmp_path), opened(tmp_path), Counting()
    one.vectors(texts(5), Counting())
    assert np.array_equal(two.vectors(texts(8), model), Counting.expected(texts(8)))
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


def test_kill_costs_at_most_one_batch(tmp_path):
    running = program(tmp_path, 0, 400, 0.05)
    for _ in range(5):
        assert running.stdout.readline() == "batch\n"
    running.send_signal(signal.SIGKILL)
    done = 5 + running.stdout.read().count("batch")
    running.wait()
    running.stdout.close()
    cache, model = opened(tmp_path), Counting()
    assert 4 * done <= len(cache) <= 4 * done + 4 < 400
    kept = len(cache)
    assert np.array_equal(cache.vectors(texts(400), model), Counting.expected(texts(400)))
    assert len(model.asked) == 400 - kept


def test_processes_that_write_at_once_corrupt_nothing(tmp_path):
    every = [program(tmp_path, start, 120, 0.002) for start in (0, 40, 80)]
    for running in every:
        running.communicate()
        assert running.returncode == 0
    cache = opened(tmp_path)
    assert len(cache) == 200
    assert np.array_equal(cache.vectors(texts(200)), Counting.expected(texts(200)))
    assert (tmp_path / KEY / VECTORS).stat().st_size == 200 * 4 * DIM


def test_records_say_how_long_a_note_is_and_what_it_took(tmp_path):
    cache = opened(tmp_path)
    cache.vectors(["ab", "abcd", ""], Counting())
    assert cache.records["tokens"].tolist() == [4, 2, 0]
    assert np.allclose(cache.records["milliseconds"], [100 * 4 / 6, 100 * 2 / 6, 0])
    assert np.array_equal(cache.stored, Counting.expected(["abcd", "ab", ""]))


def test_many_texts_are_held_a_part_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding_cache, "_MAX_TEXTS", 4)
    held = []

    class Watching(Counting):
        def embed_batches(self, given):
            held.append(len(given))
            return super().embed_batches(given)

    assert np.array_equal(opened(tmp_path).vectors(iter(texts(10)), Watching()), Counting.expected(texts(10)))
    assert held == [4, 4, 2]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot use the cache"):
        opened(tmp_path / "file")


def test_the_manifest_says_what_made_the_vectors(tmp_path):
    opened(tmp_path)
    found = json.loads((tmp_path / KEY / MANIFEST).read_text())
    assert found["identity"] == {"model": "counting"} and found["dim"] == DIM and found["key"] == KEY
