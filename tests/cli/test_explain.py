"""nosology explain: printed, drawn and measured explanations."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.cli.explain import _column, _warn_about_attention
from nosology.core import Code, ConfigError, DataError, Evidence
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import write_corpus
from tests.conftest import PHRASES, small_notes


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["explain", *words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


@pytest.fixture
def note(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("Seen today.\nChronic low back pain, follow up.")
    return str(path)


def test_methods_print_words_and_faithfulness(small_bundle, note):
    options = ["--method", "contributions", "--method", "occlusion", "--code", "M54.5", "--json"]
    rows = [json.loads(line) for line in run(str(small_bundle), note, *options).splitlines()]
    assert [row["method"] for row in rows] == ["contributions", "occlusion"]
    for row in rows:
        assert {row["words"][i][0] for i in range(4)} == {"Chronic", "low", "back", "pain"}
        assert row["comprehensiveness"] > row["sufficiency"]


@pytest.mark.parametrize("how", [[], ["--method", "contributions"]])
def test_system_selects_the_explained_codes(small_bundle, tmp_path, how):
    text = ". ".join(PHRASES.values())
    (tmp_path / "all.txt").write_text(text)
    shown = run(str(small_bundle), str(tmp_path / "all.txt"), *how)
    assert all(f"({code.system})" in shown for code in PHRASES)
    rows = run(str(small_bundle), str(tmp_path / "all.txt"), *how, "--system", "icd9cm", "--json").splitlines()
    assert {json.loads(row)["system"] for row in rows} == {"icd9cm"}


def test_out_has_pages_and_pictures(small_bundle, note, tmp_path):
    out = tmp_path / "explained"
    printed = run(str(small_bundle), note, "--method", "lime", "--samples", "60", "--code", "M54.5", "--out", str(out))
    assert "lime: comprehensiveness" in printed
    assert sorted(path.suffix for path in out.iterdir()) == [".html", ".json", ".png"]
    assert "back</mark>" in next(out.glob("*.html")).read_text()


def test_corpus_measures_methods_against_gold_evidence(small_bundle, tmp_path):
    notes = []
    for item in small_notes(40):
        result = [
            Evidence(code, at, at + len(phrase))
            for code, phrase in PHRASES.items()
            if code in item.codes and (at := item.text.lower().find(phrase)) >= 0
        ]
        notes.append(replace(item, evidence=tuple(result)))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    options = ["--corpus", str(corpus.folder), "--limit", "4", "--method", "contributions", "--json"]
    result = json.loads(run(str(small_bundle), *options))["contributions"]
    assert result["explanations"] >= result["with_evidence"] > 0
    assert result["token_f1"] > 0.8 and result["iou"] > 0.7 and result["comprehensiveness"] > 0.3


@pytest.mark.parametrize("how", [[], ["--method", "contributions"]])
@pytest.mark.parametrize("spelled", ["m545", "M545", "M54.5", "icd10cm:M54.5", "ICD10CM:m545"])
def test_code_accepts_any_spelling(small_bundle, note, spelled, how):
    row = json.loads(run(str(small_bundle), note, "--code", spelled, *how, "--json"))
    assert (row["system"], row["code"]) == ("icd10cm", "M54.5")


def test_corpus_without_lime_or_without_a_code_to_explain(small_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("nosology.explanation.attribution.find_spec", lambda name: None)
    corpus = write_corpus(small_notes(40), tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    words = [str(small_bundle), "--corpus", str(corpus.folder), "--json", "--limit"]
    assert json.loads(run(*words, "4")).keys() == {"contributions", "occlusion"}
    silent = [replace(note, text="Nothing.") for note in small_notes(40)]
    corpus = write_corpus(silent, tmp_path / "silent", source={"kind": "test"}, filters=[], counts={})
    words = ["explain", str(small_bundle), "--corpus", str(corpus.folder), "--split", "all", "--limit"]
    for limit, more in (("2", "; raise --limit"), ("40", "")):
        error = CliRunner().invoke(app, [*words, limit]).exception
        assert isinstance(error, DataError) and str(error).startswith("no code to explain in ")
        assert str(error).endswith(f"none is both true and accepted{more}")


TWO = LabelSpace(
    [
        *(Code("icd10cm", "F15.19"), Code("icd10cm", "V45.8"), Code("icd9cm", "428.0")),
        *(Code("icd9cm", "V45.8"), Code("icd9proc", "42.80"), Code("icd9proc", "42")),
    ]
)


@pytest.mark.parametrize(
    ("spelled", "column"),
    [("F1519", 0), ("icd9cm:V458", 3), ("icd10cm:v45.8", 1), ("428.0", 2), ("icd9proc:4280", 4), ("42", 5)],
)
def test_column_of_a_code_with_and_without_dot_and_system(spelled, column):
    assert _column(TWO, spelled) == column


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("V45.8", "code must name its system: icd10cm:V45.8 or icd9cm:V45.8; got 'V45.8'"),
        ("4280", "code must name its system: icd9cm:428.0 or icd9proc:42.80; got '4280'"),
        ("icd9cm:F15.19", "one that the coder knows (6 of them); got 'icd9cm:F15.19'"),
        ("icd11:V45.8", "one that the coder knows"),
        ("F15.1", "one that the coder knows"),
        ("", "one that the coder knows"),
    ],
)
def test_unknown_or_ambiguous_code_raises(spelled, sentence):
    with pytest.raises(ConfigError) as error:
        _column(TWO, spelled)
    assert sentence in str(error.value)


def test_unsupported_method_raises(small_bundle, note):
    result = CliRunner().invoke(app, ["explain", str(small_bundle), note, "--method", "category"])
    assert isinstance(result.exception, ConfigError) and "contributions, occlusion, lime" in str(result.exception)


def test_unsupported_method_raises_even_if_no_code_is_accepted(small_bundle, tmp_path):
    (tmp_path / "none.txt").write_text("Nothing.")
    words = ["explain", str(small_bundle), str(tmp_path / "none.txt")]
    result = CliRunner().invoke(app, [*words, "--method", "foo"])
    assert "got 'foo'" in str(result.exception)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "no code is accepted" in result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["NOTE", "--corpus", "c"], "notes has no effect with --corpus"),
        (["--corpus", "c", "--out", "o"], "--out has no effect with --corpus"),
        (["--corpus", "c", "--code", "I50.9"], "--code has no effect with --corpus"),
        (["NOTE", "--limit", "20"], "--limit has no effect without --corpus"),
        (["NOTE", "--split", "dev"], "--split has no effect without --corpus"),
        (["NOTE", "--code", "I50.9", "--system", "icd9cm"], "--system has no effect with --code"),
        (["NOTE", "--samples", "99"], "--samples has no effect without --method lime"),
        (["NOTE", "--method", "occlusion", "--samples", "99"], "--samples has no effect without --method lime"),
        (["--code", "I50.9", "--method", "lime"], "--method has no effect without a note"),
        (["--code", "I50.9", "--out", "o"], "--out has no effect without a note"),
    ],
)
def test_options_without_effect_are_refused(small_bundle, note, options, sentence):
    words = [note if word == "NOTE" else word for word in options]
    result = CliRunner().invoke(app, ["explain", str(small_bundle), *words])
    assert isinstance(result.exception, ConfigError) and sentence in str(result.exception)


def test_repeated_codes_and_methods_are_explained_once(small_bundle, note):
    twice = ["--code", "M54.5", "--code", "m545", "--method", "occlusion", "--method", "occlusion"]
    assert len(run(str(small_bundle), note, *twice, "--json").splitlines()) == 1


def test_tokens_can_be_more_than_those_on_the_pages(small_bundle, tmp_path):
    (tmp_path / "long.txt").write_text("Chronic low back pain of " + " ".join(f"word{i}" for i in range(30)))
    options = ["--tokens", "20", "--method", "occlusion", "--code", "M54.5", "--json"]
    for more in ([], ["--out", str(tmp_path / "out")]):
        row = json.loads(run(str(small_bundle), str(tmp_path / "long.txt"), *options, *more))
        assert len(row["words"]) == 20


class WithoutNetWeight:
    """A model whose net has weight 0."""

    has_net_weight = False


@pytest.mark.parametrize(("methods", "warns"), [([], True), (["lime", "attention"], True), (["occlusion"], False)])
def test_caution_if_the_net_has_weight_0(capsys, methods, warns):
    _warn_about_attention(WithoutNetWeight(), methods)
    assert ("explains nothing" in capsys.readouterr().err) == warns
