import re
import zlib

import pytest

from nosology.codes import index_tree, table
from nosology.codes.index_addenda import Change, apply_addenda, count_changes, parse_line, read_addenda
from nosology.codes.index_tree import IndexRow, IndexTree
from nosology.core import DataError

LINES = [
    ("No Change", "A"),
    ("No Change", "Abscess (connective tissue) (embolic) L02.91"),
    ("Revise from", "- back (any part, except buttock) L02.212"),
    ("Revise to", "- back (any part, except buttock and flank) L02.219"),
    ("Add", "- flank L02.217"),
    ("Add", "- - deep (see also Abscess, back) L02.218"),
    ("Delete", "- toe L02.61-"),
    ("Delete", "- nowhere L02.99"),
    ("Add", "Abulia - see Apathy"),
]
TREE = IndexTree.from_rows(
    "2026",
    "test",
    [
        IndexRow(0, "Abscess", "(connective tissue) (embolic)", "L02.91"),
        IndexRow(1, "with gangrene", "", "I96"),
        IndexRow(1, "back", "(any part, except buttock)", "L02.212"),
        IndexRow(1, "toe", "", "L02.61"),
        IndexRow(0, "Acne", "", "L70.9"),
    ],
)


def pdf(lines, compressed=True) -> bytes:
    """A PDF as NCHS publishes it: an action at the left margin, the line of the index next to it."""
    shown, y = "BT /F1 18 Tf 1 0 0 1 109 729 Tm (ICD-10-CM INDEX to DISEASES and INJURIES)Tj ET\n", 700
    for action, text in lines:
        escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        first, rest = escaped[:20], escaped[20:]
        shown += f"BT 1 0 0 1 36 {y} Tm ({action})Tj 54 0 Td [({first}) -20 ({rest})]TJ ET\n"
        y -= 12
    stream = shown.encode("cp1252")
    if compressed:
        stream = zlib.compress(stream)
    filters = b"/Filter /FlateDecode " if compressed else b""
    return (
        b"%PDF-1.7\n1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n"
        b"2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj\n"
        b"3 0 obj <</Type /Page /Parent 2 0 R /Contents 4 0 R>> endobj\n"
        b"4 0 obj <<" + filters + b"/Length %d>> stream\n" % len(stream) + stream + b"\nendstream endobj\n%%EOF"
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_changes_of_a_pdf_are_applied(tmp_path, compressed):
    path = tmp_path / "addenda.pdf"
    path.write_bytes(pdf(LINES, compressed))
    changes = read_addenda(path)
    assert [change.action for change in changes] == [action for action, _ in LINES[1:]]
    tree, failed = apply_addenda(TREE, changes, "2027", "test")
    assert [(row.level, row.title, row.code) for row in tree.rows()] == [
        (0, "Abscess", "L02.91"),
        (1, "with gangrene", "I96"),
        (1, "back", "L02.219"),
        (1, "flank", "L02.217"),
        (2, "deep", "L02.218"),
        (0, "Abulia", ""),
        (0, "Acne", "L70.9"),
    ]
    assert tree.find("Abulia").see == "Apathy" and tree.find("Abscess", "flank", "deep").see_also == "Abscess, back"
    assert failed == [Change("Delete", IndexRow(1, "nowhere", "", "L02.99"))]
    assert (count_changes(changes), count_changes(failed)) == (6, 1)


def test_lines():
    assert parse_line("- - lung (acute) J18.9 [B96.0]") == IndexRow(2, "lung", "(acute)", "J18.9", "B96.0")
    assert parse_line("Abnormal, abnormality - see also Anomaly") == IndexRow(
        0, "Abnormal, abnormality", see_also="Anomaly"
    )
    assert parse_line("- bleb associated H59.4 - see also Bleb") == IndexRow(
        1, "bleb associated", code="H59.4", see_also="Bleb"
    )
    assert parse_line("- - SCN2A-related QA0.0101") == IndexRow(2, "SCN2A-related", code="QA0.0101")
    assert parse_line("- angiomatousD18.00") == IndexRow(1, "angiomatous", code="D18.00")
    assert parse_line("- knee M97.1--") == IndexRow(1, "knee", code="M97.1")
    assert parse_line("- MAC") == IndexRow(1, "MAC")


def test_no_title_of_the_official_index_ends_with_its_code():
    codes = table("icd10cm")
    last = (re.search(r"[A-Z][A-Z0-9]{2}\.\w+$", line.title) for line in index_tree() if not line.code)
    assert [match[0] for match in last if match and match[0] in codes] == []
    assert {line.code for line in index_tree() if line.code.startswith("QA0")} >= {"QA0.0101", "QA0.8"}


@pytest.mark.parametrize(
    "content", [b"", b"%PDF-1.7", b"%PDF-1.7 1 0 obj <</Type/Catalog/Pages 1 0 R>> endobj", b"text"]
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "x.pdf"
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_addenda(path)
