from xml.etree import ElementTree

import pytest

from nosology.codes import external_causes, index_tree
from nosology.codes.index_tree import IndexRow, IndexTree, bare_code, read_index_tree, split_title
from nosology.core import DataError

INDEX = """<ICD10CM.index><version>2027</version><letter><title>F</title>
  <mainTerm><title>Failure, failed</title>
    <term level="1"><title>heart <nemod>(acute) (sudden)</nemod> NEC</title><code>I50.9</code>
      <term level="2"><title>with edema</title><code>I50.-</code><manif>H36</manif></term></term>
    <term level="1"><title>renal</title><see>Failure, kidney</see></term>
    <term level="1"><title>kidney</title><code>N19</code></term>
  </mainTerm>
  <mainTerm><title>Febris</title><seeAlso>Fever</seeAlso><code>R50.9</code></mainTerm>
</letter></ICD10CM.index>"""


@pytest.fixture
def tree() -> IndexTree:
    return read_index_tree(ElementTree.fromstring(INDEX), "test")


def test_read_xml(tree):
    assert tree.release == "2027" and len(tree) == 6
    heart = tree.find("failed", "heart")
    assert (heart.title, heart.modifiers, heart.code) == ("heart NEC", "(acute) (sudden)", "I50.9")
    (edema,) = heart.children
    assert (edema.code, edema.manifestation) == ("I50", "H36")
    assert edema.path == ("Failure, failed", "heart NEC", "with edema") and edema.level == 2
    assert list(heart.linked()) == [("edema", edema)]
    assert [line.title for line in tree if line.level == 0] == ["Failure, failed", "Febris"]


def test_references(tree):
    assert tree.follow(tree.find("Failure", "renal").see).code == "N19"
    assert tree.follow("Fever") is None and tree.follow("condition") is None
    assert tree.find("nothing") is None and tree.find() is None


def test_json_round_trip(tree):
    again = IndexTree.from_json(tree.to_json())
    assert list(again.rows()) == list(tree.rows()) and again.release == "2027"


def test_a_skipped_level_is_refused():
    with pytest.raises(DataError, match="one level below"):
        IndexTree.from_rows("", "", [IndexRow(0, "a"), IndexRow(2, "b")])
    with pytest.raises(DataError, match="not an index"):
        read_index_tree(ElementTree.fromstring("<ICD10CM.tabular/>"), "x")


def test_titles_and_codes():
    assert split_title("lethal (midline (faciale)) granuloma") == ("lethal granuloma", "(midline (faciale))")
    assert split_title("Legg (-Calvé)-Perthes disease") == ("Legg-Perthes disease", "(-Calvé)")
    assert [bare_code(text) for text in ("I50.-", "C90.0-", "B20", "--", "", None)] == [
        "I50",
        "C90.0",
        "B20",
        "",
        "",
        "",
    ]


def test_shipped_index():
    tree = index_tree()
    assert tree.release == "2026" and "NCHS" in tree.source and len(tree) > 81_000
    linked = dict(tree.find("Diabetes").linked())
    assert linked["chronic kidney disease"].code == "E11.22" and linked["polyneuropathy"].code == "E11.42"
    assert dict(tree.find("diabetes", "type 1").linked())["gastroparesis"].code == "E10.43"
    assert tree.find("Hypertension", "heart").code == "I11.9"
    # changes of the addenda for FY2026
    assert tree.find("Sclerosis", "multiple").code == "G35.D"
    assert tree.find("Sclerosis", "multiple", "relapsing-remitting").code == "G35.A"
    assert tree.find("Abrasion", "flank").code == "S30.81A"


def test_shipped_external_causes():
    tree = external_causes()
    assert tree.find("Fall", "from", "ladder").code == "W11"
    assert tree.find("Activity", "pickleball").code == "Y93.73"
