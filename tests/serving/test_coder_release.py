from nosology.core import Code
from nosology.serving.coder import release_translator


def test_codes_of_systems_without_the_release_do_not_change():
    translate = release_translator("2019")
    assert translate(Code("icd9cm", "428.0")) == Code("icd9cm", "428.0")


def test_new_codes_become_their_predecessors_and_unknown_ones_none():
    translate = release_translator("2019")
    assert translate(Code("icd10cm", "R51.9")) == Code("icd10cm", "R51")
    assert translate(Code("icd10cm", "M80.08X")) is None
