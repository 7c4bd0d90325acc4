from dataclasses import dataclass

from nosology.core import Code, EvidenceSpan, Note, Suggestion


def test_repr_never_shows_text():
    note = Note(id="1", text="John has gout", codes=(Code("icd10cm", "M10.9"),), extra={"summary": "gout"})
    assert "gout" not in repr(note)
    assert "M10.9" in repr(note)


def test_json_has_the_fields_of_a_subclass():
    @dataclass(frozen=True, slots=True)
    class Marked(EvidenceSpan):
        by: str = "ann"

    @dataclass(frozen=True, slots=True)
    class Uncertain(Suggestion):
        pass

    value = Uncertain("icd10cm", "M10.9", "Gout", 0.5, True, (Marked(0, 4, "gout", 1.0),)).to_json()
    assert value == {
        "system": "icd10cm",
        "code": "M10.9",
        "description": "Gout",
        "probability": 0.5,
        "accepted": True,
        "evidence": [{"start": 0, "end": 4, "text": "gout", "score": 1.0, "by": "ann"}],
    }
