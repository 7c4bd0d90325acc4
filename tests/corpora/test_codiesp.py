import pytest

from nosology.core import Code, ConfigError, DataError
from nosology.corpora.codiesp import read_codiesp
from nosology.corpora.validation import RecordValidator

TEXT = "Varón con hipertensión.\r\nSe realiza ecografía del riñón derecho.\n"


def span(words):
    start = TEXT.index(words)
    return f"{start} {start + len(words)}"


@pytest.fixture
def dataset(tmp_path):
    for split in ("train", "test", "background"):
        for texts, content in (("text_files", TEXT), ("text_files_en", "Man with hypertension.")):
            folder = tmp_path / "v4" / split / texts
            folder.mkdir(parents=True)
            (folder / f"S0001-{split}-1.txt").write_bytes(content.encode())
    train = tmp_path / "v4" / "train"
    (train / "trainD.tsv").write_text("S0001-train-1\ti10\nS0001-train-1\ti10\nS0001-gone-1\ti10\n")
    (train / "trainP.tsv").write_text("S0001-train-1\tbt41zzz\r\nS0001-train-1\r\n")
    pieces = f"{span('ecografía')};40 40;{span('riñón derecho')}"
    (train / "trainX.tsv").write_text(  # a part of the second row is empty, as in four rows of the corpus
        f"S0001-train-1\tDIAGNOSTICO\ti10\thipertensión\t{span('hipertensión')}\n"
        f"S0001-train-1\tPROCEDIMIENTO\tbt41zzz\tecografía riñón derecho\t{pieces}\n"
        "S0001-train-1\tDIAGNOSTICO\ti10\tx\t900 905\n"
        "S0001-train-1\tDIAGNOSTICO\ti10\tx\tnowhere\n"
        "S0001-train-1\tDIAGNOSTICO\ti10\tx\t3 3\n"
        "S0001-lost-1\tDIAGNOSTICO\ti10\tx\t1 2\n",
        encoding="utf-8",
    )
    return tmp_path


def test_spanish_with_evidence(dataset):
    validator = RecordValidator()
    train, test = read_codiesp([dataset], validator)
    assert (train.id, train.patient, train.split, train.lang) == ("S0001-train-1", "S0001-train", "train", "es")
    assert train.text == TEXT
    assert train.codes == (Code("icd10cm", "I10"), Code("icd10pcs", "BT41ZZZ"))
    one, two = train.evidence
    assert TEXT[one.start : one.end] == one.extra["text"] == "hipertensión"
    assert TEXT[two.start : two.end] == "ecografía del riñón derecho"
    assert " ".join(TEXT[start:end] for start, end in two.extra["spans"]) == two.extra["text"]
    assert (test.split, test.codes, test.evidence) == ("test", (), ())
    assert {kind: (issue["count"], issue["first"]) for kind, issue in validator.issues.items()} == {
        "repeated_code": (1, ["trainD.tsv row 2"]),
        "ragged_row": (1, ["trainP.tsv row 2"]),
        "bad_evidence": (3, ["trainX.tsv row 4", "trainX.tsv row 5", "S0001-train-1.txt row 1"]),
        "codes_without_note": (2, ["S0001-gone-1.txt", "S0001-lost-1.txt"]),
    }


def test_english_without_evidence(dataset):
    train, _ = read_codiesp([dataset / "v4"], RecordValidator(), lang="en")
    assert (train.text, train.lang, train.evidence) == ("Man with hypertension.", "en", ())
    assert len(train.codes) == 2


def test_invalid_input_raises_an_error(dataset, tmp_path):
    with pytest.raises(ConfigError, match="--lang must be one of es, en for codiesp; got 'fr'"):
        list(read_codiesp([dataset], RecordValidator(), lang="fr"))
    with pytest.raises(DataError, match="no such folder"):
        list(read_codiesp([tmp_path / "none"], RecordValidator()))
    with pytest.raises(DataError, match="found no folder train, dev or test with text_files"):
        list(read_codiesp([dataset / "v4" / "background"], RecordValidator()))
    (dataset / "v4" / "train" / "trainX.tsv").write_text("S0001-train-1\tOTRO\ti10\tx\t1 2\n")
    with pytest.raises(DataError, match=r"trainX\.tsv row 1: the second column must be DIAGNOSTICO or PROCEDIMIENTO"):
        list(read_codiesp([dataset], RecordValidator()))
