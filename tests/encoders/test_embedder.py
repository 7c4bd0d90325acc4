"""The embedder: vectors of notes, compared with sentence-transformers."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import ConfigError, DataError
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import KNOWN_EMBEDDERS, POOLING_MODES, EmbedderSettings
from nosology.encoders.packed import PackedTransformer, PaddedTransformer, pool
from nosology.encoders.transformer import minilm_folder
from tests.encoders.tiny import WORDS
from tests.encoders.tiny_embedders import KINDS, tiny_embedder

SHORT = [
    "Chest pain, shortness of breath; troponin negative.",
    "COPD",
    "Type 2 diabetes mellitus without complications.\n\nHypertension, controlled. " * 6,
    "héart  fäilure — 12.5 mg b.i.d.",
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder.load(EmbedderSettings(), "cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that returns the folder of a tiny embedder; each is built once."""
    built = {}

    def get(kind, modes=("mean",), **options):
        name = f"{kind}-{'-'.join(modes)}-{sorted(options.items())}"
        if name not in built:
            built[name] = tiny_embedder(tmp_path_factory.mktemp("tiny") / "model", kind, modes, **options)
        return built[name]

    return get


LIMITS = "sentence_bert_config.json"


def load(folder, **options) -> Embedder:
    return Embedder.load(EmbedderSettings(model=str(folder), **options), "cpu")


def texts(n: int, seed: int = 0, longest: int = 50) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(n)]


