import base64
import json

import pytest

from nosology.core import DataError
from nosology.corpora.notes_file import read_notes
from nosology.corpora.plain_text import not_text_reason
from nosology.corpora.text_files import note_text
from nosology.corpora.validation import RecordValidator

NOTE = "Admitted with pneumonia and heart failure.\nHistory of type 2 diabetes; glucose 250 mg/dL.\n"
NO_TEXT = {
    "RTF": "{\\rtf1\\ansi " + NOTE + "}",
    "escaped RTF": "{\\\\rtf1\\\\ansi " + NOTE + "}",
    "RTF after a heading": "Letter\n{\\rtf1\\ansi " + NOTE + "}",
    "HTML": f"<!DOCTYPE html><html><body><p>{NOTE}</p></body></html>",
    "HTML fragment": f"<p>{NOTE}</p>",
    "many tags": "Plan:<br/><table><tr><td>Pneumonia</td></tr></table><br/>",
    "escaped HTML": "Plan: &lt;p&gt;Pneumonia&lt;/p&gt;&lt;br&gt;&lt;br/&gt;",
    "XML": f'<ClinicalDocument xmlns="urn:hl7-org:v3"><text>{NOTE}</text></ClinicalDocument>',
    "base64": base64.b64encode(NOTE.encode()).decode(),
    "short base64": base64.b64encode(b"Pneumonia").decode(),
    "base64 for addresses": base64.urlsafe_b64encode(b"Pneumonia?>?>").decode(),
    "base64 of binary data": base64.encodebytes(bytes(range(256))).decode(),
    "hexadecimal digits": NOTE.encode().hex(),
    "EBCDIC": NOTE.encode("cp037").decode("cp1252", "replace"),
    "EBCDIC in capitals": NOTE.upper().encode("cp500").decode("latin-1"),
    "EBCDIC of one word": "pneumonia".encode("cp037").decode("latin-1"),
    "Windows-1251": "Пациент с пневмонией".encode("cp1251").decode("cp1252"),
    "UTF-16": NOTE.encode("utf-16-le").decode("latin-1"),
    "PDF": "%PDF-1.7 ...",
}
TEXT = {
    "less than": "Warfarin <5 mg; INR <2 and >1; pain <b>",
    "two tags": "Give <b>5 mg</b> daily",
    "bold headings": "".join(f"<b>{name}</b>\n{NOTE * 3}" for name in ("HPI", "PMH", "Plan")),
    "replaced names": "<NAME> was seen by <NAME> on <DATE> in <LOCATION>",
    "numbers": "140 4.2 101 25 12 0.9\n139 4.0 99 26 11 0.8",
    "table": "+------+------+\n| Na   | 140  |\n+------+------+",
    "ruled lines": f"{'_' * 90}\nDiagnosis{'_' * 90}\n{'=-' * 60}",
    "no spaces": "HTN,DM2,CHF,COPD,CKD3,AFIB,GERD,OSA,BPH,HLD,CAD,PVD,CVA,TIA,MI,PE,DVT",
    "bullets": "• a\n• b\n• c\n• d\n• e",
    "Spanish": "Niña de 3 años: fiebre (39 °C), tos – “perruna” – y disnea; ¿laringitis?",
    "Chinese": "患者因肺炎入院",
    "Russian": "Пациент с пневмонией",
    "one word": "Hypertension",
    "brackets": "[x] pneumonia {left}",
    "empty": "",
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_is_not_text_is_refused_in_every_row_and_file(tmp_path, name):
    content = NO_TEXT[name]
    (tmp_path / "notes.jsonl").write_text(
        "\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate([NOTE, content]))
    )
    with pytest.raises(DataError, match=r"notes\.jsonl row 2: the note is .*, not plain text") as caught:
        list(read_notes(tmp_path / "notes.jsonl"))
    with pytest.raises(DataError, match=r"^note\.txt is .*text"):
        note_text(content.encode(), "note.txt")
    assert "neumonia" not in str(caught.value)
    validator = RecordValidator()
    assert [note.id for note in read_notes(tmp_path / "notes.jsonl", validator)] == ["0"]
    assert validator.issues["not_text"] == {"count": 1, "first": ["notes.jsonl row 2"]}


@pytest.mark.parametrize("name", TEXT)
def test_unusual_notes_are_text(name):
    assert not_text_reason(TEXT[name]) is None
    assert note_text(TEXT[name].encode(), "note.txt") == TEXT[name]


@pytest.mark.parametrize(
    "content", ['{"id": 1, "text": "x"}', '[\n {"id": 1}]', "ID;Text\n1;x", "id,patient,text\n1,p,x\n"]
)
def test_a_notes_file_is_not_read_as_one_note(content):
    with pytest.raises(DataError, match=r"^standard input is a notes file, .* must end in \.jsonl or \.csv"):
        note_text(content.encode(), "standard input")


def test_ebcdic_files_are_refused():
    with pytest.raises(DataError, match="EBCDIC"):
        note_text(NOTE.replace("\n", " ").encode("cp037"), "note.txt")
