"""The verbs as a user types them: right ones, wrong ones, and what is left behind."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from nosology.corpora.corpus import write_corpus
from nosology.corpora.notes_file import note_to_json
from tests.conftest import small_notes

SET = ["--set", "decision.threshold=1"]
SECRET = "xyzzyplugh"  # stands in every note below and must stand in no message


@pytest.fixture
def notes_file(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(note_to_json(note)) + "\n" for note in small_notes(120)))
    return path


def test_from_notes_file_to_predictions(run, notes_file, tmp_path):
    assert run("corpus", "prepare", "table", notes_file, "--out", tmp_path / "c")[0] == 0
    code, out, _ = run("train", "linear", "--corpus", tmp_path / "c", "--out", tmp_path / "b", "--refit")
    assert code == 0 and "6 codes" in out
    code, out, err = run(
        "evaluate", tmp_path / "b", "--corpus", tmp_path / "c", "--split", "test", "--out", tmp_path / "r"
    )
    assert code == 0 and "micro_f1" in out and err == ""
    assert (tmp_path / "r" / "metrics.json").is_file()
    code, out, _ = run("code", tmp_path / "b", notes_file, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [record["id"] for record in records] == [f"n{i}" for i in range(120)]
    first = records[0]["codes"][0]
    assert set(first) == {"system", "code", "description", "probability", "accepted", "evidence"}
    assert set(first["evidence"][0]) == {"start", "end", "text", "score"}


def test_text_files_standard_input_and_old_encodings(run, small_bundle, tmp_path, monkeypatch):
    (tmp_path / "old.txt").write_bytes("Señora with congestive heart failure".encode("cp1252"))
    (tmp_path / "empty.txt").write_text("")
    code, out, _ = run("code", small_bundle, tmp_path / "old.txt", tmp_path / "empty.txt")
    assert code == 0
    assert "old.txt: 1 code" in out and "I50.9" in out and "empty.txt: 0 codes" in out
    stdin = type("Stdin", (), {"buffer": io.BytesIO(b"type 2 diabetes")})()
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, _ = run("code", small_bundle, "-", "--json", "--top", "1")
    assert json.loads(out)["id"] == "-"
    assert [item["code"] for item in json.loads(out)["codes"]] == ["E11.9"]


def test_systems_when_coding(run, small_bundle, tmp_path):
    note = tmp_path / "n.txt"
    note.write_text("congestive heart failure")
    _, out, _ = run("code", small_bundle, note, "--json", "--system", "icd9cm", "--system", "icd10pcs")
    assert {item["system"] for item in json.loads(out)["codes"]} == {"icd9cm", "icd10pcs"}


def test_patients_on_two_sides_of_two_corpora_are_counted_and_not_named(run, small_corpus, tmp_path, monkeypatch):
    years = [replace(note, id=f"old-{note.id}", split="test") for note in small_notes(12, seed=1)]
    other = write_corpus(years, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    words = ["train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "bundle"]
    assert run(*words)[2] == ""
    code, out, err = run(*words, "--corpus", other.folder)
    assert code == 0 and "linear coder" in out
    assert err.startswith("caution: 6 patients are in train of one corpus and in dev or test of another")
    assert err.count("\n") == 1 and "split that" in err and not any(note.patient in err for note in years)
    monkeypatch.setenv("RANK", "1")
    assert run(*words, "--corpus", other.folder)[1:] == ("", "")


def test_of_several_processes_the_first_writes_and_speaks(run, small_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    code, out, err = run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "bundle")
    assert (code, out, err) == (0, "", "")
    assert not (tmp_path / "bundle").exists()


def test_a_set_of_codes_and_a_threshold_of_its_own(run, small_bundle, small_corpus, tmp_path):
    words = ["evaluate", small_bundle, "--corpus", small_corpus.folder, "--codes", "frequent", "--tune"]
    code, _, err = run(*words, "--out", tmp_path / "r")
    assert code == 0 and err == ""
    made = json.loads((tmp_path / "r" / "provenance.json").read_text())
    assert made["codes"].startswith("frequent (10 notes or more)") and made["threshold"].startswith("tuned on the dev")


def test_settings_when_coding(run, small_bundle, tmp_path):
    note = tmp_path / "n.txt"
    note.write_text(f"congestive heart failure {SECRET}")
    accepted = [
        sum(item["accepted"] for item in json.loads(run("code", small_bundle, note, "--json", *more)[1])["codes"])
        for more in ([], ["--set", "decision.threshold=0"], ["--set", "decision.threshold=1"])
    ]
    assert accepted[0] == 1 < accepted[1]
    assert accepted[2] <= 1
    code, _, err = run("code", small_bundle, note, "--set", "fit.negatives=7")
    assert code == 1 and "only decision.threshold" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "liner", "--corpus", "{corpus}", "--out", "{out}"], "recipe must be a file or one of"),
        (["train", "linear", "--corpus", "/no/where", "--out", "{out}"], "is no corpus: it has no corpus.json"),
        (["train", "linear", "--corpus", "{corpus}", "--out", "{out}", "--set", "fit.k=1"], "[fit] has no key 'k'"),
        (["train", "linear", "--corpus", "{corpus}", "--out", "{corpus}"], "will not overwrite"),
        (["code", "/no/bundle", "{note}"], "is no bundle: it holds no bundle.json"),
        (["code", "{bundle}", "/no/note.txt"], "no such note: /no/note.txt"),
        (["code", "{bundle}", "{note}", "--release", "1066"], "release must be one of"),
        (["code", "{bundle}", "{broken}"], "broken.jsonl row 2"),
        (["code", "{bundle}", "{note}", "--system", "icd11"], "system must be one of icd9cm"),
        (["code", "{bundle}", "{note}", "--codes", "{codes}"], "it knows only the codes it was trained on"),
        (["code", "{bundle}", "{note}", "--codes", "{broken}"], "must name the columns code, description, system"),
        (["code", "{bundle}", "{note}", "--codes", "/no/codes.csv"], "cannot read the list of codes /no/codes.csv"),
        (
            ["evaluate", "{bundle}", "--corpus", "{corpus}", "--codes", "seldom", "--out", "{out}"],
            "codes must be one of full, frequent, rare, known; got 'seldom'",
        ),
        (
            [
                "evaluate",
                "{bundle}",
                "--corpus",
                "{corpus}",
                "--out",
                "{out}",
                "--tune",
                "--set",
                "decision.threshold=1",
            ],
            "either --tune finds the threshold",
        ),
        (["evaluate", "{bundle}", "--corpus", "{corpus}", "--split", "tset", "--out", "{out}"], "split must be one of"),
        (
            ["import", "dual-laat", "/no/checkpoint", "--codes", "{codes}", "--out", "{out}"],
            "/no/checkpoint is no folder with a DualLAAT checkpoint",
        ),
        (["corpus", "prepare", "mimic5", "{corpus}", "--out", "{out}"], "mimic5"),
        (["simulate", "--patients", "3", "--layout", "epic", "--out", "{out}"], "mimic4"),
        (["corpus", "prepare", "table", "x" * 300 + ".jsonl", "--out", "{out}"], "File name too long"),
        (["corpus", "stats", "x" * 300], "File name too long"),
        (["corpus", "split", "{corpus}", "--official", "x" * 300, "--out", "{out}"], "File name too long"),
        (["codes", "show", "QQQ"], "QQQ"),
        (["codes", "map", "428.0", "--to", "icd11"], "icd11"),
    ],
)
def test_wrong_input_is_one_sentence(run, words, sentence, small_corpus, small_bundle, tmp_path):
    note, broken, out = tmp_path / "note.txt", tmp_path / "broken.jsonl", tmp_path / "out"
    note.write_text(SECRET)
    broken.write_text(f'{{"id": "1", "text": "{SECRET}"}}\n{{"id": "2", "text": "{SECRET}\n')
    codes = tmp_path / "codes.csv"
    codes.write_text("code\nI50.9\n")
    places = {"corpus": small_corpus.folder, "bundle": small_bundle, "note": note, "broken": broken, "out": out}
    places["codes"] = codes
    code, _, err = run(*(word.format(**places) for word in words))
    assert code != 0
    assert sentence in err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert SECRET not in err
    assert not out.exists()
    assert not list(tmp_path.glob(".*partial"))


def test_a_bundle_with_a_flipped_byte_is_refused(run, small_bundle, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in small_bundle.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    code, _, err = run("code", copy, __file__)
    assert code == 1 and "model.safetensors is not the file that was saved" in err


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "nosology", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    # whoever runs the tests in the background may have made them deaf to Ctrl-C
    hearing = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = command("simulate", "--patients", 100_000, "--out", tmp_path / "h", preexec_fn=hearing)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".h.*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence(small_corpus, tmp_path):
    """A file size limit makes every write fail as a full disk does."""
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); from nosology.cli import main; main()"
    words = ["train", "linear", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    done = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("nosology: cannot write") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_standard_output_that_is_full_is_one_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "nosology", "codes", "show", "I10"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "nosology: cannot read or write standard output: No space left on device\n",
    )


def test_output_into_a_closed_pipe_ends_quietly(small_bundle, notes_file):
    with command("code", small_bundle, notes_file, "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err and "Exception" not in err


def test_help_is_instant_and_light():
    """Help must not load the scientific stack; time on a shared machine is too noisy to assert, imports are not."""
    heavy = ["numpy", "scipy", "sklearn", "pyarrow", "torch", "matplotlib", "pydantic"]
    probe = f"""
import sys
from nosology.cli import main
sys.argv = ["nosology", "--help"]
try:
    main()
except SystemExit:
    assert not set({heavy}) & set(sys.modules), set({heavy}) & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.returncode == 0, done.stderr


def test_readme_commands_exist(run):
    code, out, _ = run("--help")
    assert code == 0
    for verb in ("codes", "corpus", "simulate", "train", "evaluate", "code"):
        assert verb in out
