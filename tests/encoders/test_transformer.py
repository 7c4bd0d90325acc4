"""A transformer over windows of a note."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from nosology.core import ConfigError
from nosology.encoders import transformer
from nosology.encoders.tokenizers import ID_SHIFT
from nosology.encoders.transformer import WindowedTransformer, load_pretrained
from nosology.training.data_loader import pad_notes
from tests.encoders.tiny import tiny_bert, tiny_roberta


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "minilm": "minilm",
        "bert": str(tiny_bert(folder / "bert")),
        "roberta": str(tiny_roberta(folder / "roberta")),
    }


@pytest.mark.parametrize("name", ["minilm", "bert", "roberta"])
def test_states_equal_the_transformer_on_each_window_alone(folders, name):
    tokenizer, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
    encoder.eval()
    text = "Chronic low back pain and heart failure, pneumonia of the right lobe; type 2 diabetes. "
    notes = [
        tokenizer.tokenize(text).ids,
        tokenizer.tokenize(text * 3).ids[:20],
        tokenizer.tokenize("").ids,
        tokenizer.tokenize("pain").ids,
    ]
    tokens, lengths = pad_notes(notes)
    with torch.no_grad():
        states = encoder(tokens, lengths)
        assert states.shape == (*tokens.shape, encoder.width)
        for row, ids in enumerate(notes):
            for start in range(0, len(ids), 10):
                piece = ids[start : start + 10] - ID_SHIFT
                alone = torch.tensor([[*encoder.prefix_ids, *piece.tolist(), *encoder.suffix_ids]])
                expected = encoder.model(input_ids=alone).last_hidden_state[0, 1:-1]
                assert np.allclose(states[row, start : start + len(piece)], expected, atol=1e-5)
            assert not states[row, len(ids) :].any()


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_mask_is_passed_only_with_padding(folders, name):
    tokenizer, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
    encoder.eval()
    ids = tokenizer.tokenize(
        "Chronic low back pain and heart failure, pneumonia of the right lobe; type 2 diabetes. "
    ).ids
    seen = []
    encoder.model.register_forward_pre_hook(
        lambda *arguments: seen.append(arguments[-1]["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        full = encoder(*pad_notes([ids[:20], ids[5:15]]))
        assert seen.pop() is None
        batched = encoder(*pad_notes([ids[:20], ids[5:15], ids[:3]]))
        assert seen.pop() is not None
    assert np.allclose(full, batched[:2], atol=1e-5)


def test_half_precision_weights_give_half_precision_states(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 30, dtype=np.int32)])
    encoder.eval()
    with torch.no_grad():
        full = encoder(tokens, lengths)
        encoder.model.to(torch.bfloat16)
        alone = encoder(tokens, lengths)
        with torch.autocast("cpu", torch.bfloat16):
            half = encoder(tokens, lengths)
    assert half.dtype == torch.bfloat16 and torch.equal(half, alone)
    assert np.allclose(half.float(), full, atol=0.1)


def test_windows_have_the_special_tokens_of_the_tokenizer(folders):
    from transformers import AutoTokenizer

    for name in ("bert", "roberta"):
        tokenizer, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
        ids = (tokenizer.tokenize("heart failure").ids - ID_SHIFT).tolist()
        assert AutoTokenizer.from_pretrained(folders[name])("heart failure")["input_ids"] == [
            *encoder.prefix_ids,
            *ids,
            *encoder.suffix_ids,
        ]


def test_batch_without_tokens_is_zero(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    assert not encoder(*pad_notes([np.empty(0, np.int32)] * 2)).any()


def test_transformer_round_trips_through_json(folders):
    for name in ("bert", "roberta"):
        _, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
        described = json.loads(json.dumps(encoder.to_json()))
        assert folders[name] not in json.dumps(described)
        again = WindowedTransformer.from_json(described)
        again.load_state_dict(encoder.state_dict())
        tokens, lengths = pad_notes([np.arange(5, 30, dtype=np.int32)])
        encoder.eval(), again.eval()
        with torch.no_grad():
            assert torch.equal(encoder(tokens, lengths), again(tokens, lengths))


def test_frozen_transformer_has_no_gradients_and_no_dropout(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 30, dtype=np.int32)])
    encoder.train()
    assert not torch.equal(encoder(tokens, lengths), encoder(tokens, lengths)), "dropout"
    encoder.requires_grad_(False).train()
    states = encoder(tokens, lengths)
    assert not states.requires_grad and torch.equal(states, encoder(tokens, lengths))


def test_cached_states_equal_computed_states(folders, monkeypatch):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    encoder.requires_grad_(False).eval()
    rng = np.random.default_rng(0)
    notes = [rng.integers(5, 60, size=n, dtype=np.int32) for n in (25, 10, 3, 0, 31)]
    fresh = encoder(*pad_notes(notes))
    encoder.cache_states()
    assert np.allclose(encoder(*pad_notes(notes)), fresh, atol=1e-6)
    windows = len(encoder.cached)
    assert windows == 3 + 1 + 1 + 4
    monkeypatch.setattr(encoder, "_states", lambda *_: pytest.fail("computed again"))
    for part in (notes, notes[2:], notes[::-1]):
        again = encoder(*pad_notes(part))
        for note, row in zip(part, again):
            known = next(i for i, other in enumerate(notes) if other is note)
            assert np.allclose(row[: len(note)], fresh[known, : len(note)], atol=1e-6)


def test_cached_states_have_the_type_of_computed_states(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    encoder.double().requires_grad_(False)
    encoder.cache_states()
    assert encoder(*pad_notes([np.arange(5, 30, dtype=np.int32)])).dtype is torch.float64


def test_cache_is_limited_and_unused_while_training(folders, monkeypatch):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 45, dtype=np.int32)])
    encoder.cache_states()
    encoder.train()
    assert encoder(tokens, lengths).requires_grad and not encoder.cached
    monkeypatch.setattr(transformer, "_CACHE_BYTES", 2 * 12 * 16 * 4)
    encoder.requires_grad_(False)
    states = encoder(tokens, lengths)
    assert len(encoder.cached) == 2 and np.allclose(encoder(tokens, lengths), states, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "window", "sentence"),
    [
        ("bert", 63, "model.window must be at most 62 for this encoder; got 63"),
        ("roberta", 63, "model.window must be at most 62 for this encoder; got 63"),
        ("bert", 2, "model.window must be more than 2 for this encoder; got 2"),
    ],
)
def test_invalid_window_raises_config_error(folders, name, window, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_pretrained(folders[name], window, 100)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_maximum_window_works(folders, name):
    _, encoder = load_pretrained(folders[name], 62, 200)
    assert torch.isfinite(encoder(*pad_notes([np.full(100, 7, np.int32)]))).all()


def test_unloadable_model_raises_config_error(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it would try again and again
    (tmp_path / "config.json").write_text("{}")
    for name in ("nobody/has-such-a-model", str(tmp_path), str(tmp_path / "absent")):
        with pytest.raises(ConfigError, match=r"model\.encoder must be minilm, a folder .* got"):
            load_pretrained(name, 128, 100)


def test_model_with_remote_code_is_refused(folders, tmp_path):
    from pathlib import Path
    from shutil import copytree

    folder = copytree(folders["bert"], tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    Path(folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(ConfigError, match=r"model\.encoder"):
        load_pretrained(str(folder), 12, 100)
    assert not marker.exists()


def test_image_model_and_foreign_tokenizer_are_refused(folders, tmp_path):
    from transformers import AutoTokenizer, BertConfig, BertModel, CLIPConfig, CLIPModel

    tokenizer = AutoTokenizer.from_pretrained(folders["bert"])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = sizes | {"vocab_size": 200, "bos_token_id": 0, "eos_token_id": 1}
    pictures = CLIPModel(CLIPConfig(text_config=text, vision_config=sizes | {"image_size": 8, "patch_size": 4}))
    for name, model in {
        "must be a text model": pictures,
        "must fit its tokenizer": BertModel(BertConfig(vocab_size=5, **sizes)),
    }.items():
        tokenizer.save_pretrained(tmp_path / name)
        model.save_pretrained(tmp_path / name)
        with pytest.raises(ConfigError, match=name):
            load_pretrained(str(tmp_path / name), 0, 512)


def test_encoder_decoder_is_refused(tmp_path):
    from shutil import copy

    from transformers import T5Config, T5Model

    bert = tiny_bert(tmp_path / "bert")
    T5Model(T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(bert / name, tmp_path / name)
    with pytest.raises(ConfigError, match="must not be an encoder-decoder"):
        load_pretrained(str(tmp_path), 12, 100)


def test_an_unknown_name_without_a_network_is_one_request(tmp_path):
    """The hub is a closed port here; the library would try six times."""
    program = "from nosology.encoders.transformer import load_pretrained; load_pretrained('nobody/nothing', 128, 128)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert "got 'nobody/nothing'" in end.stderr and "Retry" not in end.stderr
