"""What nosology code reads: corpus folders, tables with other column names; and what --tsv prints."""

import json

import pytest

from nosology.core import Code, Note
from nosology.corpora.corpus import Corpus, write_corpus


def lines_of(out):
    return [line.split("\t") for line in out.splitlines()]


def test_tsv_ranks_the_codes_of_a_split_as_evaluate_does(run, small_corpus, small_bundle, tmp_path):
    folder, notes = small_corpus.folder, list(small_corpus.notes("test"))
    code, out, _ = run("code", small_bundle, folder, "--split", "test", "--tsv", "--top", 1000, "--system", "icd10cm")
    assert code == 0
    ranked = {}
    for note_id, name in lines_of(out):
        ranked.setdefault(note_id, []).append(Code("icd10cm", name))
    precisions = []
    for note in notes:
        true = {item for item in note.codes if item.system == "icd10cm"}
        hits = [rank for rank, item in enumerate(ranked[note.id], 1) if item in true]
        if true:
            precisions.append(sum(i / rank for i, rank in enumerate(hits, 1)) / len(true))
    options = ("--corpus", folder, "--split", "test", "--system", "icd10cm", "--out", tmp_path / "report")
    assert run("evaluate", small_bundle, *options)[0] == 0
    metrics = json.loads((tmp_path / "report" / "metrics.json").read_text())
    assert len(precisions) > 5 and sum(precisions) / len(precisions) == pytest.approx(metrics["map"], abs=1e-6)


def test_claims_of_a_split(run, small_corpus):
    code, out, _ = run("claim", small_corpus.folder, "--split", "test", "--json")
    ids = [json.loads(line)["id"] for line in out.splitlines()]
    assert code == 0 and ids == [note.id for note in small_corpus.notes("test")]


def test_tsv_has_accepted_codes_only_without_top(run, small_corpus, small_bundle):
    code, out, _ = run("code", small_bundle, small_corpus.folder, "--tsv")
    as_json = run("code", small_bundle, small_corpus.folder, "--json")[1]
    rows = [json.loads(line) for line in as_json.splitlines()]
    expected = [[row["id"], item["code"]] for row in rows for item in row["codes"] if item["accepted"]]
    assert code == 0 and lines_of(out) == expected and len(rows) == 160


def test_notes_of_a_corpus_keep_their_columns(tmp_path, monkeypatch):
    from nosology.cli.input_notes import InputNotes

    note = Note("1", "Fever.", split="test", extra={"modality": "CT"})
    write_corpus([note, Note("2", "Cough.")], tmp_path / "corpus", source={}, filters=[], counts={})
    assert [item.note for item in InputNotes([str(tmp_path / "corpus")], split="test")] == [note]
    for split in (None, "all"):
        assert len(list(InputNotes([str(tmp_path / "corpus")], split=split))) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json", "--tsv"], "either --json or --tsv"),
        (["--split", "test"], "--split applies to corpus folders"),
        (["--column", "text=note"], "--column applies to notes files"),
        (["--column", "text"], "--column must be FIELD=COLUMN"),
        (["--column", "id=a", "--column", "text=a"], "a field and a column once"),
    ],
)
def test_invalid_options_are_refused(run, small_bundle, tmp_path, words, sentence):
    (tmp_path / "note.txt").write_text("Fever.")
    code, out, err = run("code", small_bundle, tmp_path / "note.txt", *words)
    assert (code, out) == (1, "") and sentence in err


def test_options_for_files_are_refused_for_standard_input(run, small_bundle, small_corpus):
    code, out, err = run("code", small_bundle, small_corpus.folder, "-", "--split", "test")
    assert (code, out) == (1, "") and "--split applies to corpus folders; got standard input" in err
    code, out, err = run("code", small_bundle, "-", "--column", "text=note")
    assert (code, out) == (1, "") and "--column applies to notes files (.jsonl, .csv, .parquet); got standard" in err


def test_a_split_that_a_corpus_lacks_and_a_folder_without_a_corpus(run, small_corpus, small_bundle, tmp_path):
    assert "has no validation notes" in run("code", small_bundle, small_corpus.folder, "--split", "validation")[2]
    assert "is a folder without a corpus" in run("code", small_bundle, tmp_path)[2]


def test_columns_of_other_names(run, small_bundle, tmp_path):
    table = tmp_path / "visits.csv"
    table.write_text("encounter_id,note,dx\nD1,Fever and cough.,R50.9\n")
    columns = ("--column", "id=encounter_id", "--column", "text=note")
    code, out, err = run("code", small_bundle, table, "--json", *columns)
    assert (code, err) == (0, "") and json.loads(out)["id"] == "D1"
    code, out, _ = run("claim", table, "--setting", "outpatient", "--json", *columns)
    assert code == 0 and json.loads(out)["id"] == "D1"
    assert run("explain", small_bundle, table, *columns)[0] == 0
    options = ("--column", "codes=dx", "--system", "icd10cm", "--out", tmp_path / "corpus")
    assert run("corpus", "prepare", "table", table, *columns, *options)[0] == 0
    (note,) = Corpus.open(tmp_path / "corpus").notes()
    assert (note.id, note.codes) == ("D1", (Code("icd10cm", "R50.9"),))
    assert (
        "--column applies to table" in run("corpus", "prepare", "cmc2007", table, *columns, "--out", tmp_path / "c")[2]
    )
