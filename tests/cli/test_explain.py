"""nosology explain with methods: printed, drawn, measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.cli.explain import _column
from nosology.core import Code, ConfigError, Evidence
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import write_corpus
from tests.conftest import PHRASES, small_notes


def run(*words: str) -> str:
    found = CliRunner().invoke(app, ["explain", *words])
    assert found.exit_code == 0, found.output + repr(found.exception)
    return found.stdout


@pytest.fixture
def note(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("Seen today.\nChronic low back pain, follow up.")
    return str(path)


def test_each_method_is_printed_with_its_faithfulness(small_bundle, note):
    asked = ["--method", "contributions", "--method", "occlusion", "--code", "M54.5", "--json"]
    rows = [json.loads(line) for line in run(str(small_bundle), note, *asked).splitlines()]
    assert [row["method"] for row in rows] == ["contributions", "occlusion"]
    for row in rows:
        assert {row["words"][i][0] for i in range(4)} == {"Chronic", "low", "back", "pain"}
        assert row["comprehensiveness"] > row["sufficiency"]


@pytest.mark.parametrize("how", [[], ["--method", "contributions"]])
def test_codes_are_of_the_systems_asked_for_and_say_which(small_bundle, tmp_path, how):
    text = ". ".join(PHRASES.values())
    (tmp_path / "all.txt").write_text(text)
    shown = run(str(small_bundle), str(tmp_path / "all.txt"), *how)
    assert all(f"({code.system})" in shown for code in PHRASES)
    rows = run(str(small_bundle), str(tmp_path / "all.txt"), *how, "--system", "icd9cm", "--json").splitlines()
    assert {json.loads(row)["system"] for row in rows} == {"icd9cm"}


def test_pages_and_pictures(small_bundle, note, tmp_path):
    out = tmp_path / "explained"
    told = run(str(small_bundle), note, "--method", "lime", "--samples", "60", "--code", "M54.5", "--out", str(out))
    assert "lime: comprehensiveness" in told
    assert sorted(path.suffix for path in out.iterdir()) == [".html", ".json", ".png"]
    assert "back</mark>" in next(out.glob("*.html")).read_text()


def test_methods_are_measured_against_gold_evidence(small_bundle, tmp_path):
    notes = []
    for item in small_notes(40):
        found = [
            Evidence(code, at, at + len(phrase))
            for code, phrase in PHRASES.items()
            if code in item.codes and (at := item.text.lower().find(phrase)) >= 0
        ]
        notes.append(replace(item, evidence=tuple(found)))
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    asked = ["--corpus", str(corpus.folder), "--limit", "4", "--method", "contributions", "--json"]
    found = json.loads(run(str(small_bundle), *asked))["contributions"]
    assert found["explanations"] >= found["with_evidence"] > 0
    assert found["token_f1"] > 0.8 and found["iou"] > 0.7 and found["comprehensiveness"] > 0.3


@pytest.mark.parametrize("how", [[], ["--method", "contributions"]])
@pytest.mark.parametrize("spelled", ["m545", "M545", "M54.5", "icd10cm:M54.5", "ICD10CM:m545"])
def test_a_code_in_any_spelling(small_bundle, note, spelled, how):
    row = json.loads(run(str(small_bundle), note, "--code", spelled, *how, "--json"))
    assert (row["system"], row["code"]) == ("icd10cm", "M54.5")


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
def test_a_code_is_found_with_and_without_dot_and_system(spelled, column):
    assert _column(TWO, spelled) == column


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("V45.8", "code must say its system: icd10cm:V45.8 or icd9cm:V45.8; got 'V45.8'"),
        ("4280", "code must say its system: icd9cm:428.0 or icd9proc:42.80; got '4280'"),
        ("icd9cm:F15.19", "one that the coder knows (6 of them); got 'icd9cm:F15.19'"),
        ("icd11:V45.8", "one that the coder knows"),
        ("F15.1", "one that the coder knows"),
        ("", "one that the coder knows"),
    ],
)
def test_a_code_that_none_or_two_systems_have(spelled, sentence):
    with pytest.raises(ConfigError) as refused:
        _column(TWO, spelled)
    assert sentence in str(refused.value)


def test_a_method_that_the_coder_does_not_have(small_bundle, note):
    found = CliRunner().invoke(app, ["explain", str(small_bundle), note, "--method", "category"])
    assert isinstance(found.exception, ConfigError) and "contributions, occlusion, lime" in str(found.exception)
