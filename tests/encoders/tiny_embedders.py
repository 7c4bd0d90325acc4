"""Embedders small enough for a test, written as folders in the way sentence-transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.encoders.tiny import tiny_bert

_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
KINDS = ("bert", "xlm-roberta", "qwen2", "qwen3", "gte", "nomic_bert", "modernbert")


def tiny_embedder(
    folder: Path,
    kind: str,
    modes: tuple[str, ...] = ("mean",),
    *,
    dense: int = 0,
    normalise: bool = True,
    window: int = 0,
) -> Path:
    """A folder with a random model of this kind, a WordPiece tokenizer ([CLS] ... [SEP]) and what comes after."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    tiny_bert(folder)
    size = len(AutoTokenizer.from_pretrained(folder))
    more = {"qwen2": {"num_key_value_heads": 1}, "qwen3": {"num_key_value_heads": 1, "head_dim": 8}}.get(kind, {})
    if kind == "modernbert":
        more = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3, "local_attention": 8}
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, vocab_size=size, **_SIZES, **more)
    AutoModel.from_config(config, dtype=torch.float32).save_pretrained(folder)
    parts = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 16, "pooling_mode": list(modes)})
    if dense:
        parts.append(("2_Dense", "Dense"))
        width = 16 * len(modes)
        about = {"in_features": width, "out_features": dense, "bias": True, "activation_function": "torch.nn.Tanh"}
        _write(folder / "2_Dense" / "config.json", about)
        weights = {"linear.weight": torch.randn(dense, width), "linear.bias": torch.randn(dense)}
        save_file(weights, folder / "2_Dense" / "model.safetensors")
    if normalise:
        parts.append(("3_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(parts)
    ]
    _write(folder / "modules.json", modules)
    if window:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": window, "do_lower_case": False})
    return folder


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
