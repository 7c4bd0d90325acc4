"""The tokenizer of word models and their initial word vectors, learned from train notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import torch

from nosology.codes.lookup import label_description
from nosology.core import DataError
from nosology.core.files import file_lock, json_sha256
from nosology.core.label_space import LabelSpace
from nosology.core.progress import activity
from nosology.corpora.corpus import Corpus
from nosology.encoders.tokenizers import Vocabulary, WordTokenizer
from nosology.encoders.word_vectors import train_word_vectors
from nosology.text.tokens import words_of
from nosology.training.checkpoint import read_tensors, write_tensors
from nosology.training.examples import Examples
from nosology.training.recipe_settings import WordRecipe
from nosology.training.run_folder import WORD_VECTORS, run_fingerprint


def build_word_tokenizer(
    recipe: WordRecipe,
    labels: LabelSpace,
    examples: Examples,
    extra_words: Iterable[str] = (),
    folder: Path | None = None,
) -> tuple[WordTokenizer, torch.Tensor]:
    """The tokenizer of word models and their initial word vectors (V, E), from the examples and `vectors.corpora`.

    The words of the labels' descriptions and `extra_words` are in the vocabulary even if no note has them. folder: the
    run folder; word vectors that are not reproducible are stored there, for a resumed run and for other processes.
    """
    settings = recipe.vectors.resolved(len(examples))
    more = Examples(map(Corpus.open, settings.corpora), lambda note: note.split == "train")
    words = examples.words(settings.cleaning) + more.words(settings.cleaning)
    described = chain.from_iterable(words_of(label_description(code)) for code in labels.codes)
    with activity("counting words"):
        vocabulary = Vocabulary.build(words.note_counts(), settings.min_notes, chain(described, extra_words))
    tokenizer = WordTokenizer(vocabulary, settings.max_words, benchmark=settings.cleaning == "benchmark")

    def vectors() -> torch.Tensor:
        notes, shape = words.encoded(tokenizer), {"size": settings.size, "epochs": settings.epochs or 0}
        trained = train_word_vectors(notes, len(vocabulary), **shape, seed=recipe.seed, workers=settings.workers)
        return torch.from_numpy(trained)

    if settings.workers == 1 or folder is None or not folder.is_dir():
        return tokenizer, vectors()
    key = json_sha256([run_fingerprint(recipe, examples, more), vocabulary.words])
    return tokenizer, _stored_vectors(folder, key, vectors)


def _stored_vectors(folder: Path, key: str, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The word vectors in a run folder; one process computes and stores them while others wait."""
    path = folder / f"{WORD_VECTORS}-{key[:16]}.safetensors"
    with file_lock(folder / f"{WORD_VECTORS}.lock", "waiting for the word vectors of another process"):
        with suppress(DataError):  # missing or damaged
            metadata, tensors = read_tensors(path, key)
            if metadata is not None:
                return tensors["vectors"]
        vectors = compute()
        write_tensors(path, {"vectors": vectors}, key)
        return vectors
