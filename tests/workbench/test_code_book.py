"""Pages of the code book."""

import pytest

from nosology.workbench.review import NotFound
from nosology.workbench.views import code_book_page


def test_the_code_book_has_the_code_set_of_the_day():
    old, new = code_book_page("icd10cm", "N18.3", "2019-05-05"), code_book_page("icd10cm", "N18.3")
    assert (old.release, old.billable, old.children) == ("2019", True, [])
    assert not new.billable and len(new.children) == 3
    missing = code_book_page("icd10cm", "N18.30", "2019-05-05")
    assert [line.code for line in missing.instead] == ["N18.3"] and not missing.billable
    assert not [line for line in missing.siblings if line.billable]
    with pytest.raises(NotFound):
        code_book_page("icd10cm", "N18.999", "2019-05-05")
