"""Files that were edited by hand or damaged, and extreme values: each gives one sentence, without text of a note."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

from nosology.core.files import json_sha256, sha256
from nosology.models.weights_check import has_nan
from tests.conftest import FILLER

DEEP = json.loads("[" * 300 + "]" * 300)
MANIFESTS = {
    "splits as a list": (("counts", "splits"), ["train"]),
    "splits as a number": (("counts", "splits"), 5),
    "numbers of splits as text": (("counts", "splits"), {"train": "80"}),
    "notes as a fraction": (("counts", "notes"), 160.0),
    "notes as text": (("counts", "notes"), "160"),
    "counts as a list": (("counts",), [1]),
    "source as a string": (("source",), "test"),
    "filters as a string": (("filters",), "none"),
    "filters of numbers": (("filters",), [1]),
    "no filters": (("filters",), None),
    "hash as a list": (("hash",), ["a"]),
    "nested source": (("source",), {"kind": DEEP}),
}
CODE = {"system": "icd10cm", "code": "I10"}
NOTES = {
    "null id": ("id", None, None),
    "null text": ("text", None, None),
    "null codes": ("codes", None, None),
    "null code": ("codes", [{"system": "icd10cm", "code": None}], None),
    "unknown system": ("codes", [{"system": "icd11", "code": "BA00"}], None),
    "unknown split": ("split", "later", None),
    "extra as a list": ("extra", "[1]", None),
    "extra that is not JSON": ("extra", "{", None),
    "nested extra": ("extra", '{"a": ' + "[" * 1000 + "]" * 1000 + "}", None),
    "endlessly nested extra": ("extra", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", None),
    "evidence without a start": ("evidence", [{**CODE, "start": None, "end": 3, "extra": None}], None),
    "ids as numbers": ("id", 7, pa.int64()),
    "texts as numbers": ("text", 7, pa.int64()),
    "patients as numbers": ("patient", 7, pa.int64()),
    "codes as text": ("codes", "I10", pa.string()),
}


def sign(folder, manifest, name="corpus.json"):
    """Writes a manifest with the digest of its content, as somebody would who knows the format."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    (folder / name).write_text(json.dumps(content | {"digest": json_sha256(content)}))


def change_manifest(folder, path, value, name="corpus.json"):
    manifest = json.loads((folder / name).read_text())
    table = manifest
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    sign(folder, manifest, name)


def change_notes(folder, column, value, kind):
    table = parquet.read_table(folder / "notes.parquet")
    rows, schema = table.to_pylist(), table.schema
    for row in rows if kind is not None else rows[3:4]:  # note 3 is a test note
        row[column] = value
    if kind is not None:
        schema = schema.set(schema.get_field_index(column), pa.field(column, kind))
    parquet.write_table(pa.Table.from_pylist(rows, schema), folder / "notes.parquet")
    change_manifest(folder, ("sha256",), sha256(folder / "notes.parquet"))


def check_sentence(result):
    """The message of a command that failed: one sentence, not a word of a note."""
    code, _, err = result
    lines = [line for line in err.splitlines() if not line.startswith("caution: ")]
    assert code == 1 and len(lines) == 1 and lines[0].startswith("nosology: "), err
    assert len(lines[0]) < 600 and not any(f" {word} " in lines[0] for word in FILLER[1:6])
    return lines[0]


