"""The codes command as a user types it."""

import json

import pytest
from typer.testing import CliRunner

from nosology.cli.codes import app
from nosology.core import NosologyError

RUN = CliRunner()


def output(*words: str) -> str:
    result = RUN.invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def as_json(*words: str):
    return json.loads(output(*words, "--json"))


def test_show():
    assert output("show", "I10").startswith("I10  Essential (primary) hypertension\nicd10cm 2026, billable\n")
    assert "read from 'i509': upper case, dot added" in output("show", "i509")
    assert "billable 2019-2021; divided 2022-2026" in output("show", "M54.5", "--release", "2019")
    assert output("show", "428.0").splitlines()[1] == "icd9cm 2015, billable"
    assert output("show", "390-459").startswith("390-459  Diseases Of The Circulatory System\n")
    assert "I30-I5A" in output("show", "9", "--system", "icd10cm")
    assert output("show", "i00-i99") == output("show", "9", "--system", "icd10cm")


def test_show_json():
    shown = as_json("show", "M54.5", "--date", "2020-01-05")
    assert (shown["release"], shown["billable"], shown["parent"], shown["block"]) == ("2020", True, "M54", "M50-M54")
    assert {"at": "M54", "note": "psychogenic dorsalgia (F45.41)"} in shown["inherited"]["excludes1"]


def test_search():
    lines = output("search", "heart failure", "--limit", "3").splitlines()
    assert len(lines) == 3 and any(line.startswith("I50.9") for line in lines)
    assert all(hit["billable"] for hit in as_json("search", "heart failure", "--billable"))


def test_tree():
    lines = output("tree", "I50", "--depth", "1").splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["9", "I30-I5A", "I50", "I50.1"]
    assert as_json("tree", "I50")["children"][-1]["code"] == "I50.9"


def test_map():
    assert output("map", "428.0", "--to", "icd10cm").splitlines()[1].split()[0] == "I50.9"
    rows = as_json("map", "E10.311", "--to", "icd9cm")
    assert [row["target"]["code"] for row in rows] == ["250.51", "362.01", "362.07"]
    assert "no equivalent" in output("map", "Z67.10", "--to", "icd9cm")


def test_diff(tmp_path):
    assert output("diff", "2024", "2026", "--limit", "2").startswith("icd10cm 2024 -> 2026\nadded: 739\n")
    assert "M54.5" in as_json("diff", "2021", "2022")["divided"]
    order = tmp_path / "icd10pcs_order_2026.txt"
    order.write_text(f"00001 001     0 {'Bypass':60} Bypass\n00002 0016070 1 {'Bypass':60} Bypass of it\n")
    assert output("diff", str(order), "2024", "--system", "icd10pcs", "--limit", "1").startswith(
        "icd10pcs 2026 -> 2024"
    )
    with pytest.raises(NosologyError, match="is an order file of icd10pcs; give --system icd10pcs"):
        output("diff", str(order), "2026")


def test_follow():
    assert "in 2026 it is R51.0, R51.9" in output("follow", "R51")
    assert as_json("follow", "M54.50")["was"] == ["M54.5"]


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["show", "I50.99"], "icd10cm 2026 has no code I50.99; did you mean I50.9"),
        (["show", "R51.9", "--release", "2019"], "icd10cm 2019 has no code R51.9; there it is R51"),
        (["show", "U07.1", "--release", "2019"], "icd10cm 2019 has no code U07.1; there it is B97.29"),
        (["show", "W44.A0XA", "--release", "2019"], "no code W44.A0XA; it is absent 2019-2023; billable 2024-2026"),
        (["show", "nonsense"], "not a code of"),
        (["show", "I10", "--release", "1999"], "release of icd10cm must be one of 2019"),
        (["show", "I10", "--release", "2019", "--date", "2019-01-01"], "exclude each other"),
        (["show", "I10", "--system", "icd11"], "system must be one of"),
        (["show", "I10", "--date", ""], "--date must not be empty"),
        (["search", "xyzzy"], "no code has any of these words"),
        (["map", "428", "--to", "icd10cm"], "did you mean 428.0"),
        (["map", "39.95", "--from", "icd9proc", "--to", "icd10pcs"], "no built-in mapping from icd9proc to icd10pcs"),
        (["diff", "2024", "absent.txt"], "no such file: absent.txt"),
        (["diff", "2024", "2025", "--json", "--limit", "3"], "--limit has no effect with --json"),
        (["follow", "Q99.99"], "no release of icd10cm has Q99.99"),
    ],
)
def test_invalid_input_is_one_sentence(words, sentence):
    with pytest.raises(NosologyError) as error:
        RUN.invoke(app, words, catch_exceptions=False)
    assert sentence in str(error.value) and "\n" not in str(error.value)
