"""Settings of the embedder, embedders with a short name, and the files in the folder of an embedder model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nosology.core import ConfigError
from nosology.core.files import json_sha256, sha256
from nosology.core.settings import Settings

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_OLD_POOLING_KEYS = {  # of sentence-transformers, before it introduced pooling_mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*.model")  # no pickles
_IRRELEVANT = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")  # for the vectors


class EmbedderSettings(Settings):
    """The model that turns notes into vectors, and how much of a note it reads."""

    model: str = Field("minilm", min_length=1)  # a short name, a Hugging Face name, or a folder
    revision: str = ""  # branch, tag or commit of a Hugging Face name; empty: the newest
    max_tokens: int = Field(8192, ge=0)  # per note, including special tokens; 0: all
    window: int = Field(0, ge=0)  # tokens per forward pass; 0: the maximum of the model
    prompt: str = ""  # text before each note; empty: the model's own prompt for documents
    pooling: Literal["", "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] = (
        ""  # empty: the model's own
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # auto: bf16 (or fp16) on a GPU, fp32 elsewhere
    trust_remote_code: bool = False  # runs code that comes with the model, with all your permissions


@dataclass(frozen=True)
class KnownEmbedder:
    """An embedder with a short name. Its own files decide pooling, normalization and the rest."""

    repository: str  # on Hugging Face
    prompt: str = ""  # that the authors recommend for documents
    window: int = 8192
    end_token: str = ""  # a token that must end a text but may be missing in the tokenizer's output
    bidirectional: bool = False  # a decoder whose tokens attend in both directions, though its file may not say so


# The six embedders of Xu and Dray (2025), and minilm, which is installed with the package.
KNOWN_EMBEDDERS: dict[str, KnownEmbedder] = {
    "minilm": KnownEmbedder("", window=256),
    "qwen3-embedding-0.6b": KnownEmbedder("Qwen/Qwen3-Embedding-0.6B", end_token="<|endoftext|>"),
    "gte-qwen2-1.5b": KnownEmbedder(
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct", end_token="<|endoftext|>", bidirectional=True
    ),
    "gte-multilingual-base": KnownEmbedder("Alibaba-NLP/gte-multilingual-base"),
    "arctic-l-v2": KnownEmbedder("Snowflake/snowflake-arctic-embed-l-v2.0"),
    "arctic-m-v2": KnownEmbedder("Snowflake/snowflake-arctic-embed-m-v2.0"),
    "nomic-v1.5": KnownEmbedder("nomic-ai/nomic-embed-text-v1.5", prompt="search_document: "),
}


@dataclass(frozen=True)
class EmbedderConfig:
    """What the sentence-transformers files in a model's folder say about pooling, layers after it, limits, prompt."""

    modes: tuple[str, ...] = ("mean",)  # their vectors are concatenated
    include_prompt: bool = True  # the tokens of the prompt are pooled too
    dense: tuple[Path, ...] = ()  # folders of Dense layers after pooling
    normalise: bool = False
    window: int = 0  # 0: not given
    prompt: str = ""
    lower_case: bool = False


def locate_model(settings: EmbedderSettings) -> Path:
    """The folder with the files of the model, downloaded if necessary. Raises ConfigError if that is impossible."""
    if settings.model == "minilm":
        from nosology.encoders.transformer import minilm_folder

        return Path(minilm_folder())
    folder = Path(settings.model)
    if folder.is_dir():
        return folder
    known = KNOWN_EMBEDDERS.get(settings.model)
    try:
        from huggingface_hub import snapshot_download

        from nosology.encoders.transformer import check_hub

        name = known.repository if known else settings.model
        check_hub(name)
        patterns = [*_DOWNLOADED, *(["*.py"] if settings.trust_remote_code else [])]
        return Path(snapshot_download(name, revision=settings.revision or None, allow_patterns=patterns))
    except ImportError as error:
        raise ConfigError("embedder.model needs the library transformers: pip install 'nosology[embed]'") from error
    except Exception as error:  # no network, unknown name, no permission: the library has many exceptions
        raise ConfigError(
            f"embedder.model must be one of {', '.join(KNOWN_EMBEDDERS)}, a folder with a model, or a Hugging Face "
            f"name that can be fetched; got {settings.model!r} ({type(error).__name__})"
        ) from error


def read_config(folder: Path) -> EmbedderConfig:
    """The configuration in the sentence-transformers files of a folder; without them, mean pooling."""
    pooling: dict[str, Any] = {}
    dense: list[Path] = []
    normalise = False
    for module in read_json_file(folder / "modules.json", []):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        path = folder / str(module.get("path", ""))
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{folder / 'modules.json'} must name folders inside its own; got {module.get('path')!r}")
        if kind == "Pooling":
            pooling = read_json_file(path / "config.json", {})
        elif kind == "Normalize":
            normalise = True
        elif kind == "Dense" and not normalise:
            dense.append(path)
        elif kind != "Transformer":
            raise ConfigError(
                f"{folder / 'modules.json'} must name Transformer, Pooling, Dense and Normalize, in this order; "
                f"got {kind or 'nothing'}"
            )
    limits = read_json_file(folder / "sentence_bert_config.json", {})
    prompts = read_json_file(folder / "config_sentence_transformers.json", {})
    return EmbedderConfig(
        modes=_pooling_modes(pooling, folder),
        include_prompt=bool(pooling.get("include_prompt", True)),
        dense=tuple(dense),
        normalise=normalise,
        window=int(limits.get("max_seq_length") or 0),
        prompt=str((prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""),
        lower_case=bool(limits.get("do_lower_case", False)),
    )


def _pooling_modes(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING_KEYS.items() if config.get(key)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not modes or set(modes) - set(POOLING_MODES):
        raise ConfigError(f"the pooling of {folder} must be of {', '.join(POOLING_MODES)}; got {modes}")
    return modes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files with the weights of a model; ConfigError if it has none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"embedder.model must have its weights as .safetensors; {folder.name} has none")
    index = read_json_file(folder / "model.safetensors.index.json", {})
    shards = sorted(set(index.get("weight_map", {}).values()))
    single = folder / "model.safetensors"
    return [single] if single.is_file() else ([folder / name for name in shards] or files)


def model_fingerprint(folder: Path, config: EmbedderConfig, *, code: bool) -> str:
    """The SHA-256 of weights, architecture, tokenizer and (if `code`) Python files; independent of the location."""
    digest = hashlib.sha256()
    model = {key: value for key, value in read_json_file(folder / "config.json", {}).items() if key not in _IRRELEVANT}
    digest.update(json.dumps(model, sort_keys=True).encode())
    files = [*weight_files(folder), folder / "tokenizer.json", folder / "tokenizer_config.json"]
    files += [file for layer in config.dense for file in (layer / "config.json", layer / "model.safetensors")]
    files += sorted(folder.glob("*.py")) if code else []
    for file in files:
        if file.is_file():
            digest.update(f"\n{file.relative_to(folder).as_posix()} {sha256(file)}".encode())
    return digest.hexdigest()


def folder_fingerprint(settings: EmbedderSettings) -> str:
    """The SHA-256 of everything in a local folder that decides its vectors; empty if the model is not a folder.

    The model is not loaded.
    """
    folder = Path(settings.model)
    if settings.model == "minilm" or not folder.is_dir():
        return ""
    config = read_config(folder)
    content = [asdict(replace(config, dense=())), model_fingerprint(folder, config, code=settings.trust_remote_code)]
    return json_sha256(content)


def read_json_file(path: Path, missing: Any) -> Any:
    """The content of a JSON file; `missing` if there is none. Raises ConfigError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: it must be JSON") from error
