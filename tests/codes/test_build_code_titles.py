"""tools/build_code_titles.py, on files of a few codes."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "build_code_titles.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("build_code_titles", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_of_a_hierarchy(tool):
    leaf = {"id": "T07.XXXA", "description": "Unspecified multiple injuries initial encounter"}
    category = {"id": "T07", "description": "Unspecified multiple injuries", "children": [leaf]}
    block = {"id": "Injuries involving multiple body regions (T07)", "children": [category]}
    tree = {"children": [{"id": "Injury (S00-T88)", "children": [block]}]}
    assert list(tool.icd10cm_lines(tree)) == [
        ("1", "Injury (S00-T88)", False),
        ("T07-T07", "Injuries involving multiple body regions (T07)", False),
        ("T07", "Unspecified multiple injuries", False),
        ("T07.XXXA", "Unspecified multiple injuries, initial encounter", True),
    ]


def test_releases_has_only_differences_from_the_newest_release(tool, tmp_path):
    fever = {"id": "R50.9", "description": "Fever, unspecified"}
    fevers = {"id": "R50", "description": "Fever of other and unknown origin", "children": [fever]}
    codes = [fevers, {"id": "R51", "description": "Headache"}]
    block = {"id": "General symptoms and signs (R50-R69)", "children": codes}
    tree = {"tree": {"children": [{"id": "Symptoms (R00-R99)", "children": [block]}]}}
    (tmp_path / "icd-10-2019-hierarchy.json").write_text(json.dumps(tree))
    changes = tool.releases(tmp_path)
    assert changes["releases"] == ["2019"]
    assert changes["changed"]["R51"] == [1, 1]  # billable then, a header now
    assert changes["changed"]["R51.9"] == [0, 0]
    assert "R50.9" not in changes["changed"] and "R50.9" not in changes["wordings"]


def test_icd9_categories_without_a_block(tool, tmp_path):
    codes = [{"id": "2800", "description": "x"}, {"id": "2801", "description": "y"}]
    anemia = {"id": "Iron deficiency anemias", "children": codes}
    hiv = {"id": "HIV", "children": [{"id": "042", "description": "HIV disease"}]}
    tree = {"tree": {"children": [{"id": "Blood", "children": [anemia]}, {"id": "Infections", "children": [hiv]}]}}
    (tmp_path / "icd-9-hierarchy.json").write_text(json.dumps(tree))
    assert tool.icd9cm_titles(tmp_path) == {
        "lines": {"280-280": "Blood", "042-042": "HIV"},
        "parents": {"280-280": None, "042-042": "042-042"},
        "categories": {"280-280": {"280": "Iron deficiency anemias"}, "042-042": {"042": "HIV disease"}},
    }
