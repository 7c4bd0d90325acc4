import pytest

from nosology.core import Code, DataError
from nosology.corpora.cmc2007 import read_cmc2007
from nosology.corpora.validation import RecordValidator

TRAIN = """<?xml version="1.0" encoding="ISO-8859-1"?>
<docs>
  <doc id="97634811" type="RADIOLOGY_REPORT">
    <codes>
      <code origin="CMC_MAJORITY" type="ICD-9-CM">786.2</code>
      <code origin="COMPANY3" type="ICD-9-CM">786.2</code>
      <code origin="COMPANY1" type="ICD-9-CM">518.0</code>
      <code origin="CMC_MAJORITY" type="ICD-9-CM">486</code>
    </codes>
    <texts>
      <text origin="CCHMC_RADIOLOGY" type="IMPRESSION">Señal &amp; normal.</text>
      <text origin="CCHMC_RADIOLOGY" type="CLINICAL_HISTORY">Eleven year old with cough. </text>
    </texts>
  </doc>
</docs>
"""
TEST = """<docs><doc id="99" type="RADIOLOGY_REPORT">
<texts><text type="CLINICAL_HISTORY">Fever.</text><text type="IMPRESSION"/></texts></doc></docs>"""


def test_history_then_impression_with_the_majority_codes(tmp_path):
    (tmp_path / "train.xml").write_bytes(TRAIN.encode("latin-1"))
    (tmp_path / "test.xml").write_text(TEST)
    train, test = read_cmc2007([tmp_path / "train.xml", tmp_path / "test.xml"], RecordValidator())
    assert train.id == "97634811"
    assert train.text == "History: Eleven year old with cough.\nImpression: Señal & normal."
    assert train.codes == (Code("icd9cm", "786.2"), Code("icd9cm", "486"))
    assert (test.id, test.text, test.codes) == ("99", "History: Fever.", ())
    assert (train.split, test.split) == ("train", "test")
    (tmp_path / "test.xml").rename(tmp_path / "reports.xml")
    assert next(read_cmc2007([tmp_path / "reports.xml"], RecordValidator())).split is None
    assert {note.id for note in read_cmc2007([tmp_path], RecordValidator())} == {"97634811", "99"}


@pytest.mark.parametrize(
    ("name", "split"),
    [("2007ChallengeTestDataCodes.xml", "test"), ("cmc_training.xml", "train"), ("latest.xml", None)],
)
def test_a_file_name_with_train_or_test_gives_the_split(tmp_path, name, split):
    (tmp_path / name).write_text(TEST)
    (note,) = read_cmc2007([tmp_path], RecordValidator())
    assert note.split == split


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<!DOCTYPE docs [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><docs><doc id="1">&b;</doc></docs>', "is refused"),
        ('<!DOCTYPE docs SYSTEM "file:///etc/passwd"><docs/>', "is refused"),
        ("<docs><doc>", "line 1: no element found"),
        ("<docs></docs>", "has no report"),
        ("<docs><doc><texts/></doc></docs>", "a.xml row 1: a doc has no id"),
        ("no xml", "not well-formed"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_invalid_files_raise_data_error(tmp_path, content, message, encoding):
    (tmp_path / "a.xml").write_bytes(content.encode(encoding))
    with pytest.raises(DataError, match=message):
        list(read_cmc2007([tmp_path / "a.xml"], RecordValidator()))


@pytest.mark.parametrize("encoding", ["no-such", "shift_jis"])
def test_unknown_encoding_is_an_error(tmp_path, encoding):
    (tmp_path / "a.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?>{TEST}')
    with pytest.raises(DataError, match="in an unknown encoding"):
        list(read_cmc2007([tmp_path / "a.xml"], RecordValidator()))


def test_markup_inside_a_text_keeps_its_words(tmp_path):
    (tmp_path / "a.xml").write_text(TEST.replace("Fever.", "Fever <b>and</b> cough."))
    assert next(read_cmc2007([tmp_path / "a.xml"], RecordValidator())).text == "History: Fever and cough."


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.xml"):
        list(read_cmc2007([tmp_path / "none.xml"], RecordValidator()))
    with pytest.raises(DataError, match="has no XML file"):
        list(read_cmc2007([tmp_path], RecordValidator()))
