import re

from nosology.codes import table
from nosology.codes.related_codes import family_history, laterality_variants, personal_history


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
