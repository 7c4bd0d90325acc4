"""What a recipe may say about the embedder of notes, and the embedders that have a short name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from nosology.core.settings import Settings


class EmbedderSettings(Settings):
    """Which model turns notes into vectors, and how much of a note it reads."""

    model: str = Field("minilm", min_length=1)  # a short name, a Hugging Face name, or a folder
    revision: str = ""  # of a Hugging Face name: branch, tag or commit; empty: the newest
    max_tokens: int = Field(8192, ge=0)  # of a note are read, those that begin and end it included; 0: all of them
    window: int = Field(0, ge=0)  # tokens that the model reads at once; 0: as many as it was made for
    prompt: str = ""  # set before each note; empty: what the model wants before a document
    pooling: Literal["", "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] = (
        ""  # empty: its own
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # auto: bf16 (or fp16) on a GPU, fp32 elsewhere
    trust_remote_code: bool = False  # runs programs that come with the model: they can do whatever you can do


@dataclass(frozen=True)
class KnownEmbedder:
    """An embedder with a short name; pooling, normalisation and the rest stand in its own files."""

    repository: str  # on Hugging Face
    dim: int
    pooling: str  # said again here for the reader
    prompt: str = ""  # what the authors want before a document
    window: int = 8192
    end: str = ""  # a token that must end a text and that its tokenizer may leave out
    code: bool = False  # cannot be had without programs that come with it


# The six of the federated paper, and the one that needs no network.
KNOWN: dict[str, KnownEmbedder] = {
    "minilm": KnownEmbedder("", 384, "mean", window=256),
    "qwen3-embedding-0.6b": KnownEmbedder("Qwen/Qwen3-Embedding-0.6B", 1024, "lasttoken", end="<|endoftext|>"),
    "gte-qwen2-1.5b": KnownEmbedder(
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct", 1536, "lasttoken", end="<|endoftext|>", code=True
    ),
    "gte-multilingual-base": KnownEmbedder("Alibaba-NLP/gte-multilingual-base", 768, "cls", code=True),
    "arctic-l-v2": KnownEmbedder("Snowflake/snowflake-arctic-embed-l-v2.0", 1024, "cls"),
    "arctic-m-v2": KnownEmbedder("Snowflake/snowflake-arctic-embed-m-v2.0", 768, "cls"),
    "nomic-v1.5": KnownEmbedder("nomic-ai/nomic-embed-text-v1.5", 768, "mean", prompt="search_document: "),
}
