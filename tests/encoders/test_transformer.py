"""A transformer over windows of a note."""

from __future__ import annotations

import json

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
def test_states_are_those_of_the_transformer_on_each_window_alone(folders, name):
    reader, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
    encoder.eval()
    text = "Chronic low back pain and heart failure, pneumonia of the right lobe; type 2 diabetes. "
    notes = [
        reader.tokenize(text).ids,
        reader.tokenize(text * 3).ids[:20],
        reader.tokenize("").ids,
        reader.tokenize("pain").ids,
    ]
    tokens, lengths = pad_notes(notes)
    with torch.no_grad():
        found = encoder(tokens, lengths)
        assert found.shape == (*tokens.shape, encoder.width)
        for row, ids in enumerate(notes):
            for start in range(0, len(ids), 10):
                piece = ids[start : start + 10] - ID_SHIFT
                alone = torch.tensor([[*encoder.prefix_ids, *piece.tolist(), *encoder.suffix_ids]])
                expected = encoder.model(input_ids=alone).last_hidden_state[0, 1:-1]
                assert np.allclose(found[row, start : start + len(piece)], expected, atol=1e-5)
            assert not found[row, len(ids) :].any()


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_mask_is_given_only_where_there_are_pads_and_states_are_the_same(folders, name):
    reader, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
    encoder.eval()
    ids = reader.tokenize("Chronic low back pain and heart failure, pneumonia of the right lobe; type 2 diabetes. ").ids
    seen = []
    encoder.model.register_forward_pre_hook(lambda *given: seen.append(given[-1]["attention_mask"]), with_kwargs=True)
    with torch.no_grad():
        full = encoder(*pad_notes([ids[:20], ids[5:15]]))
        assert seen.pop() is None
        beside = encoder(*pad_notes([ids[:20], ids[5:15], ids[:3]]))
        assert seen.pop() is not None
    assert np.allclose(full, beside[:2], atol=1e-5)


def test_weights_of_half_precision_give_states_of_half_precision(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 30, dtype=np.int32)])
    encoder.eval()
    with torch.no_grad():
        whole = encoder(tokens, lengths)
        encoder.model.to(torch.bfloat16)
        alone = encoder(tokens, lengths)
        with torch.autocast("cpu", torch.bfloat16):
            half = encoder(tokens, lengths)
    assert half.dtype == torch.bfloat16 and torch.equal(half, alone)
    assert np.allclose(half.float(), whole, atol=0.1)


def test_the_windows_begin_and_end_as_the_tokenizer_would_have_it(folders):
    from transformers import AutoTokenizer

    for name in ("bert", "roberta"):
        reader, encoder = load_pretrained(folders[name], window=12, max_tokens=100)
        ids = (reader.tokenize("heart failure").ids - ID_SHIFT).tolist()
        assert AutoTokenizer.from_pretrained(folders[name])("heart failure")["input_ids"] == [
            *encoder.prefix_ids,
            *ids,
            *encoder.suffix_ids,
        ]


def test_no_note_has_a_token(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    assert not encoder(*pad_notes([np.empty(0, np.int32)] * 2)).any()


def test_a_transformer_is_built_again_from_json_without_a_file(folders):
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


def test_a_frozen_transformer_neither_learns_nor_drops_out(folders):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 30, dtype=np.int32)])
    encoder.train()
    assert not torch.equal(encoder(tokens, lengths), encoder(tokens, lengths)), "dropout"
    encoder.requires_grad_(False).train()
    states = encoder(tokens, lengths)
    assert not states.requires_grad and torch.equal(states, encoder(tokens, lengths))


def test_what_a_frozen_transformer_remembers_is_what_it_would_say(folders, monkeypatch):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    encoder.requires_grad_(False).eval()
    rng = np.random.default_rng(0)
    notes = [rng.integers(5, 60, size=n, dtype=np.int32) for n in (25, 10, 3, 0, 31)]
    fresh = encoder(*pad_notes(notes))
    encoder.cache_states()
    assert np.allclose(encoder(*pad_notes(notes)), fresh, atol=1e-6)
    read = len(encoder.cached)
    assert read == 3 + 1 + 1 + 4
    monkeypatch.setattr(encoder, "_states", lambda *_: pytest.fail("asked again"))
    for part in (notes, notes[2:], notes[::-1]):
        again = encoder(*pad_notes(part))
        for note, row in zip(part, again):
            known = next(i for i, other in enumerate(notes) if other is note)
            assert np.allclose(row[: len(note)], fresh[known, : len(note)], atol=1e-6)


def test_memory_has_an_end_and_a_transformer_that_learns_uses_none(folders, monkeypatch):
    _, encoder = load_pretrained(folders["bert"], window=12, max_tokens=100)
    tokens, lengths = pad_notes([np.arange(5, 45, dtype=np.int32)])
    encoder.cache_states()
    encoder.train()
    assert encoder(tokens, lengths).requires_grad and not encoder.cached
    monkeypatch.setattr(transformer, "_CACHE_BYTES", 2 * 12 * 16 * 4)
    encoder.requires_grad_(False)
    found = encoder(tokens, lengths)
    assert len(encoder.cached) == 2 and np.allclose(encoder(tokens, lengths), found, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "window", "sentence"),
    [
        ("bert", 63, "model.window must be at most 62 for this encoder; got 63"),
        ("roberta", 63, "model.window must be at most 62 for this encoder; got 63"),
        ("bert", 2, "model.window must be more than 2 for this encoder; got 2"),
    ],
)
def test_a_window_that_the_transformer_cannot_read_is_refused(folders, name, window, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_pretrained(folders[name], window, 100)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_widest_window_can_be_read(folders, name):
    _, encoder = load_pretrained(folders[name], 62, 200)
    assert torch.isfinite(encoder(*pad_notes([np.full(100, 7, np.int32)]))).all()


def test_what_cannot_be_loaded_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it would try again and again
    (tmp_path / "config.json").write_text("{}")
    for name in ("nobody/has-such-a-model", str(tmp_path), str(tmp_path / "absent")):
        with pytest.raises(ConfigError, match=r"model\.encoder must be minilm, a folder .* got"):
            load_pretrained(name, 128, 100)


def test_a_model_that_brings_its_own_program_is_refused(folders, tmp_path):
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


def test_a_model_of_pictures_and_a_tokenizer_of_another_model_are_refused(folders, tmp_path):
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


def test_an_encoder_with_a_decoder_is_refused(tmp_path):
    from shutil import copy

    from transformers import T5Config, T5Model

    bert = tiny_bert(tmp_path / "bert")
    T5Model(T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(bert / name, tmp_path / name)
    with pytest.raises(ConfigError, match="must not be an encoder-decoder"):
        load_pretrained(str(tmp_path), 12, 100)
