"""Embedders in the form in which they were published, with their own code, run by the architectures of transformers.

The expected states come from a plain implementation of the published formulas that reads the published weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from nosology.core import ConfigError
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import KNOWN_EMBEDDERS, EmbedderSettings
from nosology.encoders.native_config import native_config
from nosology.encoders.packed import PackedTransformer
from tests.encoders.tiny_embedders import tiny_embedder

HEADS, WIDTH = 2, 8  # of the tiny models
TEXTS = ["chronic low back pain", "heart failure, pneumonia of the right lobe; type 2 diabetes", "pain"]
GTE = {
    "architectures": ["NewModel"],
    "auto_map": {"AutoConfig": "configuration.NewConfig", "AutoModel": "modeling.NewModel"},
    "hidden_act": "gelu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "model_type": "new",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "pack_qkv": True,
    "pad_token_id": 0,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "unpad_inputs": "true",
    "use_memory_efficient_attention": "true",
}
NOMIC = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "auto_map": {"AutoConfig": "configuration.NomicBertConfig", "AutoModel": "modeling.NomicBertModel"},
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 16,
    "n_head": HEADS,
    "n_inner": 24,
    "n_layer": 2,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
}


def published(folder: Path, kind: str, config: dict, mode: str = "cls", prefix: str = "") -> Path:
    """The folder of a tiny model with large random weights, this config.json and code that must not run."""
    tiny_embedder(folder, kind, (mode,))
    shapes = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    weights = {prefix + name: torch.randn(value.shape, generator=generator) * 0.5 for name, value in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    size = len(weights[next(name for name in weights if "word_embeddings" in name or "embed_tokens" in name)])
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    for name in ("configuration.py", "modeling.py"):
        (folder / name).write_text("raise AssertionError('the code of the model was run')")
    return folder


def load(folder: Path, **options) -> Embedder:
    return Embedder.load(EmbedderSettings(model=str(folder), **options), "cpu")


def token_ids(embedder: Embedder, text: str) -> Tensor:
    tokenizer = embedder._tokenizer
    ids = [*tokenizer.prefix_ids, *tokenizer.token_ids([text])[0], *tokenizer.suffix_ids]
    return torch.tensor(ids, dtype=torch.int64)


def rotate(x: Tensor, frequencies: Tensor) -> Tensor:
    """Queries or keys (T, H, D) with rotary positions: the pair (i, i + D / 2) is turned by position x frequency i."""
    angles = (torch.arange(len(x))[:, None] * frequencies)[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def encode(w: dict[str, Tensor], ids: Tensor, frequencies: Tensor, names: dict[str, str]) -> Tensor:
    """The states (T, D) of an encoder with normalization after each part and a gated feed-forward layer."""

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, names["embedding norm"])
    for number in range(2):
        layer = f"{names['layer']}.{number}."
        q, k, v = (part.unflatten(-1, (HEADS, WIDTH)) for part in linear(x, layer + names["qkv"]).chunk(3, dim=-1))
        scores = torch.einsum("qhd,khd->hqk", rotate(q, frequencies), rotate(k, frequencies)) / WIDTH**0.5
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = norm(x + linear(attended, layer + names["out"]), layer + names["norm 1"])
        if "up and gate" in names:
            up, gate = linear(x, layer + names["up and gate"]).chunk(2, dim=-1)
            hidden = up * functional.gelu(gate)
        else:
            hidden = linear(x, layer + names["up"]) * functional.silu(linear(x, layer + names["gate"]))
        x = norm(x + linear(hidden, layer + names["down"]), layer + names["norm 2"])
    return x


GTE_NAMES = {
    "embedding norm": "embeddings.LayerNorm",
    "layer": "encoder.layer",
    "qkv": "attention.qkv_proj",
    "out": "attention.o_proj",
    "norm 1": "attn_ln",
    "up and gate": "mlp.up_gate_proj",
    "down": "mlp.down_proj",
    "norm 2": "mlp_ln",
}
NOMIC_NAMES = {
    "embedding norm": "emb_ln",
    "layer": "encoder.layers",
    "qkv": "attn.Wqkv",
    "out": "attn.out_proj",
    "norm 1": "norm1",
    "up": "mlp.fc11",
    "gate": "mlp.fc12",
    "down": "mlp.fc2",
    "norm 2": "norm2",
}


def frequencies(theta: float, factor: float = 1.0) -> Tensor:
    """Rotary frequencies, after fixed NTK scaling by the factor (Su 2023: factor^(2/D) of the base's exponent 0)."""
    powers = torch.arange(0, WIDTH, 2) / WIDTH
    return (theta * factor) ** -powers / factor ** (2 / WIDTH)


@pytest.mark.parametrize(
    ("kind", "config", "mode", "prefix", "rope", "names"),
    [
        ("gte", GTE, "cls", "new.", frequencies(20_000, 8), GTE_NAMES),  # as gte-multilingual-base
        (  # as arctic-embed-m-v2.0
            "gte",
            GTE | {"model_type": "gte", "rope_scaling": None, "rope_theta": 160_000},
            "cls",
            "",
            frequencies(160_000),
            GTE_NAMES,
        ),
        ("nomic_bert", NOMIC, "mean", "", frequencies(1000), NOMIC_NAMES),  # as nomic-embed-text-v1.5
    ],
    ids=["gte-multilingual-base", "arctic-m-v2", "nomic-v1.5"],
)
def test_published_encoders_equal_the_published_formulas(tmp_path, kind, config, mode, prefix, rope, names):
    folder = published(tmp_path / "model", kind, config, mode, prefix)
    loaded = load(folder)
    assert isinstance(loaded._net, PackedTransformer) and loaded.window == 8192
    stored = load_file(folder / "model.safetensors").items()
    weights = {name.removeprefix(prefix): value for name, value in stored}
    states = [encode(weights, token_ids(loaded, text), rope, names) for text in TEXTS]
    expected = torch.stack([x[0] if mode == "cls" else x.mean(0) for x in states])
    assert np.allclose(loaded.embed(TEXTS), functional.normalize(expected).numpy(), atol=1e-4)
    wrong = [encode(weights, token_ids(loaded, text), frequencies(10_000), names) for text in TEXTS]
    assert not torch.allclose(states[1], wrong[1], atol=1e-2), "the positions matter"


@pytest.fixture
def gte_qwen2(tmp_path):
    """A function that returns the folder of a tiny gte-Qwen2; changes: to its config.json."""

    def build(name: str, **changes) -> Path:
        config = json.loads((tiny_embedder(tmp_path / "plain", "qwen2") / "config.json").read_text())
        code = {"auto_map": {"AutoModel": "modeling.Qwen2Model"}}
        folder = published(tmp_path / name, "qwen2", config | code | changes, "lasttoken")
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
        tokenizer["auto_map"] = {"AutoTokenizer": [None, "modeling.Qwen2TokenizerFast"]}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return folder

    return build


def test_gte_qwen2_attends_in_both_directions(gte_qwen2, monkeypatch):
    """Because its file says so, or because of its name if the file is silent."""
    embedders = [load(gte_qwen2("causal", is_causal=True)), load(gte_qwen2("both", is_causal=False))]
    silent = gte_qwen2("silent")
    monkeypatch.setattr("nosology.encoders.embedder.locate_model", lambda settings: silent)
    embedders.append(Embedder.load(EmbedderSettings(model="gte-qwen2-1.5b"), "cpu"))
    ids = torch.tensor([5, 9, 7, 12])
    states = [embedder._net(ids, [4])[0] for embedder in embedders]
    changed = [embedder._net(torch.tensor([5, 9, 7, 30]), [4])[0] for embedder in embedders]
    assert torch.equal(states[0], changed[0]), "the first token does not see the last"
    assert not torch.allclose(states[1], changed[1], atol=1e-2)
    assert torch.allclose(states[1], states[2], atol=1e-5)
    eager = embedders[1]._net.model
    eager.set_attn_implementation("eager")
    assert torch.allclose(states[1], eager(input_ids=ids[None]).last_hidden_state[0, 0], atol=1e-4)
    assert "causal" not in embedders[0].identity and embedders[1].identity["causal"] == 0


def test_gte_qwen2_equals_sentence_transformers(gte_qwen2):
    from sentence_transformers import SentenceTransformer

    folder = gte_qwen2("model", is_causal=False)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    loaded = load(folder)
    assert np.allclose(loaded.embed(TEXTS), expected, atol=1e-4)
    loaded._net.aligned = PackedTransformer(loaded._net.model, aligned=True).aligned
    assert not loaded._net.aligned, "padding after a text would change its states"


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (GTE, {"layer_norm_type": "rms_norm"}),
        (GTE, {"logn_attention_scale": True}),
        (GTE, {"position_embedding_type": "absolute"}),
        (GTE, {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}),
        (GTE, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        (NOMIC, {"rotary_scaling_factor": 2}),  # as arctic-embed-m-long
        (NOMIC, {"activation_function": "gelu"}),  # as nomic-embed-text-v2-moe
        (NOMIC, {"qkv_proj_bias": True}),
        ({"model_type": "qwen2", "auto_map": {"AutoModel": "modeling.Model"}}, {}),
        ({"model_type": "bert", "auto_map": {"AutoModel": "modeling.Model"}}, {}),
    ],
)
def test_other_variants_need_their_own_code(config, changes):
    assert native_config(config) is not None or not changes
    assert native_config(config | changes) is None


