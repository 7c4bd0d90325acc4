"""The folder of an embedder: where it is, what it says of pooling and limits, a hash of what decides its vectors."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nosology.core import ConfigError
from nosology.core.files import sha256
from nosology.encoders.embedder_settings import KNOWN, EmbedderSettings

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_OLD_KEYS = {  # as sentence-transformers wrote them before it had one key
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.py")  # no pickles
_IDLE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")  # decide no vector


@dataclass(frozen=True)
class Plan:
    """What happens to the states of a text's tokens, as the folder of the model says."""

    modes: tuple[str, ...] = ("mean",)  # their vectors are laid end to end
    include_prompt: bool = True  # the prompt's tokens count in the pooling
    dense: tuple[Path, ...] = ()  # folders of layers that come after
    normalise: bool = False
    window: int = 0  # 0: the folder does not say
    prompt: str = ""
    lower_case: bool = False


def find(settings: EmbedderSettings) -> Path:
    """The folder with the files of the model; fetched where it must and can be, else a ConfigError."""
    if settings.model == "minilm":
        from nosology.encoders.transformer import minilm

        return Path(minilm())
    folder = Path(settings.model)
    if folder.is_dir():
        return folder
    known = KNOWN.get(settings.model)
    try:
        from huggingface_hub import snapshot_download

        name = known.repository if known else settings.model
        return Path(snapshot_download(name, revision=settings.revision or None, allow_patterns=list(_WANTED)))
    except ImportError as error:
        raise ConfigError("embedder.model needs the library transformers: pip install 'nosology[embed]'") from error
    except Exception as error:  # no network, no such name, no right to it: the library has many
        raise ConfigError(
            f"embedder.model must be one of {', '.join(KNOWN)}, a folder with a model, or a Hugging Face name that can "
            f"be fetched; got {settings.model!r} ({type(error).__name__})"
        ) from error


def read_plan(folder: Path) -> Plan:
    """What the files of sentence-transformers in the folder say; without them, the mean of the states."""
    modules = _json(folder / "modules.json", [])
    found: dict[str, Any] = {"dense": []}
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        place = folder / str(module.get("path", ""))
        if not place.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{folder / 'modules.json'} must name folders inside its own; got {module.get('path')!r}")
        if kind == "Pooling":
            config = _json(place / "config.json", {})
            found["modes"] = _modes(config, folder)
            found["include_prompt"] = bool(config.get("include_prompt", True))
        elif kind == "Normalize":
            found["normalise"] = True
        elif kind == "Dense" and not found.get("normalise"):
            found["dense"].append(place)
        elif kind != "Transformer":
            raise ConfigError(
                f"{folder / 'modules.json'} must name Transformer, Pooling, Dense and Normalize, in this order; "
                f"got {kind or 'nothing'}"
            )
    limits = _json(folder / "sentence_bert_config.json", {})
    prompts = _json(folder / "config_sentence_transformers.json", {})
    return Plan(
        modes=found.get("modes", ("mean",)),
        include_prompt=found.get("include_prompt", True),
        dense=tuple(found["dense"]),
        normalise=bool(found.get("normalise", False)),
        window=int(limits.get("max_seq_length") or 0),
        prompt=str((prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""),
        lower_case=bool(limits.get("do_lower_case", False)),
    )


def _modes(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_KEYS.items() if config.get(key)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not modes or set(modes) - set(MODES):
        raise ConfigError(f"the pooling of {folder} must be of {', '.join(MODES)}; got {modes}")
    return modes


def weight_files(folder: Path) -> list[Path]:
    """The weights of the model, in the order of their names."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ConfigError(f"embedder.model must have its weights as .safetensors; {folder.name} has none")
    index = _json(folder / "model.safetensors.index.json", {})
    named = sorted(set(index.get("weight_map", {}).values()))
    single = folder / "model.safetensors"
    return [single] if single.is_file() else ([folder / name for name in named] or found)


def content_hash(folder: Path, plan: Plan, *, code: bool) -> str:
    """A SHA-256 over weights, shape, tokenizer and own programs: the same wherever the same files lie."""
    digest = hashlib.sha256()
    config = {key: value for key, value in _json(folder / "config.json", {}).items() if key not in _IDLE}
    digest.update(json.dumps(config, sort_keys=True).encode())
    places = [*weight_files(folder), folder / "tokenizer.json", folder / "tokenizer_config.json"]
    places += [file for layer in plan.dense for file in (layer / "config.json", layer / "model.safetensors")]
    places += sorted(folder.glob("*.py")) if code else []
    for place in places:
        if place.is_file():
            digest.update(f"\n{place.relative_to(folder).as_posix()} {sha256(place)}".encode())
    return digest.hexdigest()


def folder_hash(settings: EmbedderSettings) -> str:
    """A SHA-256 over all that a folder says of its vectors, without loading the model; empty if a name is no folder."""
    folder = Path(settings.model)
    if settings.model == "minilm" or not folder.is_dir():
        return ""
    plan = read_plan(folder)
    said = [asdict(replace(plan, dense=())), content_hash(folder, plan, code=settings.trust_remote_code)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def own_program(folder: Path) -> bool:
    """Whether the model cannot be had as its authors mean it without programs that come with it.

    transformers knows some kinds by itself and then leaves the programs aside; of other kinds it would quietly build
    a cousin of the model, such as a causal Qwen2 in the place of one that reads both ways.
    """
    config = _json(folder / "config.json", {})
    return "AutoModel" in (config.get("auto_map") or {}) and config.get("model_type") not in ("nomic_bert", "gte")


def _json(path: Path, missing: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: it must be JSON") from error
