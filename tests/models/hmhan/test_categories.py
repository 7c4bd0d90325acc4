from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.models.hmhan.code_groups import CodeCategories

LABELS = LabelSpace(
    Code(*pair)
    for pair in (
        ("icd9cm", "486"),
        ("icd9cm", "493.90"),
        ("icd9cm", "780.6"),
        ("icd10cm", "J18.9"),
        ("icd10pcs", "0DTJ4ZZ"),
        ("icd9proc", "39.95"),
        ("icd9cm", "not a code"),
    )
)


def test_chapters_of_all_code_systems():
    categories = CodeCategories.at_level(LABELS, "chapter")
    names = [categories.names[k] for k in categories.of_label]
    assert names[0] == names[1] == "icd9cm 460-519" and names[3] == "icd10cm 10"
    assert len(set(names)) == len(categories.names) == len(categories.descriptions) == 6
    assert names[6] == "icd9cm unknown"


def test_blocks_are_finer_than_chapters():
    categories = CodeCategories.at_level(LABELS, "block")
    names = [categories.names[k] for k in categories.of_label]
    assert names[:2] == ["icd9cm 480-488", "icd9cm 490-496"]
    assert "Pneumonia" in categories.descriptions[categories.of_label[0]]
