import pytest

from nosology.codes.alphabetic_index import add_index, index_terms, read_index, user_index_terms
from nosology.core import Code, DataError

INDEX = """<?xml version="1.0"?>
<ICD10CM.index><letter><title>F</title>
  <mainTerm><title>Failure, failed</title>
    <term level="1"><title>heart <nemod>(acute) (sudden)</nemod></title><code>I50.9</code>
      <term level="2"><title>with edema</title><code>I50.-</code><manif>H36</manif></term></term>
    <term level="1"><title>renal</title><see>Failure, kidney</see></term>
  </mainTerm>
  <mainTerm><title>Febris</title><seeAlso>Fever</seeAlso><code>R50.9</code></mainTerm>
</letter></ICD10CM.index>"""

SMALL_INDEX = """<?xml version="1.0"?><ICD10CM.index><letter><title>F</title><mainTerm><title>Failure, failed</title>
<term level="1"><title>heart (acute) (sudden)</title><code>I50.9</code>
<term level="2"><title>with wobble</title><code>I50.1</code></term></term></mainTerm></letter></ICD10CM.index>"""


def test_read_index(tmp_path):
    path = tmp_path / "index.xml"
    path.write_text(INDEX)
    terms = {term.path: term for term in read_index(path)}
    heart = ("Failure, failed", "heart (acute) (sudden)")
    assert terms[heart].codes == (Code("icd10cm", "I50.9"),)
    assert terms[(*heart, "with edema")].codes == (Code("icd10cm", "I50"), Code("icd10cm", "H36"))
    assert terms["Failure, failed", "renal"].see == "Failure, kidney"
    assert terms[("Febris",)].see_also == "Fever"
    path.write_text("<ICD10CM.tabular/>")
    with pytest.raises(DataError, match="not an index"):
        list(read_index(path))


@pytest.mark.parametrize("ending", [".xml", ".XML", ".txt", ""])
def test_add_index_adds_terms(tmp_path, monkeypatch, ending):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"icd10cm_index_2026{ending}"
    path.write_text(SMALL_INDEX)
    copied, count = add_index(path)
    assert copied.is_file() and count == 4
    assert {(term.text, term.code) for term in user_index_terms()} == {
        ("Failure heart", "I50.9"),
        ("failed heart", "I50.9"),
        ("Failure heart wobble", "I50.1"),
        ("failed heart wobble", "I50.1"),
    }


def test_add_index_rejects_other_files(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "other.xml"
    path.write_text("<a/>")
    with pytest.raises(DataError, match="not an index"):
        add_index(path)
    assert list(user_index_terms()) == []
    with pytest.raises(DataError):
        list(index_terms(tmp_path / "absent.xml"))
