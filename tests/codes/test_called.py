from nosology.codes.lookup import called
from nosology.core import Code


def test_a_billable_code_is_called_by_its_description():
    assert called(Code("icd9cm", "786.2")) == "Cough" and "Pneumonia" in called(Code("icd10cm", "J18.9"))


def test_a_line_that_was_divided_later_is_called_as_what_is_below_it():
    assert called(Code("icd9cm", "780.6")).startswith("Fever, unspecified; ")


def test_a_code_that_no_table_has():
    assert isinstance(called(Code("icd9cm", "999.999")), str)
