import doctest
from pathlib import Path


def test_examples_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "codes.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= 10 and result.failed == 0
