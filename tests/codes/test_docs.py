import doctest
from pathlib import Path


def test_the_examples_of_the_page_give_what_it_says():
    page = Path(__file__).parents[2] / "docs" / "codes.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= 10 and result.failed == 0
