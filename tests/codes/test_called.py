from nosology.codes.lookup import label_description
from nosology.core import Code


def test_a_billable_code_is_called_by_its_description():
    assert label_description(
        Code("icd9cm", "786.2"), expand_headers=True
    ) == "Cough" and "Pneumonia" in label_description(Code("icd10cm", "J18.9"), expand_headers=True)


def test_a_line_that_was_divided_later_is_called_as_what_is_below_it():
    assert label_description(Code("icd9cm", "780.6"), expand_headers=True).startswith("Fever, unspecified; ")


def test_a_code_that_no_table_has():
    assert isinstance(label_description(Code("icd9cm", "999.999"), expand_headers=True), str)
