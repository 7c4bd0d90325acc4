from xml.etree import ElementTree

import pytest

from nosology.codes.alphabetic_index import index_terms, read_index
from nosology.codes.index_tree import read_index_tree
from nosology.core import DataError

INDEX = """<ICD10CM.index><letter><title>F</title><mainTerm><title>Failure, failed</title>
<term level="1"><title>with edema</title><code>I50.2</code></term>
<term level="1"><title>heart (acute) (sudden) NEC</title><code>I50.9</code>
<term level="2"><title>wobbling</title><code>I50.1</code></term>
<term level="2"><title>steady</title><see>Failed, heart, wobbling</see></term></term>
<term level="1"><title>kidney without edema</title><code>N19</code></term></mainTerm></letter></ICD10CM.index>"""


def test_terms_of_lines_and_references():
    terms = list(index_terms(read_index_tree(ElementTree.fromstring(INDEX), "test")))
    assert {(" ".join(term.text.split()), term.code) for term in terms} == {
        ("failure heart", "I50.9"),
        ("failed heart", "I50.9"),
        ("failure heart wobbling", "I50.1"),
        ("failed heart wobbling", "I50.1"),
        ("failure heart steady", "I50.1"),
        ("failed heart steady", "I50.1"),
    }


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"absent\.xml"):
        read_index(tmp_path / "absent.xml")
