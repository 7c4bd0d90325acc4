import pytest

from nosology.codes import drug_codes, neoplasm_codes


@pytest.mark.parametrize(
    ("site", "behavior", "code"),
    [
        ("lung", "malignant_primary", "C34.9"),
        ("lower lobe of left lung", "malignant_primary", "C34.3"),
        ("upper-outer quadrant of the right breast", "malignant_primary", "C50.4"),
        ("bone", "malignant_secondary", "C79.51"),
        ("axillary lymph nodes", "malignant_secondary", "C77.3"),
        ("sigmoid colon", "benign", "D12.5"),
        ("colon", "in_situ", "D01.0"),
        ("Uterus", "malignant_primary", "C55"),
        ("skin of nose", "malignant_primary", "C44.301"),
        ("bladder", "uncertain", "D41.4"),
        ("brain", "unspecified", "D49.6"),
    ],
)
def test_neoplasm_codes(site, behavior, code):
    assert getattr(neoplasm_codes(site), behavior) == code


@pytest.mark.parametrize("site", ["", "left", "nowhere", "lung wobble"])
def test_unknown_sites(site):
    assert neoplasm_codes(site) is None


def test_drug_codes():
    assert drug_codes("warfarin").adverse_effect == "T45.515"
    assert drug_codes("Opioids").poisoning_accidental == "T40.2X1"
    assert drug_codes("insulin").underdosing == "T38.3X6"
    assert drug_codes("ethyl alcohol") == drug_codes("alcohol ethyl")
    assert drug_codes("heroin").adverse_effect == ""
    assert drug_codes("no such drug") is None and drug_codes("") is None