@pytest.mark.parametrize("change", [*MANIFESTS, *NOTES])
def test_a_corpus_that_was_edited_by_hand(run, small_corpus, small_bundle, tmp_path, change):
    folder = tmp_path / "corpus"
    shutil.copytree(small_corpus.folder, folder)
    if change in MANIFESTS:
        change_manifest(folder, *MANIFESTS[change])
    else:
        change_notes(folder, *NOTES[change])
    commands = [
        ["corpus", "stats", folder],
        ["corpus", "split", folder, "--out", tmp_path / "split"],
        ["corpus", "audit", folder],
        ["evaluate", small_bundle, "--corpus", folder, "--out", tmp_path / "report"],
    ]
    for words in commands[:3] if change == "unknown split" else commands:  # a split that is not read
        assert "damaged" in (line := check_sentence(run(*words))) or "must be" in line
    assert not (tmp_path / "split").exists() and not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("recipe", "setting", "sentence"),
    [
        *((kind, "seed=20241116123456", "seed should be at most") for kind in ("caml", "laat", "dual_laat", "lexicon")),
        ("caml", "vectors.size=2000000000", "vectors.size should be less than or equal to 10000"),
        ("caml", "model.filters=1000000000", "model.filters should be less than or equal to 100000"),
        ("laat", "model.hidden=1000000000", "model.hidden should be less than or equal to 100000"),
        ("dual_laat", "model.width=1000000000", "model.width should be less than or equal to 100000"),
        ("caml", "training.batch=2000000000", "training.batch should be less than or equal to 1000000"),
        ("caml", f"training.epochs={'9' * 26}", "training.epochs should be"),
        ("linear", "features.pair_weight=1e308", "pair_weight should be less than or equal to 1000"),
        ("linear", f"seed={'9' * 5000}", "seed"),
        ("linear", f"seed={'[' * 300}{']' * 300}", "seed should be a valid integer"),
    ],
)
def test_settings_that_no_machine_can_train(run, small_corpus, tmp_path, recipe, setting, sentence):
    result = run("train", recipe, "--corpus", small_corpus.folder, "--out", tmp_path / "b", "--set", setting)
    assert sentence in check_sentence(result) and not (tmp_path / "b").exists()


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "9" * 5000, "[" * 90 + "]" * 90])
def test_a_recipe_with_a_value_that_cannot_be_read(run, small_corpus, tmp_path, text):
    (tmp_path / "recipe.toml").write_text(f'kind = "linear"\nseed = {text}\n')
    result = run("train", tmp_path / "recipe.toml", "--corpus", small_corpus.folder, "--out", tmp_path / "b")
    assert "recipe.toml" in check_sentence(result)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 2 GiB", "Storage size calculation overflowed with sizes=[9]"]
)
def test_memory_that_is_missing_is_a_sentence(run, small_corpus, monkeypatch, message):
    def fail(*_):
        raise RuntimeError(message)

    monkeypatch.setattr("nosology.corpora.corpus.Corpus.open", fail)
    assert "not enough memory" in check_sentence(run("corpus", "stats", small_corpus.folder))


def copy_bundle(bundle, folder):
    shutil.copytree(bundle, folder)
    return folder


def test_weights_that_are_not_numbers(run, small_bundle, small_corpus, tmp_path):
    folder = copy_bundle(small_bundle, tmp_path / "bundle")
    assert not has_nan(folder / "model.safetensors")
    arrays = load_file(folder / "model.safetensors")
    arrays["bias"][-1] = np.nan
    save_file(arrays, folder / "model.safetensors")
    change_manifest(folder, ("files", "model.safetensors"), sha256(folder / "model.safetensors"), "bundle.json")
    (tmp_path / "note.txt").write_text("type 2 diabetes")
    for words in (["code", folder, tmp_path / "note.txt"], ["evaluate", folder, "--corpus", small_corpus.folder]):
        more = ["--out", tmp_path / "r"] if words[0] == "evaluate" else []
        assert "not numbers (NaN)" in check_sentence(run(*words, *more))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(("value", "expected"), [(np.nan, True), (-np.nan, True), (np.inf, False), (-1.5, False)])
def test_nan_is_found_in_each_type(tmp_path, kind, value, expected):
    save_file({"a": np.arange(3), "b": np.array([0, value, 1], kind)}, tmp_path / "w.safetensors")
    assert has_nan(tmp_path / "w.safetensors") == expected


