from nosology.core import Code, Note


def test_repr_never_shows_text():
    note = Note(id="1", text="John has gout", codes=(Code("icd10cm", "M10.9"),), extra={"summary": "gout"})
    assert "gout" not in repr(note)
    assert "M10.9" in repr(note)
