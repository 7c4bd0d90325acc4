"""Import of checkpoints of DualLAAT's authors: equal logits, and an error for each kind of invalid folder."""

from __future__ import annotations

import json
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from nosology.cli import app
from nosology.core import BundleError, Code, ConfigError
from nosology.encoders.tokenizers import PAD, UNKNOWN
from nosology.models.bundle import Bundle
from nosology.models.dual_laat.dual_laat_import import import_bundle, import_checkpoint
from nosology.serving.coder import Coder
from nosology.training.data_loader import Batch

GRU = {"encoder_type": "rnn", "rnn_type": "gru", "rnn_num_layers": 1, "rnn_hidden_size": 6}
CONV = {"encoder_type": "cnn", "num_filters": 6, "kernel_size": 10}
COMMON = {
    "vocab_size": 12,
    "embedding_dim": 5,
    "num_mha_heads": 3,
    "projection_dim": 6,
    "dropout": 0.3,
    "max_note_length": 24,
    "max_code_length": 4,
}
WORDS = ["heart", "failure", "type", "1", "2", "diabetes", "of", "the", "failure,", "acute"]
NOTES = ["Acute heart failure; BP 120/80, type 2 diabetes.", "diabetes of the heart of the heart type 1", "xyz failure"]
CODES = ["Heart failure, acute", "Type 1 diabetes", "Type 2 diabetes", "unknown words of the longest description", "2"]


