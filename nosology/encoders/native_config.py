"""Configurations of models that were published with Python code, for the architectures that transformers implements.

Four of the six embedders of Xu and Dray (2025) were published with their own code: gte-Qwen2 (Qwen2 with attention in
both directions), gte-multilingual-base and arctic-embed-m-v2.0 (GTE, model types `new` and `gte`), nomic-embed-text
(NomicBERT). transformers has these architectures now and reads their weights; only some names of settings differ. None
of the published code is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The variant that transformers implements; a missing setting has this value. The published code has others.
_GTE_FORM = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}
_NOMIC_FORM = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "use_rms_norm": False,
}
_NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


def native_config(config: Mapping[str, Any], *, bidirectional: bool = False) -> dict[str, Any] | None:
    """The content of a config.json for an architecture of transformers; None if only the model's own code has it.

    Without this step transformers would silently build a related model for some, such as a causal Qwen2.
    bidirectional: the model attends in both directions if its file does not say otherwise.
    """
    native = {name: value for name, value in config.items() if name != "auto_map"}
    kind, has_code = config.get("model_type"), "AutoModel" in (config.get("auto_map") or {})
    if kind in ("new", "gte"):
        return _gte(native)
    if kind == "nomic_bert":
        return _nomic_bert(native)
    if kind == "qwen2" and (bidirectional or "is_causal" in config):
        return {"is_causal": not bidirectional} | native
    return None if has_code else native


def _gte(config: dict[str, Any]) -> dict[str, Any] | None:
    if not _has_form(config, _GTE_FORM):
        return None
    if config["model_type"] == "gte" and not {"rope_theta", "rope_scaling"} & config.keys():  # written by transformers
        return config
    theta, scaling = float(config.pop("rope_theta", 10_000)), config.pop("rope_scaling", None)
    rope = {"rope_type": "default", "rope_theta": theta}
    if scaling:
        if scaling.get("type") != "ntk" or scaling.get("mixed_b") is not None:
            return None
        # Fixed NTK: the base times the factor, and all frequencies divided by factor ** (2 / width of a head).
        factor, width = float(scaling["factor"]), config["hidden_size"] // config["num_attention_heads"]
        rope = {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / width)}
    return {"rope_parameters": rope} | config | {"model_type": "gte"}


def _nomic_bert(config: dict[str, Any]) -> dict[str, Any] | None:
    native = {new: config[old] for old, new in _NOMIC_NAMES.items() if old in config} | config
    if "rope_parameters" in config:  # written by transformers: they have the settings of rotary positions
        form = {name: value for name, value in _NOMIC_FORM.items() if not name.startswith("rotary_")}
        return native if _has_form(config, form) else None
    if "rotary_emb_base" in config:
        native["rope_parameters"] = {"rope_type": "default", "rope_theta": float(config["rotary_emb_base"])}
    return native if _has_form(config, _NOMIC_FORM) else None


def _has_form(config: Mapping[str, Any], form: Mapping[str, Any]) -> bool:
    """Whether every setting of the form has its value; None and False are the same."""
    return all((config.get(name, value) or False) == (value or False) for name, value in form.items())