def test_refused_variant_names_the_setting(tmp_path):
    folder = published(tmp_path / "model", "nomic_bert", NOMIC | {"rotary_scaling_factor": 2}, "mean")
    with pytest.raises(ConfigError, match=r"set embedder\.trust_remote_code to true if you trust its authors"):
        load(folder)


def test_files_of_transformers_are_unchanged():
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 160_000.0}}
    for kind in ("gte", "nomic_bert"):
        for config in ({"model_type": kind, **rope}, {"model_type": kind}):
            assert native_config(config) == config
    partly = NOMIC | {"hidden_size": 16, "max_position_embeddings": 2048, **rope, "rotary_scaling_factor": 2}
    native = native_config(partly)
    assert native["rope_parameters"] == rope["rope_parameters"] and native["num_attention_heads"] == HEADS
    assert native["max_position_embeddings"] == 2048, "its own name is the newer one"
    assert native_config({"model_type": "bert"}) == {"model_type": "bert"}
    assert native_config({"model_type": "qwen2"}) == {"model_type": "qwen2"}, "a causal model as any other"


def test_missing_weights_raise(tmp_path):
    folder = tiny_embedder(tmp_path / "model", "gte")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="must have all weights; 1 are missing"):
        load(folder)


def test_the_six_embedders_load_by_name_without_their_code(tmp_path, gte_qwen2, monkeypatch):
    arctic = GTE | {"model_type": "gte", "rope_scaling": None, "rope_theta": 160_000}
    folders = {
        "qwen3-embedding-0.6b": tiny_embedder(tmp_path / "qwen3", "qwen3", ("lasttoken",)),
        "gte-qwen2-1.5b": gte_qwen2("qwen2"),
        "gte-multilingual-base": published(tmp_path / "gte", "gte", GTE, prefix="new."),
        "arctic-l-v2": tiny_embedder(tmp_path / "xlm", "xlm-roberta", ("cls",)),
        "arctic-m-v2": published(tmp_path / "arctic", "gte", arctic),
        "nomic-v1.5": published(tmp_path / "nomic", "nomic_bert", NOMIC, "mean"),
    }
    assert list(folders) == list(KNOWN_EMBEDDERS)[1:]
    monkeypatch.setattr("nosology.encoders.embedder.locate_model", lambda settings: folders[settings.model])
    poolings = ("lasttoken", "lasttoken", "cls", "cls", "cls", "mean")
    for name, pooling in zip(folders, poolings, strict=True):
        loaded = Embedder.load(EmbedderSettings(model=name), "cpu")
        assert loaded.embed(TEXTS).any() and loaded.identity["pooling"] == pooling