def test_nan_is_found_in_bfloat16(tmp_path):
    import torch
    from safetensors.torch import save_file as save_tensors

    for value, expected in ((float("nan"), True), (float("-inf"), False)):
        save_tensors({"a": torch.tensor([1.0, value], dtype=torch.bfloat16)}, tmp_path / "w.safetensors")
        assert has_nan(tmp_path / "w.safetensors") == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("recipe", "seed"), DEEP),
        (("provenance", "found"), DEEP),
        (("provenance", "trained_on"), 5),
        (("provenance", "corpora"), ["a"]),
        (("decision",), [1]),
    ],
)
def test_a_bundle_that_was_edited_by_hand(run, small_bundle, small_corpus, tmp_path, path, value):
    folder = copy_bundle(small_bundle, tmp_path / "bundle")
    change_manifest(folder, path, value, "bundle.json")
    result = run("evaluate", folder, "--corpus", small_corpus.folder, "--out", tmp_path / "r")
    assert "bundle.json is damaged" in check_sentence(result)


def test_nested_model_file(run, small_bundle, tmp_path):
    folder = copy_bundle(small_bundle, tmp_path / "bundle")
    (folder / "model.json").write_text("[" * 100_000 + "]" * 100_000)
    change_manifest(folder, ("files", "model.json"), sha256(folder / "model.json"), "bundle.json")
    (tmp_path / "note.txt").write_text("type 2 diabetes")
    assert "cannot be read: RecursionError" in check_sentence(run("code", folder, tmp_path / "note.txt"))


@pytest.mark.parametrize("content", [b"no database" * 500, b"SQLite format 3\0" + b"\1" * 5000])
def test_a_store_that_is_no_database(run, small_bundle, tmp_path, content):
    store = tmp_path / "store.db"
    store.write_bytes(content)
    for words in (["serve", small_bundle, "--store", store], ["corpus", "prepare", "reviews", store]):
        more = ["--out", tmp_path / "c"] if words[0] == "corpus" else []
        assert "is no SQLite database, or is damaged" in check_sentence(run(*words, *more))


@pytest.mark.parametrize(("start", "end"), [(100, 200), (8192, None), (6000, None)])
def test_a_store_that_is_damaged(run, tmp_path, start, end):
    from nosology.workbench.database import open_database

    open_database(str(tmp_path / "store.db")).dispose()
    content = bytearray((tmp_path / "store.db").read_bytes())
    content[start:end] = b"" if start == 6000 else b"Z" * len(content[start:end])
    (tmp_path / "store.db").write_bytes(content)
    assert "store is damaged" in check_sentence(
        run("corpus", "prepare", "reviews", tmp_path / "store.db", "--out", tmp_path / "c")
    )


@pytest.mark.parametrize("years", ["²⁰⁰⁸-2019", "9" * 5000 + "-2019", "2008-" + "9" * 20, "2008"])
def test_years_that_are_no_years(run, tmp_path, years):
    assert "--years must be two years" in check_sentence(run("simulate", "--out", tmp_path / "h", "--years", years))


def test_a_certificate_cannot_be_valid_for_ages(run, tmp_path):
    code, _, err = run("federate", "keys", "--out", tmp_path, "--host", "localhost", "--days", "999999999")
    assert code == 2 and "999999999 is not in the range 1<=x<=3650" in err and not any(tmp_path.iterdir())


def nosology(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "nosology", *map(str, words)], capture_output=True, text=True, timeout=60, **options
    )


def test_standard_input_that_is_closed(small_bundle):
    ended = nosology("code", small_bundle, "-", preexec_fn=lambda: os.close(0))
    assert ended.returncode == 0 and ended.stderr == "caution: - is empty: there is nothing to code\n"


def test_warnings_as_errors(small_corpus):
    ended = nosology("corpus", "stats", small_corpus.folder, env=os.environ | {"PYTHONWARNINGS": "error"})
    assert ended.returncode == 0 and ended.stderr == "" and "160" in ended.stdout


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.2, 0.3])
def test_an_interrupt_while_modules_are_imported(small_corpus, delay):
    """The first line of `nosology.__main__` is the earliest moment that the program can handle it."""
    program = (
        "import nosology.__main__ as program, sys; print('ready', flush=True); "
        "sys.argv = ['nosology', 'corpus', 'audit', sys.argv[1]]; program.main()"
    )
    command = [sys.executable, "-c", program, str(small_corpus.folder)]
    # Ctrl-C may be ignored if the tests run in the background
    hearing = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=hearing, **pipes) as process:
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert err.splitlines()[-1].startswith("nosology: interrupted; no incomplete output")
