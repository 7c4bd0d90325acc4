from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import Code, Evidence, Note
from nosology.corpora.filters import assign_splits, drop_uncoded, frequent_codes, keep_codes

A, B, C = Code("icd10cm", "I10"), Code("icd10cm", "E11.9"), Code("icd10pcs", "02HV33Z")


def test_codes_and_their_evidence_go_together_and_notes_left_bare_go_too():
    notes = [
        Note("1", "x", codes=(A, B), evidence=(Evidence(A, 0, 1), Evidence(B, 0, 1))),
        Note("2", "x", codes=(B,)),
        Note("3", "x"),
    ]
    record = {}
    kept = list(keep_codes(notes, {A}.__contains__, record))
    assert [(note.id, note.codes, [item.code for item in note.evidence]) for note in kept] == [
        ("1", (A,), [A]),
        ("3", (), []),
    ]
    assert record == {"code_occurrences_left_out": 2, "notes_left_out": 1}
    assert [note.id for note in drop_uncoded(kept, record)] == ["1"]
    assert record["notes_left_out"] == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from([A, B, C]), unique=True), max_size=12), st.integers(1, 6))
def test_frequent_codes_are_counted_by_note(lists, min_count):
    notes = [Note(str(number), "x", codes=tuple(codes)) for number, codes in enumerate(lists)]
    expected = {code for code in (A, B, C) if sum(code in codes for codes in lists) >= min_count}
    assert frequent_codes(notes, min_count) == expected


def test_a_split_file_decides_by_admission_or_id():
    notes = [
        Note("a", "x", extra={"hadm_id": "1"}),
        Note("a2", "x", extra={"hadm_id": 1}),  # as JSON has it
        Note("a3", "x", extra={"hadm_id": 1.0}),  # as a Parquet column with gaps has it
        Note("b", "x", extra={"hadm_id": ["odd"]}),
        Note("c", "x", split="test", extra={"hadm_id": "9"}),
    ]
    record = {}
    assigned = list(assign_splits(notes, {"1": "dev", "b": "train", "7": "test"}, record))
    assert [(note.id, note.split) for note in assigned] == [("a", "dev"), ("a2", "dev"), ("a3", "dev"), ("b", "train")]
    assert record == {"notes_left_out": 1, "entries_without_note": 1}