def oracle(folder, inputs: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(inputs, show_progress_bar=False)


def test_short_texts_equal_sentence_transformers(embedder):
    assert np.allclose(embedder.embed(SHORT), oracle(minilm_folder(), SHORT), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("modes", [("mean",), ("cls",), ("lasttoken",)])
def test_every_architecture_and_pooling_equals_sentence_transformers(folders, kind, modes):
    folder = folders(kind, modes)
    inputs = texts(9)
    assert np.allclose(load(folder).embed(inputs), oracle(folder, inputs), atol=1e-5)


@pytest.mark.parametrize(
    "modes, options",
    [
        *(((mode,), {"normalise": False}) for mode in POOLING_MODES),
        (("cls", "mean", "max"), {}),
        (("mean",), {"dense": 5}),
        (("mean", "lasttoken"), {"dense": 7, "normalise": False}),
    ],
)
def test_pooling_dense_and_normalize_equal_sentence_transformers(folders, modes, options):
    folder = folders("bert", modes, **options)
    loaded, inputs = load(folder), texts(5)
    vectors = loaded.embed(inputs)
    assert vectors.shape == (5, loaded.dim)
    assert np.allclose(vectors, oracle(folder, inputs), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_padding_and_packs_do_not_change_a_vector(folders, kind):
    loaded = load(folders(kind, ("mean",)), window=20)
    inputs = texts(13, seed=1)
    alone = np.concatenate([loaded.embed([text]) for text in inputs])
    assert np.allclose(loaded.embed(inputs), alone, atol=1e-5)
    assert np.allclose(loaded.embed(inputs[::-1])[::-1], alone, atol=1e-5)
    for loaded.batch_tokens, loaded.pack_tokens in ((1, 1), (30, 7), (50, 500), (10_000, 64)):
        assert np.allclose(loaded.embed(inputs), alone, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "modernbert"])
def test_packed_states_equal_padded_states(folders, kind):
    packed = load(folders(kind))._net
    assert isinstance(packed, PackedTransformer)
    ids = torch.randint(4, 60, (23,))
    lengths = [9, 5, 5, 3, 1]
    with torch.no_grad():
        loaded = packed(ids, lengths)
        packed.model.set_attn_implementation("eager")
        expected = PaddedTransformer(packed.model, 0)(ids, lengths)
    assert torch.allclose(loaded, expected, atol=1e-5)


@pytest.mark.parametrize("kind, aligned", [("qwen3", False), ("qwen3", True), ("xlm-roberta", False)])
def test_filler_of_compiled_packs_does_not_change_states(folders, kind, aligned):
    """With the backend `eager`: the tracer decides about recompilation; code for GPUs is not generated."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folders(kind)).eval().requires_grad_(False)
    packed, ids = PackedTransformer(model, aligned), torch.randint(4, 60, (200,))
    packs = [[90, 50, 30, 20, 10], [100, 100], [200], [64, 64, 62, 10]]
    with torch.inference_mode():
        expected = [packed(ids, lengths) for lengths in packs]
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        assert packed.compile_layers(320, backend="eager")
        for lengths, states in zip(packs, expected):
            assert torch.allclose(packed(ids, lengths), states, atol=1e-5)
        assert torch.allclose(packed(ids[:40], [30, 10]), packed(ids, [30, 10, 160])[:40], atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
    torch._dynamo.reset()


def test_failed_compilation_leaves_the_model_usable(folders):
    loaded = load(folders("bert"))
    before = loaded.embed(["back pain"])
    assert not loaded._net.compile_layers(320, backend="no such compiler")
    assert np.array_equal(loaded.embed(["back pain"]), before)
    assert not loaded.compile()  # no GPU here


def test_unsupported_architecture_is_padded(folders):
    assert isinstance(load(folders("modernbert"))._net, PaddedTransformer)


@pytest.mark.parametrize("modes", [("mean",), ("cls",), ("lasttoken",)])
def test_long_note_is_the_token_weighted_mean_of_its_windows(folders, modes):
    """Compared with windows that are run one by one."""
    loaded = load(folders("bert", modes, normalise=False, window=12))
    text = " ".join(texts(3, seed=2, longest=20))
    pieces = loaded._tokenizer.token_ids([text])[0]
    assert loaded.window == 12 and len(pieces) > 20
    total = np.zeros(loaded.dim)
    for start in range(0, len(pieces), 10):
        window = pieces[start : start + 10]
        ids = torch.tensor([*loaded._tokenizer.prefix_ids, *window.tolist(), *loaded._tokenizer.suffix_ids])
        with torch.no_grad():
            states = loaded._net(ids, [len(ids)])
        vector = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[modes[0]]
        total += len(window) / len(pieces) * vector.numpy()
    assert np.allclose(loaded.embed([text])[0], total, atol=1e-5)


def test_batch_reports_tokens_and_windows(folders):
    loaded = load(folders("bert", window=12), max_tokens=30)
    inputs = ["", "pain", "pain " * 10, "pain " * 11, "pain " * 28, "pain " * 500, " \n "]
    (part,) = loaded.embed_batches(inputs)
    back = np.argsort(part.rows)
    assert part.tokens[back].tolist() == [0, 3, 12, 13, 30, 502, 0]
    assert part.windows[back].tolist() == [0, 1, 1, 2, 3, 3, 0]
    assert part.read[back].tolist() == [0, 3, 12, 15, 34, 34, 0]
    vectors = loaded.embed(inputs)
    assert not vectors[[0, 6]].any() and vectors[1:6].any(axis=1).all()
    assert np.allclose(vectors[4], vectors[5], atol=1e-6)  # nothing behind max_tokens is read
    assert loaded.embed([]).shape == (0, 16)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_blank_notes_are_zero_with_any_prompt(folders, kind):
    assert not load(folders(kind), prompt="type 2: ").embed(["", " ", "\n\t", "\u00a0"]).any()


def test_max_tokens_zero_reads_the_whole_note(folders):
    loaded = load(folders("bert", window=12), max_tokens=0)
    (part,) = loaded.embed_batches(["pain " * 500])
    assert part.tokens.tolist() == [502] and part.windows.tolist() == [50]


def test_prompt_precedes_each_window(folders):
    folder = folders("bert", ("mean",), normalise=False)
    plain, prompted = load(folder), load(folder, prompt="type 2: ")
    assert np.allclose(prompted.embed(["back pain"]), plain.embed(["type 2: back pain"]), atol=1e-6)
    windows = load(folder, prompt="type 2: ", window=9)  # [CLS] type 2 : and [SEP] leave room for four
    halves = plain.embed(["type 2: chronic low back pain", "type 2: heart failure pneumonia of"])
    vector = windows.embed(["chronic low back pain heart failure pneumonia of"])
    assert np.allclose(vector[0], halves.mean(0), atol=1e-5)


def test_prompt_can_be_excluded_from_pooling(folders, tmp_path):
    folder = shutil.copytree(folders("bert", ("mean",), normalise=False), tmp_path / "model")
    about = {"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(about))
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu").encode(["back pain"], prompt="type 2: ")
    assert np.allclose(load(folder, prompt="type 2: ").embed(["back pain"]), expected, atol=1e-5)


def test_prompt_from_the_folder_is_used(folders, tmp_path):
    folder = shutil.copytree(folders("bert"), tmp_path / "model")
    about = {"prompts": {"document": "low back: "}, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    assert np.allclose(load(folder).embed(["pain"]), oracle(folder, ["pain"]), atol=1e-5)
    assert load(folder).identity["prompt"] == "low back: "


def test_key_depends_on_content_and_settings_not_on_path(folders, tmp_path):
    folder = folders("bert")
    key = load(folder).key
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert load(copy).key == key
    assert json.loads(json.dumps(load(copy).identity)) == load(folder).identity
    assert "elsewhere" not in json.dumps(load(copy).identity)
    others = [
        load(folder, **change).key for change in ({"max_tokens": 9}, {"window": 9}, {"prompt": "x"}, {"pooling": "cls"})
    ]
    assert load(folders("bert", ("cls",))).key == others[-1]
    others.append(load(folders("qwen3")).key)
    weights = copy / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    others.append(load(copy).key)
    for file, name, value in (("1_Pooling/config.json", "include_prompt", False), (LIMITS, "do_lower_case", True)):
        path = copy / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | {name: value}))
        others.append(load(copy).key)
    assert len({key, *others}) == len(others) + 1


def test_known_embedders_read_as_many_tokens_as_those_of_xu_and_dray():
    assert all(known.window == 8192 for name, known in KNOWN_EMBEDDERS.items() if name != "minilm")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model": "no/such-model"}, "embedder.model must be one of minilm, qwen3"),
        ({"model": "qwen3-embedding-0.6b"}, "embedder.model must be one of"),
        ({"window": 513}, "window must be at most 512"),
        ({"window": 2}, "window must be more than 2"),
        ({"max_tokens": 2}, "max_tokens must be more than 2"),
    ],
)
def test_unusable_settings_raise_config_error(options, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message):
        Embedder.load(EmbedderSettings(**options), "cpu")


def test_unknown_device_raises_config_error():
    with pytest.raises(ConfigError, match="device must be one that this machine has"):
        Embedder.load(EmbedderSettings(), "nonsense")


def test_remote_code_is_refused_unless_trusted(folders, tmp_path):
    folder = shutil.copytree(folders("qwen2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="trust_remote_code"):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_trusted_remote_code_is_run_and_part_of_the_key(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "programs"))
    monkeypatch.setattr("sys.path", [*sys.path])
    plain = load(folders("qwen2"))
    folder = shutil.copytree(folders("qwen2"), tmp_path / "trusted")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_mine.Mine"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_mine.py").write_text(
        "from transformers import Qwen2Model\n\nclass Mine(Qwen2Model):\n    pass\n"
    )
    loaded = load(folder, trust_remote_code=True)
    assert (
        loaded.identity["architecture"] == "Mine"
        and isinstance(loaded._net, PaddedTransformer)
        and loaded.key != plain.key
    )
    assert np.allclose(loaded.embed(texts(4)), plain.embed(texts(4)), atol=1e-5)


def test_short_names_set_prompt_window_and_end_token(folders, monkeypatch):
    folders_by_name = {"nomic-v1.5": folders("nomic_bert"), "qwen3-embedding-0.6b": folders("qwen3", ("lasttoken",))}
    monkeypatch.setattr("nosology.encoders.embedder.locate_model", lambda settings: folders_by_name[settings.model])
    nomic = Embedder.load(EmbedderSettings(model="nomic-v1.5"), "cpu")
    assert nomic.identity["prompt"] == "search_document: " and nomic.window == 8192 and nomic.name == "nomic-v1.5"
    bare = Embedder.load(EmbedderSettings(model="nomic-v1.5", prompt=" "), "cpu")
    assert np.allclose(nomic.embed(["back pain"]), bare.embed(["search_document: back pain"]), atol=1e-5)
    qwen = Embedder.load(EmbedderSettings(model="qwen3-embedding-0.6b"), "cpu")
    assert qwen.window == 8192 and len(qwen._tokenizer.suffix_ids) == 1
    assert Embedder.load(EmbedderSettings(model="qwen3-embedding-0.6b", window=30), "cpu").window == 30


@pytest.mark.parametrize(
    "file, message",
    [
        ("config.json", "is damaged"),
        ("tokenizer.json", "that transformers can load"),
        ("modules.json", "modules.json is damaged"),
        ("1_Pooling/config.json", "is damaged"),
        ("2_Dense/model.safetensors", "must contain a layer"),
    ],
)
def test_damaged_folders_raise_config_error(folders, tmp_path, file, message):
    folder = shutil.copytree(folders("bert", ("mean",), dense=5), tmp_path / "model")
    (folder / file).write_text("{")
    with pytest.raises(ConfigError, match=message):
        load(folder)


def test_pickled_weights_are_not_opened(folders, tmp_path):
    folder = shutil.copytree(folders("bert"), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"\.safetensors"):
        load(folder)


def test_modules_outside_the_folder_are_refused(folders, tmp_path):
    folder = shutil.copytree(folders("bert"), tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="inside its own"):
        load(folder)


def test_vectors_that_are_not_finite_raise(folders):
    loaded = load(folders("bert", ("mean",), normalise=False, window=30))
    loaded._net.model.embeddings.word_embeddings.weight[5] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        loaded.embed([" ".join(WORDS)])


def test_any_text_can_be_embedded(embedder):
    loaded = embedder.embed(["a\ud800b", "\x00\x01", "\u202e\ufeff", "😀 " * 3])
    assert np.isfinite(loaded).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(POOLING_MODES), st.integers(0, 3))
def test_pooling_of_packed_texts_equals_each_text_alone(lengths, mode, seed):
    torch.manual_seed(seed)
    states = torch.randn(sum(lengths), 3)
    loaded = pool(states, torch.tensor(lengths), (mode,))
    parts = states.split(lengths)
    expected = {
        "cls": lambda x: x[0],
        "lasttoken": lambda x: x[-1],
        "max": lambda x: x.max(0).values,
        "mean": lambda x: x.mean(0),
        "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
        "weightedmean": lambda x: (torch.arange(1, len(x) + 1.0) @ x) / (len(x) * (len(x) + 1) / 2),
    }[mode]
    assert torch.allclose(loaded, torch.stack([expected(part) for part in parts]), atol=1e-5)