class Original(nn.Module):
    """The published architecture in plain torch, with the published names: pads are words like any other."""

    def __init__(self, config: dict):
        super().__init__()
        size, heads, wide = config["embedding_dim"], config["num_mha_heads"], config["projection_dim"]
        self.embedding = nn.Embedding(config["vocab_size"], size)
        if config["encoder_type"] == "rnn":
            states = 2 * config["rnn_hidden_size"]
            self.encoder_text, self.encoder_code = (
                nn.GRU(size, config["rnn_hidden_size"], bidirectional=True, batch_first=True) for _ in range(2)
            )
        else:
            states, kernel = config["num_filters"], config["kernel_size"]
            self.encoder_text, self.encoder_code = (
                nn.Conv1d(size, states, kernel, padding=kernel // 2) for _ in range(2)
            )
        self.projection_text_layers = nn.ModuleList(nn.Linear(states, wide) for _ in range(heads))
        self.projection_code_layers = nn.ModuleList(nn.Linear(states, wide) for _ in range(heads))
        joined = heads * states
        self.final_layer = nn.Sequential(nn.Linear(joined, joined), nn.ReLU(), nn.Linear(joined, 1))

    def forward(self, notes: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        words, described = self.embedding(notes), self.embedding(codes)
        if isinstance(self.encoder_text, nn.GRU):
            states = self.encoder_text(words)[0]
            ahead, back = self.encoder_code(described)[1]
            code = torch.cat([ahead, back], dim=1)
        else:
            states = self.encoder_text(words.mT).mT
            code = self.encoder_code(described.mT).amax(2)
        pooled = []
        for text_layer, code_layer in zip(self.projection_text_layers, self.projection_code_layers):
            keys, queries = text_layer(states).tanh(), code_layer(code).tanh()
            weights = torch.einsum("lp,btp->blt", queries, keys).softmax(-1)
            pooled.append(torch.einsum("blt,btd->bld", weights, states))
        return self.final_layer(torch.cat(pooled, dim=-1))[..., 0]


def token2id(pad: int = 0, unknown: int = 1) -> dict[str, int]:
    numbers = iter(sorted(set(range(12)) - {pad, unknown}))
    return {"<PAD>": pad, "<UNK>": unknown} | {word: next(numbers) for word in WORDS}


def original_ids(texts: list[str], numbers: dict[str, int], width: int) -> torch.Tensor:
    rows = []
    for text in texts:
        ids = [numbers.get(word, numbers["<UNK>"]) for word in text.split()][:width]
        rows.append(ids + [numbers["<PAD>"]] * (width - len(ids)))
    return torch.tensor(rows)


@pytest.fixture
def publish(tmp_path):
    """Writes a checkpoint folder with random weights and gives the folder and the model."""

    def write(kind=GRU, words=None, **more):
        config = COMMON | kind | more
        torch.manual_seed(7)
        model = Original(config).eval()
        for parameter in model.parameters():  # large, so that attention is not uniform
            nn.init.normal_(parameter, std=0.6)
        folder = tmp_path / "published"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "token2id.json").write_text(json.dumps(words or token2id()))
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        return folder, model

    return write


def our_logits(folder) -> torch.Tensor:
    checkpoint = import_checkpoint(folder)
    net, tokenizer = checkpoint.net, checkpoint.tokenizer
    assert net.settings.reference_padding and tokenizer.reference_padding
    described = [tokenizer.description_ids(text, net.settings.max_description) for text in CODES]
    net.descriptions = torch.full((len(CODES), max(map(len, described))), PAD)
    for row, ids in zip(net.descriptions, described):
        row[: len(ids)] = torch.from_numpy(ids)
    tokens = torch.from_numpy(np.stack([tokenizer.tokenize(text).ids for text in NOTES]).astype(np.int64))
    return net.logits(Batch(tokens, torch.full((len(NOTES),), tokens.shape[1])))


def original_logits(model, words, length: int = 24) -> torch.Tensor:
    prepared = [re.sub(r"(\s\d+)+\s", " ", re.sub("[^A-Za-z0-9]+", " ", text.lower())) for text in NOTES]
    codes = [text.lower() for text in CODES]
    width = min(4, max(len(text.split()) for text in codes))
    with torch.no_grad():
        return model(original_ids(prepared, words, length), original_ids(codes, words, width))


@pytest.mark.parametrize("kind", [GRU, CONV, CONV | {"kernel_size": 3}], ids=["gru", "conv", "conv of odd width"])
@pytest.mark.parametrize("specials", [(0, 1), (11, 4)], ids=["specials first", "specials elsewhere"])
def test_logits_equal_those_of_the_original(publish, kind, specials):
    words = token2id(*specials)
    folder, model = publish(kind, words)
    expected = original_logits(model, words)
    assert expected.std() > 0.5  # the comparison is not trivial
    torch.testing.assert_close(our_logits(folder), expected, atol=1e-4, rtol=0)


def logits_of(model) -> np.ndarray:
    return model.logits_of([model.tokenizer.tokenize(text) for text in NOTES])


LISTED = [(Code("icd10cm", f"X{i:02}"), text) for i, text in enumerate(CODES)]


@pytest.mark.parametrize("length", [24, 21])
@pytest.mark.parametrize("kind", [GRU, CONV], ids=["gru", "conv"])
def test_imported_bundle_codes_notes(publish, tmp_path, kind, length):
    folder, model = publish(kind | {"max_note_length": length})
    expected = original_logits(model, token2id(), length).numpy()
    import_bundle(folder, LISTED, 0.3).save(tmp_path / "bundle")
    loaded = Bundle.load(tmp_path / "bundle")
    assert loaded.decision.threshold == 0.3
    np.testing.assert_allclose(logits_of(loaded.model), expected, atol=1e-4)
    coder = Coder(loaded)
    for text, row in zip(NOTES, expected):
        suggestions = coder.code(text)
        assert [item.code for item in suggestions] == [LISTED[j][0].code for j in np.argsort(-row)]
        assert {item.code: item.description for item in suggestions} == {code.code: words for code, words in LISTED}
        assert all(text[span.start : span.end] == span.text != "" for item in suggestions for span in item.evidence)
    assert coder.code("...") == []


def test_invalid_threshold_is_refused(publish):
    with pytest.raises(ConfigError, match="threshold must be from 0 to 1; got nan"):
        import_bundle(publish()[0], LISTED, float("nan"))


def test_import_command_writes_a_bundle(publish, tmp_path, capsys):
    folder, _ = publish()
    (tmp_path / "codes.csv").write_text("code,description\nI50.9,\nI50.77,acute heart failure\n")
    (tmp_path / "note.txt").write_text(NOTES[0])
    with pytest.raises(SystemExit, match="0"):
        app(["import", "dual-laat", str(folder), "--codes", str(tmp_path / "codes.csv"), "--out", str(tmp_path / "b")])
    assert "dual_laat coder, 2 codes, threshold 0.500" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        app(["code", str(tmp_path / "b"), str(tmp_path / "note.txt"), "--top", "2"])
    shown = capsys.readouterr().out
    assert "acute heart failure" in shown and "Heart failure, unspecified" in shown


def test_descriptions_without_a_known_word_cause_a_warning(publish, tmp_path, capsys):
    folder, _ = publish()
    (tmp_path / "codes.csv").write_text("code,description\nI50.9,heart failure\n")
    (tmp_path / "other.csv").write_text("code,description\nI50.9,heart failure\nI50.77,insuficiencia cardiaca\n")
    (tmp_path / "note.txt").write_text(NOTES[0])
    expected = "other.csv describes 1 code without a word that the coder knows (I50.77)"
    for command in (
        ["import", "dual-laat", str(folder), "--out", str(tmp_path / "b")],
        ["code", str(tmp_path / "b"), str(tmp_path / "note.txt")],
    ):
        for name, cautioned in (("other.csv", True), ("codes.csv", False)):
            with pytest.raises(SystemExit, match="0"):
                app([*command, "--codes", str(tmp_path / name)])
            assert (expected in capsys.readouterr().err) is cautioned


def test_imported_model_scores_other_codes(publish, tmp_path):
    folder, model = publish()
    import_bundle(folder, LISTED[:1]).save(tmp_path / "bundle")
    coder = Coder.load(tmp_path / "bundle", codes=LISTED)
    np.testing.assert_allclose(logits_of(coder.model), original_logits(model, token2id()).numpy(), atol=1e-4)


def test_settings_and_vocabulary_are_those_of_the_checkpoint(publish):
    folder, model = publish(CONV, token2id(11, 4))
    checkpoint = import_checkpoint(folder)
    settings, embedding = checkpoint.net.settings, checkpoint.net.embedding.weight
    assert (settings.encoder, settings.width, settings.kernel, settings.heads) == ("conv", 6, 10, 3)
    assert (settings.dropout, settings.max_description, checkpoint.tokenizer.limit) == (0.3, 4, 24)
    assert checkpoint.tokenizer.vocabulary.words == tuple(WORDS) and embedding.shape[1] == 5
    assert torch.equal(embedding[PAD], model.embedding.weight[11])
    assert torch.equal(embedding[UNKNOWN], model.embedding.weight[4])


def test_ids_stay_the_same_if_the_special_tokens_are_first(publish):
    folder, model = publish()
    checkpoint = import_checkpoint(folder)
    ids = checkpoint.tokenizer.vocabulary.ids(WORDS).tolist()
    assert dict(zip(WORDS, ids)) == {word: token2id()[word] for word in WORDS}
    assert torch.equal(checkpoint.net.embedding.weight, model.embedding.weight)


class Trap:
    """Makes a file when it is unpickled by a careless program."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("form", ["torch", "plain"])
def test_pickle_that_runs_code_is_refused(publish, tmp_path, form):
    folder, model = publish()
    sprung = tmp_path / "sprung"
    state = dict(model.state_dict()) | {"trap": Trap(sprung)}
    if form == "torch":
        torch.save(state, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"trap": Trap(sprung)}))
    with pytest.raises(BundleError, match=r"pytorch_model.bin cannot be read as weights: .* more than tensors"):
        import_checkpoint(folder)
    assert not sprung.exists()
    if form == "plain":  # the trap is a real one
        pickle.loads((folder / "pytorch_model.bin").read_bytes())["trap"].close()
        assert sprung.exists()


@pytest.mark.parametrize("name", ["config.json", "token2id.json", "pytorch_model.bin"])
def test_missing_and_damaged_files_are_refused(publish, name):
    folder, _ = publish()
    original = (folder / name).read_bytes()
    for content in (original[: len(original) // 2], b"", b"\x80\x04garbage", b"[1, 2]", b"\x00" * 100):
        (folder / name).write_bytes(content)
        with pytest.raises(BundleError, match=re.escape(name)):
            import_checkpoint(folder)
    (folder / name).unlink()
    with pytest.raises(BundleError, match=f"is incomplete: {name} is missing"):
        import_checkpoint(folder)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(BundleError, match="is no folder with a DualLAAT checkpoint"):
        import_checkpoint(tmp_path / "nowhere")


def test_flipped_byte_raises_nothing_but_bundle_error(publish):
    folder, _ = publish()
    path = folder / "pytorch_model.bin"
    original = bytearray(path.read_bytes())
    for position in range(0, len(original), len(original) // 60):
        damaged = bytearray(original)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            import_checkpoint(folder)
        except BundleError as error:
            assert str(folder) in str(error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder_type": "bert"}, "encoder_type must be rnn or cnn; got 'bert'"),
        ({"rnn_type": "lstm"}, "rnn must be one layer of gru; got 1 of 'lstm'"),
        ({"rnn_num_layers": 2}, "rnn must be one layer of gru; got 2 of 'gru'"),
        ({"rnn_hidden_size": 7}, "rnn_hidden_size must be 6, as the weights have it; got 7"),
        ({"vocab_size": 13}, "vocab_size must be 12"),
        ({"embedding_dim": "5"}, "embedding_dim must be 5, as the weights have it; got '5'"),
        ({"num_mha_heads": 4}, "num_mha_heads must be 3"),
        ({"projection_dim": None}, "projection_dim must be 6"),
        ({"dropout": "much"}, "dropout input should be a valid number"),
        ({"max_note_length": 0}, "max_note_length must be a whole number from 1 to 32,768; got 0"),
        ({"max_note_length": 1_000_000}, "got 1000000"),
        ({"max_code_length": [48]}, "max_code_length must be a whole number"),
    ],
)
def test_wrong_config_is_refused(publish, change, message):
    folder, _ = publish()
    (folder / "config.json").write_text(json.dumps(COMMON | GRU | change))
    with pytest.raises(BundleError, match=re.escape(message)):
        import_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_layer.2.bias": None}, "final_layer.2.bias is missing"),
        ({"embedding.weight": None}, "embedding.weight is missing"),
        ({"embedding.weight": torch.zeros(5)}, "embedding.weight must have 2 sizes"),
        ({"more.weight": torch.zeros(5)}, "it has no place for 'more.weight'"),
        ({"final_layer.0.bias": torch.zeros(5)}, "final_layer.0.bias must have the sizes (36,); got (5,)"),
        ({"encoder_code.weight_ih_l0": torch.zeros(18, 6)}, "encoder_code.weight_ih_l0 must have the sizes (18, 5)"),
        ({"final_layer.2.bias": torch.tensor([torch.nan])}, "final_layer.2.bias must hold finite numbers"),
        ({"final_layer.2.bias": torch.tensor([1])}, "must be a dense tensor of floating-point numbers"),
        ({"final_layer.0.bias": torch.zeros(1).expand(36)}, "final_layer.0.bias must be stored in full"),
        ({"note": "text"}, "'note' must be a dense tensor"),
    ],
)
def test_wrong_weights_are_refused(publish, change, message):
    folder, model = publish()
    state = {name: value for name, value in (dict(model.state_dict()) | change).items() if value is not None}
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(BundleError, match=re.escape(message)):
        import_checkpoint(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({word: number for word, number in token2id().items() if word != "<UNK>"}, "<UNK> is missing"),
        (token2id() | {"heart": 3}, "must give each of the 12 rows of embedding.weight to one word"),
        (token2id() | {"heart": "2"}, "must give each of the 12 rows"),
        (token2id() | {"more": 12}, "must give each of the 12 rows"),
    ],
)
def test_wrong_vocabulary_is_refused(publish, words, message):
    folder, _ = publish(words=words)
    with pytest.raises(BundleError, match=re.escape(message)):
        import_checkpoint(folder)


def test_both_formats_of_torch_are_read(publish):
    folder, model = publish()
    assert zipfile.is_zipfile(folder / "pytorch_model.bin")
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(import_checkpoint(folder).net.embedding.weight, model.embedding.weight)
