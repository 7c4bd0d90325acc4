"""Blocks of tokenized notes. While a GPU scores one block, other processes tokenize the next ones.

Threads would not help: tokenizing holds the interpreter lock, for which each kernel launch would then wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from multiprocessing import current_process
from typing import TypeVar

from nosology.core import Note
from nosology.core.parallel import batched, cores, end_with_parent, parts
from nosology.encoders.tokenizers import Encoding, Tokenizer

_MAX_WORKERS = 4  # each tokenizes 600 notes of 1,500 words in a second or more
_PART = 64  # notes of a task
_BLOCKS_AHEAD = 2
_FIRST = 256  # notes of the first block

R = TypeVar("R")


def tokenizing_processes() -> int:
    """The number of processes that tokenize beside this one; 0 if this one must do it."""
    return 0 if current_process().daemon else min(_MAX_WORKERS, cores() - 1)


def tokenized_blocks(
    notes: Iterable[Note], size: int, tokenize: Callable[[Note], R]
) -> Iterator[tuple[list[Note], Sequence[R]]]:
    """Blocks of at most `size` notes, each with what `tokenize` returns for its notes."""
    for block in batched(notes, size):
        yield block, [tokenize(note) for note in block]


def tokenized_blocks_ahead(
    notes: Iterable[Note], size: int, tokenizer: Tokenizer, workers: int
) -> Iterator[tuple[list[Note], Sequence[Encoding]]]:
    """The blocks of `tokenized_blocks` for a tokenizer; processes tokenize all blocks but the first, which is shorter.

    The first block is tokenized here: a few notes then start no process, and scoring need not wait for their start.
    """
    notes = iter(notes)
    first, following = list(islice(notes, min(size, _FIRST))), next(notes, None)
    if following is None:
        yield from tokenized_blocks(first, size, lambda note: tokenizer.tokenize(note.text))
        return
    from joblib.externals.loky import ProcessPoolExecutor

    # Unlike those of multiprocessing, the processes of loky do not run the script of the user again.
    pool = ProcessPoolExecutor(workers, initializer=_set_tokenizer, initargs=(tokenizer,))
    try:
        blocks = batched(chain([following], notes), size)
        tasks = ((block, pool.map(_tokenize, parts([note.text for note in block], _PART))) for block in blocks)
        submitted = deque(islice(tasks, _BLOCKS_AHEAD))
        yield first, [tokenizer.tokenize(note.text) for note in first]
        while submitted:
            block, results = submitted.popleft()
            submitted.extend(islice(tasks, 1))
            yield block, list(chain.from_iterable(results))
    finally:
        pool.shutdown(wait=True, kill_workers=True)


_tokenizer: list[Tokenizer] = []  # of a process that tokenizes


def _set_tokenizer(tokenizer: Tokenizer) -> None:
    end_with_parent()
    _tokenizer[:] = [tokenizer]


def _tokenize(texts: Sequence[str]) -> list[Encoding]:
    return [_tokenizer[0].tokenize(text) for text in texts]
