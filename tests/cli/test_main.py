"""The commands: valid and invalid input, files left behind."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
from typer.main import get_command

from nosology import cli
from nosology.cli import INTERRUPTED, app
from nosology.cli.coder_commands import _suggestions_text
from nosology.config import load_recipe
from nosology.core import Suggestion, progress
from nosology.core.files import exclusive_output
from nosology.corpora.corpus import write_corpus
from nosology.corpora.notes_file import note_to_json
from nosology.models.train import train
from tests.conftest import small_notes
from tests.core.process_family import end_of, family

SET = ["--set", "decision.threshold=1"]
SECRET = "xyzzyplugh"  # in every note below, and in no message
VERSIONS = "caution: each note is scored on the ICD version"  # the small corpus has both


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
    assert code == 0 and "micro_f1" in out and err.startswith(VERSIONS) and err.count("\n") == 1
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


def test_standard_input_may_be_gzip_as_files_may_be(run, small_bundle, monkeypatch):
    stdin = type("Stdin", (), {"buffer": io.BytesIO(gzip.compress(b"type 2 diabetes"))})()
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, _ = run("code", small_bundle, "-", "--json", "--top", "1")
    assert code == 0 and [item["code"] for item in json.loads(out)["codes"]] == ["E11.9"]


def test_a_named_pipe_is_read(run, small_bundle, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["sh", "-c", 'echo "type 2 diabetes" > "$0"', tmp_path / "pipe"])
    code, out, _ = run("code", small_bundle, tmp_path / "pipe")
    assert writer.wait() == 0 and code == 0 and "E11.9" in out


def test_an_empty_note_is_named(run, small_bundle, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "none.csv").write_text("id,text\n")
    code, out, err = run("code", small_bundle, tmp_path / "none.csv")
    assert (code, out) == (0, "") and err == f"caution: {tmp_path / 'none.csv'} has no note\n"
    (tmp_path / "notes.csv").write_text("id,text\n7,\n8,type 2 diabetes\n")
    code, out, err = run("code", small_bundle, tmp_path / "empty.txt", tmp_path / "notes.csv", "--json")
    assert code == 0 and [json.loads(line)["id"] for line in out.splitlines()] == ["empty.txt", "7", "8"]
    assert err.splitlines() == [f"caution: {name} is empty: there is nothing to code" for name in ("empty.txt", "7")]


def test_a_code_without_evidence_is_not_explained_by_a_guess():
    text = _suggestions_text(
        "n", [Suggestion("icd9cm", "785.6", "Enlargement of lymph nodes", 0.04, accepted=True)], only_accepted=False
    )
    assert text.splitlines()[-1].strip() == "(no evidence in this note)"


@pytest.mark.parametrize("coder", ["small_bundle", "day-one"])
def test_what_is_no_text_is_named_and_the_others_have_their_codes(run, request, tmp_path, coder):
    bundle = coder if coder == "day-one" else request.getfixturevalue(coder)
    rows = [f"{i},{f'<p>{SECRET}</p><br><br><br>' if i == 3 else 'type 2 diabetes'}\n" for i in range(40)]
    (tmp_path / "notes.csv").write_text("id,text\n" + "".join(rows))
    (tmp_path / "page.txt").write_bytes(b"%PDF-1.4 " + SECRET.encode())
    words = ["code", bundle, tmp_path / "notes.csv", tmp_path / "page.txt"]
    code, out, err = run(*words, "--json")
    records = {record["id"]: record for record in map(json.loads, out.splitlines())}
    assert code == 1 and len(records) == 41 and SECRET not in out + err
    assert all(("error" if note_id in ("3", "page.txt") else "codes") in record for note_id, record in records.items())
    assert "the note is HTML or XML" in records["3"]["error"] and "page.txt is a PDF" in records["page.txt"]["error"]
    assert f"caution: {tmp_path / 'notes.csv'}: note 3 cannot be used: the note is HTML or XML" in err
    assert err.endswith("caution: 2 notes could not be used\n")
    code, out, _ = run(*words, "--top", "1")
    assert code == 1 and "\n4: 1 code" in out and "\n3: " not in out and "page.txt" not in out


MALFORMED_ROWS = {
    "notes.csv": ("id,text\na,type 2 diabetes\nb,{0},{0}\n{0}\nc,type 2 diabetes\n", (3, 4)),
    "notes.jsonl": (
        '{{"id": "{0}\n{{"id": "a", "text": "type 2 diabetes"}}\n["{0}"]\n{{"id": "{0}", "text": 7}}\n'
        '{{"id": "c", "text": "type 2 diabetes"}}\n',
        (1, 3, 4),
    ),
}


@pytest.mark.parametrize("command", [["code", "day-one", "--json"], ["claim", "--json"]], ids=lambda words: words[0])
@pytest.mark.parametrize("name", MALFORMED_ROWS)
def test_malformed_rows_are_named_and_the_other_notes_have_their_codes(run, tmp_path, command, name):
    content, rows = MALFORMED_ROWS[name]
    (tmp_path / name).write_text(content.format(SECRET))
    code, out, err = run(*command, tmp_path / name)
    assert code == 1 and [json.loads(line)["id"] for line in out.splitlines()] == ["a", "c"]
    *cautions, last = err.splitlines()
    assert [line.partition(": ")[2].split(":")[0] for line in cautions] == [f"{name} row {row}" for row in rows]
    assert all(line.endswith("; the row is left out") for line in cautions) and SECRET not in out + err
    assert last == f"caution: {len(rows)} notes could not be used"


def test_explain_goes_on_after_a_malformed_row(run, small_bundle, tmp_path):
    (tmp_path / "notes.csv").write_text(f"id,text\n1,type 2 diabetes\n{SECRET}\n2,type 2 diabetes\n")
    code, out, err = run("explain", small_bundle, tmp_path / "notes.csv", "--code", "E11.9", "--json")
    assert code == 1 and [json.loads(line)["note"] for line in out.splitlines()] == ["1", "2"]
    assert "notes.csv row 3: must have 2 fields, as the header; got 1 field" in err and SECRET not in out + err


def test_repeated_ids_are_counted_by_file(run, small_bundle, tmp_path):
    for name, ids in {"once.csv": "1 2", "twice.csv": "3 3 4", "again.csv": "1 3 5"}.items():
        (tmp_path / name).write_text("id,text\n" + "".join(f"{i},diabetes\n" for i in ids.split()))
    words = [tmp_path / name for name in ("once.csv", "twice.csv", "again.csv")]
    for command in (["code", small_bundle], ["claim"]):
        code, _, err = run(*command, *words, "--json")
        assert code == 0 and err.splitlines() == [
            f"caution: {words[1]}: 1 note has the id of an earlier note",
            f"caution: {words[2]}: 2 notes have the id of an earlier note",
        ]


def test_system_restricts_codes(run, small_bundle, tmp_path):
    note = tmp_path / "n.txt"
    note.write_text("congestive heart failure")
    _, out, _ = run("code", small_bundle, note, "--json", "--system", "icd9cm", "--system", "icd10pcs")
    assert {item["system"] for item in json.loads(out)["codes"]} == {"icd9cm", "icd10pcs"}


def test_patients_shared_by_train_and_test_are_counted(run, small_corpus, tmp_path, monkeypatch):
    years = [replace(note, id=f"old-{note.id}", split="test") for note in small_notes(12, seed=1)]
    other = write_corpus(years, tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    words = ["train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "bundle"]
    assert run(*words)[2] == ""
    code, out, err = run(*words, "--corpus", other.folder)
    assert code == 0 and "linear coder" in out
    assert err.startswith("caution: 6 patients are in train of one corpus and in dev or test of another")
    assert err.count("\n") == 1 and "split that" in err and not any(note.patient in err for note in years)
    set_rank(monkeypatch, 1)
    assert "caution" not in run(*words, "--corpus", other.folder)[2]


def set_rank(monkeypatch, rank):
    """The environment of one of two processes that torchrun starts."""
    for name, value in {"RANK": rank, "LOCAL_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")


def test_train_with_a_rank_but_no_other_process_writes_the_bundle(run, small_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    code, out, _ = run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "bundle")
    assert code == 0 and "linear coder" in out and (tmp_path / "bundle" / "bundle.json").exists()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    code, _, err = run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "bundle")
    assert code == 1 and "$LOCAL_WORLD_SIZE must be a number" in err


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["linear", "lexicon"])
def test_coders_of_one_process_refuse_several(run, small_corpus, tmp_path, monkeypatch, kind, rank):
    set_rank(monkeypatch, rank)
    code, out, err = run("train", kind, "--corpus", small_corpus.folder, "--out", tmp_path / "bundle")
    assert (code, out) == (1, "") and f"a {kind} coder is trained by one process" in err
    assert not (tmp_path / "bundle").exists()


def test_evaluate_tunes_a_threshold_for_a_set_of_codes(run, small_bundle, small_corpus, tmp_path):
    words = ["evaluate", small_bundle, "--corpus", small_corpus.folder, "--codes", "frequent", "--tune"]
    code, _, err = run(*words, "--out", tmp_path / "r")
    assert code == 0 and err.startswith(VERSIONS) and err.count("\n") == 1
    provenance = json.loads((tmp_path / "r" / "provenance.json").read_text())
    assert provenance["codes"].startswith("frequent (10 notes or more)")
    assert provenance["threshold"].startswith("tuned on the dev")


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
        (["code", "{bundle}", "/no/note.txt"], "no such file: /no/note.txt"),
        (["code", "{bundle}", "{note}", "--release", "1066"], "release must be one of"),
        (["gaps", "--notes", "{corpus}", "--out", "{out}"], "is a folder; give a notes file"),
        (["audit", "--notes", "{corpus}", "--billed", "{codes}", "--out", "{out}"], "is a folder; give a notes file"),
        (["audit", "--notes", "{broken}", "--billed", "{corpus}", "--out", "{out}"], "give a file of billed codes"),
        (
            ["audit", "--notes", "{broken}", "--billed", "{codes}", "--out", "{out}", "--claim-id", "x"],
            "--claim-id must be one of account, record; got 'x'",
        ),
        (
            ["audit", "--notes", "{broken}", "--billed", "{codes}", "--out", "{out}", "--claim-id", "record"],
            "--claim-id has no effect for bills that are no 837 claims",
        ),
        (["corpus", "prepare", "table", "{corpus}/x.csv", "--out", "{out}"], "x.csv: no such notes file"),
        (["train", "{binary}", "--corpus", "{corpus}", "--out", "{out}"], "cannot read the recipe"),
        (["train", "{binary}", "--corpus", "{corpus}", "--out", "{out}"], "it is not text in UTF-8"),
        (
            ["explain", "{bundle}", "--corpus", "{corpus}", "--split", "tset"],
            "split must be one of train, dev, test, all",
        ),
        (["explain", "{bundle}", "{note}", "--code", "Z99.999"], "code must be one that the coder knows"),
        (["explain", "/no/bundle", "{note}"], "is no bundle: it holds no bundle.json"),
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
def test_invalid_input_gives_an_error_of_one_sentence(run, words, sentence, small_corpus, small_bundle, tmp_path):
    note, broken, out = tmp_path / "note.txt", tmp_path / "broken.jsonl", tmp_path / "out"
    note.write_text(SECRET)
    broken.write_text(f'{{"id": "1", "text": "{SECRET}"}}\n{{"id": "2", "text": "{SECRET}\n')
    codes = tmp_path / "codes.csv"
    codes.write_text("code\nI50.9\n")
    places = {"corpus": small_corpus.folder, "bundle": small_bundle, "note": note, "broken": broken, "out": out}
    places["codes"] = codes
    places["binary"] = tmp_path / "recipe.toml"
    places["binary"].write_bytes(b"\xff\xfe\x00")
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_no_partial_output(tmp_path, number, code):
    # Ctrl-C may be ignored if the tests run in the background
    hearing = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = command("simulate", "--patients", 100_000, "--out", tmp_path / "h", preexec_fn=hearing)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".h.*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        if number == signal.SIGTERM:  # `timeout` sends it twice
            time.sleep(0.01)
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert "interrupted" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_sigterm_ends_a_command_and_its_workers(small_bundle, tmp_path, send):
    """Of the first process, as `docker stop`, or of all of them, as `timeout`."""
    row = json.dumps({"id": "n", "text": "Gout and asthma. " * 200}) + "\n"
    (tmp_path / "notes.jsonl").write_text(row * 20_000)
    process = command("code", "day-one", tmp_path / "notes.jsonl", "--json", "--workers", 2, start_new_session=True)
    try:
        process.stdout.readline()  # the workers code
        workers = family(process.pid)[1:]
        send(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert len(workers) == 2 and end_of(workers) == []
    assert (process.returncode, err) == (143, "nosology: interrupted; no incomplete output was left behind\n")


def test_a_full_disk_gives_an_error_of_one_sentence(small_corpus, tmp_path):
    """A file size limit makes every write fail as a full disk does."""
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); from nosology.cli import app, main; main()"
    words = ["train", "linear", "--corpus", str(small_corpus.folder), "--out", str(tmp_path / "b")]
    done = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("nosology: cannot write") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_full_standard_output_gives_an_error_of_one_sentence():
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
        "nosology: cannot write to standard output: No space left on device\n",
    )


def test_output_into_a_closed_pipe_ends_quietly(small_bundle, notes_file):
    with command("code", small_bundle, notes_file, "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err and "Exception" not in err


def test_a_neural_coder_ends_without_reports_of_leaks(small_corpus, notes_file, tmp_path):
    """A library reports objects that are left when the process ends."""
    settings = ["training.epochs=1", "vectors.epochs=1", "vectors.size=12", "model.filters=12"]
    train(load_recipe("caml", settings), [small_corpus], tmp_path / "bundle")
    with command("code", tmp_path / "bundle", notes_file) as process:
        out, err = process.communicate()
    assert process.returncode == 0 and out and "leaked" not in err


def test_long_command_says_that_it_goes_on(monkeypatch, capsys):
    monkeypatch.setattr("nosology.core.progress.LOG_SECONDS", 0.01)
    monkeypatch.setattr(cli, "_EXTRA_SECONDS", 0.0)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    monkeypatch.setattr(cli, "app", lambda: time.sleep(0.3))
    calls = {"compare a": "compare", "corpus split all": "corpus split", "federate simulate caml": "federate simulate"}
    for words, shown in calls.items():
        monkeypatch.setattr(sys, "argv", ["nosology", *words.split()])
        cli.main()
        assert f"{shown}: 0:00:00 so far\n" in capsys.readouterr().err
    for words in ("serve", "workbench backup", "federate site"):
        monkeypatch.setattr(sys, "argv", ["nosology", *words.split()])
        cli.main()
        assert capsys.readouterr().err == ""


def test_long_steps_are_named(run, small_bundle, small_corpus, tmp_path, monkeypatch):
    titles, add = [], progress._lines.add
    monkeypatch.setattr(progress._lines, "add", lambda report: [titles.append(report[0]), add(report)])
    run("corpus", "split", small_corpus.folder, "--out", tmp_path / "split")
    assert {"looking for near-duplicates", "dividing the notes"} <= {*titles}
    titles.clear()
    run("corpus", "audit", tmp_path / "split")
    assert "looking for near-duplicates" in titles
    run("evaluate", small_bundle, "--corpus", small_corpus.folder, "--out", tmp_path / "report")
    assert {"metrics with intervals", "writing the report"} <= {*titles}


def test_help_imports_no_heavy_module():
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


def test_an_argument_that_is_no_file_gets_a_hint(run, small_bundle, tmp_path):
    code, _, err = run("code", small_bundle, f"Patient has pneumonia {SECRET}")
    assert code == 1 and "pipe it: echo TEXT | nosology code" in err and SECRET not in err
    assert run("code", small_bundle, SECRET * 200)[2].startswith("nosology: NOTE must be a file")
    assert "pipe it: echo TEXT | nosology claim -\n" in run("claim", "--coder", small_bundle, "a text of a note")[2]
    assert "echo TEXT | nosology explain BUNDLE -\n" in run("explain", small_bundle, "a text of a note")[2]
    code, _, err = run("code", small_bundle, tmp_path)
    assert code == 1 and f"is a folder without a corpus; give its files, for example {tmp_path}/*.txt" in err


def test_a_note_in_utf_16_gives_the_codes_of_utf_8_and_a_picture_is_refused(run, small_bundle, tmp_path):
    codes = []
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "n.txt").write_text("congestive heart failure", encoding=encoding)
        codes.append(run("code", small_bundle, tmp_path / "n.txt", "--json")[1])
    assert codes[0] == codes[1] and '"accepted": true' in codes[0]
    (tmp_path / "n.txt").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, out, err = run("code", small_bundle, tmp_path / "n.txt")
    assert (code, out) == (1, "") and "is a picture, not text" in err


def walk_commands(group, names=()):
    """(names, command) of every command and group."""
    yield names, group
    for name, command in getattr(group, "commands", {}).items():
        yield from walk_commands(command, (*names, name))


COMMANDS = dict(walk_commands(get_command(app)))
ALL_COMMANDS = [pytest.param(names, id=" ".join(names) or "nosology") for names in COMMANDS]


PARAMETERS = [
    pytest.param(
        (*names, *parameter.opts[:1]) if parameter.opts[0].startswith("-") else names,
        id=f"{' '.join(names)} {parameter.name}",
    )
    for names, command in COMMANDS.items()
    for parameter in command.params
    if not (hasattr(command, "commands") or getattr(parameter, "is_flag", False) or parameter.default == "")
]


@pytest.mark.parametrize("words", PARAMETERS)
def test_an_empty_value_is_refused(run, words):
    code, out, err = run(*words, "")
    assert (code, out) == (1, "") and err.endswith(" must not be empty\n"), err


def test_a_folder_name_that_is_not_utf_8_is_refused_before_the_work(run, tmp_path):
    for words in (["corpus", "prepare", "table", "n\udce9.csv", "--out", "c"], ["simulate", "--out", "h\udce9"]):
        code, _, err = run(*words)
        assert code == 1 and "must be UTF-8; got " in err and "rename the file or folder" in err


def test_a_note_may_have_a_file_name_that_is_not_utf_8(run, small_bundle, tmp_path):
    note = tmp_path / "caf\udce9.txt"
    note.write_text("type 2 diabetes")
    code, out, _ = run("code", small_bundle, note, "--json")
    assert code == 0 and json.loads(out)["id"] == "caf?.txt"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compare linear --out c", "the same command continues from there"),
        ("embed --out e", "the same command continues from there"),
        ("reproduce hmhan --out r", "the same command continues from there"),
        ("corpus split c --out s --k 5", "splits in OUT are complete, but some are missing"),
        ("corpus split c --out s --keep-duplicates-together", "no incomplete output was left behind"),
        ("train linear --out b", "no incomplete bundle was left behind"),
    ],
)
def test_ctrl_c_says_what_is_left(run, monkeypatch, words, sentence):
    def interrupt():
        raise SystemExit(INTERRUPTED)

    monkeypatch.setattr(cli, "app", interrupt)
    code, _, err = run(*words.split())
    assert code == INTERRUPTED and err.startswith("nosology: interrupted; ") and sentence in err


@pytest.mark.parametrize("names", ALL_COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_describes_every_parameter_once(run, names, flag):
    command = COMMANDS[names]
    code, out, err = run(*names, flag)
    assert (code, err) == (0, "") and "\\[" not in out
    words = "".join(out.split())  # lines may be broken at any hyphen
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, f"{parameter.name} has no help"
            assert words.count("".join(parameter.help.split())) == 1


def test_help_names_recipes_and_kinds(run):
    assert "dual_laat" in run("train", "--help")[1] and "linear" in run("train", "--help")[1]
    assert "reviews" in run("corpus", "prepare", "--help")[1]


def test_a_misspelt_command_gets_one_suggestion(run):
    code, _, err = run("tran")
    assert code == 2 and err.count("train") == 1


def test_output_that_is_cut_off_ends_with_0(tmp_path):
    """`nosology ... | head -1`, many lines."""
    command = f"{sys.executable} -m nosology codes search heart --limit 5000 | head -1; exit ${{PIPESTATUS[0]}}"
    end = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    errors = [line for line in end.stderr.splitlines() if "building the index" not in line]  # it says so if it is slow
    assert (end.returncode, errors) == (0, []) and end.stdout.count("\n") == 1 and "heart" in end.stdout


@pytest.mark.parametrize("output", ["| true", "2>&1 | true", "2>/dev/full | true"])
def test_work_goes_on_when_nobody_reads_its_output(small_corpus, tmp_path, output):
    out = tmp_path / "out"
    work = f"compare linear 'linear fit.c=[1.0]' --seeds 2 --corpus {small_corpus.folder} --out {out}"
    command = f"{sys.executable} -m nosology {work} {output}; exit ${{PIPESTATUS[0]}}"
    end = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert end.returncode == 0 and "Traceback" not in end.stderr
    assert (out / "compare.json").exists() and len(list(out.glob("*/bundle.json"))) == 4


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory")], ids=["python", "torch"])
def test_too_little_memory_is_one_sentence(run, small_corpus, tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("nosology.models.train.train", fail)
    code, _, err = run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "b")
    assert (code, err) == (1, "nosology: there is not enough memory for these settings and notes\n")


def test_commands_work_with_closed_standard_streams(small_corpus, tmp_path):
    command = (
        f"{sys.executable} -m nosology train linear --corpus {small_corpus.folder} --out {tmp_path / 'b'} 2>&- <&-"
    )
    end = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=120)
    assert end.returncode == 0 and "linear coder" in end.stdout and (tmp_path / "b" / "bundle.json").exists()
    end = subprocess.run(["bash", "-c", f"{command} >&-"], timeout=120)
    assert end.returncode == 0


def test_control_characters_of_an_id_are_not_printed(run, small_bundle, tmp_path):
    (tmp_path / "n.jsonl").write_text(json.dumps({"id": "n\x1b[31m", "text": "congestive heart\x1b[2J failure"}))
    code, out, _ = run("code", small_bundle, tmp_path / "n.jsonl")
    assert code == 0 and "n\ufffd[31m: 1 code" in out and "\x1b" not in out


def test_compare_goes_on_and_replaces_no_comparison_of_another_corpus(run, small_corpus, tmp_path):
    words = ["compare", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "out"]
    assert run(*words, "--seeds", "1")[0] == 0
    first = (tmp_path / "out" / "linear-0" / "bundle.json").stat().st_mtime_ns
    assert run(*words, "--seeds", "2")[0] == 0 and (tmp_path / "out" / "linear-1").is_dir()
    assert (tmp_path / "out" / "linear-0" / "bundle.json").stat().st_mtime_ns == first
    result = (tmp_path / "out" / "compare.json").read_bytes()
    other = write_corpus(small_notes(60, seed=5), tmp_path / "other", source={"kind": "test"}, filters=[], counts={})
    code, _, err = run("compare", "lexicon", "--corpus", other.folder, "--out", tmp_path / "out")
    assert code == 1 and "linear-0 is of another corpus; give another folder" in err
    assert (tmp_path / "out" / "compare.json").read_bytes() == result
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    code, _, err = run(*words[:-1], tmp_path / "mine")
    assert code == 1 and "it has other files, such as thesis.txt" in err


@pytest.mark.parametrize("words", [["compare", "linear"], ["embed"], ["reproduce", "hmhan", "--small"]])
def test_results_are_not_written_into_a_corpus(run, small_corpus, words):
    before = sorted(small_corpus.folder.iterdir())
    code, _, err = run(*words, "--corpus", small_corpus.folder, "--out", small_corpus.folder)
    assert code == 1 and "it is a corpus; give another folder" in err
    assert sorted(small_corpus.folder.iterdir()) == before


def test_cache_of_reproduce_is_not_written_into_a_corpus(run, small_corpus, tmp_path):
    before = sorted(small_corpus.folder.iterdir())
    words = ["reproduce", "hmhan", "--small", "--corpus", small_corpus.folder, "--out", tmp_path / "out"]
    code, _, err = run(*words, "--cache", small_corpus.folder)
    assert code == 1 and "it is a corpus; give another folder" in err
    assert sorted(small_corpus.folder.iterdir()) == before and not (tmp_path / "out").exists()


def test_two_trainings_into_one_folder_are_refused(run, small_corpus, tmp_path):
    with exclusive_output(tmp_path / "b"):
        code, _, err = run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "b")
    assert code == 1 and "another process is writing" in err


def test_corpus_prepare_names_every_kind(run, notes_file, tmp_path):
    code, _, err = run("corpus", "prepare", "tabel", notes_file, "--out", tmp_path / "c")
    assert code == 1 and "table or reviews; got 'tabel'" in err


def test_deep_nesting_is_one_sentence(run, small_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_DATA", str(tmp_path / "data"))
    (tmp_path / "r.toml").write_text(f"kind = 'linear'\nx = {'[' * 3000}{']' * 3000}")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("[" * 100_000)
    term = "<term><title>x</title>"
    (tmp_path / "i.xml").write_text(
        f"<ICD10CM.index><version>2027</version><letter><mainTerm><title>x</title>{term * 3000}{'</term>' * 3000}"
        "</mainTerm></letter></ICD10CM.index>"
    )
    for words, message in (
        (["train", tmp_path / "r.toml", "--corpus", small_corpus.folder, "--out", tmp_path / "b"], "is not TOML"),
        (["code", tmp_path / "bundle", tmp_path / "r.toml"], "is damaged"),
        (["codes", "add-index", tmp_path / "i.xml"], "at most 50 levels"),
    ):
        code, _, err = run(*words)
        assert code == 1 and message in err and err.count("\n") == 1


def test_a_folder_of_the_user_next_to_the_bundle_is_not_deleted(run, small_corpus, tmp_path):
    mine = tmp_path / "b.run" / "embeddings" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "b")[0] == 0
    assert mine.read_text() == "mine"
    assert run("train", "linear", "--corpus", small_corpus.folder, "--out", tmp_path / "c")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "b.run", "c"]


def test_splits_that_may_drop_notes_do_not_replace_the_corpus(run, small_corpus, tmp_path):
    (tmp_path / "train.csv").write_text("n1\n")
    before = sorted(small_corpus.folder.iterdir())
    for options in (["--official", tmp_path / "train.csv"], ["--sites", "2"], ["--k", "2"]):
        code, _, err = run("corpus", "split", small_corpus.folder, "--out", small_corpus.folder, *options)
        assert code == 1 and ("must be another folder" in err or "it is a corpus" in err)
    assert sorted(small_corpus.folder.iterdir()) == before
    (tmp_path / "out" / "split-01").mkdir(parents=True)
    (tmp_path / "out" / "split-01" / "thesis.doc").write_text("")
    assert run("corpus", "split", small_corpus.folder, "--out", tmp_path / "out", "--k", "2")[0] == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["split-01"]


@pytest.mark.parametrize(
    "words, shown",
    [
        (["federate", "simulate", "linear"], ["federate simulate"]),
        (["federate", "rehearse"], ["federate rehearse"]),
        (["federate", "server"], []),  # it waits for others, without end
        (["serve"], []),
        (["codes", "show"], ["codes show"]),
    ],
)
def test_commands_that_end_show_that_they_go_on(monkeypatch, words, shown):
    titles = []

    def activity(title, **_):
        titles.append(title)
        return nullcontext()

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    monkeypatch.setattr(cli, "activity", activity)
    monkeypatch.setattr(cli, "app", lambda: None)
    monkeypatch.setattr("sys.argv", ["nosology", *words])
    cli.main()
    assert titles == shown


@pytest.mark.parametrize("words", ALL_COMMANDS)
def test_help_texts_have_one_wording_for_what_may_be_repeated(run, words):
    text = " ".join(run(*words, "--help")[1].split())
    assert text and "several times" not in text and "can be repeated" not in text
    assert "--set SECTION.KEY=VALUE" not in text or "Change one setting; may be repeated." in text
