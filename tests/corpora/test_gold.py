import json

import pytest

from nosology.core import Code, DataError, Evidence
from nosology.corpora.gold import Gold
from nosology.corpora.intake import Intake


def line(note_id, start=0):
    return {
        "note_id": note_id,
        "site": "north",
        "evidence": [{"system": "icd10cm", "code": "I10", "start": start, "end": 4, "kind": "named"}],
    }


def test_lines_are_found_in_any_order_and_those_in_order_are_not_held(tmp_path):
    (tmp_path / "gold").mkdir()
    records = [line("a"), line("b", start=9), line("c", start=1)]
    (tmp_path / "gold" / "evidence.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    intake = Intake()
    gold = Gold([tmp_path], intake)
    assert gold.of("a", "word") == ("north", (Evidence(Code("icd10cm", "I10"), 0, 4, {"kind": "named"}),))
    assert gold._ahead == {}
    assert gold.of("c", "word")[1][0].start == 1
    assert gold.of("b", "word") == ("north", ())
    assert gold.of("d", "word") == (None, ())
    assert intake.troubles == {"bad_evidence": {"count": 1, "first": ["evidence.jsonl row 2"]}}


def test_without_a_file_nothing_is_known(tmp_path):
    assert Gold([tmp_path], Intake()).of("a", "word") == (None, ())


def test_a_line_of_another_kind_is_refused(tmp_path):
    (tmp_path / "evidence.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"evidence\.jsonl row 1: expected note_id as text"):
        Gold([tmp_path], Intake()).of("a", "word")
