import numpy as np
import pytest

from nosology.core import DataError
from nosology.encoders.append_only_store import INDEX_FILE
from nosology.encoders.state_cache import STATES, EncoderStateCache

TEXTS = [np.arange(n, dtype=np.int32) + 10 * n for n in (3, 7, 1, 0, 5)]


def encode(asked: list | None = None):
    def made(texts):
        if asked is not None:
            asked.extend(texts)
        for row, text in reversed(list(enumerate(texts))):
            yield np.array([row]), [np.outer(text, np.ones(4)).astype(np.float32) + 0.5]

    return made


def test_states_come_back_in_order_at_their_true_lengths(tmp_path):
    places = EncoderStateCache(tmp_path, "k", 4).add(TEXTS, encode())
    for text, found in zip(TEXTS, (places[i] for i in range(len(TEXTS)))):
        assert found.dtype == np.float16 and np.array_equal(found, np.outer(text, np.ones(4)) + 0.5)
    assert (tmp_path / "k" / STATES).stat().st_size == sum(map(len, TEXTS)) * 4 * 2, "no pads on disk"
    assert isinstance(places.states, np.memmap)


def test_what_is_there_is_not_asked_for_again(tmp_path):
    EncoderStateCache(tmp_path, "k", 4).add(TEXTS[:3], encode())
    asked = []
    places = EncoderStateCache(tmp_path, "k", 4).add([TEXTS[4], TEXTS[1], TEXTS[4]], encode(asked))
    assert [len(text) for text in asked] == [5]
    assert np.array_equal(places[0], places[2]) and places[1][0, 0] == 70.5


def test_a_rectangle_is_zero_after_each_end(tmp_path):
    places = EncoderStateCache(tmp_path, "k", 4).add(TEXTS, encode())
    found = places.padded_batch([1, 3, 2], 8)
    assert found.shape == (3, 8, 4) and not found[0, 7:].any() and not found[1].any() and not found[2, 1:].any()
    into = np.full((3, 8, 4), np.nan, np.float16)
    assert places.padded_batch(np.array([1, 3, 2]), 8, into) is into and np.array_equal(into, found)
    assert places.means()[0].tolist() == [31.5] * 4 and not places.means()[3].any()


@pytest.mark.parametrize("place", [STATES, INDEX_FILE])
def test_a_tail_that_was_left_behind_is_cut_off(tmp_path, place):
    EncoderStateCache(tmp_path, "k", 4).add(TEXTS[:2], encode())
    with (tmp_path / "k" / place).open("ab") as file:
        file.write(b"half")
    cache = EncoderStateCache(tmp_path, "k", 4)
    assert len(cache) == 2
    assert np.array_equal(cache.add(TEXTS, encode())[4], np.outer(TEXTS[4], np.ones(4)) + 0.5)


def test_a_damaged_cache_says_so(tmp_path):
    EncoderStateCache(tmp_path, "k", 4).add(TEXTS[:2], encode())
    with (tmp_path / "k" / STATES).open("r+b") as file:
        file.truncate(8)
    with pytest.raises(DataError, match="damaged"):
        EncoderStateCache(tmp_path, "k", 4)
    with pytest.raises(DataError, match="width 5"):
        EncoderStateCache(tmp_path, "k", 5)
